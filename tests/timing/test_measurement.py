"""A whole measurement on the CPU: what is called, and what comes out. Never how fast."""

import contextlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.timing import Timed, buffers, limit_kernels, measure, measurement, n_buffer_sets, summarise, wall
from softmax_exp.timing.buffers import is_short
from softmax_exp.timing.measurement import promising
from tests.timing.fakes import FakeNvml

CPU, GPU = torch.device("cpu"), torch.device("cuda")
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


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU of 4.92 TB/s and 60 MB of L2, whose free memory may be changed."""
    memory = {"free": 100 << 30}
    monkeypatch.setattr(buffers, "gpu_uuid", lambda device: "1234")
    monkeypatch.setattr(buffers, "l2_bytes", lambda device: 60 << 20)
    monkeypatch.setattr(buffers.machine, "load_nvml", FakeNvml)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory["free"], 1 << 40))
    return memory


@pytest.mark.parametrize(
    ("size", "dtype", "mode", "short"),
    [
        (256, "float16", "full", True),  # 63 MB: 16.8 us by graph, 20.4 us by events, on either side of 20 us
        (256, "float32", "backward", False),  # 75 MB
        (512, "float16", "forward", False),
        (128, "float32", "full", True),
    ],
)
def test_the_clock_follows_from_the_bytes_and_the_memorys_rate(h200, size, dtype, mode, short) -> None:
    least_bytes, settings = Case((8, 12, size, size), dtype=dtype, mode=mode).least_bytes, MeasureSettings()
    assert is_short(least_bytes, GPU, settings) == is_short(least_bytes, GPU, replace(settings, cache="warm")) == short
    assert (n_buffer_sets(least_bytes, GPU, settings) >= 8) == short
    assert not is_short(least_bytes, GPU, replace(settings, graph_below_us=0)) and not is_short(
        least_bytes, CPU, settings
    )
    h200["free"] = 1 << 20
    assert n_buffer_sets(least_bytes, GPU, settings) == 1, "without memory for several sets it is events"


def test_few_long_rows_are_short_by_the_studys_bound(h200) -> None:
    case = Case((16, 1_048_576), dtype="float32", workload="matrix")
    assert not is_short(case.least_bytes, GPU, MeasureSettings())
    assert is_short(case.least_bytes, GPU, MeasureSettings(graph_below_us=50))
    assert not is_short(Case((4096, 65536), workload="matrix").least_bytes, GPU, MeasureSettings(graph_below_us=50))


class SomeClock:
    """A GPU's clock without a GPU: every call takes `ms` between events, and can be captured."""

    ms = 1.0

    def __init__(self, *about: object) -> None:
        self.synchronising, self.replays, self.n_gaps = set(), set(), 0

    def capture(self, entry: Timed, expected_ms: float) -> bool:
        self.replays.add(entry.name)
        return True

    def sample(self, order, while_busy=lambda: None) -> dict[str, dict[str, float]]:
        host = {"host_return_ms": self.ms, "host_result_ms": self.ms}
        graph = {"graph_ms": self.ms}
        return {e.name: {"events_ms": self.ms, **host} | (graph if e.name in self.replays else {}) for e in order}

    def begin(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("ms", [0.001, 0.0199, 0.0201, 1.0])
@pytest.mark.parametrize(
    ("n_sets", "cache", "case_bytes", "clock"),
    [
        (8, "cold", 1 << 20, "graph"),
        (1, "cold", 1 << 20, "events"),
        (1, "warm", 1 << 20, "graph"),
        (1, "warm", 1 << 30, "events"),
    ],
)
def test_no_time_that_was_measured_chooses_the_clock(h200, monkeypatch, ms, n_sets, cache, case_bytes, clock) -> None:
    monkeypatch.setattr(SomeClock, "ms", ms)
    monkeypatch.setattr(measurement, "DeviceClock", SomeClock)
    monkeypatch.setattr(measurement, "audit", lambda entry, device: [])
    monkeypatch.setattr(measurement, "gpu_uuid", lambda device: "1234")
    monkeypatch.setattr(measurement, "l2_bytes", lambda device: 60 << 20)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    settings = replace(SETTINGS, cache=cache)
    found = measure([counted("a", [])], n_sets, GPU, settings, case_bytes=case_bytes, nvml=FakeNvml())
    assert found.clock == clock and (found.samples["a"].graph_ms is not None) == (clock == "graph")


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
