"""One case measured: every entry and the limit, by every clock, in interleaved rounds.

In: entries, copies for the limit, buffer sets, settings.  Out: a `Measurement`, with the GPU's memory given back.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing.audit import audit
from softmax_exp.timing.buffers import is_short
from softmax_exp.timing.device_clock import DeviceClock, gpu_uuid, l2_bytes
from softmax_exp.timing.host_clock import HostClock
from softmax_exp.timing.machine import Monitor, load_nvml
from softmax_exp.timing.rounds import Rounds, run, settled_within, warm_up
from softmax_exp.timing.samples import KINDS, Measurement, Samples, Timed

FLOOR = "floor"  # the entry whose call does nothing
WARM_UP_S = 0.5


def measure(
    timed: Sequence[Timed],
    n_sets: int,
    device: torch.device,
    settings: MeasureSettings,
    *,
    case_bytes: int = 0,
    limits: Sequence[Timed] = (),
    watch: Callable[[str], None] = lambda name: None,
    progress: Callable[[float], None] = lambda done: None,
    nvml: Any | None = None,
) -> Measurement:
    """Measure all entries and limit kernels interleaved, on the current stream.

    On a GPU graph replays give `device_ms` where there are several buffer sets (`n_buffer_sets`); with a warm cache,
    which takes but one, where `case_bytes` (of one call) are few.
    `watch(name)` is called right before each call of an entry, also for `limit/...` and `floor`: when an exception
    comes through, or the process dies, that one is to blame. `progress(fraction)` is called about ten times a second.
    `nvml` is a stand-in for pynvml. ValueError without entries.
    """
    if not timed:
        raise ValueError("nothing to measure: at least one entry is needed")
    on_gpu = device.type == "cuda"
    flags: dict[str, list[str]] = {}
    collecting = gc.isenabled()
    with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
        for entry in timed:
            watch(entry.name)
            for _ in range(settings.n_warmup):
                entry.call(0)
            flags[entry.name] = audit(entry, device)
        gc.disable()
        try:
            if on_gpu:
                by_graph = n_sets > 1 if settings.cache == "cold" else is_short(case_bytes, device, settings)
                return _on_gpu(timed, limits, n_sets, by_graph, device, settings, flags, watch, progress, nvml)
            return _on_cpu(timed, limits, n_sets, settings, flags, watch, progress)
        finally:
            if collecting:
                gc.enable()


def _on_cpu(
    timed: Sequence[Timed],
    limits: Sequence[Timed],
    n_sets: int,
    settings: MeasureSettings,
    flags: dict[str, list[str]],
    watch: Callable[[str], None],
    progress: Callable[[float], None],
) -> Measurement:
    clock = HostClock(n_sets, settings, watch)
    entries = [*timed, *limits, Timed(FLOOR, lambda index: None)]
    warm_up(clock, entries, "host_result_ms", min(WARM_UP_S, settings.budget_s / 4))
    names = [entry.name for entry in entries[:-1]]
    rounds = run(clock, entries, settings, Monitor(None), settled_within("host_result_ms", names, settings), progress)
    return _measurement(rounds, names, "host", settings, {}, flags)


def _on_gpu(
    timed: Sequence[Timed],
    limits: Sequence[Timed],
    n_sets: int,
    by_graph: bool,
    device: torch.device,
    settings: MeasureSettings,
    flags: dict[str, list[str]],
    watch: Callable[[str], None],
    progress: Callable[[float], None],
    nvml: Any | None,
) -> Measurement:
    clock = DeviceClock(n_sets, device, settings, watch)
    clock.synchronising |= {name for name, found in flags.items() if "synchronises" in found}
    monitor = Monitor(gpu_uuid(device), nvml or load_nvml())
    floor = Timed(FLOOR, lambda index: torch.cuda._sleep(0))
    try:
        expected = warm_up(clock, [*timed, *limits, floor], "events_ms", min(WARM_UP_S, settings.budget_s / 4))
        entries = [*timed, *promising(limits, expected, by_graph), floor]
        if by_graph:
            captured = {entry.name for entry in entries if _capture(clock, entry, expected[entry.name])}
            for name in set(flags) - captured:
                flags[name].append("not_graphable")
            by_graph = bool(captured & set(flags))
        clock.begin()
        kind = "graph_ms" if by_graph else "events_ms"
        names = [entry.name for entry in entries[:-1]]
        rounds = run(clock, entries, settings, monitor, settled_within(kind, names, settings), progress)
        for found in flags.values():
            found += ["launch_gaps"] if clock.n_gaps else []
        about = monitor.summary() | {"l2_bytes": l2_bytes(device)}
        return _measurement(rounds, names, kind.removesuffix("_ms"), settings, about, flags)
    finally:
        clock.close()


def _capture(clock: DeviceClock, entry: Timed, expected_ms: float) -> bool:
    return entry.graphable and entry.name not in clock.synchronising and clock.capture(entry, expected_ms)


def promising(limits: Sequence[Timed], expected_ms: dict[str, float], by_graph: bool) -> list[Timed]:
    """The copies that may turn out best by either clock: within 3 % and 0.5 us of the best in the warm-up.

    The 0.5 us is the noise of events: without it the best copy of a short case would be left to chance.
    """
    kept: list[Timed] = []
    for group in [limits, [entry for entry in limits if entry.graphable]] if by_graph else [limits]:
        best = min((expected_ms[entry.name] for entry in group), default=0.0)
        kept += [entry for entry in group if expected_ms[entry.name] <= 1.03 * best + 0.0005 and entry not in kept]
    return kept


def _measurement(
    rounds: Rounds,
    names: Sequence[str],
    clock: str,
    settings: MeasureSettings,
    about: dict[str, Any],
    flags: dict[str, list[str]],
) -> Measurement:
    for found in flags.values():
        found += ["throttled"] if rounds.gave_up else []
        found += ["gpu_shared"] if about.get("foreign_processes") else []
    floors = {kind: rounds.column(FLOOR, kind) for kind in ("events_ms", "graph_ms", "host_result_ms")}
    return Measurement(
        samples={name: Samples(name, **{kind: rounds.column(name, kind) for kind in KINDS}) for name in names},
        clock=clock,
        cache=settings.cache,
        clock_floor_us={k.split("_")[0]: 1e3 * float(np.median(v)) for k, v in floors.items() if v is not None},
        stop_reason=rounds.stop_reason,
        used=rounds.used,
        machine=about | {"n_throttled_rounds": int(np.sum(rounds.throttled))},
        flags=flags,
    )
