"""The command `python -m softmax_exp.compare BASELINE CANDIDATE`: which cells became slower, faster, or wrong?

In: two sweeps by folder or id, or MLflow run ids.  Out: text, Markdown, HTML. Exit status 0 nothing got worse, 1 a
regression, 2 a name that leads to nothing, 3 not comparable.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from softmax_exp import results
from softmax_exp.comparison import Outcome, Question, by_weight, compare
from softmax_exp.files import write_whole
from softmax_exp.pairing import Pairing, pair
from softmax_exp.report.__main__ import add_places
from softmax_exp.report.compared import lines, markdown, page


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
    noise_help = "standard deviation between processes; default: what was measured for the clock, and between cards"
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
    for path, make in ((given.html, page), (given.markdown, markdown)):
        if path is not None:
            write_whole(path, make(sides, pairing, outcomes, question))
    print("\n".join(lines(sides, pairing, outcomes, question)))
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


if __name__ == "__main__":
    sys.exit(main())
