"""A job's way from experiment to records: the worker measures, each result is kept on disk, then MLflow hears of it.

In: an `Experiment` and the job's number.  Out: lines of `records.jsonl`, raw samples, runs in MLflow; at the end of
the sweep the table and the links.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from softmax_exp import correctness, engine, environment, report, stops, tracking, variants, worker
from softmax_exp.config import Experiment
from softmax_exp.display import Display
from softmax_exp.files import append_lines
from softmax_exp.records import Record, Status, now
from softmax_exp.redaction import redact
from softmax_exp.sweep import Sweep
from softmax_exp.table import print_table

SEND_EVERY_S = 2.0  # to MLflow; the end of the sweep sends the rest


class Session:
    """What a process keeps from job to job: the worker, the store, the display."""

    def __init__(self, experiment: Experiment, log: Path | None) -> None:
        global _worker
        self.worker, _worker = _worker or worker.Worker(), None
        if log is not None:
            self.worker.start(log)  # first, so that it imports torch while everything else is made ready
        self.display = Display(n_jobs or len(Sweep(experiment.folder).manifest()["jobs"]))
        self.tracker = tracking.Tracker(experiment.tracking, experiment.outputs, self.display.note)
        self.host = environment.describe_host()
        self.device: dict[str, Any] = {}
        self._unsent: list[Record] = []
        self._sent_at = 0.0

    def send(self, sweep: Sweep, records: list[Record]) -> None:
        """Let MLflow hear of a case's records, or of several cases' at once where they are quick."""
        self._unsent += records
        if time.monotonic() > self._sent_at + SEND_EVERY_S:
            self.tracker.sync(sweep, self._unsent)
            self._unsent, self._sent_at = [], time.monotonic()


_session: Session | None = None
_worker: worker.Worker | None = None  # started before the session, to ask it about the machine
n_jobs: int | None = None  # of this run, where the command knows; a resumed sweep runs only some


class Unkept(BaseException):
    """A result cannot be written, so there is no sense in measuring more; not an Exception: it ends the sweep."""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Where what is written belongs to the sweep: Unkept if it cannot be."""
    try:
        yield
    except OSError as error:
        raise Unkept(f"the sweep is stopped, because its results cannot be kept: {error}") from error


def environments(devices: list[str], log: Path) -> dict[str, set[str]]:
    """The environment hashes of what each device wish allows. RuntimeError where the measuring process fails."""
    global _worker
    _worker = worker.Worker()
    try:
        found = _worker.environments(devices, log)
    except worker.Lost as lost:
        _worker.stop()
        raise RuntimeError(f"the measuring process does not start: {lost}") from lost
    host = environment.describe_host()
    return {
        wish: {environment.environment_hash({"host": host, "device": facts}) for facts in found[wish] or [{}]}
        for wish in devices
    }


def run_case(experiment: Experiment) -> None:
    """Measure a job's case and keep what came out. A failing variant is a record, never an exception."""
    global _session
    sweep = Sweep(experiment.folder)
    folder = sweep.job_folder(experiment.job, experiment.chunk)
    with kept():
        folder.mkdir(parents=True, exist_ok=True)
        if _session is None:
            _session = Session(experiment, folder / "worker.log")
    session, case = _session, experiment.case
    given, (measured, again) = engine.assignment(), _to_measure(experiment)
    started_at = now()
    records: list[Record] = []
    samples: list[str] = []
    session.tracker.check(sweep)
    session.display.case(case.title)

    def hear(event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "result" and event["variant"] not in again:
            event |= {"measured_again": again, "placement": _placement(session, given, event)}
            with kept():
                append_lines(folder / "samples.jsonl", samples)  # before the first record that rests on them
                samples.clear()
                whole = environment.keep_environment(sweep.folder, {"host": session.host, "device": session.device})
                record = _record(experiment, event | {"started_at": started_at, "environment_hash": whole})
                sweep.append(record)
            records.append(record)
            if record.status.failed:
                session.display.note(redact(f"{record.status} {record.title}: {record.message}"))
        elif kind == "samples":
            samples.append(json.dumps({"job": experiment.job, **event}))
        elif kind == "phase":
            session.display.phase(event["variant"], event["phase"])
        elif kind == "progress":
            session.display.fraction(event["fraction"])
        elif kind == "waiting":
            session.display.note(event["message"])
        elif kind == "device":
            session.device = event["environment"]

    request = {
        "case": case.to_dict(),
        "variants": measured,
        "variant_args": experiment.variant_args,
        "baseline": experiment.baseline,
        "settings": asdict(experiment.measure),
        "place": {"gpu_model": experiment.placement.gpu_model, "assignment": asdict(given)},
    }
    with stops.deferred(session.worker.stop_soon):
        session.worker.measure(request, folder / "worker.log", hear)
        session.send(sweep, records)
        session.display.done(case.title, records)


def abandon() -> None:
    """End the worker and the display at once; what is recorded is on disk, and MLflow can hear of it later."""
    global _session, _worker
    session, _session = _session, None
    for each in filter(None, (_worker, session and session.worker)):
        each.stop()
    _worker = None
    if session is not None:
        session.display.stop()


def finish(sweep: Sweep, experiment: Experiment) -> None:
    """End the worker, print the table of what is on disk, send the rest to MLflow, print where to look.

    `experiment` tells where the sweep is tracked; in a parallel launcher this process has run no job of it.
    """
    global _session
    session = _session = _session or Session(experiment, None)
    records = sweep.records()
    untimed = experiment.measure.clock == "none"
    reports = _report(sweep, session if untimed else None)
    session.worker.stop()
    store = session.tracker.finish(sweep, reports)
    abandon()
    console = Console(width=None if sys.stdout.isatty() else 120)
    if untimed:
        correctness.show(sweep, console)
    else:
        print_table(records, console)
    missing = len(list(sweep.expected_cells())) - len(records)
    if missing > 0 and not any(record.variant == "all" for record in records):
        print(f"{missing} cells were not measured")
    print(f"records: {sweep.records_path}")
    for path in reports[:1]:
        print(f"report: {path}")
    if store is not None:
        try:
            for label, address in tracking.links(store, sweep):
                print(f"{label}: {address}")
        except tracking.StoreError as error:
            print(redact(f"no links: {error}"), file=sys.stderr)


def _report(sweep: Sweep, untimed: Session | None) -> list[Path]:
    """The files of the sweep's report; a report that fails is told and costs no result.

    Where nothing was timed it is the matrix of errors, for which smaller cases are tried in the session's worker.
    """
    try:
        if untimed is not None:
            return correctness.finish(sweep, untimed.worker, untimed.display.case, search=not stops.asked())
        return report.write_for(sweep)
    except Exception as error:  # whatever is wrong with it, the records are kept and MLflow must still hear of them
        print(redact(f"no report: {type(error).__name__}: {error}"), file=sys.stderr)
        return []


def _placement(session: Session, given: engine.Assignment, event: dict[str, Any]) -> dict[str, Any]:
    """The `placement` of a record."""
    where = {
        "host": session.host["hostname"],
        "gpu_uuid": session.device.get("uuid"),
        "launcher": given.launcher,
        "visible_devices": given.visible_devices,
        "refused": event.pop("refused", None),
    }
    return {name: value for name, value in where.items() if value is not None}


def _to_measure(experiment: Experiment) -> tuple[list[str], list[str]]:
    """What is measured in a job, and what of it only because a speed-up needs its baseline in the same rounds."""
    if experiment.remaining is None:
        return list(experiment.variants), []
    again = [name for name in (experiment.baseline,) if name is not None and name not in experiment.remaining]
    return [name for name in experiment.variants if name in (*experiment.remaining, *again)], again


def _record(experiment: Experiment, result: dict[str, Any]) -> Record:
    case = experiment.case
    variant = result["variant"]
    fields: dict[str, Any] = {**case.to_dict(), **case.named_sizes, **result}
    fields["message"] = redact(fields.get("message") or "")
    fields["traceback"] = redact(fields.get("traceback") or "")
    fields["status"] = Status(fields["status"])
    if not fields.get("kernel_hash") and variant != "all":
        fields["kernel_hash"] = _kernel_hash(variant)
    return Record(
        sweep_id=experiment.sweep_id,
        job=experiment.job,
        variant_args=experiment.config["variant_args"].get(variant, {}),  # as written: a value may be a secret
        config_hash=experiment.config_hash,
        **fields,
    )


@functools.cache
def _kernel_hash(variant: str) -> str:
    """For what failed before it could tell; empty where the file is gone or broken meanwhile."""
    try:
        return variants.kernel_hash(variant)
    except (OSError, ValueError, SyntaxError):
        return ""
