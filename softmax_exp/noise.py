"""How far one latency differs from process to process, beyond what the interval within a process says.

In: a record and the kind of device.  Out: the standard deviation of the logarithm of its latency between processes.
"""

from __future__ import annotations

import math

from softmax_exp.records import Record

# docs/results/noise.jsonl (scripts/study_noise.py: 54 cells, 6 processes, one H200). The GPU's time: the largest
# standard deviation of a cell was 0.42 %, the pooled one 0.17 %; the part within a process is in it, so this errs on
# the side of saying "unclear".
DEVICE_SD_PCT = 0.45
# The host's clock, same study: the largest by latency in ms. Launch cost differs from process to process.
GPU_HOST_SD_PCT = ((0.1, 22.5), (0.25, 15.0), (float("inf"), 6.0))
# CPU: no study was made on a quiet one. On two cores shared with other work, the cells of six sweeps that were not
# flagged noisy differed by 4 % at most, and noisy ones by a factor of ten: those say nothing (`is_lost`).
CPU_SD_PCT = 10.0
DISTURBED = {"noisy", "throttled", "gpu_shared"}


def process_sd(record: Record, device_type: str, latency_ms: float) -> float:
    """The standard deviation between processes, as a part of the latency. `device_type` is `cuda` or `cpu`.

    What was disturbed while it was measured is taken to differ between processes as it did between calls.
    """
    if device_type == "cpu":
        usual = CPU_SD_PCT
    elif record.clock in ("events", "graph"):
        usual = DEVICE_SD_PCT
    else:
        usual = next(pct for below, pct in GPU_HOST_SD_PCT if latency_ms < below)
    return max(usual / 100, _between_calls(record) if DISTURBED & {*record.flags} else 0.0)


def is_lost(record: Record, device_type: str) -> bool:
    """Whether other work on a CPU disturbed a cell so much that its time says nothing of the code."""
    return device_type == "cpu" and "noisy" in record.flags


def _between_calls(record: Record) -> float:
    """The spread of single calls, as the standard deviation of a normal distribution with the same quantiles."""
    spread = 0.0
    for low, high, width in (
        (record.device_ms_p25, record.device_ms_p75, 1.349),
        (record.device_ms_p05, record.device_ms_p95, 3.290),
    ):
        if low and high:
            spread = max(spread, math.log(high / low) / width)
    return spread
