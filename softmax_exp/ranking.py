"""Which variant of a case is fastest, which are level with it, and whether the host's clock sees it otherwise.

In: the records of one case.  Out: records in order; what noise could turn round is called level, never ranked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from softmax_exp.records import Record, Status

LEVEL_PCT = 1.0  # the default margin of verdicts; between processes medians differ by up to 0.7 % (docs/measuring.md)
HOST_APART = 1.1  # a ratio of host latencies that noise seldom makes; see docs/measuring.md


def on_device_clock(record: Record) -> bool:
    """Whether `device_ms` is the device's own time; on a CPU it is the host clock's, of interleaved calls."""
    return record.device_ms is not None and record.clock != "host"


def host_ms(record: Record) -> float | None:
    """The host clock's typical latency in ms: the median, or the mean where only that was kept."""
    return record.median_latency_ms if record.median_latency_ms is not None else record.mean_latency_ms


def ms_of(record: Record) -> float | None:
    """The latency that ranks a record, in ms: the device's, or the host's where only that was measured."""
    return record.device_ms if record.device_ms is not None else host_ms(record)


def fastest(cells: Iterable[Record]) -> list[Record]:
    """Of the records of a case the fastest, then those level with it; empty where none PASSED with a latency.

    Level: the intervals overlap, or the medians are within `LEVEL_PCT`. Only figures of one clock are ranked: that of
    the most records.
    """
    timed = [r for r in cells if r.status is Status.PASSED and ms_of(r) is not None]
    if not timed:
        return []
    clock = Counter(r.clock for r in timed).most_common(1)[0][0]
    ranked = sorted((r for r in timed if r.clock == clock), key=lambda r: ms_of(r) or 0.0)
    first = ranked[0]
    low, high = [_interval(r)[0] for r in ranked], _interval(first)[1]
    near = (ms_of(first) or 0.0) * (1 + LEVEL_PCT / 100)
    return [
        first,
        *(r for r, edge in zip(ranked[1:], low[1:], strict=True) if edge <= high or (ms_of(r) or 0.0) <= near),
    ]


def _interval(record: Record) -> tuple[float, float]:
    """The interval of `ms_of`; of no width where none was measured."""
    ms = ms_of(record) or 0.0
    if record.device_ms is None:
        return ms, ms
    return record.device_ms_ci_low or ms, record.device_ms_ci_high or ms


def preferred_by_host(cells: Iterable[Record], leaders: list[Record]) -> Record | None:
    """The record that the host's clock ranks before every one of the leaders, by more than its own unrest; else None.

    `leaders`: `fastest(cells)`, by the device's clock.
    """
    timed = [r for r in cells if r.status is Status.PASSED and host_ms(r)]
    if not leaders or not on_device_clock(leaders[0]) or not timed:
        return None
    first = min(timed, key=lambda r: host_ms(r) or 0.0)
    best_leader = min((ms for leader in leaders if (ms := host_ms(leader))), default=None)
    apart = best_leader is not None and (host_ms(first) or best_leader) * HOST_APART < best_leader
    return first if apart else None
