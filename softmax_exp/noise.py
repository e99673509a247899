"""How far one latency differs from process to process, and from card to card, beyond its interval within a process.

In: records and the kind of device.  Out: standard deviations of the logarithm of a latency, or of two cards' ratio.
"""

from __future__ import annotations

import math

from softmax_exp.records import Record

# docs/results/noise.jsonl (scripts/study_noise.py: 54 cells, 6 processes, one H200). The GPU's time, by latency in ms:
# pooled standard deviations of 0.09 % (below 20 us), 0.23 % (25 to 51 us) and 0.10 %; the largest of a cell, from six
# values each, were 0.16, 0.30 and 0.25 %. With these, no two of the study's equal sweeps are called different.
DEVICE_SD_PCT = ((0.02, 0.16), (0.06, 0.3), (float("inf"), 0.25))
# Between cards of one model, the part of each. Medians of equal kernels on two cards differed by 2 to 15 % below 5 us,
# by 1.0 to 1.7 % at 8 to 27 us (three H200s), and by 0.3 % at most from 60 us on, on two cards of one host; but eager,
# at 0.85 ms, took 0.7 to 1.6 % more on the card of docs/results/another_card than on two others.
CARD_SD_PCT = ((0.005, 5.0), (0.02, 1.0), (0.06, 0.6), (float("inf"), 0.5))
# Around an empty kernel events read 2.8 to 3.2 us on one of these cards and 4.5 to 4.7 us on two others. Graphs read
# 1.0 to 1.4, by the size of the buffers beside it and not by the card.
FLOORS_APART_US = {"events": 1.8, "graph": 0.1}
# The host's clock, same study: the largest by latency in ms. Launch cost differs from process to process.
GPU_HOST_SD_PCT = ((0.1, 20.0), (0.25, 7.5), (float("inf"), 5.5))
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


def card_sd(one: Record, other: Record, clock: str | None, latency_ms: float) -> float:
    """The standard deviation of the logarithm of the ratio of latencies on two cards of a model, by a device clock.

    Part of it is how far the clock's floor, which every figure holds, lies apart on the two. 0 by the host's clock,
    whose noise between processes is far larger.
    """
    if clock not in FLOORS_APART_US:
        return 0.0
    floors = [r.clock_floor_us for r in (one, other) if r.clock == clock and r.clock_floor_us is not None]
    apart_us = abs(floors[0] - floors[1]) if len(floors) == 2 else FLOORS_APART_US[clock]
    return math.hypot(math.sqrt(2) * _of_band(CARD_SD_PCT, latency_ms) / 100, apart_us / 1e3 / latency_ms)


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
