"""The folder of a sweep: what was asked for, what was measured, and which processes work on it.

In: the manifest of every cell that is expected, and records as they come.  Out: both, read by whoever reports, resumes
or sends the sweep; one run of it at a time, whose job processes know when it is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_exp import manifest
from softmax_exp.files import append_line, lock, write_whole
from softmax_exp.records import FORMAT, Record, read_records

LAST_JOBS_S = 15.0
_RUN_DIGITS = 16


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
            lock(file.fileno(), 0.5)  # a job process may be looking whether its own run still goes on
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
            lock(jobs.fileno(), LAST_JOBS_S)

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


@functools.lru_cache(maxsize=1)
def _manifest(path: Path, written_ns: int) -> dict[str, Any]:
    """A manifest is asked for after every few jobs, never changed, and megabytes long."""
    return manifest.expanded(json.loads(path.read_text()))
