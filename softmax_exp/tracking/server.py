"""An MLflow server as a process of its own: for one user's database (`ui`) or for a team's (`serve`).

In: a database's address, which reaches the server by its environment, since anyone may read a command line.  Out: the
process, and whether it answers. It is Flask under gunicorn: MLflow's default costs a quarter more for a record.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO

from softmax_exp.tracking.store import quieten

LOOPBACK = "127.0.0.1"
_START_S, _STOP_S = 120.0, 10.0
_GUNICORN = "--threads 4 --keep-alive 75 --graceful-timeout 2 --log-level warning"


def start(
    database: str, artifacts: Path, port: int, output: IO[str] | int, host: str = LOOPBACK, n_workers: int = 1
) -> subprocess.Popen[str]:
    """Start a server that ends with the thread that called this; `output` gets its complaints.

    What it makes, files in `artifacts` among it, is for this account alone.
    """
    quieten()
    command = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
    command += [sys.executable, "-m", "mlflow", "server"]
    command += ["--host", host, "--port", str(port), "--workers", str(n_workers), "--gunicorn-opts", _GUNICORN]
    environment = os.environ | {
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": str(artifacts),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nothing of ours needs its extra processes
        "MLFLOW_LOGGING_LEVEL": "ERROR",  # a server that starts well has nothing to say
        "PYTHONWARNINGS": "ignore",  # of MLflow's choice of server, and within it
    }
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=output,
        text=True,
        start_new_session=True,
        umask=0o077,
    )


def end(server: subprocess.Popen[str]) -> None:
    """End the server and the workers that it started, first politely."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=_STOP_S)


def wait_until_up(base: str, server: subprocess.Popen[str]) -> bool:
    """Whether the server answers before it ends or two minutes are over."""
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{base}/health", timeout=5).close()
            return True
        except OSError:
            time.sleep(0.2)
    return False


def free_port(wanted: int, host: str = LOOPBACK, tries: int = 100) -> int:
    """The wanted port, or the next one that is free. ValueError where none of so many is."""
    for port in range(wanted, min(wanted + tries, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                return port
    free = f"no port from {wanted} on is free" if tries > 1 else f"port {wanted} of {host} is not free"
    raise ValueError(f"{free}; choose one by --port")
