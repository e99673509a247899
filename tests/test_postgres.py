import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softmax_exp.tracking import postgres
from softmax_exp.tracking.postgres import Cluster, PostgresError


def ask(cluster, *before):
    query = [
        str(postgres.binaries() / "psql"),
        "-h",
        str(cluster.socket),
        "-U",
        "mlflow",
        "-Atqc",
        "SHOW listen_addresses",
    ]
    return subprocess.run([*before, *query], capture_output=True, text=True, cwd="/")


def test_only_its_owner_gets_in(cluster_folder):
    cluster = Cluster(cluster_folder / "postgres")
    cluster.start()
    try:
        answer = ask(cluster)
        assert (answer.returncode, answer.stdout.strip()) == (0, "")  # no network port
        assert not any(path.stat().st_mode & 0o077 for path in (cluster.data, cluster.socket, cluster.log))
        if os.geteuid() == 0:
            nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
            assert "Permission denied" in ask(cluster, *nobody).stderr
            cluster.socket.chmod(0o755)
            next(cluster.socket.glob(".s.PGSQL.*[0-9]")).chmod(0o777)
            assert "Peer authentication failed" in ask(cluster, *nobody).stderr
    finally:
        cluster.stop()


STARTED = """
import sys, time
from pathlib import Path
from softmax_exp.tracking.postgres import Cluster
Cluster(Path(sys.argv[1])).start()
print("up", flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_owner_and_starts_again(cluster_folder):
    command = [sys.executable, "-c", STARTED, str(cluster_folder / "postgres")]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    assert owner.stdout is not None and owner.stdout.readline() == b"up\n"
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    cluster = Cluster(cluster_folder / "postgres")
    deadline = time.monotonic() + 60
    while (cluster.data / "postmaster.pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        cluster.start()
        with pytest.raises(PostgresError, match=r"(?s)does not start.*postmaster\.pid"):
            Cluster(cluster.folder).start()
        assert ask(cluster).returncode == 0, "the second one leaves the first alone"
    finally:
        cluster.stop()


def test_what_is_missing_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres, "binaries", lambda version="": None)
    with pytest.raises(PostgresError, match=r"not installed.*apt-get install postgresql"):
        Cluster(tmp_path)


def test_a_path_that_no_socket_can_have_is_told(tmp_path, empty_cluster):
    with pytest.raises(PostgresError, match=r"choose a folder with a shorter path"):
        Cluster(tmp_path / ("x" * 100))


@pytest.mark.skipif(os.geteuid() != 0, reason="other users run PostgreSQL as themselves")
def test_a_folder_that_its_account_cannot_enter_is_told(tmp_path, empty_cluster):
    tmp_path.chmod(0o700)
    with pytest.raises(PostgresError, match=r"cannot make a cluster.*Permission denied"):
        Cluster(tmp_path / "postgres").start()
