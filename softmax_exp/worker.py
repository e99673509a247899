"""The owner of the measuring process: a crash, a hang or a lost GPU context costs one variant of one case.

In: a `Request` as JSON values, for a process (`worker_process.py`) that is kept from case to case.  Out: the events of
`measure`, and a `result` for whatever killed or stalled the process. Both are JSON lines over pipes of their own.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softmax_exp.engine import VISIBLE
from softmax_exp.records import Status
from softmax_exp.redaction import environment_without_secrets

STARTUP_DEADLINE_S = 180.0  # importing torch and making a CUDA context on a cold disk
GRACE_S = 5.0  # for a round to end, or for results to arrive, once the user wants it to stop
SHORT_PHASES = ("measure", "check again")
STOPPED = "stopped by the user"
NAME_BYTES = 256

Event = dict[str, Any]


class Lost(Exception):
    """The process ended or stalled; `status` says which, the text how, `result` what it told of the one it blames."""

    def __init__(self, status: Status, text: str, result: Event | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.result = result or {}


class Worker:
    """Owns one measuring process at a time: starts it when needed, replaces it when it is lost."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log = Path(os.devnull)
        self._events = b""
        self._running: mmap.mmap | None = None
        self._wake: tuple[int, int] | None = None
        self._stopping = False
        self._phase = ""
        self._visible: str | None = None

    def start(self, log: Path) -> None:
        """Start the process if there is none; call it from the main thread, whose death ends the process.

        Its stdout and stderr go to `log` until a request names another file.
        """
        if self.process is not None and self.process.poll() is None and self._visible == os.environ.get(VISIBLE):
            return
        self.stop()
        self.log, self._visible = log, os.environ.get(VISIBLE)  # an engine may give a later job another GPU
        shared = os.memfd_create("softmax_exp_running")
        os.ftruncate(shared, NAME_BYTES)
        requests_out, self._requests = os.pipe()
        self._messages, messages_in = os.pipe()
        arguments = map(str, (requests_out, messages_in, shared, os.getpid()))
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "softmax_exp.worker_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(requests_out, messages_in, shared),
                start_new_session=True,
                env=_environment(),
            )
        self._running = mmap.mmap(shared, NAME_BYTES)
        for descriptor in (shared, requests_out, messages_in):
            os.close(descriptor)
        self._events = b""

    def stop_soon(self) -> None:
        """End the running request with its round; what has no result by then is KILLED. Safe in a signal handler."""
        self._stopping = True
        if self._wake is not None:
            os.write(self._wake[1], b"!")

    def stop(self) -> None:
        """End the process and everything that it started, at once."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._requests)
        os.close(self._messages)
        self.process = None

    def measure(self, request: dict[str, Any], log: Path, tell: Callable[[Event], None]) -> None:
        """Run a request to its end, through as many processes as it takes; `tell` hears the events.

        `request` holds the fields of a `Request` as JSON values. Every variant gets exactly one `result`.
        """
        remaining = list(request["variants"])
        self._wake = os.pipe()
        try:
            self._measure(request, remaining, log, tell)
        finally:
            (wake, self._wake), self._stopping = (self._wake, None), False
            for descriptor in wake:
                os.close(descriptor)

    def _measure(self, request: dict[str, Any], remaining: list[str], log: Path, tell: Callable[[Event], None]) -> None:
        excused = tried = False
        while remaining:
            self.start(log)
            try:
                self._send(request | {"variants": remaining, "log": str(log)})
                self._listen(remaining, tell)
                return
            except Lost as lost:
                suspect = lost.result.get("variant") or self._suspect()
                self.stop()
                tell({"event": "lost", "variant": suspect, "message": str(lost)})
                if self._phase == "measure" and len(remaining) > 1 and not tried and not self._stopping:
                    tried = True  # a GPU's fault shows later, in whichever variant runs then
                    self._try_alone(request, remaining, log, tell)
                    continue
                if suspect not in remaining and lost.status is Status.CRASHED and not excused:
                    excused = True  # it died while no variant ran, so none is to blame; unless it does so again
                    continue
                blamed = [suspect] if suspect in remaining and not self._stopping else list(remaining)
                for name in blamed:
                    remaining.remove(name)
                    told = lost.result if name == suspect else {}
                    tell({"status": lost.status, "message": str(lost), **told, "event": "result", "variant": name})
            except BaseException:
                self.stop()  # what it would still say belongs to this request and must not reach the next one
                raise

    def _try_alone(
        self, request: dict[str, Any], remaining: list[str], log: Path, tell: Callable[[Event], None]
    ) -> None:
        """Run each variant without the others. One that is lost again is told and taken out; other results count not.

        The rest is timed together afterwards, so that every figure comes from rounds that held.
        """
        results: list[Event] = []

        def hear(event: Event) -> None:
            if event["event"] == "result":
                results.append(event)
            elif event["event"] != "samples":
                tell(event)

        for name in list(remaining):
            if not self._stopping:
                self._measure(request, [name], log, hear)
        for result in results:
            if result["status"] in (Status.CRASHED, Status.TIMEOUT):
                remaining.remove(result["variant"])
                tell(result)

    def environments(self, devices: list[str], log: Path) -> dict[str, list[dict[str, Any]]]:
        """What the process says of each device that a wish allows; empty for one that is not there. Raises Lost."""
        self.start(log)
        self._send({"devices": devices, "log": str(log)})
        event = self._next_event(time.monotonic() + STARTUP_DEADLINE_S, "the measuring process does not start")
        assert event is not None  # no request runs that could be stopped
        return event["devices"]

    def _send(self, request: dict[str, Any]) -> None:
        assert self._running is not None
        self._running[:] = bytes(NAME_BYTES)
        data = json.dumps(request).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError as error:
            raise self._death() from error

    def _listen(self, remaining: list[str], tell: Callable[[Event], None]) -> None:
        """Pass events on until the request is done. Lost where the process dies or is silent beyond its deadline."""
        deadline_s, self._phase = STARTUP_DEADLINE_S, "start of the measuring process"
        deadline = time.monotonic() + deadline_s
        while True:
            if self._stopping:  # a round is waited for, and results that are all but there; a compilation is not
                deadline = min(deadline, time.monotonic() + (GRACE_S if self._phase in SHORT_PHASES else 0.0))
            event = self._next_event(deadline, f"{self._phase} took longer than {deadline_s:g} s")
            if event is None:
                continue
            kind = event["event"]
            if self._stopping and kind in ("progress", "phase") and self._phase == "measure":
                raise Lost(Status.KILLED, STOPPED)
            if kind == "done":
                return
            if kind == "poisoned":
                raise Lost(Status.CRASHED, "the GPU context was lost", event["result"])
            if kind == "phase":
                self._phase, deadline_s = event["phase"], event["deadline_s"]
                deadline = time.monotonic() + deadline_s
            if kind == "result":
                if event["variant"] == "all":
                    remaining.clear()
                else:
                    remaining.remove(event["variant"])
            tell(event)

    def _next_event(self, deadline: float, late: str) -> Event | None:
        """The next event; None where the user has asked to stop meanwhile."""
        wake = [] if self._wake is None else [self._wake[0]]
        while b"\n" not in self._events:
            left_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._messages, *wake], [], [], left_s)
            if not readable:
                raise Lost(Status.KILLED, STOPPED) if self._stopping else Lost(Status.TIMEOUT, late)
            if wake and wake[0] in readable:
                os.read(wake[0], 1)
                return None
            data = os.read(self._messages, 1 << 16)
            if not data:
                raise self._death()
            self._events += data
        line, self._events = self._events.split(b"\n", 1)
        return json.loads(line)

    def _death(self) -> Lost:
        if self._stopping:
            return Lost(Status.KILLED, STOPPED)
        assert self.process is not None
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return Lost(Status.CRASHED, "the measuring process closed its pipe without ending")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        return Lost(Status.CRASHED, f"the measuring process was {how}; its last words are in {self.log.name}")

    def _suspect(self) -> str:
        assert self._running is not None
        return self._running[:].rstrip(b"\0").decode(errors="replace")


def _environment() -> dict[str, str]:
    """What the process gets: no secrets, which variants might print, and a cache of compiled code that is ours alone.

    Inductor's own place is a folder of a known name in /tmp, where another user may have put code before us.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softmax_exp" / "torchinductor"
    variables = environment_without_secrets()
    with contextlib.suppress(OSError):  # no home that can be written; torch will do as it does
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    return variables
