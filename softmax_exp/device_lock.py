"""One timed case a device at a time, whoever measures: other workers, other sweeps, other users of the host.

In: what names the devices that would do, and a listener for the message that they are waited for.  Out: a lock that
is gone with its process.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PATIENCE_S = 2.0  # workers of one sweep take turns; what lasts longer is worth a line


@contextlib.contextmanager
def held(devices: Sequence[str], tell: Callable[[dict[str, Any]], None]) -> Iterator[str]:
    """Hold one of the devices for one case: a GPU by its UUID, the CPU by its host; the first that is or comes free.

    The lock is a name in Linux's abstract socket space: no file to protect or to clean up, gone with the process.
    Processes of other users wait as well.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        started, told = time.monotonic(), ""
        while (device := _bound(lock, devices)) is None:
            if not told:
                told = f"waiting for {_in_words(devices)}"
                tell({"event": "phase", "phase": told, "variant": "", "deadline_s": math.inf})
            elif time.monotonic() - started > PATIENCE_S:
                started = math.inf  # once is enough
                tell({"event": "waiting", "message": told})
            time.sleep(0.02)
        yield device


def _bound(lock: socket.socket, devices: Sequence[str]) -> str | None:
    """The device whose name the lock could take."""
    for device in devices:
        try:
            lock.bind(f"\0softmax_exp {device}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        lock.listen(1)  # so that those who wait can ask whose it is
        return device
    return None


def _in_words(devices: Sequence[str]) -> str:
    if len(devices) > 1:
        return f"one of {len(devices)} GPUs, all of which are measured on"
    what = "the CPU" if devices[0] == "cpu" else f"the GPU {devices[0]}"
    return f"{what}: {_holder(devices[0])} measures on it"


def _holder(device: str) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.2)
        probe.connect(f"\0softmax_exp {device}")
        pid = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return f"process {pid}"
    return "another process"
