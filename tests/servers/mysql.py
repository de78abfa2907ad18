"""A MySQL server of the tests' own, empty when it starts."""

from __future__ import annotations

import contextlib
import datetime
import os
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from tests.servers.process import free_port, running
from tests.servers.tools import mysqld, run_tool

# Small and quick: what it holds need not outlive it. Root may run it, as in a container.
_BOTH = (
    "--no-defaults", "--user=root", "--innodb-use-native-aio=OFF",
    "--default-authentication-plugin=mysql_native_password",
)  # fmt: skip
_RUNNING = (
    "--bind-address=127.0.0.1", "--performance-schema=OFF", "--mysqlx=OFF",
    "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync",
    "--default-time-zone=+00:00",
)  # fmt: skip
_BINLOG = (
    "--server-id=1", "--log-bin=mysql-bin", "--binlog-format=ROW", "--binlog-row-image=FULL", "--sync-binlog=0",
    "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
)  # fmt: skip


@dataclass(frozen=True)
class MySqlServer:
    socket: Path
    port: int

    def connect(self, **options: Any) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(unix_socket=str(self.socket), user="root", charset="utf8mb4", **options)

    def one(self, statement: str) -> Any:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()


class Session:
    """One in which each statement is committed."""

    def __init__(self, server: Any, **options: Any) -> None:
        self.connection: Any = server.connect(autocommit=True, **options)
        self.cursor = self.connection.cursor()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)

    def rows(self, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
        self.cursor.execute(statement, values)
        return list(self.cursor.fetchall())


@contextlib.contextmanager
def mysql_server(directory: Path, *, folding: bool = False) -> Iterator[MySqlServer]:
    """With a binlog; or `folding`, without one: it compares names of tables without case, as Windows and many a cloud
    do."""
    program, environment = mysqld()
    names = f"--lower-case-table-names={int(folding)}"
    places = [f"--basedir={program.parents[1]}", f"--datadir={directory / 'data'}", names]
    command = [str(program), *_BOTH, *places]
    run_tool([*command, "--initialize-insecure", "--innodb-log-file-size=8M"], environment, 300, tries=1)
    port, socket = free_port(), directory / "socket"
    command += [*_RUNNING, *(("--skip-log-bin",) if folding else _BINLOG)]
    command += [f"--port={port}", f"--socket={socket}", f"--pid-file={directory / 'pid'}"]
    with running(command, port, directory / "log", {**os.environ, **environment}) as process:
        try:
            yield MySqlServer(socket, port)
        finally:
            process.kill()  # Else it waits for those who read its binlog.


def load_zone(cursor: Any, zone: str) -> None:
    """Make a time zone that changes at full hours known to a server, from 1970 on, if it is not yet."""
    info, day = zoneinfo.ZoneInfo(zone), 86_400
    if cursor.execute("SELECT * FROM mysql.time_zone_name WHERE name = %s", (zone,)):
        return

    def kind(moment: int) -> tuple[float, bool, str]:
        local = datetime.datetime.fromtimestamp(moment, info)
        return (local.utcoffset() or datetime.timedelta()).total_seconds(), bool(local.dst()), str(local.tzname())[:8]

    changes = {0: kind(0)}
    for begin in range(0, 2**31 - 1 - day, day):
        before = kind(begin)
        if kind(begin + day) != before:
            change = next(at for at in range(begin, begin + day + 1, 3600) if kind(at) != before)
            changes[change] = kind(change)
    types = list(dict.fromkeys(changes.values()))
    cursor.execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
    number = cursor.lastrowid
    cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", (zone, number))
    for table, rows in (
        ("time_zone_transition_type", [(place, *each) for place, each in enumerate(types)]),
        ("time_zone_transition", [(at, types.index(each)) for at, each in changes.items()]),
    ):
        cursor.executemany(
            f"INSERT INTO mysql.{table} VALUES (%s{', %s' * len(rows[0])})", [(number, *r) for r in rows]
        )
