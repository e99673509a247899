"""What a process does about the one that started it: end with it, and use its threads.

In: nothing but the process's parent.  Out: the same process, changed.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def take_parents_threads() -> None:
    """Give this process the `…_NUM_THREADS` of its parent: joblib divides the cores among its job processes.

    Cases are measured one at a time, so each may use them all; and results must not depend on the launcher.
    """
    try:
        fields = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has just ended
        return
    theirs = dict(field.split("=", 1) for field in fields if "_NUM_THREADS=" in field)
    for name in [name for name in os.environ if name.endswith("_NUM_THREADS")]:
        del os.environ[name]
    os.environ.update(theirs)
