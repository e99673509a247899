"""A real `mlflow server` that freezes or dies in the middle of a sweep: nothing lost, nothing twice, no time lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmax_exp import sync
from softmax_exp.tracking import server
from tests.faults.conftest import whole
from tests.faults.sweeps import ROOT, Command, count, the_sweep

JOBS, BUDGET_S = 24, 1.0
SWEEP = ["-m", f"seed=range({JOBS})", "seq=16", "batch=1", "heads=1", "variants=eager", "device=cpu", "measure=quick"]
SWEEP += [f"measure.budget_s={BUDGET_S}", "measure.target_pct=1e-9", "measure.max_rounds=100000000", "tracking=server"]


@contextlib.contextmanager
def server_on(database: Path, port: int) -> Iterator[subprocess.Popen]:
    process = server.start(f"sqlite:///{database}", database.parent / "mlartifacts", port, subprocess.DEVNULL)
    try:
        assert server.wait_until_up(f"http://127.0.0.1:{port}", process)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def arrivals(command: Command, until: int, seen: list[float]) -> None:
    """Note when each record arrives, up to that many."""
    while len(seen) < until and command.wait_for_records(len(seen) + 1):
        seen.append(time.monotonic())


@whole
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["frozen", "killed", "gone for good"])
def test_a_third_of_a_sweep_without_its_server(outputs, figures, how, capsys) -> None:  # S28
    port, third = server.free_port(15000), JOBS // 3
    uri, database = f"http://127.0.0.1:{port}", outputs / "mlflow.db"
    seen: list[float] = []
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(server_on(database, port))
        command = Command(outputs, *SWEEP, f"tracking.uri={uri}")
        arrivals(command, third, seen)
        os.killpg(first.pid, signal.SIGSTOP if how == "frozen" else signal.SIGKILL)
        arrivals(command, 2 * third, seen)
        if how == "frozen":
            os.killpg(first.pid, signal.SIGCONT)
        elif how == "killed":
            first.wait()
            command.send(signal.SIGSTOP)  # or a slow start of the server would outlast the sweep
            stack.enter_context(server_on(database, port))
            command.send(signal.SIGCONT)
        arrivals(command, JOBS, seen)
        assert command.wait() == 0, command.said
        assert "Traceback" not in command.said and command.said.count("not in MLflow yet") <= 2
        if how == "gone for good":
            assert f"softmax_exp.sync {the_sweep(outputs).folder}" in command.said
            stack.enter_context(server_on(database, port))
            capsys.readouterr()
            for _ in range(2):
                assert sync.main([str(the_sweep(outputs).folder), "--uri", uri]) == 0
            assert ": 0 runs written" in capsys.readouterr().out, "the second time"
        found = count(the_sweep(outputs), uri)
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    normal, without = steps[: third - 1], steps[third : 2 * third - 1]
    slower_pct = 100 * (statistics.median(without) / statistics.median(normal) - 1)
    stall_s = max(steps[third - 1 : 2 * third - 1]) - statistics.median(normal)
    figures(server=how, lost=found.lost_in_mlflow, doubled=found.doubled_in_mlflow,
            measuring_slower_by=f"{slower_pct:.1f} %", longest_stall=f"{stall_s:.1f} s")  # fmt: skip
    assert found.wrong == 0, f"{found}\n{command.said}"
    assert slower_pct < 10 and stall_s < 30


@whole
def test_eight_processes_of_fifty_runs_into_one_fresh_store(tmp_path, figures) -> None:  # S20
    code = (
        "import sys; from pathlib import Path; from softmax_exp import tracking\n"
        "from softmax_exp.config import TrackingSettings; from tests import made_up\n"
        "outputs, name = Path(sys.argv[1]), sys.argv[2]\n"
        "cells = [made_up.passed(job, 'eager', 128, name) for job in range(50)]\n"
        "sweep = made_up.sweep(outputs, cells)\n"
        "tracking.sync(sweep, tracking.open_store(TrackingSettings(), outputs))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"s{n}"], cwd=ROOT) for n in range(8)]
    assert [writer.wait(300) for writer in writers] == [0] * 8
    from tests.faults.sweeps import runs

    found = runs(f"sqlite:///{tmp_path / 'mlflow.db'}", "tags.kind = 'cell'")
    figures(processes=8, runs_each=50, found=len(found))
    assert len({(run.data.tags["sweep_id"], run.data.tags["cell"]) for run in found}) == len(found) == 400
