"""What goes into a measurement and what comes out: things to time, raw samples, and the machine's state.

In: nothing, and no torch.  Out: `Timed`, `Samples`, `Measurement`, shared by the clocks, the rounds and the summary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LIMIT_PREFIX = "limit/"
KINDS = ("events_ms", "graph_ms", "warm_ms", "host_return_ms", "host_result_ms")


@dataclass(frozen=True)
class Timed:
    """One thing to measure.

    `call(i)` launches the work once on buffer set i (0 <= i < n_sets), asynchronously on the current stream, and
    returns its outputs. `graphable=False` keeps it out of CUDA graphs.
    """

    name: str
    call: Callable[[int], Any]
    graphable: bool = True

    @property
    def is_limit(self) -> bool:
        """Whether this is a copy that measures the machine, and no variant."""
        return self.name.startswith(LIMIT_PREFIX)


@dataclass
class Samples:
    """Raw times of one entry in ms, float64, one per round; index = round. None where a clock was not used.

    `events_ms`: one launch between two events. `graph_ms`: a CUDA-graph replay divided by its calls. `warm_ms`: one
    launch on data that the same call has just used. `host_return_ms`: until the call returns. `host_result_ms`:
    until its result is there.
    """

    name: str
    events_ms: np.ndarray | None = None
    graph_ms: np.ndarray | None = None
    warm_ms: np.ndarray | None = None
    host_return_ms: np.ndarray | None = None
    host_result_ms: np.ndarray | None = None

    def device_ms(self, clock: str) -> np.ndarray | None:
        """The samples of the clock "events", "graph" or "host"."""
        return {"events": self.events_ms, "graph": self.graph_ms, "host": self.host_result_ms}[clock]

    def arrays(self) -> dict[str, np.ndarray]:
        """The clocks that were used, by name: what is kept in the file of raw samples."""
        return {kind: values for kind in KINDS if (values := getattr(self, kind)) is not None}


@dataclass
class Measurement:
    """All samples of the rounds of one case.

    `clock` is what `device_ms` is taken from: "graph" where the case moves few bytes, else "events"; "host" on a
    CPU. `used` says which rounds count: rounds that were throttled and could be repeated do not, but are kept.
    `samples` holds the limit kernels under `limit/<kernel>`. `stop_reason`: "target", "budget" or "max_rounds".
    """

    samples: dict[str, Samples]
    clock: str
    cache: str
    clock_floor_us: dict[str, float]
    stop_reason: str
    used: np.ndarray
    machine: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)

    def clock_of(self, name: str) -> str:
        """The clock of one entry: the case's, or "events" for an entry that no graph could capture."""
        return self.clock if self.samples[name].device_ms(self.clock) is not None else "events"

    def device_ms(self, name: str, clock: str | None = None) -> np.ndarray | None:
        """Samples of an entry in the rounds that count, by its own clock or the one given."""
        values = self.samples[name].device_ms(clock or self.clock_of(name))
        return None if values is None else values[self.used]
