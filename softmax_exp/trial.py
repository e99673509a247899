"""A variant alone: built, called once, checked; and after it was timed checked again, on new values.

In: a request, a variant's name, the inputs.  Out: a `Trial` that can be timed beside others, or the `result` event of
one that cannot; at the end the `result` event of each.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from softmax_exp import accuracy, untimed, variants
from softmax_exp.cases import Case
from softmax_exp.inputs import Inputs, checksum, refill
from softmax_exp.outcome import NO_GPU, Incorrect, failure, refuse_lies, synchronize
from softmax_exp.records import Status
from softmax_exp.request import Request

Emit = Callable[[dict[str, Any]], None]
Watch = Callable[[str], None]


@dataclass
class Trial:
    """A variant on its way through a case."""

    name: str
    call: Callable[[int], Any]
    restart: Callable[[int], None]
    describe: Callable[..., dict[str, Any]] | None
    figures: dict[str, Any]
    timed: bool = True
    package: str = ""


def prepare(
    request: Request, name: str, inputs: Inputs, seen: str, device: torch.device, emit: Emit, watch: Watch
) -> Trial | None:
    """Build a variant, call it alone, check it. None, and its result told, where that fails."""
    case = request.case
    deadline_s = request.settings.first_call_deadline_s
    emit({"event": "phase", "phase": "first call", "variant": name, "deadline_s": deadline_s})
    watch(name)
    package = ""
    try:
        variant = variants.load(name)
        package = variant.package
        if variant.needs_cuda and device.type != "cuda" and not request.interpreted:
            raise variants.Skipped(NO_GPU)
        figures: dict[str, Any] = {
            "kernel_hash": variant.kernel_hash,
            "input_checksum": seen,
            "least_bytes": case.least_bytes,
            "device": str(device),
        }
        _poison(case, device)
        memory = _Memory(device)
        hits = _cache_hits()
        started = time.perf_counter()
        function = untimed.built(name, lambda: variant.build(case, **request.variant_args.get(name, {})))
        call, restart = _calls(case, function, inputs)
        result = call(0)
        synchronize(device)
        figures["first_call_s"] = time.perf_counter() - started
        figures["compile_cache_hit"] = _cache_hits() > hits if "compile" in name else None
        figures["peak_memory_bytes"] = memory.peak()
        figures |= _check(case, inputs, seen, result)
        trial = Trial(name, call, restart, getattr(function, "describe", None), figures, package=package)
        interpreted = variant.needs_cuda and device.type != "cuda"
        trial.timed = case.numel > 0 and not interpreted and request.settings.clock != "none"
        return trial
    except Exception as error:
        emit(failure(name, error, device, package))
        return None


def _calls(
    case: Case, function: Callable[..., Any], inputs: Inputs
) -> tuple[Callable[[int], Any], Callable[[int], None]]:
    """`call(i)`, the work of the case's mode on buffer set i and nothing else, and `restart(i)` after x changed."""
    extra = () if inputs.mask is None else (inputs.mask,)
    xs, grads = inputs.xs, inputs.grads
    if case.mode == "forward":

        def forward(i: int) -> Any:
            with torch.no_grad():
                return function(xs[i], *extra)

        return forward, lambda i: None

    def graph(i: int) -> torch.Tensor:
        y = function(xs[i], *extra)
        if not isinstance(y, torch.Tensor) or not y.requires_grad:
            raise variants.Unsupported(f"no gradient: its result is detached from x, so mode={case.mode} cannot be run")
        return y

    if case.mode == "full":

        def full(i: int) -> Any:
            y = graph(i)
            return y, torch.autograd.grad(y, xs[i], grads[i])[0]

        return full, lambda i: None

    ys = [graph(i) for i in range(len(xs))]

    def backward(i: int) -> Any:
        return torch.autograd.grad(ys[i], xs[i], grads[i], retain_graph=True)[0]

    def restart(i: int) -> None:
        ys[i] = graph(i)

    return backward, restart


def _check(case: Case, inputs: Inputs, seen: str, result: Any) -> dict[str, Any]:
    """Figures of the result for buffer set 0. Incorrect if it is wrong or the input was changed."""
    found = accuracy.check(case, inputs.xs[0], inputs.mask, inputs.grads[0] if inputs.grads else None, result)
    reason = found.reason
    if checksum(inputs.xs[0]) != seen:
        reason = "it changes its input"
    if reason:
        raise Incorrect(reason, found.figures())
    return found.figures()


def check_again(request: Request, trial: Trial, inputs: Inputs, device: torch.device, watch: Watch) -> dict[str, Any]:
    """Check a variant once more, on new values at the same addresses, and close its result."""
    case = request.case
    watch(trial.name)
    try:
        if case.numel:
            refill(inputs.xs[0], case, case.seed + 15485863)
            _poison(case, device)
            trial.restart(0)
            check = functools.partial(_check, case, inputs, checksum(inputs.xs[0]))
            for name, value in check(trial.call(0)).items():
                trial.figures[name] = max(trial.figures[name], value)
            if request.settings.clock == "none" and (
                reason := untimed.repeat(lambda: trial.call(0), case.bytes_written, check)
            ):
                raise Incorrect(reason)
        refuse_lies(trial.figures.get("flags", []))
        if trial.describe is not None:
            trial.figures["plan"] = trial.describe(inputs.xs[0], *([] if inputs.mask is None else [inputs.mask]))
        if trial.package:
            trial.figures["plan"] = {"package": trial.package} | trial.figures.get("plan", {})
    except Exception as error:
        return failure(trial.name, error, device, trial.package)
    asked = request.settings.clock != "none"
    why = "nothing to time" if not case.numel else "interpreted" if asked else "not asked for"
    message = "" if trial.timed else f"no latency: {why}"
    return {"event": "result", "variant": trial.name, "status": Status.PASSED, "message": message, **trial.figures}


def _poison(case: Case, device: torch.device) -> None:
    """Leave NaN in the memory that the allocator hands out next, so that what a variant does not write shows."""
    if device.type == "cuda" and case.numel:
        blocks = [torch.full((case.tensor_bytes // 4 + 1,), float("nan"), device=device) for _ in range(2)]
        del blocks
        blocks = torch.full((case.tensor_bytes,), 255, dtype=torch.uint8, device=device)
        del blocks


class _Memory:
    """Peak of GPU memory from here on, beyond what was held already."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)

    def peak(self) -> int | None:
        """Bytes; None on a CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.device) - self.before


def _cache_hits() -> int:
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
