"""Medians, their intervals, and the verdict on a pair; numpy alone.

In: samples of rounds as 1-D float arrays.  Out: (estimate, low, high), quantiles, and faster/slower/same/unclear.
"""

from __future__ import annotations

import functools

import numpy as np

N_RESAMPLES = 2000
_CHUNK = 4_000_000  # resampled indices held at once: 16 MB


@functools.lru_cache(maxsize=64)
def _median_ranks(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The two middle ranks of `N_RESAMPLES` resamples of n values, drawn with replacement.

    The bootstrap draws positions; which *rank* ends up in the middle does not depend on the values. So the draw is
    made once for each n, and the resampled medians of any series are look-ups in its sorted values.
    """
    random = np.random.default_rng([seed, n])
    low, high = (n - 1) // 2, n // 2
    middles = []
    step = max(1, _CHUNK // n)
    for start in range(0, N_RESAMPLES, step):
        ranks = random.integers(0, n, size=(min(step, N_RESAMPLES - start), n), dtype=np.int32)
        ranks.partition((low, high), axis=1)
        middles.append(ranks[:, [low, high]])
    ranks = np.concatenate(middles)
    return ranks[:, 0].copy(), ranks[:, 1].copy()


def median_interval(samples: np.ndarray, confidence: float, seed: int = 0) -> tuple[float, float, float]:
    """The median with its percentile-bootstrap interval (Efron and Tibshirani, 1993, chapter 13).

    Rounds are taken as independent; what differs from process to process is not in the interval. ValueError for an
    empty array.
    """
    if samples.size == 0:
        raise ValueError("no samples: an interval needs at least one")
    ordered = np.sort(samples)
    low_rank, high_rank = _median_ranks(ordered.size, seed)
    medians = (ordered[low_rank] + ordered[high_rank]) / 2
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(np.median(ordered)), float(low), float(high)


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, confidence: float, seed: int = 0
) -> tuple[float, float, float]:
    """The median over rounds of numerator / denominator, paired round by round, with its bootstrap interval.

    Pairing cancels what hits a whole round: clocks, temperature, neighbours. ValueError where the lengths differ.
    """
    if numerator.shape != denominator.shape:
        raise ValueError(f"paired samples must have one length, not {numerator.size} and {denominator.size}")
    return median_interval(numerator / denominator, confidence, seed)


def half_width_pct(interval: tuple[float, float, float]) -> float:
    """Half the width of an interval as a percentage of its estimate."""
    estimate, low, high = interval
    return 50.0 * (high - low) / estimate if estimate else 0.0


def quantiles(samples: np.ndarray) -> dict[str, float]:
    """mean, std (of a sample: n - 1), p05, p25, median, p75, p95."""
    p05, p25, median, p75, p95 = (float(q) for q in np.quantile(samples, [0.05, 0.25, 0.5, 0.75, 0.95]))
    std = float(np.std(samples, ddof=1)) if samples.size > 1 else 0.0
    return {
        "mean": float(np.mean(samples)),
        "std": std,
        "p05": p05,
        "p25": p25,
        "median": median,
        "p75": p75,
        "p95": p95,
    }


def verdict(low: float, high: float, margin_pct: float) -> str:
    """What a speed-up's interval says: `same` within the margin of 1, `faster` or `slower` beyond it, else `unclear`.

    An interval that reaches across the margin's edge is unclear: a difference about as large as the margin is not
    called either way.
    """
    upper = 1 + margin_pct / 100
    if 1 / upper <= low and high <= upper:
        return "same"
    if low > upper:
        return "faster"
    return "slower" if high < 1 / upper else "unclear"
