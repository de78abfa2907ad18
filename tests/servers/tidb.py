"""A TiDB server of the tests' own, with its embedded storage: one process, empty when it starts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pymysql

from tests.servers.process import free_port, running
from tests.servers.tools import tidb

_LONG_AGO: Final = "2020-01-01 00:00:00"


@dataclass(frozen=True)
class TidbServer:
    port: int

    def connect(self, **options: Any) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", charset="utf8mb4", **options)

    def keep_versions_since(self, moment: str = _LONG_AGO) -> None:
        """Set TiKV's GC safe point (UTC), below which the server refuses to read. The embedded storage has none."""
        with self.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(
                "REPLACE INTO mysql.tidb (variable_name, variable_value, comment) VALUES ('tikv_gc_safe_point', "
                "CONCAT(DATE_FORMAT(%s, '%%Y%%m%%d-%%H:%%i:%%s'), ' +0000'), '')",
                (moment,),
            )

    @contextlib.contextmanager
    def garbage_collected(self) -> Iterator[None]:
        """Within the block no earlier version can be read."""
        self.keep_versions_since("2100-01-01 00:00:00")
        try:
            yield
        finally:
            self.keep_versions_since()

    def dump(self, database: str, directory: Path, *options: str) -> None:
        """By TiDB's own Dumpling."""
        command = [
            tidb("dumpling"), "--host", "127.0.0.1", "--port", str(self.port), "--user", "root",
            "--database", database, "--output", str(directory), *options,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@contextlib.contextmanager
def tidb_server(directory: Path) -> Iterator[TidbServer]:
    port, status = free_port(), free_port()
    command = [
        tidb("tidb-server"), "-store", "unistore", "-path", str(directory / "data"),
        "-host", "127.0.0.1", "-P", str(port),
        "-status-host", "127.0.0.1", "-status", str(status), "-socket", str(directory / "socket"), "-L", "warn",
    ]  # fmt: skip
    with running(command, port, directory / "log", directory=directory):
        server = TidbServer(port)
        server.keep_versions_since()
        yield server
