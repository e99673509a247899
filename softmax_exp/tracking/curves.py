"""Latency against size: what the curve runs, the plot and the summary of a sweep hold.

In: the records of a sweep.  Out: `Run`s with metrics at step = n_cols, an SVG plot, the summary run.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softmax_exp.cases import stable_hash
from softmax_exp.ranking import host_ms, on_device_clock
from softmax_exp.records import Record, Status
from softmax_exp.redaction import redact
from softmax_exp.sweep import Sweep
from softmax_exp.table import markdown
from softmax_exp.tracking.runs import LAYOUT, Run, environment_params, milliseconds, numbers, read_environment, texts

CURVE_METRICS = ("device_ms", "host_ms", "pct_of_limit", "speedup", "gbps")
_MAX_NOTE = 7900  # MLflow cuts a tag at 8,000 characters
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")


def curves(records: list[Record]) -> dict[str, list[Record]]:
    """The PASSED records that differ in size alone, by name, e.g. `triton float16 forward`; only where n_cols varies.

    Batch, heads, rows and what else differs join the name only where the same n_cols would come twice.
    """
    named: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status is Status.PASSED:
            named[_curve_name(record)].append(record)
    result = {}
    for name, cells in sorted(named.items()):
        for full_name, part in _apart(name, cells).items():
            if len(part) > 1:
                result[full_name] = sorted(part, key=lambda record: record.n_cols)
    return result


def curve_run(name: str, cells: list[Record]) -> Run:
    """The run that charts one curve: each figure at step = n_cols."""
    first = cells[0]
    metrics = [
        (metric, value, record.n_cols)
        for record in cells
        for metric, value in numbers({**vars(record), "host_ms": host_ms(record)}).items()
        if metric in CURVE_METRICS
    ]
    params = {"variant": first.variant, "dtype": first.dtype, "mode": first.mode, "mask": first.mask}
    started = milliseconds(first.started_at)
    return Run(
        key=f"curve {name}",
        kind="curve",
        name=name,
        digest=stable_hash([LAYOUT, [record.to_json() for record in cells]]),
        started_ms=started,
        ended_ms=started,
        params=texts(params, 6000),
        metrics=metrics,
    )


def summary_run(sweep: Sweep, records: list[Record], attachments: list[Path]) -> Run:
    """The run that stands for the sweep: its table as description; records, manifest, plot and reports as files."""
    n_expected = len(list(sweep.expected_cells()))
    counts = Counter(record.status for record in records)
    outcome = ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "no records"
    title = f"**{outcome}** of {n_expected} cells\n\n"
    environments = {record.environment_hash for record in records if record.environment_hash}
    pages = {
        "records.jsonl": sweep.records_path.read_text() if sweep.records_path.exists() else "",
        "manifest.json": sweep.manifest_path.read_text(),
        "table.md": title + markdown(records),
    }
    for name in sorted(environments):
        pages[f"environments/{name}.json"] = json.dumps(read_environment(sweep.folder, name), indent=1)
    if curves(records):
        pages["latency.svg"] = latency_svg(records)
    artifacts = {name: redact(page).encode() for name, page in pages.items()}
    artifacts |= {path.name: path.read_bytes() for path in attachments}
    started = milliseconds(records[0].started_at if records else "")
    some_environment = read_environment(sweep.folder, min(environments)) if environments else {}
    metrics = {"n_cells": n_expected, "n_passed": counts[Status.PASSED]}
    metrics["n_failed"] = sum(count for status, count in counts.items() if status.failed)
    return Run(
        key="summary",
        kind="summary",
        name=f"summary {sweep.sweep_id}",
        digest=stable_hash(
            [LAYOUT, [[name, hashlib.sha256(data).hexdigest()] for name, data in sorted(artifacts.items())]]
        ),
        started_ms=started,
        ended_ms=max([started, *(milliseconds(record.started_at) for record in records)]),
        status="FAILED" if metrics["n_failed"] else "FINISHED",
        tags=texts({"mlflow.note.content": title + markdown(records, _MAX_NOTE - len(title))}, 8000),
        params=texts(environment_params(some_environment), 6000),
        metrics=[(name, value, 0) for name, value in numbers(metrics).items()],
        artifacts=artifacts,
    )


def latency_svg(records: list[Record]) -> str:
    """A plot of ms against n_cols, both logarithmic, of every curve; by the device clock, else the host clock."""
    lines = {name: [(r.n_cols, ms) for r in cells if (ms := _plotted(r))] for name, cells in curves(records).items()}
    points = [point for line in lines.values() for point in line]
    clocks = {"device" if on_device_clock(record) else "host" for record in records if _plotted(record)}
    left, top, width, height = 70, 30, 480, 320
    x_at = _log_scale([x for x, _ in points], left, left + width)
    y_at = _log_scale([y for _, y in points], top + height, top)
    whole = max(400, 60 + 20 * len(lines))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="{whole}" viewBox="0 0 900 {whole}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18">ms by the {" or ".join(sorted(clocks))} clock against n_cols</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
    ]
    for x in sorted({x for x, _ in points}):
        parts.append(f'<text x="{x_at(x):.1f}" y="{top + height + 18}" text-anchor="middle">{x}</text>')
    for y in _ticks([y for _, y in points]):
        parts.append(f'<path d="M{left} {y_at(y):.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y_at(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        parts.append(f'<text x="570" y="{45 + 20 * index}" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


def _plotted(record: Record) -> float | None:
    return record.device_ms if record.device_ms is not None else host_ms(record)


def _log_scale(values: list[float], start: float, end: float) -> Callable[[float], float]:
    low, high = math.log(min(values)), math.log(max(values))
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin
    return lambda value: start + (end - start) * (math.log(value) - low) / (high - low)


def _ticks(values: list[float]) -> list[float]:
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    marks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return [mark for mark in marks if min(values) <= mark <= max(values)]


def _curve_name(record: Record) -> str:
    words = [record.variant, *(f"{key}={value}" for key, value in sorted(record.variant_args.items()))]
    words += [record.dtype, record.mode]
    unusual: list[tuple[Any, Any, str]] = [
        (record.mask, "none", f"{record.mask} mask"),
        (record.scale, None, f"scale {record.scale}"),
        (record.distribution, "normal", record.distribution),
        (record.layout, "contiguous", record.layout),
    ]
    return " ".join(words + [text for value, usual, text in unusual if value != usual])


def _apart(name: str, cells: list[Record]) -> dict[str, list[Record]]:
    """The cells in as many groups as are needed for each n_cols to come once in each: no point is dropped."""
    groups = {name: cells}
    for differs in _DIFFERENCES:
        parts: dict[str, list[Record]] = defaultdict(list)
        for group, members in groups.items():
            once = len({record.n_cols for record in members}) == len(members)
            for record in members:
                parts[group if once else f"{group} {differs(record)}".strip()].append(record)
        groups = parts
    repeats: dict[str, list[Record]] = defaultdict(list)
    for group, members in groups.items():
        seen: Counter[int] = Counter()
        for record in members:
            seen[record.n_cols] += 1
            repeats[group if seen[record.n_cols] == 1 else f"{group} #{seen[record.n_cols]}"].append(record)
    return repeats


# What may tell cells of one n_cols apart, in the order in which it joins a curve's name.
_DIFFERENCES: tuple[Callable[[Record], str], ...] = (
    lambda record: f"{record.n_rows} rows" if record.batch is None else f"batch {record.batch} heads {record.heads}",
    lambda record: f"seq_q {record.seq_q}" if record.seq_q != record.seq else "",
    lambda record: record.cache or "",
    lambda record: f"seed {record.seed}",
)
