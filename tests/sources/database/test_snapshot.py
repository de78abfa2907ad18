"""What is asked of a server that none can be started of: TiDB, and others than the tests' MySQL. The answers are what
their documents say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.database import snapshot
from cdc_lakehouse.sources.database.snapshot import position_of, ranges_of, wait_for_commits
from cdc_lakehouse.sources.database.table_reading import TableDefinition


class Server:
    def __init__(self, version: str, **answers: Any) -> None:
        self.version = version
        self.is_tidb = "TiDB" in version
        self.answers = answers
        self.asked: list[str] = []

    def all(self, statement: str, values: Sequence[Any] | None = None, *, advice: str | None = None) -> Any:
        self.asked.append(statement)
        if "STATUS" not in statement or "MASTER" in statement or "BINARY" in statement:
            return self.answers["rows"]
        replica = self.answers.get("replica", ())
        if isinstance(replica, SourceError):
            raise replica
        return replica

    def run(self, statements: Sequence[str]) -> None:
        self.asked += statements

    def variable(self, name: str) -> str | None:
        found = self.answers.get(name)
        return found.pop(0) if isinstance(found, list) else found


def test_a_tso_is_that_of_a_transaction() -> None:
    server: Any = Server("8.0.11-TiDB-v8.5.0", rows=[("449590000000000001",)])
    assert position_of(server).tso == 449590000000000001
    assert server.asked == ["BEGIN", "SELECT @@tidb_current_ts", "ROLLBACK"]


@pytest.mark.parametrize(
    ("version", "statement"),
    [("8.0.36", "SHOW MASTER STATUS"), ("8.4.0", "SHOW BINARY LOG STATUS"), ("9.1.0", "SHOW BINARY LOG STATUS"),
     ("11.4.2-MariaDB", "SHOW MASTER STATUS")],
)  # fmt: skip
def test_the_statement_of_a_version(version: str, statement: str) -> None:
    server: Any = Server(version, rows=[("binlog.000007", "154", "", "", "")])
    assert str(position_of(server)) == "binlog.000007, 154"
    assert server.asked[0] == statement


@pytest.mark.parametrize(
    ("version", "replica", "expected", "statement"),
    [
        ("8.0.36", (), 7, "SHOW SLAVE STATUS"),
        ("8.4.0", (), 7, "SHOW REPLICA STATUS"),
        ("8.4.0", [("of another",)], None, "SHOW REPLICA STATUS"),
        ("11.4.2-MariaDB", SourceError("denied"), None, "SHOW SLAVE STATUS"),
    ],
)
def test_the_server_that_writes_all_that_comes(
    version: str, replica: Any, expected: int | None, statement: str
) -> None:
    server: Any = Server(version, rows=[("binlog.000007", "154")], replica=replica, server_id="7")
    assert position_of(server).server_id == expected and server.asked[1] == statement


def test_a_server_without_a_binlog() -> None:
    server: Any = Server("8.0.36", rows=[])
    with pytest.raises(SourceError, match="writes no binlog"):
        position_of(server)


class Rows(Server):
    """A table `t` of keys."""

    def __init__(self, keys: Sequence[int]) -> None:
        super().__init__("8.0.36")
        self.keys = sorted(keys)

    def all(self, statement: str, values: Sequence[Any] | None = None, *, advice: str | None = None) -> Any:
        self.asked.append(statement)
        if "MIN(" in statement:
            return [(str(self.keys[0]), str(self.keys[-1])) if self.keys else (None, None)]
        above = [key for key in self.keys if not values or key > int(values[0])]
        place = int(statement.rpartition(" ")[2])
        return [(str(above[place]),)] if place < len(above) else []


@pytest.mark.parametrize(
    ("keys", "estimated", "bounds", "asked"),
    [
        (range(1, 101), 100, [30, 60, 90], 1),
        # As after a table has just been filled: the statistics do not know it yet.
        (range(1, 101), 0, [30, 60, 90], 5),
        (range(0, 100_000, 1000), 0, [29_000, 59_000, 89_000], 5),
        ([], 1000, [], 1),
        (range(1, 31), 0, [], 1),
        ([5, 1_000_000], 2, [], 2),
    ],
)
def test_ranges_need_no_statistics(keys: Sequence[int], estimated: int, bounds: list[int], asked: int) -> None:
    server: Any = Rows(keys)
    table = TableDefinition.of(TableName("d", "t"), "CREATE TABLE t (id INT PRIMARY KEY)", "2024-01-01", estimated)
    found = ranges_of(server, table, 30)
    assert [each.upper for each in found] == [*((str(bound),) for bound in bounds), None]
    assert [each.lower for each in found] == [None, *((str(bound),) for bound in bounds)]
    assert len(server.asked) == asked


def test_transactions_that_are_committing_are_waited_for() -> None:
    """Those that were there at the beginning, not those that come after."""
    one, other = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23#10", "3e11fa47-71ca-11e1-9e33-c80aa9429562:24#11"
    answers = [f"{one}:24#11", f"{one}", f"{one}", other.replace("24#11", "25#12"), "never asked"]
    server: Any = Server("8.0.36", gtid_mode="ON", gtid_owned=answers)
    wait_for_commits(server)
    assert answers == ["never asked"]


def test_a_server_that_does_not_say_which_are_committing(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(snapshot.time, "sleep", slept.append)
    server: Any = Server("5.7.44", gtid_mode="OFF")
    wait_for_commits(server)
    assert slept == [2]
    server = Server("5.7.44", gtid_mode="OFF", rpl_semi_sync_master_enabled="ON")
    with pytest.raises(SourceError, match="semi-synchronous"):
        wait_for_commits(server)
