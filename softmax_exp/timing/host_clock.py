"""The host's clock: what a caller waits for, launch cost included.

In: entries to time.  Out: times until a call returns and until its result is there; rounds for a CPU; and `wall`, the
clock of the first version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing.samples import Timed

Readings = dict[str, dict[str, float]]  # by entry, then by kind of `samples.KINDS`, ms


def host_times(entry: Timed, index: int, wait: Callable[[], None]) -> tuple[float, float]:
    """One call on an idle device: ms until it returns, ms until its result is there. `wait` waits for the device."""
    wait()
    start = time.perf_counter_ns()
    outputs = entry.call(index)
    returned = time.perf_counter_ns()
    wait()
    done = time.perf_counter_ns()
    del outputs  # freed outside the timing
    return (returned - start) / 1e6, (done - start) / 1e6


def wall(
    timed: Sequence[Timed],
    device: torch.device,
    settings: MeasureSettings,
    watch: Callable[[str], None] = lambda name: None,
) -> dict[str, np.ndarray]:
    """The first version's measurement, one entry after the other on buffer set 0: ms by name.

    `n_warmup` calls, then `n_iters` calls, each timed between two synchronisations.
    """
    wait = _waiter(device)
    times = {}
    for entry in timed:
        watch(entry.name)
        for _ in range(settings.n_warmup):
            entry.call(0)
        times[entry.name] = np.array([host_times(entry, 0, wait)[1] for _ in range(settings.n_iters)])
    return times


def _waiter(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


SHORT_MS = 2.0


class HostClock:
    """Times every entry of a round on the CPU. Buffer sets rotate, so that a set was last used n_sets calls ago.

    What ran before a call moves it by some microseconds (a tenth of a call of 40 us was seen), so a short call is made
    once untimed before, on another set: then each comes after its own like.
    """

    def __init__(self, n_sets: int, settings: MeasureSettings, watch: Callable[[str], None]) -> None:
        self._n_sets, self._watch = n_sets, watch
        self._warm, self._cold = settings.warm or settings.cache == "warm", settings.cache == "cold"
        self._calls = 0
        self._short: set[str] = set()

    def sample(self, order: Sequence[Timed], while_busy: Callable[[], None] = lambda: None) -> Readings:
        """One time of each entry, in the given order, by the kinds of `samples.KINDS`, in ms."""
        readings: Readings = {}
        for entry in order:
            self._watch(entry.name)
            index = self._calls % self._n_sets if self._cold else 0
            self._calls += 1
            if not self._cold:
                entry.call(index)
            elif entry.name in self._short:
                entry.call((index + self._n_sets // 2) % self._n_sets)
            returned, done = host_times(entry, index, lambda: None)
            if done < SHORT_MS:
                self._short.add(entry.name)
            readings[entry.name] = {"host_return_ms": returned, "host_result_ms": done}
            if self._warm:
                readings[entry.name]["warm_ms"] = host_times(entry, index, lambda: None)[1]
        while_busy()
        return readings
