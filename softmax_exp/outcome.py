"""What becomes of an exception: the status of a variant that raised, and whether its process can go on.

In: a variant's name, what it raised, the device.  Out: its `result` event, or `Poisoned`.
"""

from __future__ import annotations

import traceback
from typing import Any

import torch

from softmax_exp import variants
from softmax_exp.records import Status

NO_GPU = "skipped: requires a CUDA GPU"
LIES = {  # flags under which a latency says nothing about the variant
    "work_outside_timing": "it works outside the call or the current stream, where no clock sees it",
    "reuses_output": "its results share memory: the next call overwrites the last result",
    "beyond_memory_rate": "faster than this GPU's memory can be, so the time is not that of the work",
}


class Poisoned(Exception):
    """The CUDA context is lost: this process can measure nothing any more. Its argument is the event of the variant."""


class Incorrect(Exception):
    """A variant's result is wrong: the text says how, the figures by how much."""

    def __init__(self, text: str, figures: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.figures = figures or {}


def failure(name: str, error: Exception, device: torch.device, package: str = "") -> dict[str, Any]:
    """The result of a variant that raised, told with its package. Poisoned if the context does not survive it."""
    figures: dict[str, Any] = {}
    text = str(error)
    if isinstance(error, variants.Unsupported | NotImplementedError):
        status = Status.UNSUPPORTED
    elif isinstance(error, variants.Skipped):
        status = Status.SKIPPED
    elif isinstance(error, Incorrect):
        status, text, figures = Status.INCORRECT, text, error.figures
    elif isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        status, text = Status.OOM, text.splitlines()[0]
    else:
        status, text = Status.ERROR, f"{type(error).__name__}: {text}"
    event = {"event": "result", "variant": name, "status": status, "message": text, "device": str(device), **figures}
    if package:
        event |= {"message": f"{text} ({package})", "plan": {"package": package}}
    if status == Status.ERROR:
        event["traceback"] = "".join(traceback.format_exception(error))
        try:
            synchronize(device)
        except RuntimeError as lost:
            event["status"] = Status.CRASHED
            raise Poisoned(event) from lost
    return event


def refuse_lies(flags: list[str]) -> None:
    """Incorrect where a flag says that the latency is not the variant's."""
    for flag in flags:
        if flag in LIES:
            raise Incorrect(f"{flag}: {LIES[flag]}")


def synchronize(device: torch.device) -> None:
    """Wait for a GPU's work. RuntimeError where its context is lost."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
