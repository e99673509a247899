"""A disk that fills up, becomes read-only, or loses the sweep's folder: what was recorded stays whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmax_exp.records import Status
from tests.faults.conftest import whole
from tests.faults.sweeps import GOOD, TINY, Command, count, the_sweep, whole_lines

SWEEP = ["-m", "seq=16", "seed=range(10)", GOOD, *TINY]


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], stderr=subprocess.DEVNULL).returncode == 0


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of its own with place for some records."""
    if os.getuid() != 0 or not mount("-t", "tmpfs", "-o", "size=110k", "tmpfs", str(tmp_path)):
        pytest.skip("needs the right to mount")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def go_on(disk: Path) -> Command:
    command = Command(disk, f"resume={the_sweep(disk).sweep_id}", *SWEEP, "tracking=off")
    assert command.wait() == 0, command.said
    return command


def check_whole(disk: Path) -> None:
    sweep = the_sweep(disk)
    assert [r.status for r in sweep.records()] == [Status.PASSED] * 20
    assert whole_lines(sweep.records_path)
    assert sweep.records_path.read_bytes().count(b"\n") == 20


def test_a_full_disk_ends_the_sweep_and_costs_no_record(disk, figures) -> None:
    command = Command(disk, *SWEEP, "tracking=off")
    assert command.wait() == 1
    assert "its results cannot be kept: " in command.said and "go on by: " in command.said
    assert "Traceback" not in command.said
    kept = the_sweep(disk).records_path.read_bytes()
    n_kept = len(the_sweep(disk).records())
    assert 0 < n_kept < 20 and whole_lines(the_sweep(disk).records_path)
    assert mount("-o", "remount,size=64m", str(disk))
    go_on(disk)
    assert the_sweep(disk).records_path.read_bytes().startswith(kept)
    check_whole(disk)
    figures(records_when_the_disk_was_full=n_kept, after_resume=20)


def test_a_disk_without_place_for_the_manifest_is_told(disk) -> None:
    (disk / "large").write_bytes(bytes(106 << 10))  # of 28 pages one is left
    command = Command(disk, *SWEEP, "tracking=off")
    assert command.wait() == 2
    assert "cannot be written (No space left on device); choose outputs=" in command.said
    assert not list(disk.glob("sweeps/*/*"))


@whole
def test_records_that_can_no_longer_be_written_end_the_sweep(tmp_path) -> None:
    """As on a file system that an error has made read-only; a mount with open files refuses to become so."""
    command = Command(tmp_path, *SWEEP, "tracking=off")
    assert command.wait_for_records(6)
    records = the_sweep(tmp_path).records_path
    if subprocess.run(["chattr", "+i", str(records)], stderr=subprocess.DEVNULL).returncode:
        command.send(signal.SIGKILL)
        command.wait()
        pytest.skip("needs the right to forbid changes to a file")
    try:
        assert command.wait() == 1
    finally:
        subprocess.run(["chattr", "-i", str(records)], check=True)
    assert "cannot be kept: [Errno 1] Operation not permitted" in command.said and "Traceback" not in command.said
    assert not command.orphans()
    go_on(tmp_path)
    check_whole(tmp_path)


@whole
def test_a_folder_that_vanishes_ends_the_sweep(tmp_path) -> None:
    command = Command(tmp_path, *SWEEP, "tracking=off")
    assert command.wait_for_records(4)
    shutil.rmtree(the_sweep(tmp_path).folder, ignore_errors=True)
    assert command.wait() == 1
    assert "Traceback" not in command.said and "cannot be kept" in command.said, command.said
    assert not command.orphans()


@whole
def test_a_full_disk_of_the_store_stops_no_measuring(disk, empty_database, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("store")
    assert mount("-o", "remount,size=2m", str(disk))
    shutil.copy(empty_database, disk / "mlflow.db")
    (disk / "large").write_bytes(bytes((2 << 20) - (disk / "mlflow.db").stat().st_size - (300 << 10)))
    command = Command(elsewhere, *SWEEP, f"tracking.uri=sqlite:///{disk / 'mlflow.db'}", "seed=range(6)")
    assert command.wait() == 0, command.said
    assert "not in MLflow yet" in command.said and "Traceback" not in command.said
    assert len(the_sweep(elsewhere).records()) == 12
    (disk / "large").unlink()
    assert mount("-o", "remount,size=64m", str(disk))
    done = Command(elsewhere, f"resume={the_sweep(elsewhere).sweep_id}", *SWEEP, "seed=range(6)",
                   f"tracking.uri=sqlite:///{disk / 'mlflow.db'}")  # fmt: skip
    assert done.wait() == 0, done.said
    assert count(the_sweep(elsewhere), f"sqlite:///{disk / 'mlflow.db'}").wrong == 0
