"""What was measured, as it is kept: one JSON line a cell in `records.jsonl` of the sweep's folder.

In: results of the measuring process, as soon as a variant is done.  Out: `Record`s as lines, and read again.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from softmax_exp.cases import finite

FORMAT = 1  # raised when a field changes its meaning


class Status(StrEnum):
    """How a cell ended. A latency exists only where it PASSED."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    SKIPPED = "SKIPPED"
    UNSUPPORTED = "UNSUPPORTED"
    OOM = "OOM"
    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"
    ERROR = "ERROR"
    KILLED = "KILLED"

    @property
    def failed(self) -> bool:
        """Whether this status fails the sweep: everything except PASSED, SKIPPED and UNSUPPORTED."""
        return self not in (Status.PASSED, Status.SKIPPED, Status.UNSUPPORTED)


@dataclass
class Record:
    """One cell. Absent figures are None, never NaN or infinity; units are in the names."""

    # identity
    sweep_id: str
    job: int
    variant: str
    shape: list[int]
    n_rows: int
    n_cols: int
    dtype: str
    mode: str
    mask: str = "none"
    scale: float | None = None
    distribution: str = "normal"
    layout: str = "contiguous"
    seed: int = 0
    device: str = "auto"
    workload: str = "attention"
    batch: int | None = None
    heads: int | None = None
    seq_q: int | None = None
    seq: int | None = None
    variant_args: dict[str, Any] = field(default_factory=dict)
    config_hash: str = ""
    kernel_hash: str = ""
    environment_hash: str = ""
    placement: dict[str, Any] = field(default_factory=dict)
    """Where it ran: host, gpu_uuid, launcher, visible_devices; `refused` where the job was not to run there."""
    input_checksum: str = ""
    started_at: str = ""
    format: int = FORMAT

    # outcome
    status: Status = Status.ERROR
    message: str = ""
    traceback: str = ""

    # accuracy against the float64 reference
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    max_ulp_error: float | None = None
    max_row_sum_error: float | None = None
    nonfinite_mismatch: int | None = None
    error_over_tolerance: float | None = None
    tolerance: float | None = None
    n_rows_checked: int | None = None

    # host clock: launch cost included
    mean_latency_ms: float | None = None
    std_latency_ms: float | None = None
    median_latency_ms: float | None = None
    p05_latency_ms: float | None = None
    p95_latency_ms: float | None = None
    host_return_us: float | None = None

    # device clock
    device_ms: float | None = None
    device_ms_ci_low: float | None = None
    device_ms_ci_high: float | None = None
    device_ms_std: float | None = None
    device_ms_p05: float | None = None
    device_ms_p25: float | None = None
    device_ms_p75: float | None = None
    device_ms_p95: float | None = None
    n_samples: int | None = None
    clock: str | None = None
    cache: str | None = None
    clock_floor_us: float | None = None
    events_ms: float | None = None
    graph_ms: float | None = None
    warm_ms: float | None = None
    stop_reason: str | None = None

    # against the machine and the baseline
    least_bytes: int | None = None
    gbps: float | None = None
    limit_ms: float | None = None
    limit_gbps: float | None = None
    limit_kernel: str | None = None
    pct_of_limit: float | None = None
    pct_of_limit_ci_low: float | None = None
    pct_of_limit_ci_high: float | None = None
    baseline: str | None = None
    speedup: float | None = None
    speedup_ci_low: float | None = None
    speedup_ci_high: float | None = None
    verdict: str | None = None
    measured_again: list[str] = field(default_factory=list)
    """In a resumed sweep: what was measured beside this cell for the sake of its speed-up alone, and not recorded."""

    # what it cost
    first_call_s: float | None = None
    compile_cache_hit: bool | None = None
    peak_memory_bytes: int | None = None
    measure_s: float | None = None

    # the plan of a Triton variant: kernel, tile, num_warps, num_stages, n_regs, n_spills, shared_bytes
    plan: dict[str, Any] = field(default_factory=dict)

    # the machine while measuring: sm_clock_mhz, power_w, temperature_c, throttle_reasons, ...
    machine: dict[str, Any] = field(default_factory=dict)

    flags: list[str] = field(default_factory=list)

    @property
    def cell(self) -> str:
        """The cell's name within its sweep: `<job>/<variant>`."""
        return f"{self.job}/{self.variant}"

    @property
    def title(self) -> str:
        """The cell in words, e.g. `triton 8x12x512x512 float16 forward`."""
        words = [self.variant, "x".join(map(str, self.shape)), self.dtype, self.mode]
        words += [f"{self.mask} mask"] if self.mask != "none" else []
        return " ".join(words)

    def to_json(self) -> str:
        """One line of JSON without a newline. A NaN or infinity becomes null."""
        return json.dumps(finite(dataclasses.asdict(self)), allow_nan=False, ensure_ascii=False)

    @staticmethod
    def from_json(line: str) -> Record:
        """The record of a line. ValueError where the line is damaged or of another format."""
        try:
            fields = json.loads(line)
        except RecursionError as error:
            raise ValueError("not a record: nested too deeply") from error
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ValueError(f"not a record of format {FORMAT}: {line[:80]!r}")
        known = {name: value for name, value in fields.items() if name in _KINDS}
        for name, value in known.items():
            if not isinstance(value, _KINDS[name]) or not _is_sane(value):
                raise ValueError(f"not a whole record: {name} is {value!r:.80}")
        if not all(_HASH.fullmatch(known.get(name, "")) for name in HASHES):
            raise ValueError("not a whole record: a hash is none")  # it names a file, so it may hold no path
        try:
            record = Record(**known)
        except TypeError as error:
            raise ValueError(f"not a whole record: {error}") from error
        record.status = Status(record.status)
        return record


HASHES = ("config_hash", "kernel_hash", "environment_hash", "input_checksum")
_HASH = re.compile(r"[0-9a-f]{0,64}")
_PLAIN = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict, "Status": str}
_KINDS = {  # what a field may be in JSON, by the first word of its type
    f.name: (*([each] if isinstance(each, type) else each), *([type(None)] if "None" in str(f.type) else []))
    for f in dataclasses.fields(Record)
    if (each := _PLAIN[re.split(r"\W", str(f.type))[0]])
}


def _is_sane(value: Any) -> bool:
    """Whether all numbers in a value are of a size that something measured can have."""
    if isinstance(value, int | float):
        return -1e100 < value < 1e100
    if isinstance(value, dict | list):
        return all(map(_is_sane, value.values() if isinstance(value, dict) else value))
    return True


def read_records(path: Path) -> Iterable[Record]:
    """The whole records of a file in the order written; damaged lines are left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                yield Record.from_json(line)
            except ValueError:
                continue


def now() -> str:
    """The present moment in UTC as ISO 8601 with seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
