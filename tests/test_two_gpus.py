"""scripts/two_gpus.py: which cells are compared, by which clock, and what is said and kept of them. Runs no sweep."""

import json
import sys
from pathlib import Path

import pytest

from softmax_exp import compose, memory
from softmax_exp.records import Record, Status
from tests import made_up

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import two_gpus


def on(gpu: str, job: int, ms: float, **changes) -> Record:
    return made_up.passed(job, "eager", 256, device_ms=ms, placement={"gpu_uuid": gpu}, **changes)


def both(*pairs: tuple[Record, Record]) -> list[two_gpus.Both]:
    return two_gpus.timed_in_both(*({pair[side].cell: pair[side] for pair in pairs} for side in (0, 1)))


def test_figures_of_one_clock_are_compared():
    graph = {"clock": "graph", "graph_ms": 0.0168, "events_ms": 0.0203}
    [cell] = both((on("a", 0, 0.0168, **graph), on("b", 0, 0.0204, events_ms=0.0204)))
    assert cell.clock == "events" and cell.ms == (0.0203, 0.0204) and cell.moved
    assert cell.change_pct == pytest.approx(0.493, abs=0.001) and two_gpus.beyond([cell]) == []
    assert {
        "one_ms": 0.0168,
        "two_ms": 0.0204,
        "one_clock": "graph",
        "two_clock": "events",
    }.items() <= cell.line().items()
    assert (cell.line()["one_gpu"], cell.line()["two_gpu"]) == ("a", "b") and json.dumps(cell.line())
    assert both((on("a", 0, 0.0168, clock="graph"), on("b", 0, 0.0204))) == [], "no clock timed both"


def test_cells_that_were_not_timed_are_left_out():
    failed = made_up.failed(0, "eager", 256, Status.OOM, "no")
    assert both((on("a", 0, 1.0), failed), (failed, on("a", 0, 1.0))) == []
    assert two_gpus.timed_in_both({"0/eager": on("a", 0, 1.0)}, {}) == []


def test_what_moved_is_told_by_latency_apart_from_what_stayed():
    cells = both(
        (on("a", 0, 0.010), on("a", 0, 0.0102)),
        (on("a", 1, 0.010), on("b", 1, 0.0103)),
        (on("a", 2, 0.010), on("b", 2, 0.01009)),
        (on("a", 3, 1.0), on("b", 3, 1.005)),
    )
    said = "\n".join(two_gpus.answers(cells))
    assert "all cells: |change| of the median 1.450 %, at most 3.000 %" in said
    assert "cells on the same GPU both times: |change| of the median 2.000 %, at most 2.000 %" in said
    assert "cells on another GPU, 5 to 20 us: 2, standard deviation of log ratio 2.184 %" in said  # of 2.956 and 0.896
    assert "cells on another GPU, 60 us and more: 1, standard deviation of log ratio 0.499 %" in said
    assert "20 to 60 us" not in said and "+0.50 %" not in said
    assert [cell.one.job for cell in two_gpus.beyond(cells)] == [1, 0]


def test_the_sweep_has_54_cases_of_20_us_and_more_the_longest_first(monkeypatch):
    monkeypatch.setattr(memory, "total_bytes", lambda device: (139 << 30, "the GPU"))
    jobs = compose.plan([*two_gpus.SWEEP, "device=cpu"], "s").jobs
    cases = [job.experiment.case for job in jobs]
    assert len(cases) == 54 and {case.shape[0] for case in cases} == {8, 6}
    assert min(case.least_bytes for case in cases) / 4.8e12 > 20e-6
    sizes = [case.shape[-1] for case in cases]
    assert sizes == sorted(sizes, reverse=True)
