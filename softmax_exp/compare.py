"""The command `python -m softmax_exp.compare BASELINE CANDIDATE`: which cells became slower, faster, or wrong?

In: two sweeps by folder or id, or MLflow run ids.  Out: text, Markdown, HTML. Exit status 0 nothing got worse, 1 a
regression, 2 a name that leads to nothing, 3 not comparable.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from softmax_exp import results
from softmax_exp.comparison import VERDICTS, Outcome, Question, by_weight, compare
from softmax_exp.pairing import Pairing, latency_of, pair
from softmax_exp.records import write_whole
from softmax_exp.report.__main__ import add_places
from softmax_exp.report.html import Html, tag
from softmax_exp.report.page import document
from softmax_exp.report.text import escape, table
from softmax_exp.report.words import latency
from softmax_exp.results import Results

_MAX_LINES = 40
_MAX_ROWS = 2000
_HEADS = ("cell", "verdict", "change of time", "interval", "baseline", "candidate", "p (Holm)", "regression")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.compare", description="Compare two sweeps.")
    for side in ("baseline", "candidate"):
        parser.add_argument(side, metavar=side.upper(), help="folder or id of a sweep, or MLflow run ids (a,b)")
    limit_help = "more time than this is a regression; default: the margin"
    parser.add_argument("--fail-slower", type=percent, metavar="PCT", help=limit_help)
    margin_help = "differences within this are none (default: 1%%)"
    parser.add_argument("--margin", type=percent, default=1.0, metavar="PCT", help=margin_help)
    parser.add_argument("--confidence", type=float, default=0.95, help="of all verdicts together (default: 0.95)")
    noise_help = "standard deviation between processes; default: what was measured for the clock"
    parser.add_argument("--noise", type=percent, metavar="PCT", help=noise_help)
    parser.add_argument("--force", action="store_true", help="compare what is not comparable")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the comparison as a page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown")
    add_places(parser)
    given = parser.parse_args(arguments)
    if not 0.5 <= given.confidence < 1:
        parser.error(f"--confidence ({given.confidence}) must be at least 0.5 and below 1")
    limit = given.margin if given.fail_slower is None else given.fail_slower
    question = Question(given.margin, limit, given.confidence, given.noise)
    try:
        baseline, candidate = (
            results.find(name, given.outputs, given.uri) for name in (given.baseline, given.candidate)
        )
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    pairing, sides = pair(baseline, candidate, given.force), [baseline, candidate]
    outcomes = [] if pairing.refused else by_weight(compare(pairing.pairs, baseline, candidate, question))
    print("\n".join(lines(sides, pairing, outcomes, question)))
    for path, make in ((given.html, page), (given.markdown, markdown)):
        if path is not None:
            write_whole(path, make(sides, pairing, outcomes, question))
    return exit_status(pairing, outcomes)


def percent(text: str) -> float:
    """`3%` or `3` as 3.0. ArgumentTypeError for anything else, and below zero."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} must be a percentage such as 3%")
    return value


def exit_status(pairing: Pairing, outcomes: list[Outcome]) -> int:
    """1 for any regression, else 3 where anything was refused, else 0."""
    if any(outcome.regressions for outcome in outcomes):
        return 1
    return 3 if pairing.refused or any(each.refused for each in pairing.pairs) else 0


def lines(sides: list[Results], pairing: Pairing, outcomes: list[Outcome], question: Question) -> list[str]:
    """The comparison as lines of text, the weightiest 40 cells of it; what is the same is only counted."""
    found = [f"{name} {about(side)}" for name, side in zip(("baseline: ", "candidate:"), sides, strict=True)]
    found += [f"not comparable: {reason}" for reason in pairing.refused]
    found += [f"note: {text}" for text in pairing.told]
    if pairing.refused:
        return [*found, "nothing was compared"]
    found += refusals(pairing) + missing(pairing)
    weighty = [outcome for outcome in outcomes if outcome.verdict not in ("same", "not timed") or outcome.regressions]
    found += ["  ".join(filter(None, cells(outcome))) for outcome in weighty[:_MAX_LINES]]
    if len(weighty) > _MAX_LINES:
        found.append(f"{len(weighty) - _MAX_LINES} cells more; --html or --markdown has them")
    return [*found, summary(outcomes, question)]


def cells(outcome: Outcome) -> tuple[str, ...]:
    """One outcome as the cells of a table; the first names it, the second is the verdict."""
    a, b = outcome.baseline, outcome.candidate
    title = b.title if a.variant == b.variant else f"{a.variant} -> {b.title}"
    args = " ".join(f"{key}={value}" for key, value in sorted(b.variant_args.items()))
    words = [
        f"{title} {args}".strip(),
        outcome.verdict.upper() if outcome.verdict in ("slower", "broken") else outcome.verdict,
    ]
    if outcome.change_pct is None or outcome.low_pct is None or outcome.high_pct is None or outcome.p is None:
        words += ["", "", a.status, b.status, ""]
    else:
        interval = f"({outcome.low_pct:+.2f} to {outcome.high_pct:+.2f} %)"
        words += [
            f"{outcome.change_pct:+.2f} %",
            interval,
            latency(latency_of(a)),
            latency(latency_of(b)),
            f"p={outcome.p:.1g}",
        ]
    return (*words, "; ".join(f"REGRESSION: {reason}" for reason in outcome.regressions))


def summary(outcomes: list[Outcome], question: Question) -> str:
    """How many cells came out how, and by what rule."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    known = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS]
    known += [f"{count} {verdict}" for verdict, count in counts.items() if verdict not in VERDICTS]
    bad = sum(bool(outcome.regressions) for outcome in outcomes)
    noise = "as measured for each clock" if question.noise_pct is None else f"{question.noise_pct:g} %"
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
        name, verdict, *rest, reason = cells(outcome)
        marked = tag("td", verdict, class_=f"text {'slower' if outcome.regressions else outcome.verdict.split()[0]}")
        figures = [tag("td", text) for text in rest]
        rows.append(tag("tr", tag("th", name, scope="row"), marked, *figures, tag("td", reason, class_="text")))
    caption = "Cells, the weightiest first" + (f", {_MAX_ROWS} of {len(outcomes)}" if len(outcomes) > _MAX_ROWS else "")
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in _HEADS)))
    listed = tag("table", tag("caption", caption), head, tag("tbody", *rows), id="all")
    return tag("div", listed, class_="scroll", tabindex=0, role="region", aria_label=caption)


if __name__ == "__main__":
    sys.exit(main())
