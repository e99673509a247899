"""One timed case a device at a time, whoever measures: other workers, other sweeps, other users of the host.

In: what names the device, and a listener for the message that it is waited for.  Out: a lock gone with its process.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE_S = 2.0  # workers of one sweep take turns; what lasts longer is worth a line


@contextlib.contextmanager
def held(device: str | None, tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Hold a device for one case: a GPU by its UUID, the CPU by its host. Processes of other users wait as well.

    The lock is a name in Linux's abstract socket space: no file to protect or to clean up, gone with the process.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        started, told = time.monotonic(), ""
        while device is not None:
            try:
                lock.bind(f"\0softmax_exp {device}")
                lock.listen(1)  # so that those who wait can ask whose it is
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if not told:
                what = "the CPU" if device == "cpu" else f"the GPU {device}"
                told = f"waiting for {what}: {_holder(device)} measures on it"
                tell({"event": "phase", "phase": told, "variant": "", "deadline_s": math.inf})
            elif time.monotonic() - started > PATIENCE_S:
                started = math.inf  # once is enough
                tell({"event": "waiting", "message": told})
            time.sleep(0.02)
        yield


def _holder(device: str) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.2)
        probe.connect(f"\0softmax_exp {device}")
        pid = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return f"process {pid}"
    return "another process"
