import dataclasses

import numpy as np
import pytest

from softmax_exp.config import MeasureSettings
from softmax_exp.records import Record
from softmax_exp.timing import Measurement, Samples, summarise, summarise_wall

SETTINGS = MeasureSettings()
N = 60
NOISE = np.random.default_rng(0).normal(1.0, 0.001, size=(8, N))


def measurement(clock: str = "events", **changes) -> Measurement:
    """eager 0.040 ms, triton 0.025 ms, the best copy 0.024 ms; the host waits 0.06 ms and returns after 0.01 ms."""
    drift = np.linspace(1.0, 1.06, N)
    samples = {
        "eager": Samples("eager", 0.040 * drift * NOISE[0], None, None, 0.010 * NOISE[1], 0.060 * NOISE[2]),
        "triton": Samples("triton", 0.025 * drift * NOISE[3], None, None, 0.010 * NOISE[4], 0.050 * NOISE[5]),
        "limit/slow": Samples("limit/slow", 0.030 * drift),
        "limit/best": Samples("limit/best", 0.024 * drift * NOISE[6]),
    }
    measured = Measurement(samples, clock, "cold", {"events": 2.0, "host": 12.0}, "target", np.full(N, True))
    return dataclasses.replace(measured, **changes)


def summary(
    measured: Measurement, name: str = "triton", baseline: str | None = "eager", least_bytes: int = 100_000_000
):
    return summarise(measured, name, baseline=baseline, least_bytes=least_bytes, settings=SETTINGS)


def test_every_field_is_one_of_the_record() -> None:
    known = {field.name for field in dataclasses.fields(Record)}
    assert set(summary(measurement())) <= known and set(summarise_wall(np.ones(3))) <= known


def test_the_figures() -> None:
    fields = summary(measurement())
    assert fields["device_ms"] == pytest.approx(0.025 * 1.03, rel=0.005)
    assert fields["device_ms_ci_low"] < fields["device_ms"] < fields["device_ms_ci_high"]
    assert fields["device_ms_p05"] < fields["device_ms_p25"] < fields["device_ms_p75"] < fields["device_ms_p95"]
    assert fields["gbps"] == pytest.approx(100_000_000 / fields["device_ms"] / 1e6)
    assert (fields["limit_kernel"], fields["clock"], fields["cache"]) == ("best", "events", "cold")
    assert fields["n_samples"] == N
    assert fields["pct_of_limit"] == pytest.approx(96, rel=0.002), "paired: the drift is not in it"
    assert fields["speedup"] == pytest.approx(1.6, rel=0.002) and fields["verdict"] == "faster"
    assert fields["mean_latency_ms"] == pytest.approx(0.050, rel=0.01)
    assert fields["host_return_us"] == pytest.approx(10, rel=0.01)
    assert fields["clock_floor_us"] == 2.0 and fields["graph_ms"] is None and fields["flags"] == []


def test_the_baseline_is_compared_with_nothing_and_its_absence_leaves_no_speedup() -> None:
    own = summary(measurement(), "eager")
    assert own["speedup"] == 1.0 and "verdict" not in own
    assert "speedup" not in summary(measurement(), baseline=None)
    assert "speedup" not in summary(measurement(), baseline="torch.compile")


def test_rounds_that_do_not_count_are_left_out() -> None:
    measured = measurement()
    measured.samples["triton"].events_ms[:10] = 9.0
    measured.used[:10] = False
    fields = summary(measured)
    assert fields["n_samples"] == N - 10 and fields["device_ms_p95"] < 0.04


def test_short_kernels_are_given_and_compared_by_graph_replays() -> None:
    measured = measurement("graph")
    for name, ms in (("eager", 0.038), ("triton", 0.023), ("limit/best", 0.0225)):
        measured.samples[name].graph_ms = ms * NOISE[7]
    measured.clock_floor_us["graph"] = 1.0
    fields = summary(measured)
    assert fields["clock"] == "graph" and fields["device_ms"] == pytest.approx(0.023, rel=0.01)
    assert fields["events_ms"] > 0.024 and fields["clock_floor_us"] == 1.0
    assert fields["speedup"] == pytest.approx(0.038 / 0.023, rel=0.001)
    assert fields["pct_of_limit"] == pytest.approx(100 * 0.0225 / 0.023, rel=0.001)


def test_one_that_no_graph_could_hold_is_compared_by_events() -> None:
    measured = measurement("graph", flags={"triton": ["not_graphable"]})
    measured.samples["eager"].graph_ms = 0.038 * NOISE[7]
    fields = summary(measured)
    assert fields["clock"] == "events" and fields["speedup"] == pytest.approx(1.6, rel=0.002)
    assert fields["limit_kernel"] == "best" and fields["flags"] == ["not_graphable"]


def flags(measured: Measurement, **more) -> list[str]:
    return summary(measured, **more)["flags"]


def test_flags_of_the_figures() -> None:
    measured = measurement()
    measured.samples["triton"].events_ms = 0.025 * np.random.default_rng(1).lognormal(0, 0.2, N)
    assert "noisy" in flags(measured)

    measured = measurement()
    measured.samples["triton"].host_result_ms = 0.05 * np.random.default_rng(1).lognormal(0, 0.5, N)
    assert flags(measured) == ["host_noisy"], "a busy host"

    measured = measurement()
    measured.samples["triton"].host_return_ms = 0.045 * NOISE[0]
    assert flags(measured) == ["host_bound"]

    measured = measurement()
    measured.samples["triton"].events_ms = measured.samples["limit/best"].events_ms / 1.02
    assert flags(measured) == ["faster_than_limit"]
    measured.samples["triton"].events_ms = measured.samples["limit/best"].events_ms / 1.005
    assert flags(measured) == [], "as fast as a copy, to within the margin"


def test_beyond_the_memorys_rate_is_flagged_only_where_no_cache_can_explain_it() -> None:
    machine = {"memory_rate_gbps": 4917.0, "l2_bytes": 60 << 20}
    fast = measurement(machine=machine)
    for name in ("triton", "limit/best"):
        fast.samples[name].events_ms = fast.samples[name].events_ms * 4  # 1 GB at about 9,000 GB/s
    assert "beyond_memory_rate" in flags(fast, least_bytes=1_000_000_000)
    assert "beyond_memory_rate" not in flags(measurement(machine=machine), least_bytes=200_000_000)
    assert "beyond_memory_rate" not in flags(fast, least_bytes=400_000_000)
    assert "beyond_memory_rate" not in flags(measurement(), least_bytes=1_000_000_000), "rate unknown"


@pytest.mark.parametrize(("graph_ms", "flagged"), [(0.0247, False), (0.0225, False), (0.0210, True), (0.0290, True)])
def test_clocks_that_differ_by_more_than_the_floor_are_flagged(graph_ms: float, flagged: bool) -> None:
    measured = measurement()  # events 0.02575, their floor 0.002
    measured.clock_floor_us["graph"] = 1.0
    measured.samples["triton"].graph_ms = graph_ms * NOISE[7]
    assert ("clocks_disagree" in flags(measured)) == flagged


def test_wall_is_the_first_versions_figures() -> None:
    fields = summarise_wall(np.array([1.0, 2.0, 3.0, 6.0]))
    assert (fields["mean_latency_ms"], fields["median_latency_ms"], fields["n_samples"]) == (3.0, 2.5, 4)
    assert fields["std_latency_ms"] == pytest.approx(2.1602, abs=1e-4)
    assert "device_ms" not in fields
