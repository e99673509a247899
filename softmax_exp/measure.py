"""One case in one process: build each variant, check it alone, time all together, check again, tell the results.

In: a case, names of variants, settings, and `emit` for what happens.  Out: events, plain JSON values: `phase`,
`progress`, `samples`, and one `result` a variant, whose fields are those of a `Record`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from softmax_exp import accuracy, timing, untimed, variants
from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.inputs import Inputs, checksum, make_inputs, refill, resolve_device
from softmax_exp.records import Status

NO_GPU = "skipped: requires a CUDA GPU"
AGAIN = " (again)"  # the second entry of the A/A pair
LIES = {  # flags under which a latency says nothing about the variant
    "work_outside_timing": "it works outside the call or the current stream, where no clock sees it",
    "reuses_output": "its results share memory: the next call overwrites the last result",
    "beyond_memory_rate": "faster than this GPU's memory can be, so the time is not that of the work",
}

Emit = Callable[[dict[str, Any]], None]
Watch = Callable[[str], None]


class Poisoned(Exception):
    """The CUDA context is lost: this process can measure nothing any more."""


class Incorrect(Exception):
    """A variant's result is wrong; the text says how."""


@dataclass
class Request:
    """What to measure. `variant_args` are keyword arguments of each variant's `build`, by variant."""

    case: Case
    variants: Sequence[str]
    settings: MeasureSettings = MeasureSettings()
    variant_args: dict[str, dict[str, Any]] = field(default_factory=dict)
    baseline: str | None = "eager"
    interpreted: bool = False
    """Whether Triton's interpreter runs the Triton variants on the CPU: checked then, never timed."""


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


def measure(request: Request, emit: Emit, watch: Watch = lambda name: None) -> None:
    """Measure a case; every variant ends in exactly one `result` event, unless the process dies or is `Poisoned`.

    `watch(name)` is told which variant runs, before it does; the process around uses it to blame a crash.
    """
    case = request.case
    try:
        device = resolve_device(case.device)
    except RuntimeError as error:
        message = NO_GPU if str(error) == "requires a CUDA GPU" else str(error)
        emit({"event": "result", "variant": "all", "status": Status.SKIPPED, "message": message})
        return
    anew = untimed.begin(case, request.variant_args, timed=request.settings.clock != "none")
    if anew and "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            if case.mode != "forward":
                # Autograd works on the stream of the forward, and no graph can be captured from the default one.
                stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        try:
            _measure_on(request, device, emit, watch)
        finally:
            if anew:  # compiled code is many objects to look through, after each of many small cases
                _release(device)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def _measure_on(request: Request, device: torch.device, emit: Emit, watch: Watch) -> None:
    case, settings = request.case, request.settings
    emit({"event": "phase", "phase": "inputs", "variant": "", "deadline_s": settings.first_call_deadline_s})
    n_sets = timing.n_buffer_sets(case.least_bytes, device, settings)
    try:
        inputs = make_inputs(case, device, n_sets)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        for name in request.variants:
            emit(_failure(name, error, device))
        return
    seen = [checksum(x) for x in inputs.xs]
    trials = []
    for name in request.variants:
        trial = _try(request, name, inputs, seen[0], device, emit, watch)
        if trial is not None:
            trials.append(trial)
        elif checksum(inputs.xs[0]) != seen[0]:
            _restore(case, inputs)
    _time_all(request, trials, inputs, seen, device, emit, watch)
    emit({"event": "phase", "phase": "check again", "variant": "", "deadline_s": settings.measure_deadline_s})
    for trial in trials:
        emit(_finish(request, trial, inputs, device, watch))


def _restore(case: Case, inputs: Inputs) -> None:
    """Give the inputs back the contents that a variant has changed."""
    for i, x in enumerate(inputs.xs):
        refill(x, case, case.seed + i)


def _time_all(
    request: Request,
    trials: list[Trial],
    inputs: Inputs,
    seen: list[str],
    device: torch.device,
    emit: Emit,
    watch: Watch,
) -> None:
    """Time all trials together. One that fails meanwhile is told and taken out, and the rest are timed anew.

    Samples taken beside a fault, or of inputs that changed, are worth nothing for anyone.
    """
    running = ""

    def watch_and_note(name: str) -> None:
        nonlocal running
        running = name.removesuffix(AGAIN)
        watch(running)

    deadline_s = request.settings.budget_s + request.settings.measure_deadline_s
    while timed := [trial for trial in trials if trial.timed]:
        emit({"event": "phase", "phase": "measure", "variant": "", "deadline_s": deadline_s})
        try:
            started = time.perf_counter()
            _time(request, timed, inputs, device, emit, watch_and_note)
            for trial in timed:
                trial.figures["measure_s"] = time.perf_counter() - started
            if [checksum(x) for x in inputs.xs] == seen:
                return
            for trial in _who_changes(request.case, timed, inputs, seen[0]):
                trials.remove(trial)
                error = Incorrect("an input was changed while it was timed", {})
                emit(_failure(trial.name, error, device, trial.package))
        except Exception as error:
            blamed = [trial for trial in timed if trial.name == running] or timed
            for trial in blamed:
                trials.remove(trial)
                emit(_failure(trial.name, error, device, trial.package))


def _who_changes(case: Case, trials: list[Trial], inputs: Inputs, seen: str) -> list[Trial]:
    """Those of the trials that change their input when called alone a few times; all, where none of them does."""
    culprits = []
    for trial in trials:
        _restore(case, inputs)
        for _ in range(3):
            trial.call(0)
        if checksum(inputs.xs[0]) != seen:
            culprits.append(trial)
    _restore(case, inputs)
    return culprits or trials


def _try(
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
        _synchronize(device)
        figures["first_call_s"] = time.perf_counter() - started
        figures["compile_cache_hit"] = _cache_hits() > hits if "compile" in name else None
        figures["peak_memory_bytes"] = memory.peak()
        figures |= _check(case, inputs, seen, result)
        trial = Trial(name, call, restart, getattr(function, "describe", None), figures, package=package)
        interpreted = variant.needs_cuda and device.type != "cuda"
        trial.timed = case.numel > 0 and not interpreted and request.settings.clock != "none"
        return trial
    except Exception as error:
        emit(_failure(name, error, device, package))
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


def _time(
    request: Request, trials: list[Trial], inputs: Inputs, device: torch.device, emit: Emit, watch: Watch
) -> None:
    settings = request.settings
    entries = [timing.Timed(trial.name, trial.call) for trial in trials]
    n_sets = len(inputs.xs)
    if settings.clock == "wall":
        for name, samples in timing.wall(entries, device, settings, watch=watch).items():
            figures = next(trial.figures for trial in trials if trial.name == name)
            figures |= timing.summarise_wall(samples)
            emit({"event": "samples", "variant": name, "host_result_ms": samples.tolist()})
        return
    baseline = request.baseline if any(trial.name == request.baseline for trial in trials) else None
    pair = baseline or trials[0].name
    if settings.self_check:
        call = next(trial.call for trial in trials if trial.name == pair)
        entries.append(timing.Timed(pair + AGAIN, call))
    limits = timing.limit_kernels(request.case, n_sets, device)
    guard = torch.compiler.set_stance("fail_on_recompile") if "torch._dynamo" in sys.modules else None
    with guard or contextlib.nullcontext():
        measurement = timing.measure(
            entries,
            n_sets,
            device,
            settings,
            limits=limits,
            watch=watch,
            progress=lambda fraction: emit({"event": "progress", "fraction": fraction}),
        )
    summary = functools.partial(timing.summarise, measurement, least_bytes=request.case.least_bytes, settings=settings)
    pair_verdict = summary(pair + AGAIN, baseline=pair)["verdict"] if settings.self_check else ""
    for trial in trials:
        trial.figures |= summary(trial.name, baseline=baseline)
        trial.figures["baseline"] = baseline
        if settings.self_check and pair_verdict != "same":
            trial.figures["flags"].append(f"self_check_{pair_verdict}")
    kept = {} if measurement.used.all() else {"used": measurement.used.tolist()}  # rounds repeated, being throttled
    for name, samples in measurement.samples.items():
        arrays = {kind: ms.tolist() for kind, ms in samples.arrays().items()}
        emit({"event": "samples", "variant": name, **kept, **arrays})


def _finish(request: Request, trial: Trial, inputs: Inputs, device: torch.device, watch: Watch) -> dict[str, Any]:
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
                raise Incorrect(reason, {})
        for flag in trial.figures.get("flags", ()):
            if flag in LIES:
                raise Incorrect(f"{flag}: {LIES[flag]}", {})
        if trial.describe is not None:
            trial.figures["plan"] = trial.describe(inputs.xs[0], *([] if inputs.mask is None else [inputs.mask]))
        if trial.package:
            trial.figures["plan"] = {"package": trial.package} | trial.figures.get("plan", {})
    except Exception as error:
        return _failure(trial.name, error, device, trial.package)
    asked = request.settings.clock != "none"
    why = "nothing to time" if not case.numel else "interpreted" if asked else "not asked for"
    message = "" if trial.timed else f"no latency: {why}"
    return {"event": "result", "variant": trial.name, "status": Status.PASSED, "message": message, **trial.figures}


def _failure(name: str, error: Exception, device: torch.device, package: str = "") -> dict[str, Any]:
    """The result of a variant that raised, told with its package. Poisoned if the context does not survive it."""
    figures: dict[str, Any] = {}
    text = str(error)
    if isinstance(error, variants.Unsupported | NotImplementedError):
        status = Status.UNSUPPORTED
    elif isinstance(error, variants.Skipped):
        status = Status.SKIPPED
    elif isinstance(error, Incorrect):
        status, text, figures = Status.INCORRECT, error.args[0], error.args[1]
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
            _synchronize(device)
        except RuntimeError as lost:
            event["status"] = Status.CRASHED
            raise Poisoned(event) from lost
    return event


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
