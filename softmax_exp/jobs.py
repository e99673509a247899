"""A job's way from experiment to records: the worker measures, each result is kept on disk, then MLflow hears of it.

In: an `Experiment` and the job's number.  Out: lines of `records.jsonl`, raw samples, runs in MLflow; at the end of
the sweep the table and the links.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from softmax_exp import environment, worker
from softmax_exp.config import Experiment, TrackingSettings
from softmax_exp.display import Display
from softmax_exp.records import Record, Status, Sweep, append_line, now
from softmax_exp.redaction import redact
from softmax_exp.table import print_table

if TYPE_CHECKING:
    from softmax_exp.tracking import Store


class Session:
    """What a process keeps from job to job: the worker, the open store, the display."""

    def __init__(self, experiment: Experiment, log: Path) -> None:
        self.worker = worker.Worker()
        self.worker.start(log)  # first, so that it imports torch while everything else is made ready
        self.store = _in_thread(_open_store, experiment.tracking, experiment.outputs)
        self.tracking_told = False
        sweep = Sweep(experiment.folder)
        self.display = Display(len(sweep.manifest()["jobs"]))
        self.host = environment.describe_host()
        self.device: dict[str, Any] = {}

    def tracked(self, action: str, sweep: Sweep, **arguments: Any) -> Any:
        """Do something of `tracking` with the store; a store that fails is told once and costs no result."""
        from softmax_exp import tracking

        try:
            store = self.store.result()
            return getattr(tracking, action)(sweep, store, **arguments) if store is not None else None
        except (tracking.StoreError, ValueError) as error:
            if not self.tracking_told:
                self.tracking_told = True
                self.display.note(redact(f"not in MLflow yet: {error}"))
                self.display.note(
                    f"every record is kept; send them later by: python -m softmax_exp.sync {sweep.folder}"
                )
            return None


_session: Session | None = None


def run_case(experiment: Experiment, job: int) -> None:
    """Measure a job's case and keep what came out. A failing variant is a record, never an exception."""
    global _session
    sweep = Sweep(experiment.folder)
    folder = sweep.job_folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    if _session is None:
        _session = Session(experiment, folder / "worker.log")
    session, case = _session, experiment.case
    started_at = now()
    records: list[Record] = []
    session.display.case(case.title)

    def hear(event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "result":
            whole = environment.keep_environment(sweep.folder, {"host": session.host, "device": session.device})
            record = _record(experiment, job, event | {"started_at": started_at, "environment_hash": whole})
            sweep.append(record)
            records.append(record)
            if record.status.failed:
                session.display.note(redact(f"{record.status} {record.title}: {record.message}"))
        elif kind == "samples":
            append_line(folder / "samples.jsonl", json.dumps(event))
        elif kind == "phase":
            session.display.phase(event["variant"], event["phase"])
        elif kind == "progress":
            session.display.fraction(event["fraction"])
        elif kind == "device":
            session.device = event["environment"]

    request = {
        "case": case.to_dict(),
        "variants": list(experiment.variants),
        "variant_args": experiment.variant_args,
        "baseline": experiment.baseline,
        "settings": asdict(experiment.measure),
    }
    session.worker.measure(request, folder / "worker.log", hear)
    session.tracked("sync", sweep, records=records)
    session.display.done(case.title, records)


def finish(sweep: Sweep) -> None:
    """End the worker, print the table of what is on disk, send the rest to MLflow, print where to look."""
    from softmax_exp import tracking

    global _session
    session, _session = _session, None
    records = sweep.records()
    if session is not None:
        session.worker.stop()
        session.tracked("finish", sweep)
        session.display.stop()
    console = Console(width=None if sys.stdout.isatty() else 120)
    print_table(records, console)
    missing = len(list(sweep.expected_cells())) - len(records)
    if missing > 0 and not any(record.variant == "all" for record in records):
        print(f"{missing} cells were not measured")
    print(f"records: {sweep.records_path}")
    store = session.store.result() if session is not None and not session.store.exception() else None
    if store is not None:
        try:
            for label, address in tracking.links(store, sweep):
                print(f"{label}: {address}")
        except tracking.StoreError as error:
            print(redact(f"no links: {error}"), file=sys.stderr)


def _record(experiment: Experiment, job: int, result: dict[str, Any]) -> Record:
    case = experiment.case
    variant = result["variant"]
    fields: dict[str, Any] = {**case.to_dict(), **case.named_sizes, **result}
    fields["message"] = redact(fields.get("message") or "")
    fields["traceback"] = redact(fields.get("traceback") or "")
    fields["status"] = Status(fields["status"])
    return Record(
        sweep_id=experiment.sweep_id,
        job=job,
        variant_args=experiment.config["variant_args"].get(variant, {}),  # as written: a value may be a secret
        config_hash=experiment.config_hash,
        **fields,
    )


def _open_store(settings: TrackingSettings, outputs: Path) -> Store | None:
    from softmax_exp import tracking

    return tracking.open_store(settings, outputs)


def _in_thread(function: Any, *arguments: Any) -> Future[Any]:
    """Run a function beside the main thread. A daemon thread, so that an interrupt does not wait for it."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
