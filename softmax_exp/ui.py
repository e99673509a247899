"""The command `python -m softmax_exp.ui [STORE]`: start the MLflow UI for a local store and print where to look.

In: a database, or the outputs folder that holds one (default: the usual one).  Out: a server on 127.0.0.1 until Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from softmax_exp import tracking
from softmax_exp.sync import default_outputs
from softmax_exp.tracking import server
from softmax_exp.tracking.store import sqlite_path


def main(arguments: list[str] | None = None) -> int:
    """Run the command: 0 after Ctrl-C, 1 where there is no store or the server does not start."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.ui", description="Browse results in the MLflow UI.")
    parser.add_argument("store", nargs="?", help="database, its address, or outputs folder", default=default_outputs())
    parser.add_argument("--port", type=int, default=5000, help="the next free one is taken where it is busy")
    given = parser.parse_args(arguments)
    try:
        database = find_database(str(given.store))
        port = server.free_port(given.port)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryFile("w+") as log:  # a server that starts well has nothing to say
        process = server.start(f"sqlite:///{database}", database.parent / "mlartifacts", port, log)
        try:
            return _serve(process, database, f"http://{server.LOOPBACK}:{port}", log)
        except tracking.StoreError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            server.end(process)


def _serve(process: subprocess.Popen[str], database: Path, base: str, log: IO[str]) -> int:
    print(f"starting the MLflow UI for {database} ...", flush=True)
    if not server.wait_until_up(base, process):
        log.seek(0)
        print(f"the server did not start:\n{log.read()[-3000:]}", file=sys.stderr)
        return 1
    print(f"MLflow UI: {base}  (Ctrl-C ends it)", flush=True)
    for label, target in newest_links(database, base):
        print(f"{label}: {target}", flush=True)
    return process.wait()


def find_database(named: str) -> Path:
    """The SQLite file of a database, its address, or an outputs folder. ValueError where there is none."""
    path = sqlite_path(named) or Path(named).absolute()
    database = path / "mlflow.db" if path.is_dir() else path
    if database.is_file():
        return database
    raise ValueError(f"no MLflow store is at {database}; run a sweep first, or name the store's file or folder")


def newest_links(database: Path, base: str) -> list[tuple[str, str]]:
    """Table, chart and summary of the sweep that was measured last; empty where the store holds none."""
    found = tracking.newest(database)
    return tracking.links(*found, base) if found else []


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
