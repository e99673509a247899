"""The GPU's own account of itself while it is measured, through NVML; nothing is ever set.

In: the UUID of the GPU as torch names it (right under CUDA_VISIBLE_DEVICES and MIG).  Out: clocks, power, temperature,
reasons for throttling, other processes, and the memory's theoretical rate. Without NVML all of it is absent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# nvmlClocksEventReasons of the NVML reference; the names are ours
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
SETTINGS = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"}  # chosen, not suffered


@dataclass(frozen=True)
class Reading:
    """One look at the GPU. None where the driver does not say."""

    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: tuple[str, ...]

    @property
    def throttled(self) -> bool:
        """Whether the GPU runs slower than it could, for power or heat."""
        return any(reason not in SETTINGS for reason in self.reasons)


def load_nvml() -> Any | None:
    """The pynvml module, initialised; None where it or the driver's library is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class Monitor:
    """Reads one GPU while it works. `nvml` is a module like pynvml; a failing query leaves its figure absent."""

    def __init__(
        self,
        uuid: str | None,
        nvml: Any | None = None,
        every_s: float = 0.02,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the GPU (or MIG slice) by its UUID, with or without the prefix `GPU-` or `MIG-`."""
        self._nvml, self._every_s, self._now = nvml, every_s, now
        self._next = 0.0
        self._handle = self._find(uuid) if nvml is not None and uuid else None
        self.readings: list[Reading] = []

    def _find(self, uuid: str) -> Any | None:
        names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        for name in names:
            for spelling in (name, name.encode()):  # older bindings take bytes
                if (handle := self._ask("nvmlDeviceGetHandleByUUID", spelling)) is not None:
                    return handle
        return None

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        try:
            return getattr(self._nvml, function)(*arguments)
        except Exception:  # not supported here (MIG, WSL, old driver): NVMLError, AttributeError or TypeError
            return None

    @property
    def present(self) -> bool:
        """Whether NVML answers for this GPU."""
        return self._handle is not None

    def poll(self) -> Reading | None:
        """A new reading, at most one each `every_s`; None where it is too early or NVML is missing."""
        if not self.present or self._now() < self._next:
            return None
        self._next = self._now() + self._every_s
        power = self._ask("nvmlDeviceGetPowerUsage", self._handle)  # mW
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._handle)
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle) or 0
        reading = Reading(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._handle, 1),  # NVML_CLOCK_SM
            power_w=None if power is None else power / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", self._handle, 0),  # NVML_TEMPERATURE_GPU
            reasons=tuple(name for bit, name in REASONS.items() if bits & bit),
        )
        self.readings.append(reading)
        return reading

    def foreign_processes(self) -> int | None:
        """Other processes that hold a context on this GPU; None where the driver does not say.

        In a container the driver counts in its own process ids, so one of those unknown to us is us.
        """
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle) if self.present else None
        if processes is None:
            return None
        pids = {process.pid for process in processes}
        return len(pids - {os.getpid()}) if os.getpid() in pids else max(0, len(pids) - 1)

    def memory_rate_gbps(self) -> float | None:
        """The memory's theoretical rate in GB/s: its highest clock x 2 (both edges) x the width of its bus."""
        clock_mhz = self._ask("nvmlDeviceGetMaxClockInfo", self._handle, 2) if self.present else None  # NVML_CLOCK_MEM
        bits = self._ask("nvmlDeviceGetMemoryBusWidth", self._handle) if self.present else None
        return clock_mhz * 1e6 * 2 * bits / 8 / 1e9 if clock_mhz and bits else None

    def summary(self) -> dict[str, Any]:
        """The figures of a record's `machine`: median and range of the readings, and what throttled."""
        cap = self._ask("nvmlDeviceGetEnforcedPowerLimit", self._handle) if self.present else None  # mW
        return {
            "sm_clock_mhz": _spread([r.sm_clock_mhz for r in self.readings]),
            "power_w": _spread([r.power_w for r in self.readings]),
            "power_cap_w": None if cap is None else cap / 1000,
            "temperature_c": _spread([r.temperature_c for r in self.readings]),
            "throttle_reasons": sorted(
                {reason for r in self.readings if r.throttled for reason in r.reasons} - SETTINGS
            ),
            "foreign_processes": self.foreign_processes(),
            "memory_rate_gbps": self.memory_rate_gbps(),
            "n_readings": len(self.readings),
        }


def _spread(values: list[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": float(np.median(known)), "min": float(min(known)), "max": float(max(known))}


def last_level_cache_bytes() -> int:
    """Bytes of the CPU's largest cache, from Linux's description of it; 32 MB where there is none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        digits, unit = text.rstrip("KMG"), text[-1:]
        sizes.append(int(digits) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit, 1) if digits.isdigit() else 0)
    return max(sizes, default=0) or 32 << 20


def free_memory_bytes() -> int:
    """Bytes of main memory that can be used without swapping; 1 GB where Linux does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 30
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 1 << 30)
