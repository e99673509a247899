"""Files that several processes write, and that a kill may interrupt: whole lines, whole files, locks.

In: text and a path.  Out: all of it on the disk, or nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path


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


def lock(descriptor: int, wait_s: float) -> None:
    """Take an exclusive lock, which ends with the descriptor or the process. BlockingIOError after wait_s."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
