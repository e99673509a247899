"""A PostgreSQL of one's own: a cluster in a private folder, reached through a socket in it, ended with its owner.

In: a folder.  Out: the address of a database in it. There is neither a network port nor a password: the kernel tells
PostgreSQL whose process is at the other end of the socket, and only the account that started it is let in.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

ACCOUNT = "postgres"  # Debian's; PostgreSQL refuses to run as root
_DATABASE = "mlflow"
_START_S, _STOP_S = 120.0, 60.0
_MAX_SOCKET = 107 - len("/.s.PGSQL.5432")  # the kernel's limit for the path of a socket
_SETTINGS = ("listen_addresses=", "unix_socket_permissions=0700", "log_checkpoints=off")


class PostgresError(RuntimeError):
    """PostgreSQL is not there or does not start; the message says why and what to do."""


def binaries(version: str = "") -> Path | None:
    """The folder of PostgreSQL's programs, of that major version or the newest; None where there is none."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]  # Debian keeps them off PATH
    if found := shutil.which("initdb"):
        folders.append(Path(found).resolve().parent)
    of_version = [folder for folder in folders if not version or folder.parent.name == version]
    return max(of_version, key=lambda folder: int("".join(filter(str.isdigit, folder.parent.name)) or 0), default=None)


class Cluster:
    """A cluster in a folder, made where it is missing. As root, PostgreSQL runs as the account `postgres`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.data, self.socket, self.log = self.folder / "data", self.folder / "socket", self.folder / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None
        version = self.data / "PG_VERSION"
        made_by = version.read_text().strip() if version.exists() else ""
        found = binaries(made_by)
        if found is None:
            raise PostgresError(
                f"PostgreSQL {made_by} is not installed (Debian: apt-get install postgresql); "
                "or name a database that runs elsewhere"
            )
        self._bin = found
        if len(os.fsencode(self.socket)) > _MAX_SOCKET:
            raise PostgresError(f"{self.folder} is too long for a socket in it; choose a folder with a shorter path")

    @property
    def address(self) -> str:
        """The address of the database, with no secret in it."""
        return f"postgresql+psycopg://{_DATABASE}@/{_DATABASE}?host={quote(str(self.socket), safe='')}"

    def start(self) -> None:
        """Start PostgreSQL and wait until it answers. It ends when the thread that called this does."""
        self._make()
        with self.log.open("ab") as log:
            command = [str(self._bin / "postgres"), "-D", str(self.data), "-k", str(self.socket)]
            command += [word for setting in _SETTINGS for word in ("-c", setting)]
            as_account = _as_account("--pdeathsig", "INT")  # INT: disconnect everyone and shut down cleanly
            self._process = subprocess.Popen(
                [*as_account, *command], stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        deadline = time.monotonic() + _START_S
        while not self._is_ours() or self._ask("SELECT 1", "postgres") is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise PostgresError(f"PostgreSQL does not start in {self.folder}: {self._last_words()}")
            time.sleep(0.05)
        if not self._ask(f"SELECT 1 FROM pg_database WHERE datname = '{_DATABASE}'", "postgres"):
            self._must(f"CREATE ROLE {_DATABASE} LOGIN")
            self._must(f"CREATE DATABASE {_DATABASE} OWNER {_DATABASE}")

    def stop(self) -> None:
        """Let PostgreSQL disconnect its clients, write everything down and end."""
        process, self._process = self._process, None
        if process is None:
            return
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
                return

    def poll(self) -> int | None:
        """The exit status of a PostgreSQL that ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def _make(self) -> None:
        """Folders, and the cluster itself, whole or not at all."""
        half = self.folder / "half_made"
        shutil.rmtree(half, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711 if os.geteuid() == 0 else 0o700)  # another account passes through, and reads nothing
        _private(self.socket)
        self.log.touch(mode=0o600)
        if self.data.exists():
            return
        _private(half)
        command = [str(self._bin / "initdb"), "-D", str(half), "-U", "postgres", "--auth=peer", "-E", "UTF8"]
        command += ["--no-locale", "--data-checksums"]
        done = subprocess.run([*_as_account(), *command], capture_output=True, text=True, cwd="/")
        if done.returncode:
            raise PostgresError(f"PostgreSQL cannot make a cluster in {self.folder}: {done.stderr.strip()[-2000:]}")
        names = {pwd.getpwuid(os.geteuid()).pw_name, _owner()}
        roles = ("postgres", _DATABASE)
        (half / "pg_hba.conf").write_text("local all all peer map=owner\n")
        (half / "pg_ident.conf").write_text("".join(f"owner {name} {role}\n" for name in names for role in roles))
        half.rename(self.data)

    def _is_ours(self) -> bool:
        """Whether the PostgreSQL that runs in the folder is the one that was started here, and not an earlier one."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            return (self.data / "postmaster.pid").read_text().split("\n")[0] == str(self._process.pid)
        return False

    def _ask(self, query: str, database: str) -> str | None:
        """The answer to a query of the administrator; None where PostgreSQL does not give one."""
        command = [str(self._bin / "psql"), "-h", str(self.socket), "-U", "postgres", "-d", database, "-Atqc", query]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=_quiet_environment())
        self._said = done.stderr.strip()
        return None if done.returncode else done.stdout.strip()

    def _must(self, statement: str) -> None:
        if self._ask(statement, "postgres") is None:
            raise PostgresError(f"PostgreSQL in {self.folder} refuses `{statement}`: {self._said}")

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace").strip()[-2000:]


def _owner() -> str:
    """The account that PostgreSQL runs as."""
    return ACCOUNT if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def _as_account(*options: str) -> list[str]:
    """What to put before a command that must not run as root."""
    if os.geteuid() == 0:
        _entry()
        options = (*options, "--reuid", ACCOUNT, "--regid", ACCOUNT, "--init-groups")
    return ["setpriv", *options, "--"] if options else []


def _entry() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise PostgresError(
            f"PostgreSQL refuses to run as root, and there is no account {ACCOUNT}; run this as another user"
        ) from None


def _private(folder: Path) -> None:
    """A folder of PostgreSQL's account alone."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, _entry().pw_uid, _entry().pw_gid)


def _quiet_environment() -> dict[str, str]:
    """Without what a user has set for other databases."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
