"""Real sweeps of tiny cases on the CPU, and what is left of them after a fault.

In: an outputs folder and overrides.  Out: a started command, and a `Count` of its cells in the records and in MLflow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from softmax_exp.records import Status, read_records
from softmax_exp.sweep import Sweep
from softmax_exp.tracking.store import quieten
from tests.test_measure import planted

ROOT = Path(__file__).parents[2]
TINY = ["batch=1", "heads=1", "measure=quick", "measure.budget_s=0.02", "measure.min_rounds=6", "device=cpu"]
GOOD = f"variants=[eager,{planted('right')}]"
_MARK = "SOFTMAX_EXP_FAULTS_MARK"


class Command:
    """A running `python -m softmax_exp`, and every process that it started, however far down."""

    def __init__(self, outputs: Path, *overrides: str, **variables: str) -> None:
        self.outputs, self.mark = outputs, uuid.uuid4().hex
        quiet = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._log = os.memfd_create("log")  # on no disk that may be full
        self.process = subprocess.Popen(
            [sys.executable, "-m", "softmax_exp", *overrides, f"outputs={outputs}"],
            cwd=ROOT,
            env=quiet | {_MARK: self.mark} | variables,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, timeout_s: float = 240) -> int:
        """The exit status."""
        return self.process.wait(timeout_s)

    @property
    def said(self) -> str:
        """What it printed so far."""
        return Path(f"/proc/self/fd/{self._log}").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Those of its processes that live, whoever their parent is by now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def orphans(self, patience_s: float = 10) -> list[psutil.Process]:
        """What is left of its processes some time after it ended; then ended as well."""
        deadline = time.monotonic() + patience_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()
        return left

    def wait_for_records(self, n: int, timeout_s: float = 120) -> bool:
        """Whether the newest sweep came to have n lines of records before the command ended."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            paths = sorted(self.outputs.glob("sweeps/*/records.jsonl"))
            if n == 0 or (paths and paths[-1].read_bytes().count(b"\n") >= n):
                return True
            time.sleep(0.01)
        return False

    def wait_for_words(self, words: str, timeout_s: float = 120) -> bool:
        """Whether it came to print these words before it ended."""
        deadline = time.monotonic() + timeout_s
        while words not in self.said and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return words in self.said

    def send(self, number: signal.Signals, whom: str = "") -> bool:
        """Send a signal to the command, or to the first of its processes whose command line has that word."""
        if not whom:
            self.process.send_signal(number)
            return True
        for process in self.processes():
            try:
                if whom in " ".join(process.cmdline()):
                    process.send_signal(number)
                    return True
            except psutil.Error:
                continue
        return False


@dataclass
class Count:
    """The cells of a sweep: how many there should be, and what is wrong with them."""

    expected: int
    lost: int
    doubled: int
    failed: int
    lost_in_mlflow: int
    doubled_in_mlflow: int
    running: int

    @property
    def wrong(self) -> int:
        """Everything that should not be."""
        return self.lost + self.doubled + self.failed + self.lost_in_mlflow + self.doubled_in_mlflow + self.running


def the_sweep(outputs: Path) -> Sweep:
    """The newest sweep."""
    return Sweep(max((path.parent for path in outputs.glob("sweeps/*/manifest.json")), key=lambda path: path.name))


def runs(uri: str, condition: str = "") -> list:
    """The runs of a store that are not deleted."""
    quieten()
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    found, token = [], None
    while True:
        page = client.search_runs(experiments, condition, max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def count(sweep: Sweep, uri: str = "") -> Count:
    """Every expected cell should have one PASSED record and one finished run."""
    uri = uri or f"sqlite:///{sweep.folder.parents[1] / 'mlflow.db'}"
    expected = [f"{job}/{variant}" for job, variant in sweep.expected_cells()]
    lines = list(read_records(sweep.records_path))
    passed = Counter(record.cell for record in lines if record.status is Status.PASSED)
    latest = {record.cell: record.status for record in lines}
    found = runs(uri, f"tags.sweep_id = '{sweep.sweep_id}'")
    cells = Counter(run.data.tags["cell"] for run in found if run.data.tags["kind"] == "cell")
    return Count(
        expected=len(expected),
        lost=sum(cell not in latest for cell in expected),
        doubled=sum(n > 1 for n in passed.values()) + len(set(latest) - set(expected)),
        failed=sum(status is not Status.PASSED for status in latest.values()),
        lost_in_mlflow=sum(cell not in cells for cell in expected),
        doubled_in_mlflow=sum(n > 1 for n in cells.values()) + len(set(cells) - set(expected)),
        running=sum(run.info.status == "RUNNING" for run in found),
    )


def whole_lines(path: Path) -> bool:
    """Whether every line is JSON, the last one aside, which a kill may have cut."""
    lines = path.read_bytes().split(b"\n")
    try:
        return all(json.loads(line) is not None for line in lines[:-1])
    except ValueError:
        return False
