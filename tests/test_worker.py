import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.records import Status
from softmax_exp.request import to_json
from softmax_exp.worker import Worker
from tests.test_measure import QUICK, planted

SMALL = Case(shape=(2, 64), dtype="float32", device="cpu")


@pytest.fixture
def worker():
    owner = Worker()
    yield owner
    owner.stop()


def run(worker: Worker, log: Path, *names: str, settings: MeasureSettings = QUICK) -> dict[str, dict]:
    events: list[dict] = []
    worker.measure(to_json(SMALL, names, settings, baseline="eager"), log, events.append)
    found = [event for event in events if event["event"] == "result"]
    assert len(found) == len({event["variant"] for event in found})
    return {event["variant"]: event for event in found}


def test_the_process_is_kept_from_case_to_case(worker, tmp_path):
    run(worker, tmp_path / "log", "eager")
    assert worker.process is not None
    first = worker.process.pid
    assert run(worker, tmp_path / "log", "eager")["eager"]["status"] == Status.PASSED
    assert worker.process.pid == first


def test_a_segfault_costs_that_variant_alone(worker, tmp_path):  # S16
    found = run(worker, tmp_path / "log", "eager", planted("segfault"), planted("right"))
    assert found[planted("segfault")]["status"] == Status.CRASHED
    assert "SIGSEGV" in found[planted("segfault")]["message"]
    assert found["eager"]["status"] == found[planted("right")]["status"] == Status.PASSED
    assert run(worker, tmp_path / "log", "eager")["eager"]["status"] == Status.PASSED


def test_a_segfault_among_timed_rounds_costs_that_variant_alone(worker, tmp_path):
    found = run(worker, tmp_path / "log", "eager", planted("segfault_when_timed"), planted("right"))
    assert found[planted("segfault_when_timed")]["status"] == Status.CRASHED
    assert found["eager"]["status"] == found[planted("right")]["status"] == Status.PASSED
    assert found["eager"]["device_ms"] > 0


@pytest.mark.parametrize("culprit", ["fault_seen_later", "context_lost_later"])
def test_a_fault_that_shows_in_another_variants_call_is_laid_to_the_one_at_fault(worker, tmp_path, culprit):
    settings = dataclasses.replace(QUICK, min_rounds=20)
    found = run(worker, tmp_path / "log", "eager", planted("bystander"), planted(culprit), settings=settings)
    assert found[planted(culprit)]["status"] == Status.CRASHED, found
    assert found["eager"]["status"] == found[planted("bystander")]["status"] == Status.PASSED
    assert found["eager"]["device_ms"] > 0 and found[planted("bystander")]["speedup"] > 0, "not timed together"


def test_a_fault_that_nobody_shows_alone_is_laid_to_the_one_that_ran(worker, tmp_path, monkeypatch):
    alone = []
    monkeypatch.setattr(worker, "_try_alone", lambda request, remaining, log, tell: alone.append(list(remaining)))
    found = run(worker, tmp_path / "log", "eager", planted("segfault_when_timed"))
    assert found[planted("segfault_when_timed")]["status"] == Status.CRASHED
    assert found["eager"]["device_ms"] > 0 and alone == [["eager", planted("segfault_when_timed")]]


def test_an_endless_loop_is_a_timeout_of_that_variant_alone(worker, tmp_path):
    settings = dataclasses.replace(QUICK, first_call_deadline_s=8.0)
    found = run(worker, tmp_path / "log", planted("endless"), "eager", settings=settings)
    assert found[planted("endless")]["status"] == Status.TIMEOUT
    assert "first call took longer than 8 s" in found[planted("endless")]["message"]
    assert found["eager"]["status"] == Status.PASSED


def test_what_a_variant_prints_is_in_its_jobs_log(worker, tmp_path):
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        "import torch\ndef softmax(x):\n    print('hello from the kernel')\n    return torch.softmax(x, -1)\n"
    )
    for job in ("first", "second"):
        run(worker, tmp_path / job, f"{noisy}:softmax")
    assert all("hello from the kernel" in (tmp_path / job).read_text() for job in ("first", "second"))


def test_the_process_knows_no_secrets_and_compiles_into_a_private_folder(worker, tmp_path, monkeypatch):  # S29
    monkeypatch.setenv("MY_TOKEN", "t0ken-in-the-open")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    worker.start(tmp_path / "log")
    deadline = time.monotonic() + 60
    while not (variables := psutil.Process(worker.process.pid).environ()) and time.monotonic() < deadline:
        time.sleep(0.01)  # it has not become another program yet
    assert "MY_TOKEN" not in variables and "PATH" in variables
    cache = Path(variables["TORCHINDUCTOR_CACHE_DIR"])
    assert cache.is_relative_to(tmp_path / "cache") and cache.stat().st_mode & 0o777 == 0o700


def test_a_death_between_variants_is_no_variants_fault(worker, tmp_path):
    def kill_at_first(event, killed=[]):  # noqa: B006
        if event["event"] == "device" and not killed:
            killed.append(True)
            worker.process.kill()
        elif event["event"] == "result":
            found.append(event["status"])

    found: list[str] = []
    worker.measure(to_json(SMALL, ("eager", planted("right")), QUICK), tmp_path / "log", kill_at_first)
    assert found == [Status.PASSED, Status.PASSED]


def test_a_stop_ends_the_request_with_its_round(worker, tmp_path):
    settings = dataclasses.replace(QUICK, budget_s=60.0, max_rounds=10**9, target_pct=1e-9)
    found = []

    def stop_while_measuring(event):
        if event["event"] == "progress":
            worker.stop_soon()
        elif event["event"] == "result":
            found.append((event["variant"], event["status"], event["message"]))

    started = time.monotonic()
    names = ("eager", planted("zeros"), planted("right"))
    worker.measure(to_json(SMALL, names, settings), tmp_path / "log", stop_while_measuring)
    assert found[0][:2] == (planted("zeros"), Status.INCORRECT)
    assert found[1:] == [(name, Status.KILLED, "stopped by the user") for name in ("eager", planted("right"))]
    assert time.monotonic() - started < 50
    assert run(worker, tmp_path / "log", "eager")["eager"]["status"] == Status.PASSED, "the next request is not stopped"


def test_a_stop_before_the_request_ends_it_and_not_the_next_one(worker, tmp_path):
    worker.stop_soon()
    assert run(worker, tmp_path / "log", "eager")["eager"]["status"] == Status.KILLED
    assert run(worker, tmp_path / "log", "eager")["eager"]["status"] == Status.PASSED


def test_a_listener_that_fails_leaves_nothing_for_the_next_request(worker, tmp_path):
    def deaf(event):
        raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        worker.measure(to_json(SMALL, ("eager",), QUICK), tmp_path / "log", deaf)
    assert list(run(worker, tmp_path / "log", planted("right"))) == [planted("right")]


OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
from pathlib import Path
from softmax_exp.worker import Worker
worker = Worker()
worker.start(Path(sys.argv[1]))
print(worker.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_owner(tmp_path, deadly):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    worker = psutil.Process(int(owner.stdout.readline()))
    try:
        os.kill(owner.pid, deadly)
        owner.wait(timeout=30)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    deadline = time.monotonic() + 30
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
