"""The command `python -m softmax_exp.serve` (scripts/serve): a team's store, an MLflow server on PostgreSQL.

In: the address of a database, or a folder for one of its own.  Out: a server until Ctrl-C or SIGTERM, which shuts
both down cleanly; exit status 1 where one of them does not start or ends by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from softmax_exp.redaction import redact
from softmax_exp.sync import default_outputs
from softmax_exp.tracking import server
from softmax_exp.tracking.postgres import Cluster, PostgresError

_GIVEN = "MLFLOW_BACKEND_STORE_URI"
_REACH_S = 10


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m softmax_exp.serve", description="Serve a team's results: MLflow on PostgreSQL."
    )
    parser.add_argument(
        "--database", help=f"a PostgreSQL that runs elsewhere, without a password, or with one in {_GIVEN}"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=default_outputs() / "server",
        help="files of the store, and its own PostgreSQL where no other is named (default: %(default)s)",
    )
    parser.add_argument("--host", default=server.LOOPBACK, help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="default: %(default)s")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        address = database_address(given.database)
        port = server.free_port(given.port, given.host, tries=1)
        given.folder.mkdir(parents=True, exist_ok=True)
        given.folder.chmod(0o711 if os.geteuid() == 0 else 0o700)  # as root, PostgreSQL's account has to pass
        with own_cluster(given.folder / "postgres") if address is None else contextlib.nullcontext() as cluster:
            address = cluster.address if cluster else address
            assert address is not None
            check(address)
            return _serve(address, cluster, given.folder / "mlartifacts", given.host, port, given.workers)
    except (ValueError, OSError, PostgresError) as error:
        print(redact(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def database_address(named: str | None) -> str | None:
    """The address of the database that was named, in the form that MLflow takes; None where none was.

    ValueError for one that holds a password where anyone can read it, or is no PostgreSQL's.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise ValueError("psycopg is not installed: pip install -c constraints.txt -e '.[server]'")
    if named is not None and urlsplit(named).password:
        raise ValueError(
            f"a password on a command line can be read by everyone on this machine: put the address into {_GIVEN}, "
            "or leave the password out and write it into ~/.pgpass"
        )
    address = named or os.environ.get(_GIVEN)
    if address is None:
        return None
    scheme, rest = re.fullmatch(r"([^:]*)(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    if scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ValueError(f"the database ({redact(address)}) must be a PostgreSQL: postgresql://user@host:5432/name")
    # Which driver an address without one means depends on SQLAlchemy's version.
    return f"postgresql+psycopg{rest}"


def check(address: str) -> None:
    """ValueError within seconds where the database does not let us in; MLflow would try for two minutes."""
    import psycopg

    try:
        psycopg.connect(address.replace("+psycopg", "", 1), connect_timeout=_REACH_S).close()
    except psycopg.Error as error:
        raise ValueError(f"the database {redact(address)} cannot be used: {redact(str(error))}") from error


@contextlib.contextmanager
def own_cluster(folder: Path) -> Iterator[Cluster]:
    """A running PostgreSQL in that folder."""
    cluster = Cluster(folder)
    print(f"starting PostgreSQL in {folder} ...", flush=True)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _serve(address: str, cluster: Cluster | None, artifacts: Path, host: str, port: int, n_workers: int) -> int:
    print(f"starting MLflow on {redact(address)} ...", flush=True)
    process = server.start(address, artifacts, port, subprocess.PIPE, host, n_workers)
    speaker = threading.Thread(target=_repeat, args=(process, urlsplit(address).password), daemon=True)
    speaker.start()
    base = f"http://{host}:{port}"
    try:
        if not server.wait_until_up(base, process):
            speaker.join(5)
            print("the MLflow server did not start", file=sys.stderr)
            return 1
        if host not in (server.LOOPBACK, "localhost"):
            print(
                f"note: whoever reaches {base} can read, change and delete results; it asks for no password "
                "(docs/team_store.md)",
                flush=True,
            )
        print(f"MLflow on PostgreSQL: {base}  (Ctrl-C ends it)", flush=True)
        print(f"measure into it: python -m softmax_exp tracking=server tracking.uri={base}", flush=True)
        while process.poll() is None and (cluster is None or cluster.poll() is None):
            time.sleep(0.5)
        print(f"{'PostgreSQL' if process.poll() is None else 'the MLflow server'} has ended", file=sys.stderr)
        return 1
    finally:
        server.end(process)


def _repeat(process: subprocess.Popen[str], password: str | None) -> None:
    """Say what the server says, without secrets."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[MLflow] Security middleware enabled"):  # once a worker, and no complaint
            continue
        text = redact(line)
        for secret in {password or "", unquote(password or "")} - {""}:
            text = text.replace(secret, "***")
        sys.stderr.write(text)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
