"""Reading results back from MLflow, where the sweep's folder is not at hand.

In: a run's id.  Out: records, manifest and environments, from the files of the sweep's summary, or, where it has none,
from the parameters, metrics and tags of its cells (figures there have five digits).
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from softmax_exp.manifest import expanded
from softmax_exp.records import Record, Status, read_records
from softmax_exp.tracking.sending import find_runs
from softmax_exp.tracking.store import Store, StoreError, explained

_FIELDS = {field.name: str(field.type) for field in dataclasses.fields(Record)}
_DEVICE = ("name", "driver", "torch", "cuda", "triton", "ptxas", "power_limit_w", "mig")


def read_run(store: Store | None, run_id: str) -> dict[str, Any]:
    """What a run stands for, as `records`, `manifest` and `environments`: one cell, or for other runs the whole sweep.

    StoreError for a run that is not there; ValueError for one that is no result of this package.
    """
    if store is None:
        raise ValueError("run ids need a store; name it by --uri")
    with explained(store.address):
        try:
            run = store.client.get_run(run_id)
        except Exception as error:
            raise StoreError(f"MLflow store {store.address}: run {run_id} is not there ({error})") from error
        tags = run.data.tags
        if "sweep_id" not in tags or tags.get("kind") not in ("cell", "curve", "summary"):
            raise ValueError(f"run {run_id} is no result of softmax_exp")
        here = dataclasses.replace(store, experiment_id=run.info.experiment_id)
        condition = f"tags.sweep_id = '{tags['sweep_id']}' and tags.kind = "
        found = _from_files(here, list(find_runs(here, condition + "'summary'")))
        if found is None:
            one_cell = f" and tags.cell = '{tags['cell']}'" if tags["kind"] == "cell" else ""
            found = _from_cells(list(find_runs(here, condition + "'cell'" + one_cell)))
    if tags["kind"] == "cell":
        found["records"] = [record for record in found["records"] if record.cell == tags["cell"]]
        cell_job = int(tags["job"])
        jobs = [job for job in found["manifest"].get("jobs", []) if job["job"] == cell_job]
        found["manifest"]["jobs"] = [job | {"variants": [r.variant for r in found["records"]]} for job in jobs]
    return found


def _from_files(store: Store, summaries: list[Any]) -> dict[str, Any] | None:
    """The files of a summary run; None where there is none or it lacks them."""
    if not summaries:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole = Path(store.client.download_artifacts(summaries[0].info.run_id, "", folder))
            manifest = expanded(json.loads((whole / "manifest.json").read_text()))
            latest = {record.cell: record for record in read_records(whole / "records.jsonl")}
            environments = {path.stem: json.loads(path.read_text()) for path in whole.glob("environments/*.json")}
        except Exception:  # artifacts may lie where this machine cannot reach; the cells are in the store itself
            return None
    return {"records": list(latest.values()), "manifest": manifest, "environments": environments}


def _from_cells(runs: list[Any]) -> dict[str, Any]:
    jobs: dict[int, dict[str, Any]] = {}
    records, environments, seen = [], {}, {}
    for run in runs:
        record = _record(run)
        records.append(record)
        tags, params = run.data.tags, run.data.params
        job = {"job": record.job, "overrides": tags.get("overrides", "").split(), "variants": []}
        job = jobs.setdefault(record.job, job | {"config": json.loads(tags.get("config", "null"))})
        job["variants"].append(record.variant)
        device = {key: _value(params[f"env.{key}"]) for key in _DEVICE if f"env.{key}" in params}
        host: dict[str, Any] = {
            key: params[f"env.{key}"] for key in ("cpu", "python", "hostname") if f"env.{key}" in params
        }
        if commit := params.get("env.git_commit"):
            host["git"] = {"package": {"commit": commit, "dirty": params.get("env.git_dirty") == "True"}}
        environments[record.environment_hash] = {"host": host, "device": device}
        seen[record.cell] = record
    manifest = {"sweep_id": records[0].sweep_id if records else "", "jobs": [jobs[number] for number in sorted(jobs)]}
    return {"records": sorted(seen.values(), key=lambda r: r.job), "manifest": manifest, "environments": environments}


def _record(run: Any) -> Record:
    """The record that a cell's run was made of, as far as MLflow holds it."""
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    fields: dict[str, Any] = {}
    for name, kind in _FIELDS.items():
        if name in metrics:
            fields[name] = int(metrics[name]) if kind.startswith("int") else metrics[name]
        elif name in params:
            fields[name] = params[name] if kind.startswith("str") else _value(params[name])
    fields |= {"sweep_id": tags["sweep_id"], "job": int(tags["job"]), "status": Status(tags["status"])}
    fields |= {"shape": [int(size) for size in params["shape"].split("x")], "message": tags.get("reason", "")}
    fields |= {"flags": tags.get("flags", "").split(), "verdict": tags.get("verdict")}
    prefix = "variant_args."
    fields["variant_args"] = {
        name.removeprefix(prefix): _value(value) for name, value in params.items() if name.startswith(prefix)
    }
    return Record(**fields)


def _value(text: str) -> Any:
    """A parameter's text as the number, truth value or list that it was."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        return text
