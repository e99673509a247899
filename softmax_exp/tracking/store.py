"""The MLflow store: where it is, making it, and saying clearly why it cannot be used.

In: the keys under `tracking`, MLFLOW_TRACKING_URI, the outputs folder.  Out: a `Store` with client and experiment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sqlite3
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from softmax_exp.files import lock
from softmax_exp.redaction import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from softmax_exp.config import TrackingSettings

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    # MLflow's own defaults add up to many minutes before a dead server is reported.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_LOCAL_DISKS = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
_REACH_S = 5.0
_LOCK_S = 120.0


class StoreError(RuntimeError):
    """The store cannot be used; the message says why and what to do. Records on disk are untouched by it."""


@dataclass(frozen=True)
class Store:
    """An open store. `database` is set for SQLite files only, `artifacts` for any database that is reached directly.

    `address` is `uri` without passwords.
    """

    client: MlflowClient
    uri: str
    address: str
    experiment: str
    experiment_id: str
    database: Path | None = None
    artifacts: Path | None = None


def open_store(settings: TrackingSettings, outputs: Path) -> Store | None:
    """Open the store and its experiment, making both where they are missing; None for `tracking.kind=off`.

    `tracking.uri` goes before MLFLOW_TRACKING_URI, and that before the SQLite file `outputs/mlflow.db`. Safe to call in
    a thread and by many processes at once. ValueError for settings that contradict each other, StoreError for a store
    that cannot be used; within about 10 s where the address does not answer.
    """
    if settings.kind == "off":
        return None
    uri = settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
    if settings.kind == "server" and not uri:
        raise ValueError("tracking.kind=server needs tracking.uri=http://host:port or MLFLOW_TRACKING_URI")
    if not uri:
        uri = f"sqlite:///{outputs.absolute() / 'mlflow.db'}"
    quieten()
    database = sqlite_path(uri)
    with explained(redact(uri)):
        if database is None:
            _reach(uri)
            is_server = uri.startswith(("http://", "https://"))
            return _open(uri, settings.experiment, None, None if is_server else outputs.absolute() / "mlartifacts")
        with _locked(database):
            _check_sqlite(database)
            return _open(f"sqlite:///{database}", settings.experiment, database, database.parent / "mlartifacts")


def probe(store: Store, seconds: float = _REACH_S) -> None:
    """StoreError within so many seconds where the store's server has gone away; MLflow would try for much longer."""
    with explained(store.address):
        if store.database is None:
            _reach(store.uri, seconds)


def quieten() -> None:
    """No telemetry, no log lines, no warnings of MLflow and its database layers; what the user has set stays."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module=r"mlflow|sqlalchemy|alembic")
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an SQLite address; None for any other address."""
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn what MLflow and the layers below it raise into a StoreError that names the store."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        # MLflow, requests, SQLAlchemy and the file system share no class of errors, and none may end a sweep.
        raise StoreError(f"MLflow store {address}: {_advice(redact(str(error)))}") from error


def _open(uri: str, experiment: str, database: Path | None, artifacts: Path | None) -> Store:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        experiment_id = _create(client, experiment, str(artifacts / _folder_name(experiment)) if artifacts else None)
    elif found.lifecycle_stage == "deleted":
        raise StoreError(
            f"MLflow store {redact(uri)}: the experiment {experiment!r} (id {found.experiment_id}) was deleted. "
            f"Restore it by `MLFLOW_TRACKING_URI={redact(uri)} mlflow experiments restore -x {found.experiment_id}` "
            "or choose another name by tracking.experiment=NAME"
        )
    else:
        experiment_id = found.experiment_id
    return Store(client, uri, redact(uri), experiment, experiment_id, database, artifacts)


def _create(client: MlflowClient, experiment: str, artifacts: str | None) -> str:
    try:
        return client.create_experiment(experiment, artifact_location=artifacts)
    except Exception:
        # On a server another process may have been faster.
        found = client.get_experiment_by_name(experiment)
        if found is None or found.lifecycle_stage == "deleted":
            raise
        return found.experiment_id


def _folder_name(experiment: str) -> str:
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in experiment)
    return name if name.strip(".") else "_"  # `..` would be another folder


@contextlib.contextmanager
def _locked(database: Path) -> Iterator[None]:
    """Hold the lock beside a database: processes that create one database together corrupt its schema."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(database.name + ".lock").open("a") as file:
        wait_for_lock(file.fileno(), _LOCK_S, f"another process holds the lock {file.name}")
        yield


def wait_for_lock(descriptor: int, seconds: float, complaint: str) -> None:
    """Take an exclusive lock that ends with the descriptor or the process; StoreError after `seconds`."""
    try:
        lock(descriptor, seconds)
    except BlockingIOError:
        raise StoreError(f"{complaint} for more than {seconds:.0f} s") from None


def _check_sqlite(database: Path) -> None:
    """Refuse at once what SQLAlchemy would try again for a minute: a file that is no database, or is read-only.

    A new database gets a write-ahead log, which halves the time of a record (one fsync a commit instead of three) and
    lets the UI read meanwhile; but not on network disks, where SQLite cannot keep one.
    """
    is_new = not database.exists()
    with contextlib.closing(sqlite3.connect(database, timeout=_REACH_S)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()
        if not os.access(database, os.W_OK):
            raise PermissionError(f"{database} is read-only")
        if is_new and _on_local_disk(database.parent):
            connection.execute("PRAGMA journal_mode=WAL").fetchone()


def settle(store: Store) -> None:
    """Move what is still in the write-ahead log into the database, so that the one file holds everything."""
    if store.database is not None:
        with contextlib.closing(sqlite3.connect(store.database, timeout=_REACH_S)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _on_local_disk(folder: Path) -> bool:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    around = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(around, key=lambda mount: len(mount[1]), default=[""] * 3)[2] in _LOCAL_DISKS


def _reach(uri: str, seconds: float = _REACH_S) -> None:
    """Find out within seconds whether something answers at a network address; other addresses are left to MLflow."""
    parts = urllib.parse.urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("http", "https"):
        netloc = parts.netloc.rpartition("@")[2]
        try:
            urllib.request.urlopen(f"{scheme}://{netloc}{parts.path.rstrip('/')}/health", timeout=seconds).close()
        except urllib.error.HTTPError:
            return  # something answers; MLflow itself says what is wrong with it
    elif scheme in _PORTS and parts.hostname:
        socket.create_connection((parts.hostname, parts.port or _PORTS[scheme]), timeout=seconds).close()
    elif not parts.scheme or scheme == "file":
        raise StoreError(
            f"tracking.uri ({redact(uri)}) must be an address, as http://host:5000 or sqlite:////folder/mlflow.db: "
            "MLflow no longer keeps runs in plain folders"
        )


def _advice(message: str) -> str:
    lowered = message.lower()
    if "out-of-date database schema" in lowered:
        return (
            f"{message.split('. ')[0]}. If the store is older, back it up and run `mlflow db upgrade ADDRESS`; if a "
            "newer MLflow made it, install that MLflow. Or choose another store by tracking.uri"
        )
    if any(word in lowered for word in ("connection", "timed out", "refused", "resolve", "urlopen", "unreachable")):
        return f"no answer ({message}). Start the server, correct tracking.uri, or use tracking=local or tracking=off"
    if any(word in lowered for word in ("permission", "read-only", "readonly", "unable to open")):
        return f"no right to write ({message}). Choose another place by tracking.uri or outputs"
    if "not a database" in lowered:
        return f"{message}. Move the file away or choose another store by tracking.uri"
    if any(word in lowered for word in ("401", "403", "unauthorized", "forbidden")):
        return f"access refused ({message}). Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or a token"
    return message
