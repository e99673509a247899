"""The smallest case in which a variant still fails, found by trying simpler ones.

In: the failing records of a sweep and a worker, so that a crash costs one try.  Out: `Failure`s, each with the command
that shows it again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from softmax_exp import stops
from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.records import Record, Status
from softmax_exp.redaction import redact
from softmax_exp.request import to_json
from softmax_exp.sweep import Sweep
from softmax_exp.worker import Worker

SHRUNK = (Status.INCORRECT, Status.ERROR, Status.CRASHED)  # others depend on memory and time, not on the case alone
BUDGET_S = 30.0  # for one variant; a variant that is compiled for each try takes a second a try
MOST_FAILURES = 12  # of one variant
SETTINGS = MeasureSettings(clock="none", first_call_deadline_s=60.0, measure_deadline_s=60.0)
SIMPLEST = {"mask": "none", "scale": None, "mode": "forward", "distribution": "normal", "layout": "contiguous"}

Try = Callable[[Case], tuple[str, str]]


@dataclass(frozen=True)
class Failure:
    """A failure in its smallest case: what was said of it, how many cells it may explain, and how to see it again."""

    variant: str
    status: str
    message: str
    title: str
    command: str
    n_cells: int


def smallest_failures(sweep: Sweep, worker: Worker, tell: Callable[[str], None]) -> list[Failure]:
    """A smallest case for each failure of each variant, as far as half a minute a variant allows."""
    jobs = {job["job"]: job for job in sweep.manifest()["jobs"]}
    cells: dict[str, dict[Case, Record]] = {}
    for record in sweep.records():
        cells.setdefault(record.variant, {})[Case.from_dict(jobs[record.job]["case"])] = record
    found = []
    for variant, by_case in cells.items():
        first = next(iter(by_case.values()))
        args = jobs[first.job]["config"]["variant_args"]
        attempt = _in_worker(worker, variant, args, sweep, tell)
        found += _smallest_of(variant, args, by_case, attempt, _late_after(BUDGET_S))
    return found


def _late_after(seconds: float) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: stops.asked() or time.monotonic() > deadline


def _smallest_of(
    variant: str, args: dict[str, Any], cells: dict[Case, Record], attempt: Try, is_late: Callable[[], bool]
) -> list[Failure]:
    left = sorted((case for case, record in cells.items() if record.status in SHRUNK), key=lambda case: case.numel)
    found = []
    while left and len(found) < MOST_FAILURES:
        record = cells[left[0]]
        case, message = smallest(left[0], record.status, record.message, attempt, is_late)
        explained = [other for other in left if _explains(case, record.status, other, cells)]
        left = [other for other in left[1:] if other not in explained]
        command = command_for(variant, args.get(variant, {}), case)
        found.append(Failure(variant, record.status, message, case.title, command, max(1, len(explained))))
    return found


def _explains(simple: Case, status: Status, case: Case, cells: dict[Case, Record]) -> bool:
    """Whether a failure may be that of a simpler case: it is as hard in every respect, and no simpler cell passed.

    Without the second, a fault of rows of 33 columns would hide one of transposed rows of 64.
    """
    twin = dataclasses.replace(case, **{name: getattr(simple, name) for name in SIMPLEST})
    same = cells[case].status == status and (twin not in cells or cells[twin].status == status)
    return same and is_harder(case, simple)


def smallest(
    case: Case, status: str, message: str, attempt: Try, is_late: Callable[[], bool] = lambda: False
) -> tuple[Case, str]:
    """The simplest case found in which `attempt` ends with the same status, and what it then said.

    Greedy: whatever is simpler and still fails is taken, until nothing simpler fails or it is late. First the values,
    the layout and the like; then the shape, where a smaller one counts only if it passes once those are plain, lest
    the search slip to another fault.
    """
    ended: dict[Case, tuple[str, str]] = {case: (status, message)}

    def fails(other: Case) -> bool:
        if other not in ended:
            ended[other] = ("", "") if is_late() else attempt(other)
        return ended[other][0] == status

    def plain(other: Case) -> Case:
        return dataclasses.replace(other, **SIMPLEST)

    def shrunk(other: Case) -> bool:
        return fails(other) and (plain(other) == other or not fails(plain(other)))

    for simpler, counts in ((plainer_than, fails), (smaller_than, shrunk)):
        while (found := next(filter(counts, simpler(case)), None)) is not None:
            case = found
    return case, ended[case][1]


def plainer_than(case: Case) -> Iterator[Case]:
    """Cases of the same shape that are plainer: in every respect first, then in a single one."""
    plain = dataclasses.replace(case, **SIMPLEST)
    singles = (dataclasses.replace(case, **{name: value}) for name, value in SIMPLEST.items())
    for other in (plain, *singles, dataclasses.replace(case, dtype="float32")):
        if other != case:
            yield other


def smaller_than(case: Case) -> Iterator[Case]:
    """Cases that differ from this one in one dimension, which is gone or smaller, the largest steps first."""
    if len(case.shape) > 2:
        yield dataclasses.replace(case, shape=(case.n_rows, case.n_cols), workload="matrix")
    for dim, size in enumerate(case.shape):
        for less in dict.fromkeys([1, *(size - (size >> shift) for shift in range(1, size.bit_length()))]):
            if 0 < less < size:
                yield dataclasses.replace(case, shape=(*case.shape[:dim], less, *case.shape[dim + 1 :]))


def is_harder(case: Case, than: Case) -> bool:
    """Whether a case is at least as hard in every respect, so that a failure of the simpler one may explain its own."""
    same = all(getattr(than, name) in (value, getattr(case, name)) for name, value in SIMPLEST.items())
    return same and than.dtype in ("float32", case.dtype) and than.n_rows <= case.n_rows and than.n_cols <= case.n_cols


def command_for(variant: str, args: dict[str, Any], case: Case) -> str:
    """The command that checks this variant in this case, for a shell in the directory of the sweep's command."""
    overrides = [f"variants=[{_value(variant)}]", f"shape=[{','.join(map(str, case.shape))}]", f"dtype={case.dtype}"]
    overrides += [f"{name}={getattr(case, name)}" for name, value in SIMPLEST.items() if getattr(case, name) != value]
    overrides += [f"seed={case.seed}"] if case.seed else []
    overrides += [f"device={case.device}"] if case.device != "auto" else []
    function = variant.rpartition(":")[2]
    overrides += [f"variant_args.{function}.{name}={_value(value)}" for name, value in args.items()]
    words = ["TRITON_INTERPRET=1"] if os.environ.get("TRITON_INTERPRET") == "1" else []
    words += ["python", "-m", "softmax_exp", *map(shlex.quote, overrides), "measure=none", "tracking=off"]
    return " ".join(words)


def _value(value: Any) -> str:
    """A value as an override takes it."""
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[\w./:+-]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _in_worker(worker: Worker, variant: str, args: dict[str, Any], sweep: Sweep, tell: Callable[[str], None]) -> Try:
    def attempt(case: Case) -> tuple[str, str]:
        tell(f"smallest failure of {variant}: {case.title}")
        results: list[dict[str, Any]] = []
        request = to_json(case, (variant,), SETTINGS, variant_args=args, baseline=None)
        worker.measure(request, sweep.folder / "worker.log", results.append)
        ended = next(event for event in results if event["event"] == "result")
        return str(ended["status"]), redact(ended.get("message") or "")

    return attempt
