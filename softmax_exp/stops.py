"""Ctrl-C and SIGTERM: the first ends what runs in good order, the second at once.

In: signals.  Out: `Stopped` in the main thread: at once while this process only waits for others, at the next `check`
where it runs jobs itself; work that is `deferred` is told by a callback. Exit statuses are the shell's: 130 and 143.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_owner = 0  # the process that runs the sweep; a launcher may run jobs in others
_count = 0
_number = 0
_runs_jobs = False
_told: Callable[[], None] | None = None


class Stopped(BaseException):
    """The user wants it to end; not an Exception, so that no job's boundary takes it for a failure of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Take the signals over for a sweep that this process runs, and give them back."""
    global _owner, _count, _number, _runs_jobs
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _owner, _count, _number, _runs_jobs = os.getpid(), 0, 0, False
    try:
        _install()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def join() -> bool:
    """Heed the signals in a process that runs a job; False where it is the one that runs the sweep."""
    global _runs_jobs
    _runs_jobs = True
    if _owner == os.getpid():
        return False
    _install()
    return True


def check() -> None:
    """Stopped where a signal has come: an exception out of a handler may be lost in any code that ignores it."""
    if _count:
        raise Stopped(_number)


@contextlib.contextmanager
def deferred(told: Callable[[], None]) -> Iterator[None]:
    """Let a signal call `told`; `Stopped` at the end if one came."""
    global _told
    assert _told is None
    _told = told
    try:
        yield
    finally:
        _told = None
    check()


def asked() -> bool:
    """Whether the user has asked to stop."""
    return _count > 0


def hurried() -> bool:
    """Whether the user has asked twice."""
    return _count > 1


def _install() -> None:
    for number in SIGNALS:
        signal.signal(number, _handle)


def _handle(number: int, frame: Any) -> None:
    global _count, _number
    _count, _number = _count + 1, _number or number
    if _count > 1:
        for each in SIGNALS:  # a third one meets no handler that could be in its way
            signal.signal(each, signal.SIG_DFL)
    if _count > 1 or not _runs_jobs:
        raise Stopped(_number)
    if _told is not None:
        _told()
