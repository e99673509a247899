"""The results in sentences: a verdict for each case, and one for all of them.

In: records of a case or a sweep.  Out: plain text, unescaped; the page and the Markdown escape it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from softmax_exp.ranking import fastest, host_ms, ms_of, on_device_clock, preferred_by_host
from softmax_exp.records import Record, Status
from softmax_exp.results import Results
from softmax_exp.table import by_case


@dataclass(frozen=True)
class Score:
    """One variant over all cases of a sweep."""

    variant: str
    n_cases: int
    n_passed: int
    n_fastest: int
    n_level: int
    geometric_speedup: float | None
    median_pct_of_limit: float | None


def figure(value: float | None, digits: int = 4) -> str:
    """A figure to so many significant digits; empty where there is none."""
    return "" if value is None else f"{value:#.{digits}g}".rstrip(".")


def latency(ms: float | None) -> str:
    """A latency with its unit: us below 0.1 ms."""
    return "" if ms is None else f"{figure(1e3 * ms)} us" if ms < 0.1 else f"{figure(ms)} ms"


def verdict(cells: list[Record]) -> str:
    """The answer for one case, e.g. `triton is fastest: 26.5 us (26.4 to 26.7), 1.52x eager, 94 % of the limit.`."""
    leaders = fastest(cells)
    sentences = []
    if leaders:
        first, *level = leaders
        text = f"{first.variant} is fastest{'' if on_device_clock(first) else ' by the host clock'}: "
        text += latency(ms_of(first)) + _between(first)
        if first.speedup is not None and first.baseline not in (None, first.variant):
            text += f", {figure(first.speedup, 3)}x as fast as {first.baseline}"
            if first.speedup_ci_low and first.speedup_ci_high:
                text += f" ({figure(first.speedup_ci_low, 3)} to {figure(first.speedup_ci_high, 3)})"
        if first.pct_of_limit is not None:
            text += f", {figure(first.pct_of_limit, 3)} % of the limit"
        sentences.append(text + ".")
        if level:
            sentences.append(f"Level with it: {', '.join(r.variant for r in level)}.")
        by_host = preferred_by_host(cells, leaders)
        if by_host is not None:
            sentences.append(
                f"Called one at a time, {by_host.variant} comes first ({latency(host_ms(by_host))} against "
                f"{latency(host_ms(first))}): the host's launch cost decides."
            )
    failed = [f"{r.variant} {r.status}" for r in cells if r.status is not Status.PASSED]
    if failed:
        sentences.append(("Not timed: " if leaders else "Nothing was timed: ") + ", ".join(failed) + ".")
    doubtful = [r.variant for r in leaders[:1] if {"noisy", "throttled", "gpu_shared"} & {*r.flags}]
    if doubtful:
        sentences.append(f"With care: {', '.join(f for f in leaders[0].flags if f != 'host_bound')}.")
    return " ".join(sentences)


def scores(results: Results) -> list[Score]:
    """Every variant of a sweep, the one that is first or level most often at the top."""
    cases = [cells for _, cells in by_case(results.records)]
    leaders = [fastest(cells) for cells in cases]
    found = []
    for variant in dict.fromkeys(record.variant for record in results.records):
        own = [record for record in results.records if record.variant == variant]
        ups = [r.speedup for r in own if r.speedup]
        limits = sorted(r.pct_of_limit for r in own if r.pct_of_limit is not None)
        found.append(
            Score(
                variant,
                len(own),
                sum(r.status is Status.PASSED for r in own),
                sum(bool(first) and first[0].variant == variant for first in leaders),
                sum(any(r.variant == variant for r in first[1:]) for first in leaders),
                math.exp(sum(map(math.log, ups)) / len(ups)) if ups else None,
                limits[len(limits) // 2] if limits else None,
            )
        )
    return sorted(found, key=lambda score: -(score.n_fastest + score.n_level))


def summary(results: Results) -> str:
    """The answer for a whole sweep in one or two sentences."""
    cases = [cells for _, cells in by_case(results.records)]
    ranked = [score for score in scores(results) if score.n_fastest]
    n_timed = sum(score.n_fastest for score in ranked)
    bad = [record for record in results.records if record.status.failed]
    if not ranked:
        text = f"Nothing was timed in {_count(len(cases), 'case')}."
    else:
        ranked.sort(key=lambda score: -score.n_fastest)
        text = "Fastest: " + ", ".join(f"{s.variant} in {s.n_fastest}" for s in ranked)
        text += f" of {_count(n_timed, 'case')} that {'was' if n_timed == 1 else 'were'} timed."
    text += f" {len(bad)} of {_count(len(results.records), 'cell')} failed." if bad else " No cell failed."
    if results.missing:
        text += f" {_count(len(results.missing), 'cell')} of the sweep missing."
    return text


def _between(record: Record) -> str:
    low, high = record.device_ms_ci_low, record.device_ms_ci_high
    if low is None or high is None or record.device_ms is None:
        return ""
    scale = 1e3 if record.device_ms < 0.1 else 1.0
    return f" ({figure(scale * low, 4)} to {figure(scale * high, 4)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
