"""The block in front of launches, on a simulated GPU whose host is slow to launch."""

from types import SimpleNamespace

import pytest
import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing import Timed, device_clock

LAUNCH_MS = 0.05  # what the host needs for one launch: longer than the kernels take


class FakeGpu:
    """One stream: a launch costs the host time and runs when the one before is done. All in ms."""

    def __init__(self) -> None:
        self.host, self.idle_from, self.synchronised = 0.0, 0.0, 0

    def launch(self, duration: float, cost: float = LAUNCH_MS) -> None:
        self.host += cost
        self.idle_from = max(self.host, self.idle_from) + duration

    def synchronize(self, device: object = None) -> None:
        self.host = max(self.host, self.idle_from)
        self.synchronised += 1

    def event(self, enable_timing: bool = False) -> SimpleNamespace:
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", max(self.host, self.idle_from))
        event.query = lambda: self.host >= event.at
        event.synchronize = lambda: setattr(self, "host", max(self.host, event.at))
        event.elapsed_time = lambda end: end.at - event.at
        return event


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.launch(cycles / 2e6), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(device_clock, "Flush", lambda device: lambda: gpu.launch(0.03))
    monkeypatch.setattr(device_clock.time, "perf_counter", lambda: gpu.host / 1e3)
    monkeypatch.setattr(device_clock, "host_times", lambda entry, index, wait: (0.0, 0.0))
    return gpu


def clock_for(gpu: FakeGpu, **settings) -> device_clock.DeviceClock:
    return device_clock.DeviceClock(4, torch.device("cuda"), MeasureSettings(**settings), lambda name: None)


def test_the_hosts_slowness_is_not_in_the_figure(gpu: FakeGpu) -> None:
    clock = clock_for(gpu)
    entries = [Timed("two kernels", lambda index: (gpu.launch(0.004), gpu.launch(0.006))) for _ in range(8)]
    entries = [Timed(f"{i}", entry.call) for i, entry in enumerate(entries)]
    for _ in range(5):
        readings = clock.sample(entries)
        assert [readings[entry.name]["events_ms"] for entry in entries] == pytest.approx([0.010] * 8)
    assert clock.n_gaps == 0


def test_few_entries_stand_behind_one_block(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, blocks = clock_for(gpu), []
    monkeypatch.setattr(
        device_clock.Block, "start", lambda block, start=device_clock.Block.start: blocks.append(start(block))
    )
    entries = [Timed(f"{i}", lambda index: gpu.launch(0.010)) for i in range(9)]
    readings = clock.sample(entries)
    assert [readings[f"{i}"]["events_ms"] for i in range(9)] == pytest.approx([0.010] * 9)
    assert len(blocks) == 3


def test_without_a_block_it_would_be(gpu: FakeGpu) -> None:
    start, end = gpu.event(), gpu.event()
    start.record()
    gpu.launch(0.004)
    gpu.launch(0.006)
    end.record()
    assert start.elapsed_time(end) > 0.1


def test_a_block_that_ended_too_soon_is_repeated_longer_and_shrinks_again(gpu: FakeGpu) -> None:
    clock, slow = clock_for(gpu), [20.0]

    def call(index: int) -> None:
        gpu.host += slow[0]  # descheduled, say
        gpu.launch(0.010)

    for _ in range(3):
        assert clock.sample([Timed("a", call)])["a"]["events_ms"] == pytest.approx(0.010)
    assert clock._blocks["events"].ms > 20
    slow[0] = 0.0
    for _ in range(60):
        clock.sample([Timed("a", call)])
    assert clock._blocks["events"].ms < 1


def test_a_host_that_no_block_can_hide_is_counted(gpu: FakeGpu) -> None:
    clock = clock_for(gpu)

    def call(index: int) -> None:
        gpu.host += 400.0
        gpu.launch(0.010)

    clock.sample([Timed("a", call)])
    assert clock.n_gaps == 1
    clock.begin()
    assert clock.n_gaps == 0


def test_an_entry_that_waits_for_the_device_is_timed_alone(gpu: FakeGpu) -> None:
    clock = clock_for(gpu)
    clock.synchronising.add("waits")

    def waits(index: int) -> None:
        gpu.launch(0.010)
        gpu.synchronize()
        gpu.launch(0.010)

    readings = clock.sample([Timed("waits", waits), Timed("good", lambda index: gpu.launch(0.010))])
    assert readings["good"]["events_ms"] == pytest.approx(0.010)
    assert readings["waits"]["events_ms"] == pytest.approx(0.020 + LAUNCH_MS), "its own gap is its own cost"
    assert clock.n_gaps == 0


def test_buffer_sets_rotate_when_cold_and_stay_when_warm(gpu: FakeGpu) -> None:
    seen: list[int] = []

    def call(index: int) -> None:
        seen.append(index)
        gpu.launch(0.010)

    clock = clock_for(gpu)
    for _ in range(5):
        clock.sample([Timed("a", call)])
    assert sorted(set(seen)) == [0, 1, 2, 3]
    seen.clear()
    clock_for(gpu, cache="warm").sample([Timed("a", call)])
    assert set(seen) == {0} and len(seen) >= 2, "the timed call finds what the one before it used"


def test_nothing_is_asked_of_the_machine_before_all_is_launched(gpu: FakeGpu) -> None:
    clock, asked = clock_for(gpu), []
    entries = [Timed(name, lambda index: gpu.launch(0.010)) for name in "abc"]
    clock.sample(entries, lambda: asked.append(gpu.host < gpu.idle_from))
    assert asked and all(asked), "while the device works"
