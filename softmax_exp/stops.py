"""Ctrl-C and SIGTERM: the first ends what runs in good order, the second at once.

In: signals.  Out: `Stopped` in the main thread, either at once or, where work is `deferred`, when that work has ended;
meanwhile it is told by a callback. Exit statuses are the shell's: 130 and 143.
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
_told: Callable[[], None] | None = None


class Stopped(BaseException):
    """The user wants it to end; not an Exception, so that no job's boundary takes it for a failure of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Take the signals over for a sweep that this process runs, and give them back."""
    global _owner, _count, _number
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _owner, _count, _number = os.getpid(), 0, 0
    try:
        _install()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def join() -> bool:
    """Heed the signals in a process that a launcher made for jobs; False in the one that runs the sweep."""
    if _owner == os.getpid():
        return False
    _install()
    return True


@contextlib.contextmanager
def deferred(told: Callable[[], None]) -> Iterator[None]:
    """Let a signal call `told` and interrupt nothing; `Stopped` at the end if one came."""
    global _told
    assert _told is None
    _told = told
    try:
        yield
    finally:
        _told = None
    if _count:
        raise Stopped(_number)


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
    if _count == 1 and _told is not None:
        _told()
    else:
        raise Stopped(_number)
