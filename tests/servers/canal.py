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
from tests.kit.processes import free_port, running
from tests.servers.mysql import MySqlServer, Session
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
        own = {"addresses": [self.address], "destination": DESTINATION, "user": USER, "password": PASSWORD}
        return CanalSource.model_validate({"type": "canal", **own, **other})


StartCanal = Callable[..., CanalServer]


def add_canals_user(mysql: MySqlServer) -> None:
    Session(mysql).run(
        f"CREATE USER {_AT_MYSQL} IDENTIFIED WITH mysql_native_password BY '{_AT_MYSQL}'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {_AT_MYSQL}",
    )


@contextlib.contextmanager
def canal_server(
    directory: Path, mysql: MySqlServer, begin: tuple[str, int], *, port: int | None = None, zone: str = "UTC",
    gtids: str | None = None,
) -> Iterator[CanalServer]:  # fmt: skip
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
