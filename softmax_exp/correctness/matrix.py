"""The matrix of errors: which variant fails where, and by how much.

In: records without latency, and the smallest failures.  Out: text for a terminal and Markdown. A figure is the largest
error as a multiple of its own element's bound, so that up to 1 is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from softmax_exp.correctness.beside_eager import beside_eager, told
from softmax_exp.correctness.shrink import Failure
from softmax_exp.records import Record, Status
from softmax_exp.report.text import escape, table

RESPECTS = ("distribution", "layout", "dtype", "mode", "mask", "scale", "shape", "seed", "device")
NOTE = "Figures: the largest error as a multiple of what rounding allows; up to 1 is right."
_WIDEST = 30


def markdown(name: str, records: list[Record], smallest: list[Failure]) -> str:
    """The whole report in Markdown."""
    variants = list(dict.fromkeys(record.variant for record in records))
    parts = [f"### softmax_exp {escape(name)}: who is right where\n\n{escape(in_words(records))} {NOTE}\n"]
    parts.append(table(("", *map(escape, variants)), [*rows(records, variants)]))
    for variant in variants:
        heads, body = where(records, variant)
        if body:
            parts.append(f"Where {escape(variant)} fails, of how many:\n\n{table(('', *heads), body)}")
    if smallest:
        parts.append("The smallest cases found that fail:\n")
        parts += [_item(failure) for failure in smallest]
    parts += [f"- {escape(line)}" for line in refusals(records)]
    for finding, cells in told(beside_eager(records)):
        parts.append("\n".join([f"- {escape(finding)}", *(f"  - {escape(line)}" for line in cells)]))
    return "\n".join(parts).rstrip() + "\n"


def show(records: list[Record], smallest: list[Failure], console: Console) -> None:
    """The same on a terminal."""
    variants = list(dict.fromkeys(record.variant for record in records))
    lines = [("", *map(_middle_cut, variants)), *rows(records, variants)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        _print(console, text, "bold" if index == 0 else "red" if "fail" in text else "")
    _print(console, f"{in_words(records)} {NOTE}")
    for failure in smallest:
        _print(console, f"{failure.status} {failure.variant}, smallest case {failure.title}: {failure.message}", "red")
        _print(console, f"  {_cells(failure)}; see it again by: {failure.command}")
    for line in refusals(records):
        _print(console, line)
    for finding, cells in told(beside_eager(records)):
        for line in (finding, *(f"  {cell}" for cell in cells)):
            _print(console, line)


def rows(records: list[Record], variants: list[str]) -> Iterator[tuple[str, ...]]:
    """A row for each value of each respect in which the cases differ, and one for all; a column for each variant."""
    for respect in RESPECTS:
        values = list(dict.fromkeys(_word(getattr(record, respect)) for record in records))
        if len(values) < 2:
            continue
        for value in values:
            of_value = [record for record in records if _word(getattr(record, respect)) == value]
            yield f"{respect} {value}", *(cell(r for r in of_value if r.variant == name) for name in variants)
    yield "all", *(cell(r for r in records if r.variant == name) for name in variants)


def cell(records: Iterable[Record]) -> str:
    """What became of some cells of one variant: the largest error, how many fail, or why there is no answer."""
    found = list(records)
    kinds = Counter(record.status for record in found)
    failed = [record for record in found if record.status.failed]
    checked = [r for r in found if r.status in (Status.PASSED, Status.INCORRECT)]
    worst = max((r.error_over_tolerance for r in checked if r.error_over_tolerance is not None), default=None)
    if failed:
        words = [] if worst is None or worst <= 1 else [f"{worst:.2g}"]
        words += ["NaN or inf"] if any(r.nonfinite_mismatch for r in failed) else []
        words += [status for status in kinds if status.failed and status is not Status.INCORRECT]
        return f"{len(failed)} of {len(found)} fail" + (f": {', '.join(words)}" if words else "")
    if kinds[Status.PASSED]:
        return "0" if not worst else f"{worst:.2f}"
    return ", ".join(status.lower() for status in kinds)


def where(records: list[Record], variant: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Layouts, and for each distribution in which a variant fails its failures by layout; empty where it does not."""
    mine = [record for record in records if record.variant == variant]
    layouts = list(dict.fromkeys(record.layout for record in mine))
    body = []
    for distribution in dict.fromkeys(record.distribution for record in mine if record.status.failed):
        of_it = [record for record in mine if record.distribution == distribution]
        body.append((distribution, *(cell(r for r in of_it if r.layout == layout) for layout in layouts)))
    return layouts, body


def in_words(records: list[Record]) -> str:
    """How many cells there are, and how they ended."""
    kinds = Counter(record.status for record in records)
    return f"{len(records)} cells: {', '.join(f'{n} {status}' for status, n in kinds.items())}."


def refusals(records: list[Record]) -> Iterator[str]:
    """One line for each reason why a variant gave no answer, and for failures that have no smallest case."""
    reasons = Counter((r.variant, r.status, r.message.split("\n")[0]) for r in records if r.status is not Status.PASSED)
    for (variant, status, message), n in reasons.items():
        if status not in (Status.INCORRECT, Status.ERROR, Status.CRASHED):
            yield f"{status} {variant}, {n} cell{'s' * (n != 1)}: {message}"


def _item(failure: Failure) -> str:
    about = f"{failure.status} {failure.variant}, {failure.title}: {failure.message} ({_cells(failure)})"
    return f"- {escape(about)}\n\n      {failure.command}\n"


def _cells(failure: Failure) -> str:
    return f"it may explain {failure.n_cells} failing cell{'s' * (failure.n_cells != 1)}"


def _word(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _middle_cut(name: str) -> str:
    return name if len(name) <= _WIDEST else name[: _WIDEST // 2 - 1] + "…" + name[-_WIDEST // 2 :]


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)
