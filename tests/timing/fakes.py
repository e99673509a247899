"""Stand-ins: a driver's library, a clock of rounds, and time itself."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from softmax_exp.timing.samples import Timed


class FakeNvml:
    """What pynvml answers. `missing` functions raise, as unsupported queries do."""

    def __init__(
        self,
        uuid: str = "GPU-1234",
        reasons: Callable[[], int] = lambda: 0,
        pids: Sequence[int] = (),
        missing: Sequence[str] = (),
    ) -> None:
        self.uuid, self.reasons, self.pids, self.missing = uuid, reasons, pids, set(missing)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)
        answers: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetPowerUsage": 412_000,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMaxClockInfo": 3201,
            "nvmlDeviceGetMemoryBusWidth": 6144,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in self.pids],
        }
        if name == "nvmlDeviceGetHandleByUUID":
            return self._by_uuid
        if name == "nvmlDeviceGetCurrentClocksEventReasons":
            return lambda handle: self.reasons()
        if name not in answers:
            raise AttributeError(name)
        return lambda *arguments: answers[name]

    def _by_uuid(self, uuid: str | bytes) -> str:
        if uuid != self.uuid:
            raise RuntimeError("not found")
        return "handle"


class FakeTime:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s, self.pauses = 0.0, 0

    def now(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses += 1


class FakeClock:
    """Rounds that take `round_s` and give each entry the time of `times(name, round)`, in ms."""

    def __init__(self, time: FakeTime, times: Callable[[str, int], float], round_s: float = 0.01) -> None:
        self.time, self.times, self.round_s = time, times, round_s
        self.orders: list[list[str]] = []

    def sample(self, order: Sequence[Timed], while_busy: Callable[[], None]) -> dict[str, dict[str, float]]:
        self.orders.append([entry.name for entry in order])
        self.time.now_s += self.round_s
        while_busy()
        return {entry.name: {"events_ms": self.times(entry.name, len(self.orders))} for entry in order}
