"""The GPU's clock, by two methods: single launches between events, and CUDA-graph replays of many launches.

In: entries to time on one GPU.  Out: ms of each in a round. Launches queue up behind a blocked stream, so the host's
speed is not in the figure; before each, the L2 cache is filled with other data by reads alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing.host_clock import Readings, host_times
from softmax_exp.timing.samples import Timed

LONGEST_BLOCK_MS = 250.0
GROUP = 4  # entries behind one block: events of a queue of 13 read 0.4 us more each (H200), of 1 to 4 the same
GRAPH_MS = 2.0  # a replay is not longer than about this, so that slow entries leave time for the others


def _nothing() -> None:
    pass


class Block:
    """A kernel that spins in front of everything launched after it, long enough for the host to launch it all."""

    def __init__(self) -> None:
        """Measure the clock that the spinning counts in. The GPU should be warm."""
        self.ms = 1.0
        self._launching_ms: deque[float] = deque(maxlen=9)
        self._passed = torch.cuda.Event()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cycles = 1_000_000
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        self._cycles_per_ms = cycles / begin.elapsed_time(end)

    def start(self) -> None:
        """Block the current stream for about `ms`."""
        torch.cuda._sleep(int(self.ms * self._cycles_per_ms))
        self._passed.record()

    def holds(self) -> bool:
        """Whether the stream is still blocked: then all that was launched meanwhile runs without gaps."""
        return not self._passed.query()

    def fit(self, launching_ms: float, held: bool) -> None:
        """Choose the next length: by what launching took of late, and at least twice as long after it did not hold.

        The median of nine, so that one hiccup of the host lengthens one round and not the next fifty.
        """
        self._launching_ms.append(launching_ms)
        usual = 1.5 * float(np.median(self._launching_ms)) + 0.2
        self.ms = min(LONGEST_BLOCK_MS, usual if held else max(2 * self.ms, usual))


class Flush:
    """Fills the L2 cache with other data, by reads alone.

    Dirty lines left behind would be written back at the expense of the next kernel.
    """

    def __init__(self, device: torch.device) -> None:
        """Hold a buffer of twice the L2."""
        words = 2 * l2_bytes(device) // 4
        self._buffer = torch.ones(words // 4096, 4096, dtype=torch.float32, device=device)
        self._sink = torch.empty(words // 4096, dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Launch the reads on the current stream."""
        torch.amax(self._buffer, dim=1, out=self._sink)


def l2_bytes(device: torch.device) -> int:
    """Bytes of the GPU's L2 cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size


def gpu_uuid(device: torch.device) -> str | None:
    """The UUID of a GPU, or MIG slice, as the driver names it; None where torch does not know."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


class Replay:
    """A CUDA graph of one entry's calls over the buffer sets `indices`, each call with outputs of its own."""

    def __init__(self, entry: Timed, indices: Sequence[int], own_outputs: bool = True) -> None:
        """Capture on the current stream, or on a side stream where the current one is the default stream.

        Autograd launches on its forward's stream, which must be the one captured. Whatever a call raises comes
        through, with the capture ended.
        """
        self.n_calls = len(indices)
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for index in indices[:3]:
                entry.call(index)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = []
                for index in indices:
                    outputs.append(entry.call(index))
                    if not own_outputs:
                        outputs.clear()
            finally:
                self._graph.capture_end()
        current.wait_stream(stream)

    def __call__(self) -> None:
        """Launch all calls on the current stream."""
        self._graph.replay()

    def close(self) -> None:
        """Give the memory back."""
        self._graph.reset()


class DeviceClock:
    """Times every entry of a round on the current GPU and stream: events, graph replays where made, and host times."""

    def __init__(
        self, n_sets: int, device: torch.device, settings: MeasureSettings, watch: Callable[[str], None]
    ) -> None:
        self._n_sets, self._watch, self._settings = n_sets, watch, settings
        self._flush = Flush(device)
        self._blocks = {phase: Block() for phase in ("events", "alone", "graph", "warm")}  # each of its own length
        self._cold = settings.cache == "cold"
        self._events: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
        self._replays: dict[str, Replay] = {}
        self.synchronising: set[str] = set()
        self._rounds, self._host = 0, False
        self.n_gaps = 0

    def capture(self, entry: Timed, expected_ms: float) -> bool:
        """Make a graph of an entry whose call takes about `expected_ms`; False where it cannot be captured."""
        n_calls = min(self._n_sets, max(4, int(GRAPH_MS / max(expected_ms, 1e-3))))
        indices = list(range(n_calls)) if self._cold else [0] * max(n_calls, 8)
        self._watch(entry.name)
        try:
            self._replays[entry.name] = Replay(entry, indices, own_outputs=self._cold)
        except Exception:  # a variant may break a capture in any way; a broken device shows at the next line
            torch.cuda.synchronize()
            return False
        return True

    def begin(self) -> None:
        """From here on rounds count: host times are taken too, and launches that waited for the host are counted."""
        self._host, self.n_gaps = True, 0

    def sample(self, order: Sequence[Timed], while_busy: Callable[[], None] = lambda: None) -> Readings:
        """One time of each entry, in the given order, by the kinds of `samples.KINDS`, in ms."""
        readings: Readings = {entry.name: {} for entry in order}
        index = self._rounds % self._n_sets if self._cold else 0
        self._rounds += 1
        together = [entry for entry in order if entry.name not in self.synchronising]
        alone = [[entry] for entry in order if entry.name in self.synchronising]
        warm = not self._cold
        for phase, group in [("events", together), *(("alone", entries) for entries in alone)]:
            busy = while_busy if phase == "events" else _nothing
            for name, ms in self._between_events(phase, group, lambda entry: entry.call(index), warm, busy).items():
                readings[name]["events_ms"] = ms
        if self._replays:
            group = [entry for entry in order if entry.name in self._replays]
            for name, ms in self._between_events("graph", group, lambda e: self._replays[e.name](), warm).items():
                readings[name]["graph_ms"] = ms / self._replays[name].n_calls
        if self._settings.warm:
            for name, ms in self._between_events("warm", together, lambda entry: entry.call(0), True).items():
                readings[name]["warm_ms"] = ms
        for entry in order if self._host else ():
            if not entry.is_limit:
                self._watch(entry.name)
                entry.call(index)  # brings the host's code of this entry into the host's caches, as in a loop of calls
                if self._cold:
                    self._flush()
                returned, done = host_times(entry, index, torch.cuda.synchronize)
                readings[entry.name] |= {"host_return_ms": returned, "host_result_ms": done}
        return readings

    def _between_events(
        self,
        phase: str,
        group: Sequence[Timed],
        launch: Callable[[Timed], object],
        warm: bool,
        while_busy: Callable[[], None] = _nothing,
    ) -> dict[str, float]:
        """Launch each entry between two events behind a block, few at a time. ms by name.

        `warm`: each is launched once more right before, instead of a flush.
        """
        times: dict[str, float] = {}
        for start in range(0, len(group), GROUP):
            times |= self._behind_a_block(self._blocks[phase], group[start : start + GROUP], launch, warm, while_busy)
            while_busy = _nothing
        return times

    def _behind_a_block(
        self,
        block: Block,
        group: Sequence[Timed],
        launch: Callable[[Timed], object],
        warm: bool,
        while_busy: Callable[[], None],
    ) -> dict[str, float]:
        """Launch a few entries, and again behind a longer block if that ended too soon."""
        for entry in group:
            if entry.name not in self._events:
                self._events[entry.name] = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        held = False
        while not held:
            block.start()
            began = time.perf_counter()
            for entry in group:
                self._watch(entry.name)
                launch(entry) if warm else self._flush()
                start, end = self._events[entry.name]
                start.record()
                launch(entry)
                end.record()
            held = block.holds()
            took = 1e3 * (time.perf_counter() - began)
            while_busy()
            torch.cuda.synchronize()
            if not held and any(entry.name in self.synchronising for entry in group):
                break  # it waits for the device by itself: what is timed includes that, and is flagged
            if not held and block.ms >= LONGEST_BLOCK_MS:
                self.n_gaps += 1
                break
            block.fit(took, held)
        return {e.name: self._events[e.name][0].elapsed_time(self._events[e.name][1]) for e in group}

    def close(self) -> None:
        """Give the GPU's memory back."""
        torch.cuda.synchronize()
        for replay in self._replays.values():
            replay.close()
        self._replays.clear()
        del self._flush
        torch.cuda.empty_cache()
