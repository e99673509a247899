"""The schema of a config: types, units, bounds, and the checks across keys.

In: what Hydra composed from `conf/` and the command line.  Out: a frozen `Experiment`, or a ValueError that names the
dotted key, its value, what is allowed and the fix.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureSettings:
    """How a case is measured; the keys under `measure`."""

    clock: str = "device"
    """`device`: GPU time by events (and graph replays for short kernels), host time beside it. `wall`: the host clock
    alone, one variant after the other, as in the first version. On a CPU `device` means the host clock, interleaved."""
    n_warmup: int = 5
    """Calls before anything is timed."""
    n_iters: int = 30
    """Timed calls a variant; used by `clock=wall` only."""
    budget_s: float = 2.0
    """Time for the interleaved rounds of one case, all variants together, in seconds."""
    min_rounds: int = 20
    """Rounds that are measured even beyond the budget."""
    max_rounds: int = 1000
    """Rounds after which measuring stops in any case."""
    target_pct: float = 0.5
    """Measuring stops once the half-width of every interval is within this percentage of its median."""
    confidence: float = 0.95
    """Confidence level of every interval."""
    margin_pct: float = 1.0
    """Two variants whose ratio's interval lies within this percentage of 1 are called the same."""
    cache: str = "cold"
    """`cold`: nothing of the case is in the L2 cache when a call starts. `warm`: the same buffers call after call."""
    warm: bool = False
    """Also measure the warm figure (`warm_ms`) beside the cold one."""
    graph_below_us: float = 20.0
    """Kernels whose event time is below this are given by CUDA-graph replays, with the event time beside it."""
    self_check: bool = False
    """Also measure the baseline a second time under another name, which must come out the same."""
    order_seed: int = 0
    """Seed of the random order within rounds and of the bootstrap."""
    throttle_retries: int = 3
    """Times that throttled rounds are measured again before they are kept and flagged."""
    first_call_deadline_s: float = 300.0
    """Seconds that the first call of a variant (compilation included) may take before it is a TIMEOUT."""
    measure_deadline_s: float = 120.0
    """Seconds that checking and measuring may take beyond `budget_s` before it is a TIMEOUT."""
