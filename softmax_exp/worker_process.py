"""The measuring process: reads requests, measures, writes events; its owner is `worker.Worker`.

In: numbers of open files and the owner's process id, as arguments; a request a line.  Out: an event a line; the
variant that runs, in shared memory.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

from softmax_exp.parent import end_with_parent
from softmax_exp.request import Request
from softmax_exp.worker import NAME_BYTES, Event


def main() -> None:
    """The measuring process: read requests, measure, write events, until the requests end."""
    requests, messages, shared, parent = map(int, sys.argv[1:])
    end_with_parent()
    if os.getppid() != parent:
        sys.exit("the owner ended before its measuring process began")
    for ours in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ours, signal.SIG_DFL)
    running = mmap.mmap(shared, NAME_BYTES)

    def tell(event: Event) -> None:
        os.write(messages, json.dumps(event).encode() + b"\n")

    def watch(name: str) -> None:
        running[:] = name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")

    import torch

    from softmax_exp import placement, ptxas
    from softmax_exp.measure import measure  # it imports torch, which the owner must not
    from softmax_exp.outcome import Poisoned

    ptxas.settle(Path(torch.__file__).parent)
    frozen = False
    with open(requests) as lines:
        for line in lines:
            fields = json.loads(line)
            _write_output_to(fields.pop("log"))
            if "devices" in fields:
                tell({"event": "devices", "devices": {wish: _describe(wish) for wish in fields["devices"]}})
                continue
            place = placement.Place.from_json(fields.pop("place", {}))
            request = Request.from_json(fields)
            try:
                with placement.taken(request.case.device, place, tell) as refused:
                    if refused is None:
                        measure(request, tell, watch)
                    else:
                        tell(refused.as_event())
            except Poisoned as poisoned:
                tell({"event": "poisoned", "result": poisoned.args[0]})
                os._exit(3)
            watch("")
            if not frozen:  # what the first case imported and made for good need not be looked at after every case
                gc.collect()
                gc.freeze()
                frozen = True
            tell({"event": "done"})


def _describe(wish: str) -> list[dict[str, Any]]:
    from softmax_exp import placement

    return [placement.facts(device) for device in placement.devices(wish)]


def _write_output_to(log: str) -> None:
    """Whatever this process and its libraries print belongs to the job that runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    main()
