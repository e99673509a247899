"""The clocks on a real GPU. Comparisons are of factors, not of per cents: the machine may be busy."""

import gc
import threading
from dataclasses import replace

import pytest
import torch

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.timing import Measurement, Timed, limit_kernels, measure, n_buffer_sets, summarise
from softmax_exp.timing.audit import audit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
SETTINGS = MeasureSettings(budget_s=0.3, min_rounds=20, max_rounds=60)
GPU = torch.device("cuda")


def inputs(rows: int, cols: int, n_sets: int = 1) -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=torch.float16, device=GPU) for _ in range(n_sets)]


def softmax_of(xs: list[torch.Tensor], name: str = "eager") -> Timed:
    return Timed(name, lambda index: torch.softmax(xs[index], -1))


def alone(found: Measurement) -> Measurement:
    """What was measured, if no other process used the GPU: that would take the cache and the memory's rate."""
    if found.machine["foreign_processes"]:
        pytest.skip("another process uses the GPU")
    return found


def measured(rows: int, cols: int, settings: MeasureSettings = SETTINGS) -> tuple[Measurement, dict]:
    case = Case((rows, cols), workload="matrix")
    n_sets = n_buffer_sets(case.least_bytes, GPU, settings)
    limits = limit_kernels(case, n_sets, GPU)
    found = alone(measure([softmax_of(inputs(rows, cols, n_sets))], n_sets, GPU, settings, limits=limits))
    return found, summarise(found, "eager", baseline=None, least_bytes=case.least_bytes, settings=settings)


def test_short_kernels_have_both_clocks_and_they_agree() -> None:
    found, fields = measured(2048, 1024)  # 8 MB moved
    assert found.clock == fields["clock"] == "graph"
    assert not {"clocks_disagree", "not_graphable", "synchronises", "work_outside_timing"} & set(fields["flags"])
    assert 0 < found.clock_floor_us["graph"] < found.clock_floor_us["events"] < 10
    assert 0.5 < fields["graph_ms"] / fields["events_ms"] <= 1.05
    assert fields["limit_kernel"] != "torch.copy_" and 5 < fields["pct_of_limit"] < 130


def test_long_kernels_have_events_and_a_limit_near_the_memorys_rate() -> None:
    found, fields = measured(65536, 4096)  # 1 GB moved
    assert found.clock == "events" and found.samples["eager"].graph_ms is None
    rate = found.machine["memory_rate_gbps"]
    assert rate is None or 0.7 * rate < fields["limit_gbps"] < rate
    assert fields["mean_latency_ms"] >= fields["device_ms"]


def test_cold_is_slower_than_warm_where_the_data_fits_the_cache_and_only_there() -> None:
    def events_ms(rows: int, **changes) -> tuple[float, float | None]:
        (x,), settings = inputs(rows, 4096), replace(SETTINGS, **changes)
        found = alone(measure([Timed("neg", lambda index: torch.neg(x))], 1, GPU, settings))
        fields = summarise(found, "neg", baseline=None, least_bytes=1, settings=settings)
        assert fields["cache"] == settings.cache
        return fields["events_ms"], fields["warm_ms"]

    cold, beside = events_ms(1024, warm=True)  # 16 MB moved, of a cache of 40 MB and more
    warm, _ = events_ms(1024, cache="warm")
    assert beside is not None and cold > 1.15 * beside and cold > 1.15 * warm
    cold, beside = events_ms(65536, warm=True)  # 1 GB
    assert cold == pytest.approx(beside, rel=0.05)


def test_memory_is_given_back() -> None:
    measured(512, 512)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    measured(4096, 1024)
    gc.collect()
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_backward_is_timed_on_the_stream_of_its_forward() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        xs = [x.requires_grad_() for x in inputs(2048, 1024, 8)]
        ys = [torch.softmax(x, -1) for x in xs]
        gradient = torch.randn_like(ys[0])
        call = lambda index: torch.autograd.grad(ys[index], xs[index], gradient, retain_graph=True)  # noqa: E731
        found = measure([Timed("eager", call)], 8, GPU, SETTINGS)
    assert found.clock == "graph" and "not_graphable" not in found.flags["eager"]
    assert "work_outside_timing" not in found.flags["eager"]


def test_what_cannot_be_captured_is_timed_by_events() -> None:
    xs = inputs(1024, 1024, 8)

    def waits(index: int) -> torch.Tensor:
        return torch.softmax(xs[index], -1) * float(xs[index][0, 0].item() > -100)

    found = measure([Timed("waits", waits), softmax_of(xs)], 8, GPU, SETTINGS)
    assert {"synchronises", "not_graphable"} <= set(found.flags["waits"])
    assert found.clock_of("waits") == "events" and found.clock_of("eager") == "graph"
    assert "synchronises" not in found.flags["eager"] and "launch_gaps" not in found.flags["eager"]


@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (4096, 4096), (65536, 4096)])
def test_an_honest_kernel_passes_the_audit(rows: int, cols: int) -> None:
    assert audit(softmax_of(inputs(rows, cols)), GPU) == []


@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (4096, 4096)])
@pytest.mark.parametrize("joins", [True, False])
def test_work_that_ignores_the_current_stream_is_found(rows: int, cols: int, joins: bool) -> None:
    (x,), side = inputs(rows, cols), torch.cuda.Stream()

    def elsewhere(index: int) -> torch.Tensor:
        with torch.cuda.stream(side):
            y = torch.softmax(x, -1)
        if joins:
            torch.cuda.current_stream().wait_stream(side)
        return y

    assert audit(Timed("elsewhere", elsewhere), GPU) == ["work_outside_timing"]


def test_work_that_forks_from_the_current_stream_and_never_joins_is_found() -> None:
    (x,), side = inputs(32768, 4096), torch.cuda.Stream()

    def forks(index: int) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        y = torch.empty_like(x)
        with torch.cuda.stream(side):
            torch.softmax(x, -1, out=y)
        return y

    assert audit(Timed("forks", forks), GPU) == ["work_outside_timing"]


def test_work_on_another_stream_that_forks_and_joins_is_honest() -> None:
    (x,), side = inputs(4096, 4096), torch.cuda.Stream()

    def joined(index: int) -> torch.Tensor:
        y = torch.empty_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.softmax(x, -1, out=y)
        torch.cuda.current_stream().wait_stream(side)
        return y

    assert audit(Timed("joined", joined), GPU) == []


def test_work_launched_later_by_a_thread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (x,), pending = inputs(256, 256), []

    def later(index: int) -> torch.Tensor:
        pending.append(torch.empty_like(x))
        return pending[-1]

    def a_moment_later(seconds: float) -> None:
        thread = threading.Thread(target=lambda: [torch.softmax(x, -1, out=y) for y in pending])
        thread.start()
        thread.join()

    monkeypatch.setattr("softmax_exp.timing.audit.time.sleep", a_moment_later)
    assert audit(Timed("later", later), GPU) == ["work_outside_timing"]


def test_a_kept_result_is_found() -> None:
    (x,) = inputs(256, 256)
    kept = torch.softmax(x, -1)
    assert audit(Timed("kept", lambda index: kept), GPU) == ["reuses_output"]


def test_a_failing_entry_leaves_no_memory_behind() -> None:
    xs, calls = inputs(512, 512, 8), []

    def breaks(index: int) -> torch.Tensor:
        calls.append(index)
        if len(calls) > 30:
            raise RuntimeError("broken")
        return torch.softmax(xs[index], -1)

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with pytest.raises(RuntimeError, match="broken"):
        measure([Timed("breaks", breaks), softmax_of(xs)], 8, GPU, SETTINGS)
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one() -> None:
    other = torch.device("cuda", 1)
    x = torch.randn(1024, 1024, device=other)
    found = measure([Timed("eager", lambda index: torch.softmax(x, -1))], 1, other, SETTINGS)
    assert found.samples["eager"].events_ms is not None and (found.samples["eager"].events_ms > 0).all()
    assert torch.cuda.current_device() == 0
