"""Several sweeps and workers at once: folders and stores never collide, a device is measured on by one at a time."""

from __future__ import annotations

import itertools
import subprocess
import sys

from softmax_exp import device_lock
from softmax_exp.sweep import Sweep
from tests.faults.sweeps import GOOD, ROOT, TINY, Command, count

HOLDER = """
import sys, time
from softmax_exp import device_lock
for _ in range(int(sys.argv[2])):
    with device_lock.held([sys.argv[1]], lambda event: None):
        print("in", time.monotonic(), flush=True)
        time.sleep(0.03)
        print("out", time.monotonic(), flush=True)
"""


def holder(device: str, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, device, str(times)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_one_process_at_a_time_holds_a_device(figures) -> None:  # S21
    holders = [holder("GPU-test-1", 5) for _ in range(4)]
    spans = []
    for each in holders:
        words = each.communicate(timeout=120)[0].split()
        spans += [(float(words[i + 1]), float(words[i + 3])) for i in range(0, len(words), 4)]
    spans.sort()
    overlaps = sum(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))
    figures(timed_jobs=len(spans), overlaps=overlaps)
    assert len(spans) == 20 and overlaps == 0


def test_devices_do_not_wait_for_each_other() -> None:
    told: list[dict] = []
    both = ["GPU-a", "GPU-b"]
    with device_lock.held(both, told.append) as first, device_lock.held(both, told.append) as second:
        assert [first, second] == both
    assert told == []


STUCK = """
import sys, time
from softmax_exp import device_lock
with device_lock.held([sys.argv[1]], print):
    print("in", flush=True)
    time.sleep(600)
"""


def test_who_waits_is_told_for_whom_and_a_killed_holder_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(device_lock, "PATIENCE_S", 0.1)
    command = [sys.executable, "-c", STUCK, "GPU-test-2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "in\n"
        told: list[dict] = []

        def hear(event: dict) -> None:
            told.append(event)
            if event["event"] == "waiting":
                other.kill()

        with device_lock.held(["GPU-test-2"], hear):
            pass
    assert [event["event"] for event in told] == ["phase", "waiting"]
    assert told[1]["message"] == f"waiting for the GPU GPU-test-2: process {other.pid} measures on it"


def test_two_sweeps_at_once_share_a_folder_and_a_store(outputs) -> None:
    commands = [Command(outputs, "-m", f"seq=16,{17 + n}", GOOD, *TINY) for n in range(2)]
    assert [command.wait() for command in commands] == [0, 0], commands[0].said + commands[1].said
    sweeps = [Sweep(path.parent) for path in outputs.glob("sweeps/*/manifest.json")]
    assert len(sweeps) == 2 and [count(sweep).wrong for sweep in sweeps] == [0, 0]
