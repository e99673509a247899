"""Sending a sweep to MLflow, as often as one likes: what is there already stays, what is missing or half is done.

In: a `Sweep` on disk and a `Store`.  Out: runs with the tags sweep_id, kind, key and digest. These tags, written in the
same transaction as the run itself, are the only book that is kept: a kill at any moment leaves no run twice.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from softmax_exp.manifest import folder_number
from softmax_exp.records import Record
from softmax_exp.redaction import redact
from softmax_exp.sweep import Sweep
from softmax_exp.tracking.curves import curve_run, curves, summary_run
from softmax_exp.tracking.runs import Run, cell_run, read_environment
from softmax_exp.tracking.store import Store, explained, settle, wait_for_lock
from softmax_exp.tracking.views import set_views

# Runs asked for at a time. A server takes 10 ms a run and more when it is busy, and a request may take no longer than
# 10 s; a database is read here, and each page costs it a sorting of all.
_SERVER_PAGE, _DATABASE_PAGE = 50, 1000
_LOCK, _LOCK_S = ".sync.lock", 60.0
_FOREIGN_STALE_S = 3600.0


def sync(sweep: Sweep, store: Store | None, records: Iterable[Record] | None = None) -> int:
    """Send the cells of a sweep, or only those of `records`, and return how many runs were written.

    A cell that was measured again replaces its run. StoreError where the store fails: call it again later.
    """
    if store is None:
        return 0
    some, records = records is not None, sweep.records() if records is None else list(records)
    if not records:
        return 0
    runs = _Runs(sweep)
    with explained(store.address), _alone(sweep) as lock:
        lock.write("synced\n")  # a sender of the same sweep is not the only one then
        if not some:
            return _reconcile(store, sweep, map(runs.of, records), "cell")
        return runs.reconcile(store, records)


class Sender:
    """Sends records as they are measured, without asking each time what the store holds of them.

    To ask costs as much as to write, and more the more runs there are; of a new sweep the store can hold nothing yet.
    Only in a resumed one it may. What went wrong on the way is put right by `finish`, which then asks once.
    """

    def __init__(self, sweep: Sweep, store: Store) -> None:
        self._sweep, self._store, self._runs = sweep, store, _Runs(sweep)
        self._is_new = not (sweep.folder / "resumed.jsonl").exists()
        self._sent: list[str] = []
        self._failed = False

    def send(self, records: list[Record]) -> int:
        """Send what was just measured and return how many runs were written. StoreError where the store fails."""
        with explained(self._store.address), _alone(self._sweep):
            if not self._is_new:
                return self._runs.reconcile(self._store, records)
            return self._write(records)

    def send_rest(self, records: list[Record]) -> int | None:
        """Send those of all a sweep's records that were not sent yet, and return how many.

        None, and nothing is sent, where the store must be asked what it holds: the sweep was resumed, somebody else
        has sent some of it, or something failed.
        """
        with explained(self._store.address), _alone(self._sweep):
            sent, cells = set(self._sent), {record.cell for record in records}
            is_known = len(sent) == len(self._sent) and sent <= cells and len(cells) == len(records)
            alone = self._is_new and not self._failed and (self._sweep.folder / _LOCK).stat().st_size == 0
            if not (alone and is_known):
                return None
            return self._write([record for record in records if record.cell not in sent])

    def _write(self, records: list[Record]) -> int:
        was_failed, self._failed = self._failed, True
        for record in records:
            _write(self._store, self._sweep, self._runs.of(record))
        self._sent += [record.cell for record in records]
        self._failed = was_failed
        return len(records)


class _Runs:
    """Makes the runs of a sweep's cells; what that needs of the sweep's folder is read once."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._manifest = sweep, sweep.manifest()
        self._jobs = {job["job"]: job for job in self._manifest["jobs"]}
        self._environments: dict[str, dict[str, Any]] = {}

    def of(self, record: Record) -> Run:
        """The run of a cell."""
        name = record.environment_hash
        if name not in self._environments:
            self._environments[name] = read_environment(self._sweep.folder, name)
        chunk = folder_number(self._manifest, record.job)
        return cell_run(record, self._jobs.get(record.job, {}) | {"chunk": chunk}, self._environments[name])

    def reconcile(self, store: Store, records: list[Record]) -> int:
        """Make the store hold the runs of a few cells; those of their chunks are found sooner than the whole sweep."""
        chunks: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            chunks[folder_number(self._manifest, record.job)].append(record)
        return sum(
            _reconcile(store, self._sweep, map(self.of, part), "cell", f" and tags.chunk = '{chunk}'")
            for chunk, part in chunks.items()
        )


def finish(sweep: Sweep, store: Store | None, attachments: Iterable[Path] = (), sender: Sender | None = None) -> int:
    """Send what is missing of a sweep with its curves, its summary (and `attachments` as its files) and the views.

    sender: what sent its records, if it was one alone.
    """
    if store is None:
        return 0
    records = sweep.records()
    written = None if sender is None else sender.send_rest(records)
    if written is None:
        written = sync(sweep, store)
    curve_runs = [curve_run(name, cells) for name, cells in curves(records).items()]
    summary = summary_run(sweep, records, list(attachments))
    with explained(store.address), _alone(sweep):
        written += _reconcile(store, sweep, curve_runs, "curve", whole=True)
        written += _reconcile(store, sweep, [summary], "summary", whole=True)
        set_views(store, sweep)
        close_stale(store)
        settle(store)
    return written


def find_runs(store: Store, condition: str) -> Iterator[Any]:
    """Every run of the experiment that meets a filter of MLflow, page by page."""
    token, size = None, _SERVER_PAGE if store.uri.startswith("http") else _DATABASE_PAGE
    while True:
        page = store.client.search_runs([store.experiment_id], condition, max_results=size, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def close_stale(store: Store) -> int:
    """End, as KILLED, runs that a process began to write and will never end; return how many."""
    with explained(store.address):
        stale = [
            run
            for run in find_runs(store, "attributes.status = 'RUNNING' and tags.writer LIKE '%'")
            if not _alive(run.data.tags["writer"])
        ]
        for run in stale:
            reason = "the process that wrote this run was killed; sync its sweep again"
            store.client.set_tag(run.info.run_id, "reason", reason)
            store.client.set_tag(run.info.run_id, "digest", "half written")  # so that no sync takes it for a whole one
            store.client.set_terminated(run.info.run_id, "KILLED")
    return len(stale)


@contextlib.contextmanager
def _alone(sweep: Sweep) -> Iterator[IO[str]]:
    """One process at a time sends a sweep, or two would both miss a run and both write it."""
    with (sweep.folder / _LOCK).open("a") as file:
        wait_for_lock(file.fileno(), _LOCK_S, f"another process has been sending {sweep.folder}")
        yield file


def _reconcile(
    store: Store, sweep: Sweep, runs: Iterable[Run], kind: str, narrower: str = "", whole: bool = False
) -> int:
    """Make the store hold exactly `runs`; runs of other keys go only where `runs` is the `whole` of its kind."""
    there: dict[str, list[tuple[str, str, str | None]]] = defaultdict(list)  # of 10,000 runs no more than this is kept
    for found in find_runs(store, f"tags.sweep_id = '{sweep.sweep_id}' and tags.kind = '{kind}'{narrower}"):
        tags = found.data.tags
        there[tags.get("key", "")].append((found.info.run_id, found.info.status, tags.get("digest")))
    written = 0
    for run in runs:
        present = there.pop(run.key, [])
        good = [run_id for run_id, *state in present if state == [run.status, run.digest]]
        if not good:
            _write(store, sweep, run)
            written += 1
        for run_id in [run_id for run_id, *_ in present if run_id not in good[:1]]:
            store.client.delete_run(run_id)
    for run_id in [run_id for group in there.values() for run_id, *_ in group if whole]:
        store.client.delete_run(run_id)
    return written


def _write(store: Store, sweep: Sweep, run: Run) -> None:
    from mlflow.entities import Metric, Param

    own = {"sweep_id": sweep.sweep_id, "kind": run.kind, "key": run.key, "digest": run.digest, "writer": _writer()}
    usual = {"mlflow.source.name": "softmax_exp", "mlflow.source.type": "LOCAL", "mlflow.user": _user()}
    client = store.client
    run_id = client.create_run(
        store.experiment_id, run.started_ms, usual | run.tags | own, redact(run.name)
    ).info.run_id
    params = [Param(name, value) for name, value in run.params.items()]
    metrics = [Metric(name, value, run.started_ms, step) for name, value, step in run.metrics]
    client.log_batch(run_id, metrics[:900], params[:100])
    for start in range(100, max(len(params), len(metrics) // 9 + 1), 100):
        client.log_batch(run_id, metrics[9 * start : 9 * start + 900], params[start : start + 100])
    for path, data in run.artifacts.items():
        _upload(client, run_id, path, data)
    client.set_terminated(run_id, run.status, run.ended_ms)


def _upload(client: Any, run_id: str, path: str, data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, Path(path).name)
        file.write_bytes(data)
        client.log_artifact(run_id, str(file), str(Path(path).parent) if "/" in path else None)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user number without a name
        return str(os.getuid())


def _writer() -> str:
    return f"{socket.gethostname()} {os.getpid()} {_process_start(os.getpid())} {time.time():.0f}"


def _alive(writer: str) -> bool:
    """Whether the process of that tag still runs; on another host, whether it began within the hour."""
    try:
        host, pid, started, moment = writer.split(" ")
        if host != socket.gethostname():
            return time.time() - float(moment) < _FOREIGN_STALE_S
        return _process_start(int(pid)) == started
    except ValueError:
        return False


def _process_start(pid: int) -> str:
    """The kernel's start time of a process, which tells it from a later one with its number; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
