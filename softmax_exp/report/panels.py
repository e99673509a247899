"""What belongs into one picture: records of cases that differ in size alone, a line for each variant.

In: `Results`.  Out: `Panel`s with their `Series`, the same series of all panels under one number, for its colour.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from softmax_exp.ranking import on_device_clock
from softmax_exp.records import Record
from softmax_exp.report.machines import kinds
from softmax_exp.results import Results


@dataclass(frozen=True)
class Series:
    """One variant with its arguments, in one sweep. `number` is the variant's, counted over all sweeps from 0."""

    number: int
    sweep: int
    label: str
    records: list[Record]
    """Of one panel, in the order of n_cols."""


@dataclass(frozen=True)
class Panel:
    """Records that can be drawn over n_cols together."""

    title: str
    series: list[Series]

    @property
    def records(self) -> list[Record]:
        """All of its records."""
        return [record for series in self.series for record in series.records]

    @property
    def sizes(self) -> list[int]:
        """Every n_cols, ascending."""
        return sorted({record.n_cols for record in self.records})


def panels(sweeps: list[Results]) -> list[Panel]:
    """All panels, those with the most records first."""
    found: dict[str, list[tuple[int, Record]]] = defaultdict(list)
    clocks = {on_device_clock(record) for results in sweeps for record in results.records if record.device_ms}
    for number, results in enumerate(sweeps):
        on = kinds(results)
        for record in results.records:
            title = _title(record) + (f", {on[record.environment_hash]}" if record.environment_hash in on else "")
            if len(clocks) > 1 and record.device_ms:
                title += ", GPU" if on_device_clock(record) else ", CPU"
            found[title].append((number, record))
    numbers = variant_numbers(sweeps)
    made = []
    for title, cells in found.items():
        for part_title, part in _apart(title, cells).items():
            lines: dict[tuple[int, int], list[Record]] = defaultdict(list)
            for sweep, record in part:
                lines[sweep, numbers[label(record, 0, 1)]].append(record)
            series = [
                Series(number, sweep, label(records[0], sweep, len(sweeps)), sorted(records, key=lambda r: r.n_cols))
                for (sweep, number), records in sorted(lines.items())
            ]
            made.append(Panel(part_title, series))
    return sorted(made, key=lambda panel: -len(panel.records))


def variant_numbers(sweeps: list[Results]) -> dict[str, int]:
    """A number for every variant with its arguments, in the order of first appearance in any sweep."""
    names = dict.fromkeys(label(record, 0, 1) for results in sweeps for record in results.records)
    return {name: number for number, name in enumerate(names)}


def label(record: Record, sweep: int, n_sweeps: int) -> str:
    """A variant with its arguments, and the sweep's number from 1 where there are several."""
    words = [record.variant, *(f"{key}={value}" for key, value in sorted(record.variant_args.items()))]
    return " ".join(words) + (f" [{sweep + 1}]" if n_sweeps > 1 else "")


def case_title(record: Record) -> str:
    """A record's case in words, e.g. `8x12x512x512 float16 forward`; what differs from the default is added."""
    return " ".join(["x".join(map(str, record.shape)), *_kind(record)])


def _kind(record: Record) -> list[str]:
    unusual: list[tuple[Any, Any, str]] = [
        (record.mask, "none", f"{record.mask} mask"),
        (record.scale, None, f"scale {record.scale}"),
        (record.distribution, "normal", record.distribution),
        (record.layout, "contiguous", record.layout),
    ]
    words = [text for value, usual, text in unusual if value != usual]
    words += ["warm cache"] if record.cache == "warm" and record.clock != "host" else []
    return [record.dtype, record.mode, *words]


def _title(record: Record) -> str:
    sizes = "rows x S"
    if record.batch is not None:
        queries = "S" if record.seq_q == record.seq else record.seq_q
        sizes = f"{record.batch}x{record.heads}x{queries}xS"
    return " ".join([sizes, *_kind(record)])


def _apart(title: str, cells: list[tuple[int, Record]]) -> dict[str, list[tuple[int, Record]]]:
    """The cells in as many parts as it takes that each n_cols comes once in each line."""
    seen = [(number, record.variant, str(record.variant_args), record.n_cols) for number, record in cells]
    if len(set(seen)) == len(seen):
        return {title: cells}
    parts: dict[str, list[tuple[int, Record]]] = defaultdict(list)
    for number, record in cells:
        parts[title.replace("rows x S", f"{record.n_rows} x S")].append((number, record))
    return parts
