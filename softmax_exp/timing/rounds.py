"""Rounds: every entry once each, in random order, until the figures are known well enough or the budget ends.

In: entries, buffer sets, settings.  Out: a `Measurement`. Whatever drifts (clocks, heat, neighbours) hits all entries
of a round alike; throttled rounds are measured again within a bound, then kept and flagged.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing import machine
from softmax_exp.timing.audit import audit
from softmax_exp.timing.device_clock import DeviceClock, l2_bytes
from softmax_exp.timing.host_clock import HostClock, Readings
from softmax_exp.timing.samples import KINDS, Measurement, Samples, Timed
from softmax_exp.timing.statistics import half_width_pct, median_interval, ratio_interval

FLOOR = "floor"  # the entry whose call does nothing
WARM_UP_S = 0.5
PAUSE_S = 0.1  # lets a throttled GPU recover


class Clock(Protocol):
    """What times one round."""

    clock: str

    def sample(self, order: Sequence[Timed], while_busy: Callable[[], None]) -> Readings:
        """One time of each entry, by kind, in ms; `while_busy` is called once while the device works."""
        ...


@dataclass
class Rounds:
    """The rounds of one case: what was read in each, and which of them were throttled."""

    readings: list[Readings] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    stop_reason: str = "max_rounds"
    gave_up: bool = False

    @property
    def used(self) -> np.ndarray:
        """The rounds that count: those that ran unthrottled, or all where the retries did not suffice."""
        return np.full(len(self.throttled), True) if self.gave_up else ~np.array(self.throttled, dtype=bool)

    def column(self, name: str, kind: str) -> np.ndarray | None:
        """One entry's times by one clock, a value a round; None where that clock was not used for it."""
        if not self.readings or kind not in self.readings[0].get(name, {}):
            return None
        return np.array([reading[name][kind] for reading in self.readings])


def run(
    clock: Clock,
    entries: Sequence[Timed],
    settings: MeasureSettings,
    monitor: machine.Monitor,
    settled: Callable[[Rounds], bool],
    progress: Callable[[float], None] = lambda done: None,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Rounds:
    """Measure rounds until `settled`, the budget's end or `max_rounds`, and at least `min_rounds` that count."""
    rounds, random = Rounds(), np.random.default_rng(settings.order_seed)
    started, unread, retries, next_check = now(), 0, 0, settings.min_rounds
    while True:
        polled: list[machine.Reading | None] = []
        order = [entries[i] for i in random.permutation(len(entries))]
        rounds.readings.append(clock.sample(order, lambda: polled.append(monitor.poll())))  # noqa: B023 (called at once)
        rounds.throttled.append(False)
        unread += 1
        reading = polled[-1] if polled else None
        if reading is not None and reading.throttled:  # says how the rounds since the last reading ran
            rounds.throttled[-unread:] = [True] * unread
            retries += 1
            rounds.gave_up = retries > settings.throttle_retries
            if not rounds.gave_up:
                pause(PAUSE_S)
        unread = 0 if reading is not None else unread
        n_used, elapsed = int(rounds.used.sum()), now() - started
        progress(min(1.0, max(elapsed / settings.budget_s, n_used / settings.max_rounds)))
        if n_used >= settings.max_rounds:
            return rounds
        if n_used >= settings.min_rounds:
            if elapsed >= settings.budget_s:
                rounds.stop_reason = "budget"
                return rounds
            if n_used >= next_check:
                next_check = int(1.25 * n_used) + 1
                if settled(rounds):
                    rounds.stop_reason = "target"
                    return rounds


def warm_up(clock: Clock, entries: Sequence[Timed], kind: str, limit_s: float) -> dict[str, float]:
    """Rounds that do not count, until four of them take as long as the four before, to 1 %. Median ms of each entry."""
    random, readings = np.random.default_rng(0), []
    totals: list[float] = []
    started = time.monotonic()
    while True:
        readings.append(clock.sample([entries[i] for i in random.permutation(len(entries))], lambda: None))
        totals.append(sum(reading[kind] for reading in readings[-1].values()))
        recent, before = np.median(totals[-4:]), np.median(totals[-8:-4]) if len(totals) >= 8 else np.inf
        if abs(recent / before - 1) < 0.01 or (time.monotonic() - started > limit_s and len(totals) >= 4):
            return {e.name: float(np.median([r[e.name][kind] for r in readings[-4:]])) for e in entries}


def settled_within(kind: str, names: Sequence[str], settings: MeasureSettings) -> Callable[[Rounds], bool]:
    """A test whether every median, and every ratio to the first and to the last name, is known within the target."""

    def test(rounds: Rounds) -> bool:
        used, seed, level = rounds.used, settings.order_seed, settings.confidence
        columns = [column[used] for name in names if (column := rounds.column(name, kind)) is not None]
        intervals = [median_interval(column, level, seed) for column in columns]
        for other in (columns[0], columns[-1]):
            intervals += [ratio_interval(column, other, level, seed) for column in columns]
        return max(half_width_pct(interval) for interval in intervals) <= settings.target_pct

    return test


def measure(
    timed: Sequence[Timed],
    n_sets: int,
    device: torch.device,
    settings: MeasureSettings,
    *,
    limits: Sequence[Timed] = (),
    watch: Callable[[str], None] = lambda name: None,
    progress: Callable[[float], None] = lambda done: None,
    nvml: Any | None = None,
) -> Measurement:
    """Measure all entries and limit kernels interleaved. `watch(name)` is called right before each call of an entry.

    An exception of an entry comes through; the name last watched is to blame. `nvml`: a stand-in for pynvml.
    """
    if not timed:
        raise ValueError("nothing to measure: at least one entry is needed")
    flags: dict[str, list[str]] = {}
    for entry in timed:
        watch(entry.name)
        for _ in range(settings.n_warmup):
            entry.call(0)
        flags[entry.name] = audit(entry, device)
    collecting = gc.isenabled()
    gc.disable()
    try:
        if device.type == "cuda":
            with torch.cuda.device(device):
                return _on_gpu(timed, limits, n_sets, device, settings, flags, watch, progress, nvml)
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
    monitor = machine.Monitor(None)
    names = [entry.name for entry in entries[:-1]]
    rounds = run(clock, entries, settings, monitor, settled_within("host_result_ms", names, settings), progress)
    return _measurement(rounds, names, "host", settings, monitor, flags)


def _on_gpu(
    timed: Sequence[Timed],
    limits: Sequence[Timed],
    n_sets: int,
    device: torch.device,
    settings: MeasureSettings,
    flags: dict[str, list[str]],
    watch: Callable[[str], None],
    progress: Callable[[float], None],
    nvml: Any | None,
) -> Measurement:
    clock = DeviceClock(n_sets, device, settings, watch)
    clock.synchronising |= {name for name, found in flags.items() if "synchronises" in found}
    monitor = machine.Monitor(gpu_uuid(device), nvml or machine.load_nvml())
    try:
        floor = Timed(FLOOR, lambda index: torch.cuda._sleep(0))
        expected = warm_up(clock, [*timed, *limits, floor], "events_ms", min(WARM_UP_S, settings.budget_s / 4))
        fastest = min(expected[entry.name] for entry in timed)
        by_graph = fastest < settings.graph_below_us / 1e3 and (n_sets > 1 or settings.cache == "warm")
        limits = promising(limits, expected, by_graph)
        entries = [*timed, *limits, floor]
        if by_graph:
            for entry in entries:
                wanted = entry.graphable and entry.name not in clock.synchronising
                if not (wanted and clock.capture(entry, expected[entry.name])) and not entry.is_limit:
                    flags[entry.name].append("not_graphable")
            by_graph = all("not_graphable" not in flags[entry.name] for entry in timed[:1])
        clock.host = True
        kind = "graph_ms" if by_graph else "events_ms"
        names = [entry.name for entry in entries[:-1]]
        rounds = run(clock, entries, settings, monitor, settled_within(kind, names, settings), progress)
        measurement = _measurement(rounds, names, kind.removesuffix("_ms"), settings, monitor, flags)
        measurement.machine["l2_bytes"] = l2_bytes(device)
        return measurement
    finally:
        clock.close()


def promising(limits: Sequence[Timed], expected_ms: dict[str, float], by_graph: bool) -> list[Timed]:
    """The copies that may turn out best: within 3 % of the best in the warm-up, by either clock."""
    kept: list[Timed] = []
    for group in [limits, [entry for entry in limits if entry.graphable]] if by_graph else [limits]:
        best = min((expected_ms[entry.name] for entry in group), default=0.0)
        kept += [entry for entry in group if expected_ms[entry.name] <= 1.03 * best and entry not in kept]
    return kept


def _measurement(
    rounds: Rounds,
    names: Sequence[str],
    clock: str,
    settings: MeasureSettings,
    monitor: machine.Monitor,
    flags: dict[str, list[str]],
) -> Measurement:
    about = monitor.summary() | {"n_throttled_rounds": int(np.sum(rounds.throttled))}
    for found in flags.values():
        found += ["throttled"] if rounds.gave_up else []
        found += ["gpu_shared"] if about["foreign_processes"] else []
    floors = {kind: rounds.column(FLOOR, kind) for kind in ("events_ms", "graph_ms", "host_result_ms")}
    return Measurement(
        samples={name: Samples(name, **{kind: rounds.column(name, kind) for kind in KINDS}) for name in names},
        clock=clock,
        cache=settings.cache,
        clock_floor_us={k.split("_")[0]: 1e3 * float(np.median(v)) for k, v in floors.items() if v is not None},
        stop_reason=rounds.stop_reason,
        used=rounds.used,
        machine=about,
        flags=flags,
    )


def gpu_uuid(device: torch.device) -> str | None:
    """The UUID of a GPU, or MIG slice, as the driver names it; None where torch does not know."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def n_buffer_sets(case_bytes: int, device: torch.device, settings: MeasureSettings) -> int:
    """How many sets of inputs a case of `case_bytes` (inputs and outputs of one call) needs.

    On a GPU: a flush makes single launches cold, so one; but 8 to 32 where the kernel may be so short that graphs
    are wanted, whose calls must each find data of their own. On a CPU: three times its last-level cache. Bounded by an
    eighth of the free memory, and 1 where the cache is to be warm.
    """
    if settings.cache == "warm" or settings.clock == "wall" or case_bytes <= 0:
        return 1
    if device.type == "cuda":
        rate = machine.Monitor(gpu_uuid(device), machine.load_nvml()).memory_rate_gbps() or 10_000.0
        if case_bytes > 1.3 * rate * 1e9 * settings.graph_below_us / 1e6:
            return 1
        wanted, least, memory = 3 * l2_bytes(device) // case_bytes, 8, torch.cuda.mem_get_info(device)[0]
    else:
        wanted, least, memory = 3 * machine.last_level_cache_bytes() // case_bytes, 1, machine.free_memory_bytes()
    return max(1, min(32, max(wanted + 1, least), memory // 8 // case_bytes))
