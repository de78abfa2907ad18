"""A PostgreSQL server for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.servers.process import free_port, running
from tests.servers.tools import postgres

USER: Final = "dagster"
PASSWORD: Final = "postgres-secret-5e1c"
_NOBODY: Final = 65534


@contextlib.contextmanager
def postgres_server(directory: Path, *databases: str) -> Iterator[int]:
    """The port of a server with these databases, of the user `USER`."""
    home, data, password = directory / "postgresql", directory / "data", directory / "password"
    shutil.copytree(postgres(), home, symlinks=True)
    password.write_text(PASSWORD)
    data.mkdir(mode=0o700)
    as_other: list[str] = []
    if os.geteuid() == 0:
        # It does not run as root.
        directory.chmod(0o755)
        for path in (data, password):
            os.chown(path, _NOBODY, _NOBODY)
        as_other = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib"), "LC_ALL": "C"}

    def call(program: str, *options: str, said: str = "") -> None:
        command = [*as_other, str(home / "bin" / program), *options]
        subprocess.run(
            command, input=said, text=True, check=True, capture_output=True, env=environment, cwd=directory, timeout=120
        )

    call("initdb", "-D", str(data), "-U", USER, "-A", "scram-sha-256", "--no-sync", f"--pwfile={password}")
    call(
        "postgres", "--single", "-D", str(data), "postgres", said="".join(f"CREATE DATABASE {d};\n" for d in databases)
    )
    port = free_port()
    options = ["-h", "127.0.0.1", "-p", str(port), "-c", "fsync=off", "-c", f"unix_socket_directories={data}"]
    with running(
        [*as_other, str(home / "bin/postgres"), "-D", str(data), *options], port, directory / "log", environment
    ):
        yield port
