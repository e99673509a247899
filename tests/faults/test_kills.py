"""A sweep is killed again and again, and resumed: nothing lost, nothing twice, nothing left running."""

from __future__ import annotations

import importlib.util
import random
import shutil
import signal
import time

import pytest

from tests.faults.conftest import WHOLE
from tests.faults.sweeps import GOOD, TINY, Command, count, the_sweep

SWEEP = ["-m", f"seq={','.join(map(str, range(16, 24 if WHOLE else 20)))}", GOOD, *TINY]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
WORKER, JOB_PROCESS = "softmax_exp.worker", "LokyProcess"


def kills(outputs, empty_database, n_kills: int, overrides: list[str], targets: list[str], seed: int) -> dict[str, int]:
    """Kill `targets` at random points of a sweep and go on with it, a new sweep whenever one is whole."""
    dice, totals = random.Random(seed), {"kills": 0, "sweeps": 0, "cells": 0, "wrong": 0, "orphans": 0}
    done = True
    while totals["kills"] < n_kills or not done:
        if done:
            folder = outputs / str(totals["sweeps"])
            folder.mkdir()
            shutil.copy(empty_database, folder / "mlflow.db")
            totals["sweeps"], done, resume, n_lines = totals["sweeps"] + 1, False, [], 0
        command = Command(folder, *overrides, *resume)
        if totals["kills"] < n_kills:
            if dice.random() < 0.3:
                time.sleep(dice.uniform(0, 4))
            elif command.wait_for_records(n_lines + dice.randint(0, 3)):
                time.sleep(dice.uniform(0, 0.6))
            whom, number = dice.choice(targets), dice.choice([signal.SIGKILL, signal.SIGTERM])
            if command.process.poll() is None and command.send(number, whom):
                totals["kills"] += 1
        command.wait()
        assert "Traceback" not in command.said, command.said
        totals["orphans"] += len(command.orphans())
        if not list(folder.glob("sweeps/*/manifest.json")):
            continue
        sweep = the_sweep(folder)
        resume = [f"resume={sweep.sweep_id}", "retry=failed"]
        n_lines = sweep.records_path.read_bytes().count(b"\n") if sweep.records_path.exists() else 0
        done = command.process.returncode == 0
        if done:
            found = count(sweep)
            totals["cells"] += found.expected
            totals["wrong"] += found.wrong
            assert found.wrong == 0, found
    return totals


@pytest.mark.timeout(3600)
def test_kills_of_the_command_and_its_worker(outputs, empty_database, many, figures) -> None:  # S17, S18
    totals = kills(outputs, empty_database, many(2, 70), SWEEP, ["", WORKER], seed=1)
    figures(**totals)
    assert totals["wrong"] == totals["orphans"] == 0


@pytest.mark.skipif(importlib.util.find_spec("hydra_plugins") is None, reason="needs hydra-joblib-launcher")
@pytest.mark.timeout(3600)
def test_kills_beneath_joblib(outputs, empty_database, many, figures) -> None:
    totals = kills(outputs, empty_database, many(1, 30), SWEEP + JOBLIB, ["", WORKER, JOB_PROCESS], seed=2)
    figures(**totals)
    assert totals["wrong"] == totals["orphans"] == 0
