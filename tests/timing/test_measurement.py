"""A whole measurement on the CPU: what is called, and what comes out. Never how fast."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.timing import Timed, limit_kernels, measure, n_buffer_sets, summarise, wall
from softmax_exp.timing.measurement import promising

CPU = torch.device("cpu")
SETTINGS = MeasureSettings(budget_s=0.05, min_rounds=8, max_rounds=8, n_warmup=2)
CASE = Case((4, 32), dtype="float32", device="cpu", workload="matrix")


def counted(name: str, calls: list[tuple[str, int]]) -> Timed:
    x = torch.randn(CASE.shape)

    def call(index: int) -> torch.Tensor:
        calls.append((name, index))
        return torch.softmax(x, -1)

    return Timed(name, call)


def test_every_entry_is_timed_in_every_round_and_watched_before_each_call() -> None:
    calls: list[tuple[str, int]] = []
    watched: list[tuple[str, int]] = []
    entries = [counted("a", calls), counted("b", calls)]
    limits = limit_kernels(CASE, 3, CPU)
    measured = measure(entries, 3, CPU, SETTINGS, limits=limits, watch=lambda name: watched.append((name, len(calls))))
    assert set(measured.samples) == {"a", "b", "limit/torch.copy_"}
    for samples in measured.samples.values():
        assert samples.host_result_ms is not None and samples.host_result_ms.shape == (8,)
        assert np.all(samples.host_result_ms > 0) and samples.events_ms is None and samples.warm_ms is None
    assert measured.clock == "host" and measured.stop_reason in ("target", "max_rounds") and measured.used.all()
    assert measured.clock_floor_us["host"] > 0
    last = {n: name for name, n in watched}  # who was watched when n calls had been made
    assert all(last[n] == name for n, (name, _) in enumerate(calls) if n in last)
    # Eight rounds, warm-up rounds before, and the untimed call before each that turned out short.
    assert min(Counter(name for name, _ in calls).values()) >= 2 * 8
    assert {index for _, index in calls} == {0, 1, 2}, "the buffer sets rotate"
    fields = summarise(measured, "b", baseline="a", least_bytes=CASE.least_bytes, settings=SETTINGS)
    assert fields["clock"] == "host" and fields["limit_kernel"] == "torch.copy_" and fields["verdict"]


def test_warm_calls_use_one_set_and_a_warm_figure_can_stand_beside_the_cold_one() -> None:
    calls: list[tuple[str, int]] = []
    measured = measure([counted("a", calls)], 1, CPU, replace(SETTINGS, cache="warm"))
    assert {index for _, index in calls} == {0} and measured.cache == "warm"
    measured = measure([counted("a", calls)], 3, CPU, replace(SETTINGS, warm=True))
    assert measured.samples["a"].warm_ms is not None


def test_an_exception_comes_through_with_its_author_watched_last() -> None:
    calls: list[tuple[str, int]] = []
    watched: list[str] = []
    good = counted("good", calls)

    def breaks(index: int) -> torch.Tensor:
        if Counter(name for name, _ in calls)["good"] > 12:
            raise RuntimeError("broken in mid-round")
        return good.call(index)

    with pytest.raises(RuntimeError, match="broken in mid-round"):
        measure([good, Timed("bad", breaks)], 1, CPU, SETTINGS, watch=watched.append)
    assert watched[-1] == "bad"
    with pytest.raises(ValueError, match="at least one"):
        measure([], 1, CPU, SETTINGS)


def test_wall_warms_up_and_times_one_entry_after_the_other_on_one_set() -> None:
    calls: list[tuple[str, int]] = []
    times = wall([counted("a", calls), counted("b", calls)], CPU, replace(SETTINGS, n_warmup=5, n_iters=30))
    assert calls == [("a", 0)] * 35 + [("b", 0)] * 35
    assert times["a"].shape == times["b"].shape == (30,) and np.all(times["a"] > 0)


def test_buffer_sets_cover_the_cache_within_bounds() -> None:
    settings = MeasureSettings()
    assert n_buffer_sets(0, CPU, settings) == 1
    assert n_buffer_sets(64, CPU, settings) == 32
    assert n_buffer_sets(1 << 50, CPU, settings) == 1, "never more than the memory holds"
    assert 1 <= n_buffer_sets(8 << 20, CPU, settings) <= 32
    assert n_buffer_sets(64, CPU, replace(settings, cache="warm")) == 1
    assert n_buffer_sets(64, CPU, replace(settings, clock="wall")) == 1


def test_only_copies_near_the_best_are_kept_for_each_clock() -> None:
    limits = [
        Timed(f"limit/{name}", lambda index: None, graphable=name != "copy_") for name in ("copy_", "x", "y", "z")
    ]
    expected = {"limit/copy_": 1.0, "limit/x": 1.02, "limit/y": 1.04, "limit/z": 1.2}
    assert [entry.name for entry in promising(limits, expected, by_graph=False)] == ["limit/copy_", "limit/x"]
    kept = [entry.name for entry in promising(limits, expected, by_graph=True)]
    assert kept == ["limit/copy_", "limit/x", "limit/y"]
    assert promising([], expected, by_graph=True) == []


@pytest.mark.parametrize("mode", ["forward", "backward", "full"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_limit_moves_as_many_bytes_as_the_case_must(mode: str, mask: str) -> None:
    case = Case((2, 2, 64, 64), dtype="float16", mode=mode, mask=mask, device="cpu")
    (entry,) = limit_kernels(case, 2, CPU)
    written = entry.call(1)
    moved = sum(2 * 4 * dst.numel() for dst in written)  # on a CPU: a copy of half as many words, read and written
    assert moved == pytest.approx(case.least_bytes, rel=0.01)
    assert limit_kernels(Case((0, 4), device="cpu"), 1, CPU) == []
