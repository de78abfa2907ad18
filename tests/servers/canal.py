"""A Canal server of the tests' own, before a MySQL of theirs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.config import CanalSource
from tests.servers.mysql import MySqlServer
from tests.servers.process import free_port, running
from tests.servers.tools import canal

DESTINATION: Final = "example"
USER, PASSWORD = "reader", "reader-secret-51c0"
_AT_MYSQL: Final = "canal"


@dataclass(frozen=True)
class CanalServer:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def source(self, **other: Any) -> CanalSource:
        return canal_source(self.address, **other)


StartCanal = Callable[..., CanalServer]


def canal_source(*addresses: str, **other: Any) -> CanalSource:
    who = {"user": USER, "password": PASSWORD}
    return CanalSource.model_validate(
        {"type": "canal", "addresses": addresses, "destination": DESTINATION, **who, **other}
    )


def add_canals_user(mysql: MySqlServer) -> None:
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {_AT_MYSQL} IDENTIFIED WITH mysql_native_password BY '{_AT_MYSQL}'")
        cursor.execute(f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {_AT_MYSQL}")


def binlog_end(mysql: MySqlServer) -> tuple[str, int]:
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
        assert row is not None
        return str(row[0]), int(row[1])


def executed(mysql: MySqlServer) -> str:
    """The set of GTIDs."""
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.gtid_executed")
        row = cursor.fetchone()
        assert row is not None
        return "".join(str(row[0]).split())


@contextlib.contextmanager
def canal_server(
    directory: Path,
    mysql: MySqlServer,
    begin: tuple[str, int],
    *,
    port: int | None = None,
    zone: str = "UTC",
    gtids: str | None = None,
) -> Iterator[CanalServer]:
    """Reads from `begin`, or with GTIDs from after a set of them, where `directory` does not hold how far it came."""
    port = port or free_port()
    directory.mkdir(exist_ok=True)
    said = {
        "port": port, "destination": DESTINATION, "mysqlPort": mysql.port, "mysqlUser": _AT_MYSQL,
        "mysqlPassword": _AT_MYSQL, "dataDir": directory, "user": USER, "password": PASSWORD,
        "position": json.dumps({"journalName": begin[0], "position": begin[1], "gtid": gtids}),
        "gtid": "true" if gtids else "false",
    }  # fmt: skip
    command = [*canal("CanalServer"), *(f"{name}={value}" for name, value in said.items())]
    with running(command, port, directory / "log", {**os.environ, "TZ": zone}) as process:
        yield CanalServer(port, process)
