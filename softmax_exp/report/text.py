"""The report as Markdown, for issues and pull requests, and as CSV, for spreadsheets.

In: `Results`.  Out: text in which no name or message can become markup, a link or a formula.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from typing import Any

from softmax_exp.ranking import host_ms
from softmax_exp.records import Record
from softmax_exp.report import machines, words
from softmax_exp.results import Results
from softmax_exp.table import by_case, failures_in_words

_MAX_CHARS = 60_000  # GitHub takes 65,536 in a comment
_HEADS = ("case", "variant", "device", "host", "speed-up", "% of limit", "status")


def markdown(sweeps: list[Results]) -> str:
    """The verdict, a table and the failures of each sweep, as many cases as a comment on GitHub holds."""
    share, parts = _MAX_CHARS // len(sweeps), []
    for results in sweeps:
        devices = [(env.get("device") or {}) for env in results.environments.values()]
        about = ", ".join(
            f"{device.get('name')}, torch {device.get('torch')}, triton {device.get('triton')}" for device in devices
        )
        parts.append(f"### softmax_exp {escape(results.name)}\n\n{escape(words.summary(results))}\n")
        parts.append(f"{escape(about)}\n" if about else "")
        parts.append(f"{escape(mixed)}\n" if (mixed := machines.warning(results)) else "")
        cases = by_case(results.records)
        failures = [f"- {escape(line)}" for line in failures_in_words(results.records)]
        rows, verdicts, left = [], [], share - sum(map(len, failures[:100]))
        for title, cells in cases:
            own = [(title, *_row(record)) for record in cells]
            verdict = f"- {escape(title)}: {escape(words.verdict(cells))}"
            left -= len(table((), own)) + len(verdict)
            if left < 0:
                verdicts.append(f"- The first {len(rows)} of {len(results.records)} cells; all are in the CSV file.")
                break
            rows += own
            verdicts.append(verdict)
        parts += [table(_HEADS, rows), *verdicts, "", *failures[:100], ""]
    return "\n".join(parts).rstrip() + "\n"


def table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A Markdown table with every cell escaped."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def escape(text: Any) -> str:
    """Text on one line of Markdown that is shown as it stands."""
    plain = " ".join(str(text).split())
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u2060")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", plain).replace("://", ":\u2060//")


def spreadsheet(sweeps: list[Results]) -> str:
    """Every field of every record as CSV, the machine's name beside it. Text that would be a formula gets a quote."""
    names = [field.name for field in dataclasses.fields(Record)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # RFC 4180; with "\n" alone a "\r" would stand unquoted
    writer.writerow(["machine", *names])
    for results in sweeps:
        for record in results.records:
            machine = (results.environment(record)["device"] or {}).get("name")
            writer.writerow([_cell(machine), *(_cell(getattr(record, name)) for name in names)])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict | list):
        value = json.dumps(value) if value else ""
    text = str(value).replace("\0", "")
    return "'" + text if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r", "\n") else text


def _row(record: Record) -> tuple[str, ...]:
    return (
        record.variant,
        words.latency(record.device_ms),
        words.latency(host_ms(record)),
        "" if record.speedup is None else f"{record.speedup:.2f}",
        "" if record.pct_of_limit is None else f"{record.pct_of_limit:.1f}",
        record.status,
    )
