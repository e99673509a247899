"""Which device a case gets: one that is free, is of the wished model, and is what the engine promised.

In: a device wish, the model that a sweep is restricted to, the job's `Assignment`.  Out: the device, locked for the
case and made the current one; or the reason why this job must not measure here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from softmax_exp import device_lock, environment
from softmax_exp.engine import Assignment
from softmax_exp.inputs import resolve_device
from softmax_exp.records import Status

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Place:
    """Where a job may be measured: `gpu_model` is a part of the GPU's name, None for any."""

    gpu_model: str | None = None
    assignment: Assignment = field(default_factory=Assignment)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Place:
        """The place that `dataclasses.asdict` wrote."""
        return Place(fields.get("gpu_model"), Assignment(**fields.get("assignment", {})))


@dataclass(frozen=True)
class Refused:
    """Why a case is not measured: SKIPPED on another model than the wished one, ERROR for a broken promise."""

    status: Status
    message: str

    def as_event(self) -> dict[str, Any]:
        """The result of the whole case."""
        return {"event": "result", "variant": "all", "status": self.status, "message": self.message, "refused": True}


_last: torch.device | None = None  # where the last case was measured: another device costs another CUDA context


def devices(wish: str) -> list[torch.device]:
    """The devices that a wish allows: `auto` and `cuda` any GPU that can be seen; empty where it is not there."""
    try:
        device = resolve_device(wish)
    except RuntimeError:
        return []
    if device.type == "cuda" and wish in ("auto", "cuda"):
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [device]


@functools.cache
def facts(device: torch.device) -> dict[str, Any]:
    """`environment.describe_device`, once a process."""
    return environment.describe_device(device)


@contextlib.contextmanager
def taken(wish: str, place: Place, tell: Tell) -> Iterator[Refused | None]:
    """Hold a device for one case and tell its facts; what is yielded says why not, if so.

    A wish for what is not there is held by nothing and refused by nobody: `measure` tells it as it is.
    """
    global _last
    found = devices(wish)
    usable = [device for device in found if place.gpu_model is None or _is_model(device, place.gpu_model)]
    usable = [device for device in usable if facts(device)["name"] == facts(usable[0])["name"]]  # never of two models
    refused = _refused(wish, place, found, usable)
    if refused is not None or not found:
        tell({"event": "device", "environment": facts(found[0]) if found else {}})
        yield refused
        return
    usable.sort(key=lambda device: device != _last)
    names = {facts(device).get("uuid") or facts(device)["type"]: device for device in usable}
    with device_lock.held([*names], tell) as name:
        _last = device = names[name]
        if device.type == "cuda":
            torch.cuda.set_device(device)  # `auto` and `cuda` mean this one now, for variants as well
        tell({"event": "device", "environment": facts(device)})
        yield None


def _is_model(device: torch.device, model: str) -> bool:
    return device.type == "cuda" and model.lower() in facts(device)["name"].lower()


def _refused(wish: str, place: Place, found: list[torch.device], usable: list[torch.device]) -> Refused | None:
    given, n_gpus = place.assignment, sum(device.type == "cuda" for device in found)
    if wish in ("auto", "cuda") and given.promised is not None:
        told = f"{given.launcher} promised this job {given.promised} GPU{'s' * (given.promised > 1)}"
        if given.fault:
            return Refused(Status.ERROR, given.fault)
        if n_gpus != given.promised:
            seen = f"CUDA_VISIBLE_DEVICES is {given.visible_devices}"
            return Refused(Status.ERROR, f"{told}, but it sees {n_gpus} ({seen}); see docs/launchers.md")
    if place.gpu_model is not None and not usable:
        there = ", ".join(sorted({facts(device)["name"] for device in found})) if n_gpus else "no GPU"
        return Refused(Status.SKIPPED, f"placement.gpu_model ({place.gpu_model}) is not here: {there}")
    return None
