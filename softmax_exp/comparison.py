"""Whether a candidate is slower, cell by cell, with all cells in view at once.

In: pairs of records.  Out: for each the change of its time with an interval, and a verdict. Noise within and between
processes, and between cards, is in both; the chance of any false "slower" or "faster" among all cells is at most
1 - confidence (Holm). Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from softmax_exp.noise import card_sd, is_lost, process_sd
from softmax_exp.pairing import Pair, common_clock, latency_of
from softmax_exp.records import Record, Status
from softmax_exp.results import Results

VERDICTS = ("slower", "faster", "unclear", "same")
_WORSE_ERROR = 1.10  # of the error in tolerances: what another order of summation does not do
_WORSE_ERROR_STEP = 0.02  # tolerances; below it a growing error is of no consequence
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Question:
    """What counts: differences within `margin_pct` are the same, `fail_slower_pct` more time is a regression."""

    margin_pct: float = 1.0
    fail_slower_pct: float = 1.0
    confidence: float = 0.95
    noise_pct: float | None = None
    """Standard deviation between processes in per cent, in place of what is known of the clock and of cards."""


@dataclass(frozen=True)
class Outcome:
    """One pair's answer. Changes are of the time, in per cent: above zero is slower. None where nothing was timed."""

    baseline: Record
    candidate: Record
    verdict: str
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    p: float | None = None
    """Holm-adjusted chance of so large a change if the true one is within the margin."""
    regressions: tuple[str, ...] = ()
    """Why this cell counts as a regression, in words; empty where it does not."""

    @property
    def clock(self) -> str | None:
        """The clock whose figures were compared, which need not be each record's own; None where none timed both."""
        return common_clock(self.baseline, self.candidate)


def compare(pairs: Sequence[Pair], baseline: Results, candidate: Results, question: Question) -> list[Outcome]:
    """The outcome of every pair that is not refused, in the order given."""
    pairs = [pair for pair in pairs if not pair.refused]
    changes = [_change(pair, baseline, candidate, question) for pair in pairs]
    timed = [change for change in changes if change is not None]
    margin, limit = math.log1p(question.margin_pct / 100), math.log1p(question.fail_slower_pct / 100)
    verdict_p = iter(holm([_two_sided(change, margin) for change in timed]))
    regression_p = iter(holm([_NORMAL.cdf((limit - mean) / sd) for mean, sd in timed]))
    alpha = 1 - question.confidence
    z = _NORMAL.inv_cdf(1 - alpha / 2)
    outcomes = []
    for pair, change in zip(pairs, changes, strict=True):
        reasons = [*_worse(pair)]
        if change is None:
            outcomes.append(Outcome(pair.baseline, pair.candidate, _untimed(pair), regressions=tuple(reasons)))
            continue
        mean, sd = change
        p, p_regression = next(verdict_p), next(regression_p)
        low, high = mean - z * sd, mean + z * sd
        if p <= alpha:
            verdict = "slower" if mean > 0 else "faster"
        else:
            verdict = "same" if -margin <= low and high <= margin else "unclear"
        if p_regression <= alpha:
            reasons.insert(0, f"slower by more than {question.fail_slower_pct:g} %")
        percent = [100 * math.expm1(value) for value in (mean, low, high)]
        outcomes.append(Outcome(pair.baseline, pair.candidate, verdict, *percent, p=p, regressions=tuple(reasons)))
    return outcomes


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given (S. Holm, A simple sequentially rejective multiple test procedure, 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _two_sided(change: tuple[float, float], margin: float) -> float:
    """The largest chance of a change so far from zero, over all true changes within the margin."""
    mean, sd = change
    return _NORMAL.cdf((margin - abs(mean)) / sd) + _NORMAL.cdf((-margin - abs(mean)) / sd)


def _change(pair: Pair, baseline: Results, candidate: Results, question: Question) -> tuple[float, float] | None:
    """The logarithm of candidate / baseline and its standard deviation; None where no clock has usable ones."""
    sides = (pair.baseline, baseline), (pair.candidate, candidate)
    clock = common_clock(pair.baseline, pair.candidate)
    if clock is None and pair.baseline.clock != pair.candidate.clock:
        return None
    variance, logs, within = 0.0, [], []
    for record, results in sides:
        ms = latency_of(record, clock)
        if record.status is not Status.PASSED or not ms:
            return None
        device_type = results.environment(record)["device"].get("type") or _guess(record)
        if is_lost(record, device_type):
            return None
        if question.noise_pct is None:
            between = process_sd(record, device_type, ms)
        else:
            between = question.noise_pct / 100
        variance += between**2
        within.append(_within_sd(record, ms, results.job(record)))
        logs.append(math.log(ms))
    if pair.baseline.clock != pair.candidate.clock:
        # A record has the interval of its own clock alone. The compared one's is that of the side which has it as its
        # own; the other side is given no less.
        within = [max(within)] * 2
    if question.noise_pct is None and _card(*sides[0]) != _card(*sides[1]):
        variance += card_sd(pair.baseline, pair.candidate, clock, math.exp(min(logs))) ** 2
    return logs[1] - logs[0], math.sqrt(variance + sum(sd**2 for sd in within)) or 1e-12


def _card(record: Record, results: Results) -> str:
    """The UUID of a record's GPU; empty where it is not known."""
    return record.placement.get("gpu_uuid") or results.environment(record)["device"].get("uuid") or ""


def _within_sd(record: Record, ms: float, job: dict[str, Any]) -> float:
    """The standard deviation of a median within its process, relative, from its interval or the samples' spread."""
    low, high = record.device_ms_ci_low, record.device_ms_ci_high
    if low and high and record.device_ms:
        confidence = ((job.get("config") or {}).get("measure") or {}).get("confidence") or 0.95
        return math.log(high / low) / 2 / _NORMAL.inv_cdf((1 + confidence) / 2)
    if record.std_latency_ms and record.n_samples:
        # the median of normal samples: sqrt(pi / 2) times the mean's
        return math.sqrt(math.pi / 2 / record.n_samples) * record.std_latency_ms / ms
    return 0.0


def _guess(record: Record) -> str:
    return "cpu" if record.clock == "host" and record.cache != "warm" else "cuda"


def _worse(pair: Pair) -> list[str]:
    """Regressions that are no matter of time."""
    a, b = pair.baseline, pair.candidate
    if a.status is Status.PASSED and b.status is not Status.PASSED and b.status is not Status.SKIPPED:
        reason = b.message.strip().splitlines()[0] if b.message.strip() else "no reason was given"
        return [f"{b.status} where the baseline PASSED: {reason}"]
    before, after = a.error_over_tolerance, b.error_over_tolerance
    if before is not None and after is not None and b.status is Status.PASSED:
        if after > max(_WORSE_ERROR * before, before + _WORSE_ERROR_STEP):
            return [f"its error grew from {before:.3g} to {after:.3g} of the tolerance"]
    return []


def _untimed(pair: Pair) -> str:
    a, b = pair.baseline.status, pair.candidate.status
    if a is b is Status.PASSED:
        return "unclear"
    if b is Status.PASSED and a is not Status.PASSED:
        return "fixed" if a.failed else "new"
    return "broken" if a is Status.PASSED else "not timed"


def by_weight(outcomes: list[Outcome], key: Callable[[Outcome], float] | None = None) -> list[Outcome]:
    """Regressions first, then slower, faster, unclear and the rest, each by the size of the change."""
    places = {name: place for place, name in enumerate(("broken", *VERDICTS[:3], "fixed", "new", "not timed", "same"))}
    size = key or (lambda outcome: abs(outcome.change_pct or 0.0))
    return sorted(outcomes, key=lambda o: (not o.regressions, places[o.verdict], -size(o)))
