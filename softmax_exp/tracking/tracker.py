"""A store that may come and go while a sweep runs: it neither stops nor slows the measuring.

In: a sweep's records, job by job, and a way to tell the user.  Out: runs in the store as long as it answers; what it
missed is sent at the end of the sweep, or by `python -m softmax_exp.sync`.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmax_exp.records import Record
from softmax_exp.redaction import redact
from softmax_exp.sweep import Sweep
from softmax_exp.tracking import sending
from softmax_exp.tracking.store import Store, StoreError, open_store, probe

if TYPE_CHECKING:
    from softmax_exp.config import TrackingSettings

OPEN_S = 30.0  # a new database takes 3 s, an address without an answer 10 s
PROBE_S = 2.0  # between two jobs; nothing waits for the end of a sweep, so that is given more
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 900.0
LAST_PAUSE_S = 3.0


class Tracker:
    """Sends a sweep to its store, which is opened in a thread of its own; `note` tells a line."""

    def __init__(self, settings: TrackingSettings, outputs: Path, note: Callable[[str], None]) -> None:
        self._settings, self._outputs, self._note = settings, outputs, note
        self._store = self._open()
        self._sender: sending.Sender | None = None
        self._told = self._checked = False
        self._pause_s = self._next_try = 0.0

    def check(self, sweep: Sweep) -> None:
        """The first time, wait until the store is open or known to fail, which is told before anything is measured."""
        if self._checked:
            return
        self._checked = True
        try:
            self._store.result(timeout=OPEN_S)
        except TimeoutError:
            self._tell(sweep, f"the store has not answered for {OPEN_S:g} s")
        except (StoreError, ValueError) as error:
            self._tell(sweep, str(error))

    def sync(self, sweep: Sweep, records: list[Record]) -> None:
        """Send a job's records; where the store fails, it is left alone for a while, longer each time."""
        if self._store.done() and time.monotonic() >= self._next_try:
            error = self._use(self._send, sweep, records, PROBE_S)
            if error:
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
                self._next_try = time.monotonic() + self._pause_s
                self._tell(sweep, error)
            else:
                self._pause_s = 0.0

    def finish(self, sweep: Sweep, attachments: Iterable[Path]) -> Store | None:
        """Send everything that the store lacks, and return the store; None where it fails still, or there is none."""
        was_told, self._told = self._told, False
        error = self._finish(sweep, attachments)
        if error:
            time.sleep(LAST_PAUSE_S)  # it may be coming back just now, and nothing is kept waiting any more
            error = self._finish(sweep, attachments)
        if error:
            self._tell(sweep, error)
            return None
        if was_told:
            self._note("MLflow has every record now")
        return self._store.result()

    def _send(self, sweep: Sweep, store: Store, records: list[Record]) -> int:
        self._sender = self._sender or sending.Sender(sweep, store)
        return self._sender.send(records)

    def _send_rest(self, sweep: Sweep, store: Store, attachments: Iterable[Path]) -> int:
        return sending.finish(sweep, store, attachments, self._sender)

    def _finish(self, sweep: Sweep, attachments: Iterable[Path]) -> str:
        if self._store.done() and self._store.exception():
            self._store = self._open()
        return self._use(self._send_rest, sweep, attachments)

    def _use(self, action: Callable[..., int], sweep: Sweep, sent: Any, probe_s: float = 5.0) -> str:
        """What went wrong; empty where nothing did."""
        try:
            store = self._store.result()
            if store is not None:
                probe(store, probe_s)
                action(sweep, store, sent)
            return ""
        except (StoreError, ValueError) as error:
            return str(error) or type(error).__name__

    def _tell(self, sweep: Sweep, error: str) -> None:
        if not self._told:
            self._told = True
            self._note(redact(f"not in MLflow yet: {error}"))
            command = f"python -m softmax_exp.sync {shlex.quote(str(sweep.folder))}"
            uri = self._settings.uri
            if uri and uri != os.environ.get("MLFLOW_TRACKING_URI"):
                command += f" --uri {shlex.quote(redact(uri))}"
            self._note(f"every record is kept; send them later by: {command}")

    def _open(self) -> Future[Store | None]:
        """Open the store beside the main thread. A daemon thread, so that an interrupt does not wait for it."""
        future: Future[Store | None] = Future()

        def run() -> None:
            try:
                store = open_store(self._settings, self._outputs)
                if store is not None:
                    sending.close_stale(store)
                future.set_result(store)
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future
