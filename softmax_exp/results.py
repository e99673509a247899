"""Results by name, for everything that reads them: report, compare, replay.

In: a sweep's folder or id, a file of records, or MLflow run ids.  Out: `Results`: records, manifest, environments, all
of it without secrets. ValueError with advice where the name leads to nothing.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmax_exp.environment import environment_hash
from softmax_exp.manifest import expanded
from softmax_exp.records import Record, read_records
from softmax_exp.redaction import redact, redact_values
from softmax_exp.sweep import Sweep
from softmax_exp.sync import find_sweep

_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Results:
    """What one name led to. `folder` is the sweep's where it is on this machine, with the raw samples."""

    name: str
    records: list[Record]
    manifest: dict[str, Any] = field(default_factory=dict)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    folder: Path | None = None

    def environment(self, record: Record) -> dict[str, Any]:
        """Host and device of a record; empty dictionaries where nothing was kept."""
        return {"host": {}, "device": {}} | self.environments.get(record.environment_hash, {})

    def job(self, record: Record) -> dict[str, Any]:
        """The manifest's entry of a record's job: overrides, case, variants, config; empty where it was not kept."""
        return self._jobs.get(record.job, {})

    @functools.cached_property
    def _jobs(self) -> dict[int, dict[str, Any]]:
        return {job["job"]: job for job in self.manifest.get("jobs", [])}

    @property
    def missing(self) -> list[tuple[int, str]]:
        """The cells that the manifest asks for and that have no record, as (job, variant)."""
        there = {record.cell for record in self.records}
        whole_jobs = {record.job for record in self.records if record.variant == "all"}
        wanted = [(job["job"], variant) for job in self.manifest.get("jobs", []) for variant in job["variants"]]
        return [cell for cell in wanted if f"{cell[0]}/{cell[1]}" not in there and cell[0] not in whole_jobs]


def find(named: str, outputs: Path, uri: str | None = None) -> Results:
    """The results of a sweep's folder or id, a `records.jsonl`, or MLflow run ids separated by commas.

    Run ids are looked up in the store at `uri`, by default the local one under `outputs` or MLFLOW_TRACKING_URI.
    """
    path = Path(named)
    if path.is_file():
        if path.name == "records.jsonl" and (path.parent / "manifest.json").is_file():
            return of_sweep(Sweep(path.parent.absolute()))
        records = [_redacted(record) for record in read_records(path)]
        return _usable(Results(named, records, environments=_environments_beside(path, records)))
    if all(_RUN_ID.fullmatch(part) for part in named.split(",")):
        return _usable(_of_runs(named.split(","), outputs, uri))
    return _usable(of_sweep(find_sweep(named, outputs)))


def of_sweep(sweep: Sweep) -> Results:
    """The results of a sweep on disk."""
    environments = {}
    for path in sorted(sweep.folder.glob("environments/*.json")):
        environments[path.stem] = redact_values(json.loads(path.read_text()))
    records = [_redacted(record) for record in sweep.records()]
    manifest = expanded(redact_values(json.loads(sweep.manifest_path.read_text())))
    return Results(sweep.sweep_id, records, manifest, environments, sweep.folder)


def _of_runs(run_ids: list[str], outputs: Path, uri: str | None) -> Results:
    from softmax_exp import tracking
    from softmax_exp.config import TrackingSettings

    store = tracking.open_store(TrackingSettings(uri=uri), outputs)
    found = [tracking.read_run(store, run_id) for run_id in run_ids]
    records = {record.sweep_id + record.cell: record for part in found for record in part["records"]}
    if len({record.sweep_id for record in records.values()}) > 1:
        raise ValueError(f"the runs {', '.join(run_ids)} are of several sweeps; name runs of one sweep")
    environments = {name: value for part in found for name, value in part["environments"].items()}
    return Results(
        ",".join(run_ids),
        [_redacted(record) for record in records.values()],
        redact_values(found[0]["manifest"]),
        redact_values(environments),
    )


def _environments_beside(path: Path, records: list[Record]) -> dict[str, dict[str, Any]]:
    """Environments in the folder of a file of records that are those of its records, by their content."""
    wanted, found = {record.environment_hash for record in records}, {}
    for other in sorted(path.parent.glob("*environment*.json")):
        try:
            environment = redact_values(json.loads(other.read_text()))
            found[environment_hash(environment)] = environment
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # a file of something else
    return {name: environment for name, environment in found.items() if name in wanted}


def _redacted(record: Record) -> Record:
    if record.message or record.traceback:
        record.message, record.traceback = redact(record.message), redact(record.traceback)
    if record.variant_args:
        record.variant_args = redact_values(record.variant_args)
    return record


def _usable(results: Results) -> Results:
    if not results.records:
        raise ValueError(f"{results.name} holds no record that can be read")
    return results
