import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from softmax_exp import serve, tracking
from softmax_exp.config import TrackingSettings
from softmax_exp.tracking import postgres, server
from softmax_exp.tracking.postgres import Cluster
from tests import made_up
from tests.conftest import Served

ROOT = Path(__file__).parents[1]
PASSWORD = "pass/w0rd-hunter2"


@pytest.fixture
def elsewhere(cluster_folder, monkeypatch):
    """A PostgreSQL with a network port and a password, as an administrator would give one; its address."""
    port = server.free_port(15432)
    settings = ("listen_addresses=127.0.0.1", f"port={port}")
    monkeypatch.setattr(postgres, "_SETTINGS", settings)
    cluster = Cluster(cluster_folder / "postgres")
    with (cluster.data / "pg_hba.conf").open("a") as file:
        file.write("host all all 127.0.0.1/32 scram-sha-256\n")
    monkeypatch.setenv("PGPORT", str(port))
    monkeypatch.setattr(postgres, "_quiet_environment", lambda: dict(os.environ))
    cluster.start()
    cluster._must(f"ALTER ROLE mlflow PASSWORD '{PASSWORD}'")
    yield f"postgresql://mlflow:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{port}/mlflow"
    cluster.stop()


def wait_until_up(served):
    deadline = time.monotonic() + 120
    while "measure into it" not in served.said:
        assert served.process.poll() is None and time.monotonic() < deadline, served.said
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_a_database_elsewhere_gets_every_run_and_its_password_is_nowhere_to_be_seen(elsewhere, tmp_path):
    served = Served("--folder", str(tmp_path / "served"), MLFLOW_BACKEND_STORE_URI=elsewhere)
    try:
        wait_until_up(served)
        children = psutil.Process(served.process.pid).children(recursive=True)
        family = [served.process.pid, *(child.pid for child in children)]
        seen = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in family)
        assert "gunicorn" in seen

        # a sweep, its curves, its summary with files
        store = tracking.open_store(TrackingSettings(kind="server", uri=served.address), tmp_path)
        assert store is not None
        sweep = made_up.sweep(tmp_path, made_up.records("sent"))
        assert tracking.finish(sweep, store) == 12 + 4 + 1 and tracking.finish(sweep, store) == 0
        summary = dict(tracking.links(store, sweep))["summary"].split("/runs/")[1].split("?")[0]
        kept = Path(store.client.download_artifacts(summary, "records.jsonl")).read_text()
        assert kept.count("\n") == 12
        assert (tmp_path / "served" / "mlartifacts").stat().st_mode & 0o077 == 0

        # eight processes at once
        load = [sys.executable, "scripts/team_store.py", "--uri", served.address, "--runs", "40"]
        told = subprocess.run(
            load, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        assert "8 processes, 40 runs" in told.stdout and "lost 0, doubled 0" in told.stdout, told.stdout + told.stderr
        assert served.stop() == 0
        for text in (seen, served.said, kept):
            assert "hunter2" not in text
        gone, alive = psutil.wait_procs(children, timeout=20)
        assert len(gone) == len(children) and not alive
    finally:
        served.process.kill()


def test_a_wrong_password_is_told_without_it(elsewhere, tmp_path):
    served = Served("--folder", str(tmp_path), MLFLOW_BACKEND_STORE_URI=elsewhere.replace("w0rd", "w1rd"))
    assert served.process.wait(60) == 1
    assert re.search("password authentication failed", served.said) and "Traceback" not in served.said
    assert "hunter2" not in served.said


@pytest.mark.parametrize(
    "arguments, given, complaint",
    [
        (["--database", "postgresql://me:hunter2@host/db"], None, "a password on a command line"),
        ([], "mysql://me:hunter2@host/db", r"the database \(mysql://\*\*\*@host/db\) must be a PostgreSQL"),
        ([], "hunter2", "must be a PostgreSQL"),
    ],
)  # fmt: skip
def test_an_address_that_will_not_do_is_told_without_its_password(monkeypatch, capsys, arguments, given, complaint):
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    monkeypatch.delenv("MLFLOW_BACKEND_STORE_URI", raising=False)
    if given:
        monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", given)
    assert serve.main(arguments) == 1
    told = capsys.readouterr().err
    assert re.search(complaint, told) and ("hunter2" not in told or given == "hunter2")


def test_the_driver_is_the_one_that_is_installed(monkeypatch):
    for address in ("postgres://me@host/db", "postgresql://me@host/db", "postgresql+psycopg2://me@host/db"):
        assert serve.database_address(address) == "postgresql+psycopg://me@host/db"
    monkeypatch.delenv("MLFLOW_BACKEND_STORE_URI", raising=False)
    assert serve.database_address(None) is None


def test_a_busy_port_is_told(tmp_path, monkeypatch, capsys):
    import socket

    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert serve.main(["--folder", str(tmp_path), "--port", str(port)]) == 1
    assert f"port {port} of 127.0.0.1 is not free; choose one by --port" in capsys.readouterr().err
