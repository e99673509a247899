"""How far one latency differs from process to process, beyond what the interval within a process says.

In: a record and the kind of device.  Out: the standard deviation of the logarithm of its latency between processes.
"""

from __future__ import annotations

import math

from softmax_exp.records import Record

# docs/results/noise.jsonl (scripts/study_noise.py: 54 cells, 6 processes, one H200). The GPU's time, by latency in ms:
# pooled standard deviations of 0.14 % (below 20 us), 0.30 % (27 to 53 us) and 0.12 %; the largest of a cell, from six
# values each, were 0.28, 0.42 and 0.26 %. With these, no two of the study's equal sweeps are called different.
DEVICE_SD_PCT = ((0.02, 0.25), (0.06, 0.3), (float("inf"), 0.25))
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
        usual = _of_band(DEVICE_SD_PCT, latency_ms)
    else:
        usual = _of_band(GPU_HOST_SD_PCT, latency_ms)
    return max(usual / 100, _between_calls(record) if DISTURBED & {*record.flags} else 0.0)


def _of_band(bands: tuple[tuple[float, float], ...], latency_ms: float) -> float:
    return next(pct for below, pct in bands if latency_ms < below)


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
