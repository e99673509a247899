"""The parts of a report that are read: verdicts, all figures, failures, machines, how to run it again.

In: `Results`.  Out: sections of the page.
"""

from __future__ import annotations

import shlex
from typing import Any

from softmax_exp.ranking import host_ms, on_device_clock
from softmax_exp.records import Record, Status
from softmax_exp.report import machines, words
from softmax_exp.report.html import Html, join, tag
from softmax_exp.report.panels import case_title, label
from softmax_exp.results import Results
from softmax_exp.table import by_case, failures_in_words

_MAX_ROWS = 2000
_OPEN_CASES = 12
_TEXT_HEADS = {"case", "variant", "flag", "for example", "status"}
_FIGURES = (
    "case", "variant", "device", "host", "interval", "speed-up", "% of limit", "GB/s", "error / tol.", "status"
)  # fmt: skip
FACTS = (  # where in an environment: label, part, keys
    ("GPU or CPU", "device", "name"), ("driver", "device", "driver"), ("torch", "device", "torch"),
    ("CUDA", "device", "cuda"), ("triton", "device", "triton"), ("ptxas", "device", "ptxas"),
    ("power limit, W", "device", "power_limit_w"),
    ("SM clock, MHz at most", "device", "sm_clock_max_mhz"),
    ("memory clock, MHz at most", "device", "memory_clock_max_mhz"),
    ("L2 cache, bytes", "device", "l2_bytes"), ("SMs", "device", "sm_count"), ("MIG", "device", "mig"),
    ("host", "host", "hostname"), ("CPU", "host", "cpu"), ("CPU cores", "host", "cpu_count"),
    ("Python", "host", "python"), ("operating system", "host", "os"),
)  # fmt: skip


def verdicts(sweeps: list[Results]) -> Html:
    """A sentence a case."""
    parts = []
    for number, results in enumerate(sweeps):
        cases = by_case(results.records)
        items = [tag("li", tag("strong", title), " ", words.verdict(cells)) for title, cells in cases]
        listed = tag("ul", *items, class_="verdicts")
        heading = f"{len(cases)} cases" + (f" of [{number + 1}] {results.name}" if len(sweeps) > 1 else "")
        parts.append(tag("details", tag("summary", heading), listed, open=len(cases) <= _OPEN_CASES))
    return join(parts)


def scoreboard(sweeps: list[Results]) -> Html:
    """Every variant over all cases of its sweep."""
    heads = ("variant", "fastest", "level", "passed", "cases", "speed-up, geometric mean", "% of limit, median")
    rows = []
    for number, results in enumerate(sweeps):
        suffix = f" [{number + 1}]" if len(sweeps) > 1 else ""
        for score in words.scores(results):
            figures = (score.n_fastest, score.n_level, score.n_passed, score.n_cases)
            up, limit = score.geometric_speedup, score.median_pct_of_limit
            cells = [*figures, f"{up:.2f}" if up else "-", f"{limit:.1f}" if limit is not None else "-"]
            name = tag("th", score.variant + suffix, scope="row")
            rows.append(tag("tr", name, *(tag("td", cell) for cell in cells)))
    return _table("Over all cases", heads, rows)


def figures(sweeps: list[Results]) -> Html:
    """Every cell with its figures, to be filtered by typing; without the columns in which there is none."""
    shown = [(n, record) for n, results in enumerate(sweeps) for record in results.records]
    on = [machines.kinds(results) for results in sweeps]
    rows = [
        _row(record, label(record, n, len(sweeps)), on[n].get(record.environment_hash, ""))
        for n, record in shown[:_MAX_ROWS]
    ]
    heads = [head for head in _FIGURES if any(row[head] for row in rows)]
    cells = [tag("tr", *(_cell(head, row[head]) for head in heads)) for row in rows]
    box = tag("input", type="search", id="filter", autocomplete="off", placeholder="e.g. triton 2048")
    parts = [tag("p", tag("label", "Show rows with ", for_="filter"), box, " ", tag("output", for_="filter"))]
    if len(shown) > _MAX_ROWS:
        note = f"The first {_MAX_ROWS} of {len(shown)} cells; all of them are in the CSV file."
        parts.append(tag("p", note, class_="note"))
    return join([*parts, _table("Every cell", tuple(heads), cells, id="all")])


def failures(sweeps: list[Results]) -> Html:
    """What did not pass and why, and what is missing."""
    parts = []
    for number, results in enumerate(sweeps):
        lines = failures_in_words(results.records)
        lines += [f"no record: {variant} of job {job}" for job, variant in results.missing[:50]]
        if len(results.missing) > 50:
            lines.append(f"no record: {len(results.missing) - 50} cells more")
        if lines:
            heading = [tag("h3", f"[{number + 1}] {results.name}")] if len(sweeps) > 1 else []
            parts += [*heading, tag("ul", *(tag("li", line) for line in lines), class_="failures")]
        for record in [record for record in results.records if record.traceback][:20]:
            parts.append(tag("details", tag("summary", record.title), tag("pre", record.traceback[-6000:])))
    return join(parts) if parts else tag("p", "None: every cell passed its check and was timed.")


def flags(sweeps: list[Results]) -> Html:
    """Which warnings were raised, how often, and where for example."""
    raised: dict[str, list[Record]] = {}
    for results in sweeps:
        for record in results.records:
            for flag in record.flags:
                raised.setdefault(flag, []).append(record)
    if not raised:
        return tag("p", "No flag was raised.")
    rows = [
        tag("tr", tag("th", flag, scope="row"), tag("td", len(cells)), tag("td", cells[0].title, class_="text"))
        for flag, cells in sorted(raised.items(), key=lambda item: -len(item[1]))
    ]
    return _table("Flags", ("flag", "cells", "for example"), rows)


def environments(sweeps: list[Results]) -> Html:
    """The machines and the software, side by side, what differs marked."""
    columns = [(n, name, env) for n, results in enumerate(sweeps) for name, env in results.environments.items()]
    if not columns:
        return tag("p", "No environment was kept with these records.")
    rows = []
    for title, part, key in FACTS:
        values = [(env.get(part) or {}).get(key) for _, _, env in columns]
        if any(value is not None for value in values):
            differs = len({str(value) for value in values}) > 1
            cells = [tag("td", "" if value is None else value, class_="text") for value in values]
            name = [title, tag("span", " (differs)", class_="differs")] if differs else [title]
            rows.append(tag("tr", tag("th", *name, scope="row"), *cells))
    for title, name in (("measured on hosts", "host"), ("measured on GPUs", "gpu_uuid")):
        where = [machines.places(sweeps[n], environment, name) for n, environment, _ in columns]
        if any(where):
            rows.append(tag("tr", tag("th", title, scope="row"), *(tag("td", text, class_="text") for text in where)))
    git = [_commit(env) for _, _, env in columns]
    rows.append(tag("tr", tag("th", "commit", scope="row"), *(tag("td", text, class_="text") for text in git)))
    several = len(sweeps) > 1
    heads = ("", *(f"[{number + 1}] {name}" if several else name for number, name, _ in columns))
    return _table("What the figures depend on", heads, rows)


def reproduce(sweeps: list[Results]) -> Html:
    """The commands that make these figures again."""
    parts = []
    for results in sweeps:
        lines = []
        commits = {git.get("commit"): git for env in results.environments.values() if (git := _git(env))}
        for commit, git in commits.items():
            if commit:
                changed = "  # with changes that were not committed: the figures may not come again"
                lines.append(f"git checkout {commit}" + (changed if git.get("dirty") else ""))
        if command := results.manifest.get("command"):
            lines.append(str(command))
        named = shlex.quote(results.name)
        lines.append(f"python -m softmax_exp.replay {named}  # the same configs again, and whether they agree")
        parts += [tag("h3", results.name), tag("pre", "\n".join(lines), tabindex=0)]
    return join(parts)


def _row(record: Record, variant: str, machine: str) -> dict[str, str]:
    low, high = record.device_ms_ci_low, record.device_ms_ci_high
    cells = (
        case_title(record) + (f", {machine}" if machine else ""),
        variant,
        words.latency(record.device_ms if on_device_clock(record) else None),
        words.latency(host_ms(record)),
        f"{words.latency(low)} to {words.latency(high)}" if low is not None and high is not None else "",
        "" if record.speedup is None else f"{record.speedup:.2f}",
        "" if record.pct_of_limit is None else f"{record.pct_of_limit:.1f}",
        "" if record.gbps is None else f"{record.gbps:.0f}",
        "" if record.error_over_tolerance is None else f"{record.error_over_tolerance:.2g}",
        record.status,
    )
    return dict(zip(_FIGURES, cells, strict=True))


def _cell(head: str, text: str) -> Html:
    if head == "variant":
        return tag("th", text, scope="row")
    off = head == "status" and text != Status.PASSED
    return tag("td", text, class_=("text" + " off" * off) if head in _TEXT_HEADS else None)


def _table(caption: str, heads: tuple[Any, ...], rows: list[Html], **attributes: Any) -> Html:
    texts = _TEXT_HEADS if _TEXT_HEADS & {*heads} else {*heads}
    cells = (tag("th", text, scope="col", class_="text" if text in texts else None) for text in heads)
    head = tag("thead", tag("tr", *cells))
    table = tag("table", tag("caption", caption), head, tag("tbody", *rows), **attributes)
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _git(environment: dict[str, Any]) -> dict[str, Any]:
    return ((environment.get("host") or {}).get("git") or {}).get("package") or {}


def _commit(environment: dict[str, Any]) -> str:
    git = _git(environment)
    return f"{git['commit'][:12]}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else "not known"
