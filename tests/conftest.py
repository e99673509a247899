"""Where tests run: those marked gpu only with CUDA; without it, kernels on the CPU under Triton's interpreter.

Also what tests of several folders share: stores.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from softmax_exp.tracking import postgres
from softmax_exp.tracking.store import quieten

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    # Triton reads this when a kernel is decorated, so it must be set before any test imports the kernels.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_CUDA:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database with tables and nothing in them: making one takes seconds, copying it none."""
    quieten()
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def empty_cluster():
    """The folder of a PostgreSQL that does not run, with MLflow's tables: making one takes seconds, copying it none."""
    if postgres.binaries() is None:
        pytest.skip("needs PostgreSQL (Debian: apt install postgresql)")
    pytest.importorskip("psycopg", reason="needs psycopg (in the extra dev)")
    quieten()
    from mlflow import MlflowClient

    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # not in pytest's, which PostgreSQL's account could not enter
    cluster = postgres.Cluster(folder)
    try:
        cluster.start()
        MlflowClient(tracking_uri=cluster.address).search_experiments()
        cluster.stop()
        yield folder
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@pytest.fixture
def cluster_folder(empty_cluster):
    """A folder with a copy of that PostgreSQL."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    folder.chmod(0o711)
    subprocess.run(["cp", "-a", empty_cluster, folder / "postgres"], check=True)
    yield folder
    shutil.rmtree(folder)


class Served:
    """A running `python -m softmax_exp.serve`, its address and what it said."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._arguments, self._environment = arguments, environment
        self._log = os.memfd_create("log")
        self.start()

    def start(self) -> None:
        """Start it, again at the same port, without waiting."""
        command = [sys.executable, "-m", "softmax_exp.serve", *self._arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(
            command,
            env=os.environ | self._environment,
            stdout=self._log,
            stderr=self._log,
            cwd=Path(__file__).parents[1],
        )

    @property
    def said(self) -> str:
        """What it printed so far."""
        return Path(f"/proc/self/fd/{self._log}").read_text(errors="replace")

    def stop(self) -> int:
        """End it politely; its exit status."""
        self.process.terminate()
        return self.process.wait(60)
