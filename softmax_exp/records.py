"""What was measured, as it is kept: one JSON line a cell in `records.jsonl` of the sweep's folder.

In: results of the measuring process, as soon as a variant is done.  Out: `Record` lines that survive a kill at any
moment, and a `Sweep` to read them, with the manifest of every cell that was expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from softmax_exp import manifest
from softmax_exp.cases import finite

LAST_JOBS_S = 15.0
_RUN_DIGITS = 16
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


def append_line(path: Path, line: str) -> None:
    """Append a line so that it is there whole or not at all, also beside other processes."""
    append_lines(path, [line])


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append lines so that all are there whole or none, also beside other processes: lock, one write, fsync.

    A line that an earlier kill left unfinished is ended first, so that only it is lost.
    """
    if not lines:
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + "".join(f"{line}\n" for line in lines).encode()
        written = os.write(descriptor, data)
        if written != len(data):
            os.ftruncate(descriptor, size)
            raise OSError(f"{path}: the disk took {written} of {len(data)} bytes; is it full?")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old text or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


@dataclass(frozen=True)
class Sweep:
    """The folder of a sweep: `manifest.json`, `records.jsonl`, `jobs/<n>/` with config, log and raw samples."""

    folder: Path

    @property
    def sweep_id(self) -> str:
        """The folder's name: start time and a random part."""
        return self.folder.name

    @property
    def records_path(self) -> Path:
        """The records, one JSON line each."""
        return self.folder / "records.jsonl"

    @property
    def manifest_path(self) -> Path:
        """What was asked for."""
        return self.folder / "manifest.json"

    def job_folder(self, job: int, chunk: int = 1) -> Path:
        """Where a job, and the others of its chunk of that size, keep their config, log and raw samples."""
        return self.folder / "jobs" / str(manifest.folder_number({"chunk": chunk}, job))

    @staticmethod
    def create(folder: Path, jobs: list[dict[str, Any]], about: dict[str, Any]) -> Sweep:
        """Make the folder with a manifest of `jobs` (each: job, overrides, case, variants, config) and `about` it.

        FileExistsError if the folder is there already.
        """
        folder.mkdir(parents=True, exist_ok=False)
        sweep, head = Sweep(folder), {"format": FORMAT, "sweep_id": folder.name, **about}
        try:
            write_whole(sweep.manifest_path, manifest.to_json(head, jobs))
        except OSError:
            folder.rmdir()
            raise
        return sweep

    def manifest(self) -> dict[str, Any]:
        """What was asked for. FileNotFoundError where the folder holds no sweep."""
        return dict(_manifest(self.manifest_path, self.manifest_path.stat().st_mtime_ns))

    def expected_cells(self) -> Iterator[tuple[int, str]]:
        """Every (job, variant) that the manifest asks for."""
        for job in self.manifest()["jobs"]:
            for variant in job["variants"]:
                yield job["job"], variant

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Run this sweep, alone. BlockingIOError where another process does, OSError where it is read-only."""
        with self.manifest_path.open("r+") as file:
            _lock(file, wait_s=0.5)  # a job process may be looking whether its own run still goes on
            self.wait_for_jobs()  # of a run that was killed a moment ago
            (self.folder / "jobs").mkdir(exist_ok=True)
            yield

    def begin(self) -> str:
        """Begin a run of this sweep, which must be held: a name by which its job processes know it."""
        run = secrets.token_hex(_RUN_DIGITS // 2)
        self._write_run(run)
        return run

    def wait_for_jobs(self) -> None:
        """Return when no other process runs a job of this sweep. BlockingIOError after `LAST_JOBS_S`."""
        with contextlib.suppress(FileNotFoundError), self._run_path.open("r+") as jobs:
            _lock(jobs, wait_s=LAST_JOBS_S)

    def dismiss(self) -> None:
        """Tell the job processes, on whatever host, that they are not wanted any more."""
        self._write_run("0" * _RUN_DIGITS)

    def wants(self, run: str) -> bool:
        """Whether that run of the sweep still goes on; asked by its job processes."""
        with self.manifest_path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return self._run_path.read_text() == run
        return False

    @property
    def _run_path(self) -> Path:
        """A lock that job processes share, which holds the name of the run. No folder: NFS locks files alone."""
        return self.folder / "jobs" / "run"

    def _write_run(self, run: str) -> None:
        descriptor = os.open(self._run_path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, run.encode(), 0)  # always of one length, so that a reader never sees a part
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def joined(self, run: str) -> Iterator[bool]:
        """Run a job of this sweep in another process than its own; False where that run is over."""
        with self._run_path.open("r") as jobs:
            fcntl.flock(jobs, fcntl.LOCK_SH)
            yield self.wants(run)

    def append(self, record: Record) -> None:
        """Keep a record, whatever happens next."""
        append_line(self.records_path, record.to_json())

    def records(self) -> list[Record]:
        """Every whole record, the last of each cell, in the manifest's order of cells. Damaged lines are left out."""
        latest = {record.cell: record for record in read_records(self.records_path)}
        order = {f"{job}/{variant}": position for position, (job, variant) in enumerate(self.expected_cells())}
        return sorted(latest.values(), key=lambda record: (record.job, order.get(record.cell, 0)))


def _lock(file: IO[str], wait_s: float) -> None:
    """Lock a file that is open for writing, until it is closed. BlockingIOError where another has it all the time."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@functools.lru_cache(maxsize=1)
def _manifest(path: Path, written_ns: int) -> dict[str, Any]:
    """A manifest is asked for after every few jobs, never changed, and megabytes long."""
    return manifest.expanded(json.loads(path.read_text()))


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
