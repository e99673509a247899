"""A comparison as text, Markdown and a page.

In: two `Results`, their pairing, the outcomes in the order to be shown.  Out: text in which names are but names.
"""

from __future__ import annotations

from collections import Counter

from softmax_exp.comparison import VERDICTS, Outcome, Question
from softmax_exp.pairing import Pairing, latency_of
from softmax_exp.records import Status
from softmax_exp.report.html import Html, tag
from softmax_exp.report.page import document
from softmax_exp.report.text import escape, table
from softmax_exp.report.words import latency
from softmax_exp.results import Results

_MAX_LINES = 40
_MAX_ROWS = 2000
_HEADS = ("verdict", "cell", "change", "interval", "baseline", "candidate", "clock", "p (Holm)", "regression")


def lines(sides: list[Results], pairing: Pairing, outcomes: list[Outcome], question: Question) -> list[str]:
    """The comparison as lines of text, the weightiest 40 cells of it; what is the same is only counted."""
    found = [f"{name} {about(side)}" for name, side in zip(("baseline: ", "candidate:"), sides, strict=True)]
    found += [f"not comparable: {reason}" for reason in pairing.refused]
    found += [f"note: {text}" for text in pairing.told]
    if pairing.refused:
        return [*found, "nothing was compared"]
    found += refusals(pairing) + missing(pairing)
    weighty = [outcome for outcome in outcomes if outcome.verdict not in ("same", "not timed") or outcome.regressions]
    found += [_line(outcome) for outcome in weighty[:_MAX_LINES]]
    if len(weighty) > _MAX_LINES:
        found.append(f"{len(weighty) - _MAX_LINES} cells more; --html or --markdown has them")
    return [*found, summary(outcomes, question)]


def cells(outcome: Outcome) -> tuple[str, ...]:
    """One outcome as the cells of a table."""
    a, b = outcome.baseline, outcome.candidate
    title = b.title if a.variant == b.variant else f"{a.variant} -> {b.title}"
    title += "".join(f" {key}={value}" for key, value in sorted(b.variant_args.items()))
    verdict = outcome.verdict.upper() if outcome.verdict in ("slower", "broken") else outcome.verdict
    change = interval = p = ""
    if outcome.change_pct is not None and outcome.p is not None:
        change = f"{outcome.change_pct:+.2f} %"
        interval = f"({outcome.low_pct:+.2f} to {outcome.high_pct:+.2f} %)"
        p = f"{outcome.p:.2g}" if outcome.p >= 1e-4 else "<0.0001"
    timed = a.status is b.status is Status.PASSED
    clock = outcome.clock if timed else None
    times = [latency(latency_of(record, clock)) if timed else record.status for record in (a, b)]
    by = clock or ""
    if timed and a.clock != b.clock:
        by = f"{clock or 'none in common'} (timed by {a.clock} and {b.clock})"
    return (verdict, title, change, interval, *times, by, p, "; ".join(outcome.regressions))


def _line(outcome: Outcome) -> str:
    verdict, title, change, interval, before, after, clock, p, regression = cells(outcome)
    by = f"clock: {clock}" if outcome.baseline.clock != outcome.candidate.clock and clock else ""
    parts = [title, verdict, change, interval, f"{before} -> {after}", by, p and f"p={p}"]
    return "  ".join(filter(None, [*parts, regression and f"REGRESSION: {regression}"])).replace("p=<", "p<")


def summary(outcomes: list[Outcome], question: Question) -> str:
    """How many cells came out how, and by what rule."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    known = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS]
    known += [f"{count} {verdict}" for verdict, count in counts.items() if verdict not in VERDICTS]
    bad = sum(bool(outcome.regressions) for outcome in outcomes)
    noise = "and cards as measured for each clock" if question.noise_pct is None else f"{question.noise_pct:g} %"
    return (
        f"{len(outcomes)} cells: {', '.join(known)}; {bad} regression{'' if bad == 1 else 's'} "
        f"(margin {question.margin_pct:g} %, regression above {question.fail_slower_pct:g} %, {len(outcomes)} cells "
        f"at once at {100 * question.confidence:g} % by Holm's method, noise between processes {noise})"
    )


def refusals(pairing: Pairing) -> list[str]:
    """Cells that were not compared, counted by reason."""
    counts = Counter(reason for each in pairing.pairs for reason in each.refused)
    return [f"not comparable: {count} cells: {reason}" for reason, count in counts.items()]


def missing(pairing: Pairing) -> list[str]:
    """Cells that one side lacks, at most ten by name."""
    found = []
    for side, records in (("candidate", pairing.only_baseline), ("baseline", pairing.only_candidate)):
        if records:
            names = ", ".join(record.title for record in records[:10]) + (", ..." if len(records) > 10 else "")
            found.append(f"missing in the {side}: {len(records)} cells: {names}")
    return found


def about(side: Results) -> str:
    """A sweep's name and machine."""
    devices = [environment.get("device") or {} for environment in side.environments.values()]
    names = {f"{device.get('name')}, torch {device.get('torch')}, triton {device.get('triton')}" for device in devices}
    return f"{side.name} ({'; '.join(sorted(names)) or 'machine not known'}), {len(side.records)} cells"


def markdown(sides: list[Results], pairing: Pairing, outcomes: list[Outcome], question: Question) -> str:
    """The comparison for an issue or a pull request; 200 cells at most."""
    head = [f"- {escape(line)}" for line in _head(sides, pairing)]
    shown = table(_HEADS, [cells(outcome) for outcome in outcomes[:200]]) if outcomes else ""
    rest = [f"{len(outcomes) - 200} cells more."] if len(outcomes) > 200 else []
    return "\n".join([f"### {escape(_verdict(pairing, outcomes, question))}", "", *head, "", shown, *rest]) + "\n"


def page(sides: list[Results], pairing: Pairing, outcomes: list[Outcome], question: Question) -> str:
    """The comparison as a page of its own."""
    lead = tag("p", _verdict(pairing, outcomes, question), class_="lead")
    notes = tag("ul", *(tag("li", line) for line in _head(sides, pairing)))
    return document("Comparison of two sweeps", "Is the candidate slower?", lead, [notes, _html_table(outcomes)])


def _head(sides: list[Results], pairing: Pairing) -> list[str]:
    found = [f"{name}: {about(side)}" for name, side in zip(("baseline", "candidate"), sides, strict=True)]
    found += [f"not comparable: {reason}" for reason in pairing.refused] + pairing.told
    return found + refusals(pairing) + missing(pairing)


def _verdict(pairing: Pairing, outcomes: list[Outcome], question: Question) -> str:
    return "Not comparable." if pairing.refused else summary(outcomes, question)


def _html_table(outcomes: list[Outcome]) -> Html:
    rows = []
    for outcome in outcomes[:_MAX_ROWS]:
        verdict, title, *figures, regression = cells(outcome)
        marked = tag("td", verdict, class_=f"text {'slower' if outcome.regressions else outcome.verdict.split()[0]}")
        name = tag("th", title, scope="row")
        rows.append(
            tag("tr", marked, name, *(tag("td", text) for text in figures), tag("td", regression, class_="text"))
        )
    caption = "Cells, the weightiest first" + (f", {_MAX_ROWS} of {len(outcomes)}" if len(outcomes) > _MAX_ROWS else "")
    texts = ("verdict", "cell", "regression")
    heads = (tag("th", text, scope="col", class_="text" if text in texts else None) for text in _HEADS)
    listed = tag("table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    return tag("div", listed, class_="scroll", tabindex=0, role="region", aria_label=caption)
