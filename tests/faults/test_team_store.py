"""A team's store that restarts in the middle of a sweep, its PostgreSQL with it: nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmax_exp.tracking import server
from tests.conftest import Served
from tests.faults.conftest import whole
from tests.faults.sweeps import GOOD, TINY, Command, count, the_sweep


@contextlib.contextmanager
def stopped(command: Command) -> Iterator[None]:
    """A slow start of a server would outlast a sweep of tiny cases."""
    command.send(signal.SIGSTOP)
    yield
    command.send(signal.SIGCONT)


def is_free(port: int) -> bool:
    try:
        return server.free_port(port, tries=1) == port
    except ValueError:
        return False


def start_again(served: Served, data: Path) -> None:
    deadline = time.monotonic() + 60
    while (data / "postmaster.pid").exists() or not is_free(served.port):  # servers whose owner was killed still end
        assert time.monotonic() < deadline
        time.sleep(0.1)
    served.start()
    assert server.wait_until_up(served.address, served.process), served.said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=whole)])
def test_a_restart_of_server_and_postgresql_loses_nothing(cluster_folder, tmp_path, many, figures, how) -> None:
    n_jobs = many(8, 24)
    sweep = ["-m", f"seed=range({n_jobs})", "seq=16", GOOD, *TINY, "measure.budget_s=0.3", "tracking=server"]
    served, command = Served("--folder", str(cluster_folder)), None
    try:
        assert server.wait_until_up(served.address, served.process), served.said
        command = Command(tmp_path, *sweep, f"tracking.uri={served.address}")
        assert command.wait_for_records(n_jobs // 3), command.said
        with stopped(command):
            served.process.send_signal(how)
            assert served.process.wait(60) == (0 if how is signal.SIGTERM else -signal.SIGKILL), served.said
        assert command.wait_for_words("not in MLflow yet"), command.said  # at the next sending, or at the sweep's end
        with stopped(command):
            start_again(served, cluster_folder / "postgres" / "data")
        assert command.wait() == 0, command.said
        found = count(the_sweep(tmp_path), served.address)
        figures(store_restarted_by=how.name, cells=found.expected, lost=found.lost_in_mlflow,
                doubled=found.doubled_in_mlflow)  # fmt: skip
        assert "MLflow has every record now" in command.said
        assert found.wrong == 0 and found.expected == 2 * n_jobs, f"{found}\n{command.said}"
    finally:
        if command is not None:
            command.orphans(patience_s=0)
            command.wait()
        served.stop()
