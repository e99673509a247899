"""How the samples of a case are distributed, from the quantiles in its records and, where they are, the raw ones.

In: `Results`.  Out: a section of the page.
"""

from __future__ import annotations

import json
from itertools import islice

from softmax_exp.manifest import folder_number
from softmax_exp.records import Record
from softmax_exp.report.chart import Style, boxes
from softmax_exp.report.html import Html, tag
from softmax_exp.report.panels import case_title, label, variant_numbers
from softmax_exp.results import Results

_MAX_BOXES = 12


def samples(sweeps: list[Results]) -> Html:
    """How the samples of a case spread around each median, for the cases with the widest spread."""
    cases: dict[tuple[int, int], list[Record]] = {}
    for number, results in enumerate(sweeps):
        for record in results.records:
            if record.device_ms and record.device_ms_p95 is not None:
                cases.setdefault((number, record.job), []).append(record)
    widest = sorted(cases.items(), key=lambda item: -max(_spread(record) for record in item[1]))
    numbers = variant_numbers(sweeps)
    figures = []
    for (number, job), records in islice(widest, _MAX_BOXES):
        raw = _raw_samples(sweeps[number], job)
        rows = []
        for record in records:
            name = label(record, number, len(sweeps))
            values = raw.get(record.variant, {}).get(f"{record.clock if record.clock != 'host' else 'host_result'}_ms")
            style = Style(numbers[label(record, 0, 1)], number)
            rows.append((name, style, _around(record, _quantiles(record)), _around(record, values or [])))
        title = case_title(records[0]) + (f" [{number + 1}]" if len(sweeps) > 1 else "")
        drawn = boxes(f"Samples around each median, {title}", rows, "% from the median")
        figures.append(tag("figure", tag("figcaption", title), drawn))
    if not figures:
        return tag("p", "No samples were kept.", class_="note")
    parts = [tag("div", *figures, class_="grid-of-figures")]
    if len(cases) > _MAX_BOXES:
        parts.insert(0, tag("p", f"The {_MAX_BOXES} cases with the widest spread of {len(cases)}.", class_="note"))
    return tag("div", *parts)


def _quantiles(record: Record) -> list[float]:
    middle = record.device_ms or 0.0
    found = (record.device_ms_p05, record.device_ms_p25, record.device_ms, record.device_ms_p75, record.device_ms_p95)
    return [middle if value is None else value for value in found]


def _around(record: Record, values: list[float]) -> list[float]:
    return [100 * (value / (record.device_ms or 1.0) - 1) for value in values]


def _spread(record: Record) -> float:
    p05, _, p50, _, p95 = _quantiles(record)
    return (p95 - p05) / p50


def _raw_samples(results: Results, job: int) -> dict[str, dict[str, list[float]]]:
    """By variant and clock, where the side file is on this machine."""
    if results.folder is None:
        return {}
    found = {}
    folder = results.folder / "jobs" / str(folder_number(results.manifest, job))
    try:
        for line in (folder / "samples.jsonl").read_text().splitlines():
            fields = json.loads(line)
            if fields.get("job", job) == job:
                found[fields["variant"]] = fields
    except (OSError, ValueError, KeyError):
        return found  # the picture does without
    return found
