"""The command `python -m softmax_exp.ui [STORE]`: start the MLflow UI for a local store and print where to look.

In: a database, or the outputs folder that holds one (default: the usual one).  Out: a server on 127.0.0.1 until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import IO

from softmax_exp import tracking
from softmax_exp.sync import default_outputs
from softmax_exp.tracking.store import quieten, sqlite_path

_START_S = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command: 0 after Ctrl-C, 1 where there is no store or the server does not start."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.ui", description="Browse results in the MLflow UI.")
    parser.add_argument("store", nargs="?", help="database, its address, or outputs folder", default=default_outputs())
    parser.add_argument("--port", type=int, default=5000, help="the next free one is taken where it is busy")
    given = parser.parse_args(arguments)
    try:
        database = find_database(str(given.store))
        port = free_port(given.port)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    quieten()
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # nothing of ours needs its extra processes
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryFile("w+") as log:  # a server that starts well has nothing to say
        server = subprocess.Popen(server_command(database, port), start_new_session=True, stdout=log, stderr=log)
        try:
            return _serve(server, database, f"http://127.0.0.1:{port}", log)
        except tracking.StoreError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            _end(server)


def _serve(server: subprocess.Popen, database: Path, base: str, log: IO[str]) -> int:
    print(f"starting the MLflow UI for {database} ...", flush=True)
    if not wait_until_up(base, server):
        log.seek(0)
        print(f"the server did not start:\n{log.read()[-3000:]}", file=sys.stderr)
        return 1
    print(f"MLflow UI: {base}  (Ctrl-C ends it)", flush=True)
    for label, target in newest_links(database, base):
        print(f"{label}: {target}", flush=True)
    return server.wait()


def find_database(named: str) -> Path:
    """The SQLite file of a database, its address, or an outputs folder. ValueError where there is none."""
    path = sqlite_path(named) or Path(named).absolute()
    database = path / "mlflow.db" if path.is_dir() else path
    if database.is_file():
        return database
    raise ValueError(f"no MLflow store is at {database}; run a sweep first, or name the store's file or folder")


def server_command(database: Path, port: int) -> list[str]:
    """The command line of the server: one worker, reachable from this machine alone."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{database}"]
    command += ["--artifacts-destination", str(database.parent / "mlartifacts")]
    return [*command, "--uvicorn-opts", "--log-level warning"]


def free_port(wanted: int) -> int:
    """The wanted port, or the next one that is free. ValueError where none of a hundred is."""
    for port in range(wanted, min(wanted + 100, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ValueError(f"no port from {wanted} on is free; choose one by --port")


def wait_until_up(base: str, server: subprocess.Popen) -> bool:
    """Whether the server answers before it ends or two minutes are over."""
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{base}/health", timeout=5).close()
            return True
        except OSError:
            time.sleep(0.2)
    return False


def newest_links(database: Path, base: str) -> list[tuple[str, str]]:
    """Table, chart and summary of the sweep that was measured last; empty where the store holds none."""
    found = tracking.newest(database)
    return tracking.links(*found, base) if found else []


def _end(server: subprocess.Popen) -> None:
    """End the server and the workers that it started, first politely."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=5)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
