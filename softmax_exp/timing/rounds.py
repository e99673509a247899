"""Rounds: every entry once each, in random order, until the figures are known well enough or the budget ends.

In: entries, a clock, settings.  Out: the times of all entries in each round. What drifts (clocks, heat, neighbours)
hits all entries of a round alike; throttled rounds are measured again within a bound, then kept and flagged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from softmax_exp.config import MeasureSettings
from softmax_exp.timing.host_clock import Readings
from softmax_exp.timing.machine import Monitor, Reading
from softmax_exp.timing.samples import Timed
from softmax_exp.timing.statistics import half_width_pct, median_interval, ratio_interval

PAUSE_S = 0.1  # lets a throttled GPU recover
PROGRESS_S = 0.1  # telling of progress disturbs the host's clock a little, so not every round


class Clock(Protocol):
    """What times one round."""

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
    monitor: Monitor,
    settled: Callable[[Rounds], bool],
    progress: Callable[[float], None] = lambda done: None,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Rounds:
    """Measure rounds until `settled`, the budget's end or `max_rounds`, and at least `min_rounds` that count."""
    rounds, random = Rounds(), np.random.default_rng(settings.order_seed)
    started, unread, retries, next_check, told = now(), 0, 0, settings.min_rounds, 0.0
    while True:
        polled: list[Reading | None] = []
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
        if elapsed - told > PROGRESS_S:
            told = elapsed
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
