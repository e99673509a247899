"""Ctrl-C and SIGTERM: the first ends what runs in good order, the second at once.

In: signals.  Out: `Stopped` in the main thread, at the next `check` where this process runs jobs; work that is
`deferred` is told by a callback, job processes by `passed_on`. Exit statuses are the shell's: 130 and 143.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 20.0  # for job processes to end what they do, each within a round

_owner = 0  # the process that runs the sweep; a launcher may run jobs in others
_count = 0
_number = 0
_runs_jobs = False
_told: Callable[[], None] | None = None
_pass_on: Callable[[], None] | None = None


class Stopped(BaseException):
    """The user wants it to end; not an Exception, so that no job's boundary takes it for a failure of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Take the signals over for a sweep that this process runs, and give them back."""
    global _owner
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _owner = os.getpid()
    _forget()
    try:
        take_back()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def in_job() -> Iterator[bool]:
    """Heed the signals while a job runs. What is yielded tells whether another process runs the sweep."""
    global _runs_jobs
    elsewhere = _owner != os.getpid()
    if elsewhere:
        _forget()
        take_back()
    _runs_jobs = True
    try:
        yield elsewhere
    finally:
        _runs_jobs = not elsewhere


def check() -> None:
    """Stopped where a signal has come: an exception out of a handler may be lost in any code that ignores it."""
    if _count:
        raise Stopped(_number)


@contextlib.contextmanager
def deferred(told: Callable[[], None]) -> Iterator[None]:
    """Let a signal call `told`, also one that came before; `Stopped` at the end if one came."""
    global _told
    assert _told is None
    _told = told
    try:
        if _count:
            told()
        yield
    finally:
        _told = None
    check()


@contextlib.contextmanager
def passed_on(dismiss: Callable[[], None]) -> Iterator[None]:
    """Let a signal call `dismiss` while job processes are waited for; `Stopped` where they do not end in time."""
    global _pass_on
    before, _pass_on = signal.signal(signal.SIGALRM, _too_late), dismiss
    try:
        yield
    finally:
        _pass_on = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def asked() -> bool:
    """Whether the user has asked to stop."""
    return _count > 0


def status() -> int:
    """The exit status of a command that was asked to stop."""
    return 128 + _number


def hurried() -> bool:
    """Whether the user has asked twice."""
    return _count > 1


def take_back() -> None:
    """Take the signals, also from a library that took them meanwhile."""
    for number in SIGNALS:
        signal.signal(number, _handle)


def _forget() -> None:
    global _count, _number, _runs_jobs
    _count, _number, _runs_jobs = 0, 0, False


def _handle(number: int, frame: Any) -> None:
    global _count, _number
    if not _runs_jobs and _owner != os.getpid():  # a job process between two jobs
        if number != signal.SIGINT:  # which a terminal sends to all; whoever runs the sweep decides then
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    _count, _number = _count + 1, _number or number
    if _count > 1:
        for each in SIGNALS:  # a third one meets no handler that could be in its way
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(_number)
    if _pass_on is not None:
        _pass_on()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    elif not _runs_jobs:
        raise Stopped(_number)
    elif _told is not None:
        _told()


def _too_late(number: int, frame: Any) -> None:
    raise Stopped(_number)
