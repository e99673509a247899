"""What a run of MLflow holds, worked out without MLflow.

In: records, the sweep's manifest and environments.  Out: a `Run` for each cell, with names and values that MLflow
takes: no NaN, no forbidden letter, nothing that it would cut silently, no secret.
"""

from __future__ import annotations

import calendar
import dataclasses
import json
import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmax_exp.cases import stable_hash
from softmax_exp.records import Record, Status
from softmax_exp.redaction import redact

LAYOUT = 1  # raised when runs of an earlier version should be written anew by the next sync
# Written as 0 too, so that one can filter by their absence; any other flag is written where it was raised.
FLAGS = ("noisy", "throttled", "host_bound", "faster_than_limit", "gpu_shared")
SIZES = ("n_rows", "n_cols", "batch", "heads", "seq_q", "seq")
CASE = (*SIZES, "dtype", "mode", "mask", "scale", "distribution", "layout", "seed", "device", "workload")
HASHES = ("config_hash", "kernel_hash", "environment_hash", "input_checksum")
_NOT_METRICS = {"job", "seed", "format", "scale", "device_ms_p25", "device_ms_p75", "n_rows_checked"}
_METRICS = tuple(
    f.name
    for f in dataclasses.fields(Record)
    if f.name not in _NOT_METRICS and str(f.type).split(" ")[0] in ("int", "float", "bool")
)
_MAX_PARAM, _MAX_TAG = 6000, 8000


@dataclass(frozen=True)
class Run:
    """One MLflow run. `key` names it within its sweep; `digest` changes whenever its content does."""

    key: str
    kind: str
    name: str
    digest: str
    started_ms: int
    ended_ms: int
    status: str = "FINISHED"
    """How it ended in MLflow's words: FINISHED, FAILED or KILLED."""
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int]] = field(default_factory=list)
    """(name, finite value, step)."""
    artifacts: dict[str, bytes] = field(default_factory=dict)


def cell_run(record: Record, job: dict[str, Any], environment: dict[str, Any]) -> Run:
    """The run of one cell, of its record, the manifest's entry of its job, and the environment (both may be empty)."""
    started = milliseconds(record.started_at)
    params = {name: getattr(record, name) for name in ("variant", "shape", *CASE, "baseline", "clock", "cache")}
    params["shape"] = "x".join(map(str, record.shape))
    params |= {f"variant_args.{key}": value for key, value in flat(record.variant_args)}
    params |= {f"plan.{key}": value for key, value in flat(record.plan)}
    params |= {f"placement.{key}": value for key, value in flat(record.placement)}
    params |= {name: getattr(record, name) for name in HASHES} | environment_params(environment)
    return Run(
        key=f"cell {record.cell}",
        kind="cell",
        name=record.title,
        digest=stable_hash([LAYOUT, record.to_json()]),
        started_ms=started,
        ended_ms=started + round(1000 * ((record.first_call_s or 0.0) + (record.measure_s or 0.0))),
        status="KILLED" if record.status is Status.KILLED else "FAILED" if record.status.failed else "FINISHED",
        tags=texts(_cell_tags(record, job), _MAX_TAG),
        params=texts(params, _MAX_PARAM),
        metrics=[(name, value, 0) for name, value in _cell_metrics(record).items()],
    )


def _cell_tags(record: Record, job: dict[str, Any]) -> dict[str, Any]:
    tags = {
        "cell": record.cell,
        "job": record.job,
        "chunk": job.get("chunk", record.job),
        "status": record.status,
        "overrides": " ".join(job.get("overrides") or []),
        "flags": " ".join(record.flags),
        "verdict": record.verdict,
        # One tag, since a parameter for each key of the config would double the cost of a run.
        "config": json.dumps(job["config"]) if job.get("config") else None,
    }
    if record.status is not Status.PASSED:
        tags["reason"] = record.message
        note = f"**{record.status}**: {record.message}"
        if record.traceback:
            note += f"\n\n```\n{record.traceback[-6000:]}\n```"
        tags["mlflow.note.content"] = note
    return tags


def _cell_metrics(record: Record) -> dict[str, float]:
    metrics = {name: getattr(record, name) for name in _METRICS}
    metrics |= {f"plan.{key}": value for key, value in flat(record.plan)}
    metrics |= {f"machine.{key}": value for key, value in flat(record.machine)}
    metrics |= {f"flag.{flag}": int(flag in record.flags) for flag in (*FLAGS, *record.flags)}
    metrics["passed"] = int(record.status is Status.PASSED)
    if record.status in (Status.PASSED, Status.INCORRECT):
        # An error that is NaN or infinite is None in a record; without this flag its absence would look harmless.
        metrics["error_is_finite"] = int(record.max_abs_error is not None)
    return numbers(metrics)


def environment_params(environment: dict[str, Any]) -> dict[str, Any]:
    """What of an environment people look for first; the whole of it is an artifact of the summary."""
    host, device = environment.get("host") or {}, environment.get("device") or {}
    git = (host.get("git") or {}).get("package") or {}
    keys = ("name", "driver", "torch", "cuda", "triton", "ptxas", "power_limit_w", "mig")
    params = {f"env.{key}": device.get(key) for key in keys}
    params |= {f"env.{key}": host.get(key) for key in ("cpu", "python", "hostname")}
    return params | {"env.git_commit": git.get("commit"), "env.git_dirty": git.get("dirty")}


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The finite numbers among values, under names that MLflow takes, fractions rounded to 5 significant digits."""
    kept = {}
    for name, value in values.items():
        if isinstance(value, int | float) and math.isfinite(value):
            kept[_name(name)] = float(f"{value:.5g}") if isinstance(value, float) else float(value)
    return kept


def texts(values: dict[str, Any], limit: int) -> dict[str, str]:
    """The values that are there as text of at most `limit` characters, without secrets, under names MLflow takes."""
    there = {name: str(value).replace("\0", "") for name, value in values.items() if value is not None and value != ""}
    kept: dict[str, str] = {}
    if not there:
        return kept
    # One call for all of them, since it looks through the environment for secrets; none of them spans a blank.
    for name, text in zip(there, redact(" \0 ".join(there.values())).split(" \0 "), strict=True):
        note = f" ... (cut from {len(text)} characters; whole in records.jsonl)"
        kept[_name(name)] = text if len(text) <= limit else text[: limit - len(note)] + note
    return kept


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested dictionaries as pairs of dotted key and value; lists become JSON."""
    pairs = []
    for key, value in values.items():
        if isinstance(value, dict):
            pairs += flat(value, f"{prefix}{key}.")
        else:
            pairs.append((prefix + str(key), json.dumps(value) if isinstance(value, list | tuple) else value))
    return pairs


def milliseconds(moment: str) -> int:
    """Milliseconds since 1970 of a record's UTC time; now, where it has none."""
    try:
        return 1000 * calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return round(1000 * time.time())


def read_environment(folder: Path, name: str) -> dict[str, Any]:
    """The environment of that hash in a sweep's folder; empty where it was not kept."""
    try:
        return json.loads((folder / "environments" / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}


def _name(text: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", text, flags=re.ASCII)[:250]
