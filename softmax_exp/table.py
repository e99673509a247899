"""The table at the end of a sweep, for a terminal and as Markdown.

In: records.  Out: rows grouped by case, with what each clock ranks first, and the failures in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.text import Text

from softmax_exp.ranking import fastest, host_ms, ms_of, on_device_clock, preferred_by_host
from softmax_exp.records import Record, Status

MOST_CASES = 200  # that a terminal is shown
_HEADINGS = ("variant", "device ms", "host ms", "speed-up", "% of limit", "max abs error", "status")
_CLOCKS = {"events": "events", "graph": "graph replays", "host": "the host clock"}
_COLOURS = {Status.PASSED: "", Status.SKIPPED: "dim", Status.UNSUPPORTED: "yellow"}


def print_table(records: list[Record], console: Console) -> None:
    """Print the table within the console's width; plain text where it is no terminal.

    What does not fit gives way in this order: the intervals of speed-ups, then the middle of long variant names. Of a
    large sweep the first cases are shown, and what failed in any of them.
    """
    cases = by_case(records)
    rows, widths = _layout([record for _, cells in cases[:MOST_CASES] for record in cells], console.width)
    for heading in zip(*(_two_lines(heading) for heading in _HEADINGS), strict=True):
        _print(console, "  " + _line(heading, widths), "bold")
    for title, cells in cases[:MOST_CASES]:
        _print(console, title + limit_in_words(cells), "cyan")
        for record in cells:
            _print(console, "  " + _line(rows[id(record)], widths), _COLOURS.get(record.status, "red"))
        for words in filter(None, (ranking_in_words(cells), flags_in_words(cells))):
            _print(console, "  " + words, "italic")
    if len(cases) > MOST_CASES:
        _print(console, f"{len(cases) - MOST_CASES} cases more; all {len(cases)} are in the report", "bold")
    for line in failures_in_words(records):
        _print(console, line)


def markdown(records: list[Record], max_chars: int | None = None) -> str:
    """The table in Markdown; the cases that do not fit into `max_chars` are counted instead of shown."""
    head = "| case | " + " | ".join(_HEADINGS) + " |\n|---|---|" + "---:|" * (len(_HEADINGS) - 2) + "---|\n"
    blocks = []
    for title, cells in by_case(records):
        lines = ["| " + " | ".join(map(_escape, (title, *_row(record)))) + " |\n" for record in cells]
        blocks.append("".join(lines))
    words = [
        f"{title}: {words}"
        for title, cells in by_case(records)
        for words in (ranking_in_words(cells), flags_in_words(cells))
        if words
    ]
    tail = "".join(f"\n- {_escape(line)}" for line in words + failures_in_words(records)) + "\n"
    text = head + "".join(blocks) + tail
    if max_chars is None or len(text) <= max_chars:
        return text
    text, shown = head, 0
    for block in blocks:
        if len(text) + len(block) > max_chars - 80:
            break
        text, shown = text + block, shown + 1
    return text + f"\n{shown} of {len(blocks)} cases; all of them are in records.jsonl.\n"


def by_case(records: Iterable[Record]) -> list[tuple[str, list[Record]]]:
    """The records of each case in the order of jobs, under the case's title."""
    grouped = groupby(records, key=lambda record: record.job)
    return [
        (cells[0].title.removeprefix(cells[0].variant).strip(), cells) for _, group in grouped if (cells := [*group])
    ]


def ranking_in_words(cells: list[Record]) -> str:
    """What each clock ranks first in one case; empty where fewer than two variants have a latency."""
    leaders = fastest(cells)
    if sum(record.status is Status.PASSED and ms_of(record) is not None for record in cells) < 2:
        return ""
    first, *level = leaders
    words = first.variant + (f" (level with it: {', '.join(r.variant for r in level)})" if level else "")
    if not on_device_clock(first):
        return f"fastest by the host clock: {words}"
    by_host = preferred_by_host(cells, leaders)
    if by_host is not None:
        return f"the clocks disagree: fastest by the device clock {words}, by the host clock {by_host.variant}"
    return f"fastest by the device clock, and by the host's none is clearly before it: {words}"


def flags_in_words(cells: list[Record]) -> str:
    """Which flags were raised for which variants of a case, e.g. `noisy: eager, triton; throttled: triton`."""
    raised = {flag: [r.variant for r in cells if flag in r.flags] for r in cells for flag in r.flags}
    return "; ".join(f"{flag}: {', '.join(variants)}" for flag, variants in raised.items())


def failures_in_words(records: list[Record]) -> list[str]:
    """One line for each kind of outcome other than PASSED, with the first line of its message."""
    kinds: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.status is not Status.PASSED:
            message = record.message.strip().splitlines()[0] if record.message.strip() else "no reason was given"
            kinds.setdefault((record.status, record.variant, message), []).append(record)
    lines = []
    for (status, variant, message), cells in kinds.items():
        where = cells[0].title.removeprefix(variant).strip() if len(cells) == 1 else f"{len(cells)} cases"
        lines.append(f"{status} {variant}, {where}: {message}")
    return lines


def limit_in_words(cells: list[Record]) -> str:
    """The limit of a case and the clock, e.g. `, limit 0.0257 ms (3926 GB/s), by events`; empty where not known."""
    known = next((record for record in cells if record.limit_ms is not None), None)
    if known is None:
        return ""
    rate = f" ({known.limit_gbps:.0f} GB/s)" if known.limit_gbps is not None else ""
    clocks = {record.clock for record in cells if record.clock} & set(_CLOCKS)
    return f", limit {_figure(known.limit_ms)} ms{rate}, by {' and '.join(_CLOCKS[clock] for clock in sorted(clocks))}"


def _layout(records: list[Record], width: int) -> tuple[dict[int, tuple[str, ...]], list[int]]:
    rows: dict[int, tuple[str, ...]] = {}
    widths: list[int] = []
    for intervals in (True, False):
        rows = {id(record): _row(record, intervals) for record in records}
        headings = (max(map(len, _two_lines(heading))) for heading in _HEADINGS)
        cells = zip(*rows.values(), strict=True) if rows else ((),) * len(_HEADINGS)
        widths = [
            max(most, *map(len, column)) if column else most for most, column in zip(headings, cells, strict=True)
        ]
        if sum(widths) + 2 * len(widths) <= width:
            return rows, widths
    return rows, [max(12, width - sum(widths[1:]) - 2 * len(widths)), *widths[1:]]


def _row(record: Record, intervals: bool = True) -> tuple[str, ...]:
    checked = record.status in (Status.PASSED, Status.INCORRECT)
    speedup = "" if record.speedup is None else f"{record.speedup:.2f}x"
    if intervals and record.variant != record.baseline:
        speedup += _interval(record.speedup, record.speedup_ci_low, record.speedup_ci_high)
    spread = _interval(record.device_ms, record.device_ms_ci_low, record.device_ms_ci_high)
    by_host = record.clock == "host"  # then there is no other clock, and the interval is the host's
    return (
        record.variant,
        "" if by_host else _figure(record.device_ms) + spread,
        _figure(host_ms(record)) + (spread if by_host else ""),
        speedup,
        "" if record.pct_of_limit is None else f"{record.pct_of_limit:.1f}",
        "" if not checked else "no number" if record.max_abs_error is None else f"{record.max_abs_error:.1e}",
        record.status,
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:#.4g}".rstrip(".")


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    """The wider side of an interval, in per cent of the value."""
    if not value or low is None or high is None:
        return ""
    return f" ±{100 * max(high - value, value - low) / value:.1f}%"


def _two_lines(heading: str) -> tuple[str, str]:
    first, _, last = heading.rpartition(" ")
    return first, last


def _line(cells: Iterable[str], widths: list[int]) -> str:
    parts = []
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        if len(cell) > width:
            cell = cell[: (width - 1) // 2] + "…" + cell[len(cell) - width // 2 :]
        parts.append(cell.ljust(width) if index in (0, len(widths) - 1) else cell.rjust(width))
    return "  ".join(parts).rstrip()


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=not console.is_terminal)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
