"""A MySQL server of the tests' own, empty when it starts."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from tests.servers.process import free_port, running
from tests.servers.tools import ToolMissingError, mysqld

# Small and quick: what it holds need not outlive it. Root may run it, as in a container.
_BOTH = (
    "--no-defaults",
    "--user=root",
    "--innodb-use-native-aio=OFF",
    "--default-authentication-plugin=mysql_native_password",
)
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


@contextlib.contextmanager
def mysql_server(directory: Path, *, binlog: bool = False, folding: bool = False) -> Iterator[MySqlServer]:
    """A server that, where it is `folding`, compares names of tables without case, as Windows and many a cloud do."""
    program, environment = mysqld()
    places = [f"--basedir={program.parents[1]}", f"--datadir={directory / 'data'}"]
    places.append(f"--lower-case-table-names={int(folding)}")
    environment = {**os.environ, **environment}
    command = [str(program), *_BOTH, *places]
    done = subprocess.run(
        [*command, "--initialize-insecure", "--innodb-log-file-size=8M"],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise ToolMissingError(f"MySQL cannot be set up:\n{done.stderr[-4000:]}")
    port, socket = free_port(), directory / "socket"
    command += [
        *_RUNNING,
        *(_BINLOG if binlog else ("--skip-log-bin",)),
        f"--port={port}",
        f"--socket={socket}",
        f"--pid-file={directory / 'pid'}",
    ]
    with running(command, port, directory / "log", environment) as process:
        try:
            yield MySqlServer(socket, port)
        finally:
            process.kill()  # Else it waits for those who read its binlog.


def load_zone(cursor: Any, zone: str) -> None:
    """Make a time zone known to a server, from 1970 on, if it is not yet."""
    info, day = zoneinfo.ZoneInfo(zone), 86_400
    if cursor.execute("SELECT * FROM mysql.time_zone_name WHERE name = %s", (zone,)):
        return
    types: list[tuple[int, bool, str]] = []

    def kind(moment: int) -> int:
        local = datetime.datetime.fromtimestamp(moment, info)
        offset = local.utcoffset()
        assert offset is not None
        found = int(offset.total_seconds()), bool(local.dst()), (local.tzname() or "")[:8]
        if found not in types:
            types.append(found)
        return types.index(found)

    changes = [(0, kind(0))]
    for begin in range(0, 2**31 - 1 - day, day):
        if kind(begin + day) == changes[-1][1]:
            continue
        low, high = begin, begin + day
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if kind(middle) == changes[-1][1] else (low, middle)
        changes.append((high, kind(high)))
    cursor.execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
    number = cursor.lastrowid
    cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", (zone, number))
    cursor.executemany(
        "INSERT INTO mysql.time_zone_transition_type VALUES (%s, %s, %s, %s, %s)",
        [(number, place, *each) for place, each in enumerate(types)],
    )
    cursor.executemany(
        "INSERT INTO mysql.time_zone_transition VALUES (%s, %s, %s)", [(number, *each) for each in changes]
    )
