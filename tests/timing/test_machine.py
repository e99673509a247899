import os
import subprocess
import sys

import pytest

from softmax_exp.timing.machine import Monitor, free_memory_bytes, last_level_cache_bytes
from tests.timing.fakes import FakeNvml, FakeTime


@pytest.mark.parametrize("uuid", ["1234", "GPU-1234"])
def test_the_gpu_is_found_by_its_uuid(uuid: str) -> None:
    assert Monitor(uuid, FakeNvml()).present
    assert Monitor("77", FakeNvml(uuid="MIG-77")).present, "a MIG slice"
    assert Monitor(uuid, FakeNvml(uuid=b"GPU-1234")).present, "older bindings take bytes"  # type: ignore[arg-type]
    assert not Monitor("other", FakeNvml()).present, "never another GPU than the one measured"


def test_what_it_reads_is_summed_up() -> None:
    bits = iter([0x1, 0x4, 0x4 | 0x20])
    monitor = Monitor("1234", FakeNvml(reasons=lambda: next(bits), pids=[os.getpid()]), every_s=0.0)
    readings = [monitor.poll() for _ in range(3)]
    assert [reading.throttled for reading in readings if reading] == [False, True, True]
    summary = monitor.summary()
    assert summary["sm_clock_mhz"] == {"median": 1980.0, "min": 1980.0, "max": 1980.0}
    assert (summary["power_cap_w"], summary["power_w"]["max"], summary["temperature_c"]["max"]) == (700.0, 412.0, 41.0)
    assert summary["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"], "being idle is no throttling"
    assert summary["memory_rate_gbps"] == pytest.approx(4916.7, abs=0.1)  # 3201 MHz x 2 x 768 bytes
    assert summary["foreign_processes"] == 0


def test_it_reads_no_more_often_than_asked() -> None:
    time = FakeTime()
    monitor = Monitor("1234", FakeNvml(), every_s=0.05, now=time.now)
    assert monitor.poll() is not None
    assert monitor.poll() is None
    time.now_s += 0.06
    assert monitor.poll() is not None


def test_another_process_on_the_gpu_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert Monitor("1234", FakeNvml(pids=[os.getpid(), other.pid])).foreign_processes() == 1
        other.communicate(b"\n")
    assert Monitor("1234", FakeNvml(pids=[4_000_001])).foreign_processes() == 0, "in a container, that is us"
    assert Monitor("1234", FakeNvml(pids=[4_000_001, 4_000_002])).foreign_processes() == 1
    assert Monitor("1234", FakeNvml(missing=["nvmlDeviceGetComputeRunningProcesses"])).foreign_processes() is None


@pytest.mark.parametrize("nvml", [None, FakeNvml(uuid="GPU-another")])
def test_without_nvml_everything_is_absent(nvml: FakeNvml | None) -> None:
    monitor = Monitor("1234", nvml)
    assert monitor.poll() is None
    summary = monitor.summary()
    assert summary["sm_clock_mhz"] is None and summary["power_cap_w"] is None and summary["foreign_processes"] is None
    assert summary["throttle_reasons"] == [] and monitor.memory_rate_gbps() is None


@pytest.mark.parametrize(
    "missing",
    [
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetEnforcedPowerLimit",
    ],
)
def test_a_query_that_is_not_supported_leaves_the_others(missing: str) -> None:
    monitor = Monitor("1234", FakeNvml(missing=[missing]))
    assert monitor.poll() is not None
    figures = [monitor.summary()[key] for key in ("sm_clock_mhz", "power_w", "temperature_c", "power_cap_w")]
    assert figures.count(None) == 1


def test_reading_the_machine_imports_no_torch() -> None:
    code = (
        "import sys, softmax_exp.timing, softmax_exp.timing.machine, softmax_exp.timing.statistics; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_host_is_described() -> None:
    assert last_level_cache_bytes() >= 1 << 18
    assert free_memory_bytes() >= 1 << 20
