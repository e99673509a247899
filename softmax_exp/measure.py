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

import torch

from softmax_exp import timing, untimed
from softmax_exp.cases import Case
from softmax_exp.inputs import Inputs, checksum, make_inputs, refill, resolve_device
from softmax_exp.outcome import NO_GPU, Incorrect, failure
from softmax_exp.records import Status
from softmax_exp.request import Request
from softmax_exp.trial import Emit, Trial, Watch, check_again, prepare

AGAIN = " (again)"  # the second entry of the A/A pair


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
            emit(failure(name, error, device))
        return
    seen = [checksum(x) for x in inputs.xs]
    trials = []
    for name in request.variants:
        trial = prepare(request, name, inputs, seen[0], device, emit, watch)
        if trial is not None:
            trials.append(trial)
        elif checksum(inputs.xs[0]) != seen[0]:
            _restore(case, inputs)
    _time_all(request, trials, inputs, seen, device, emit, watch)
    emit({"event": "phase", "phase": "check again", "variant": "", "deadline_s": settings.measure_deadline_s})
    for trial in trials:
        emit(check_again(request, trial, inputs, device, watch))


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
                error = Incorrect("an input was changed while it was timed")
                emit(failure(trial.name, error, device, trial.package))
        except Exception as error:
            blamed = [trial for trial in timed if trial.name == running] or timed
            for trial in blamed:
                trials.remove(trial)
                emit(failure(trial.name, error, device, trial.package))


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
            case_bytes=request.case.least_bytes,
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
