"""The report of a sweep that timed nothing: who is right where, and the smallest case of each failure.

In: a sweep's records, and a worker to try smaller cases in.  Out: a matrix of errors on the terminal, the same as
`correctness.md` in the sweep's folder, and `smallest_failures.jsonl`, from which it can be written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from softmax_exp.correctness import matrix, shrink
from softmax_exp.correctness.shrink import Failure
from softmax_exp.files import write_whole
from softmax_exp.sweep import Sweep
from softmax_exp.worker import Worker

__all__ = ["finish", "show", "write"]

REPORT, SMALLEST = "correctness.md", "smallest_failures.jsonl"


def finish(sweep: Sweep, worker: Worker, tell: Callable[[str], None], *, search: bool = True) -> list[Path]:
    """Write the report, `search` for the smallest case of each failure, and write it with those. The report's paths.

    `tell` hears what is being tried. The report is there from the start, should the search be stopped.
    """
    (sweep.folder / SMALLEST).unlink(missing_ok=True)
    report = write(sweep)
    if not search:
        return [report]
    found = shrink.smallest_failures(sweep, worker, tell)
    write_whole(sweep.folder / SMALLEST, "".join(json.dumps(asdict(failure)) + "\n" for failure in found))
    return [write(sweep), sweep.folder / SMALLEST]


def write(sweep: Sweep) -> Path:
    """Write the report of a sweep from what is on disk."""
    path = sweep.folder / REPORT
    write_whole(path, matrix.markdown(sweep.sweep_id, sweep.records(), _smallest(sweep)))
    return path


def show(sweep: Sweep, console: Console) -> None:
    """Print the report of a sweep from what is on disk."""
    matrix.show(sweep.records(), _smallest(sweep), console)


def _smallest(sweep: Sweep) -> list[Failure]:
    path = sweep.folder / SMALLEST
    if not path.exists():
        return []
    return [Failure(**json.loads(line)) for line in path.read_text().splitlines()]
