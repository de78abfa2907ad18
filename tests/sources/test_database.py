"""What is asked of source databases that the tests cannot start: TiDB, and other versions than their own MySQL.

`cases/tables.txt` has the statements that read tables in ranges of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from tests.boundaries.change_log import TableName
from tests.boundaries.sources import (
    KeyRange,
    TableDefinition,
    begin_statements,
    end_statements,
    position_of,
    ranges_of,
    session_statements,
    wait_for_commits,
)
from tests.kit.case_files import Case, read_cases


def table(statement: str, rows: int = 0) -> TableDefinition:
    return TableDefinition.of(TableName("d", "t%"), statement, "2024-01-01", rows)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases" / "tables.txt"), ids=str)
def test_statement_reads_a_range_of_a_table(case: Case, update: bool) -> None:
    given = {line.partition(" ")[0]: line.partition(" ")[2] for line in case.given if not line.startswith("CREATE")}
    (statement,) = [line for line in case.given if line.startswith("CREATE")]
    above, upto = (tuple(given[name].split(", ")) if name in given else None for name in ("above", "upto"))
    found = table(statement.replace("COLUMNS", given.get("columns", "")))
    try:
        text, values = found.rows(KeyRange(above, upto))
        key = f"key {', '.join(found.key) or '-'}{' of numbers' if found.is_numbered else ''}"
        results = [key, text % tuple(map(repr, values)), f"in hexadecimal: {', '.join(sorted(found.encoded)) or '-'}"]
    except SourceError as error:
        assert not found.is_understood
        results = [str(error)]
    case.compare(results, update=update)


def test_rows_change_no_definition() -> None:
    one, other = (
        table(f"CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB AUTO_INCREMENT={n} DEFAULT CHARSET=utf8mb4")
        for n in (41, 97)
    )
    assert one == other and "AUTO_INCREMENT" not in one.statement
    kept = table("CREATE TABLE `t` (\n  `id` int COMMENT ') AUTO_INCREMENT=1'\n) ENGINE=InnoDB")
    assert "AUTO_INCREMENT=1" in kept.statement


class Server:
    """Answers as the servers' documents have them. `keys` are those of a table."""

    def __init__(self, version: str, keys: Sequence[int] = (), **answers: Any) -> None:
        self.version = version
        self.is_tidb = "TiDB" in version
        self.keys, self.answers = sorted(keys), answers
        self.asked: list[str] = []

    def all(self, statement: str, values: Sequence[Any] | None = None, *, advice: str | None = None) -> Any:
        self.asked.append(statement)
        if "MIN(" in statement:
            return [(str(self.keys[0]), str(self.keys[-1])) if self.keys else (None, None)]
        if "OFFSET" in statement:
            above = [key for key in self.keys if not values or key > int(values[0])]
            place = int(statement.rpartition(" ")[2])
            return [(str(above[place]),)] if place < len(above) else []
        if "REPLICA" in statement or "SLAVE" in statement:
            if isinstance(replica := self.answers.get("replica", ()), SourceError):
                raise replica
            return replica
        return self.answers["rows"]

    def run(self, statements: Sequence[str]) -> None:
        self.asked += statements

    def variable(self, name: str) -> str | None:
        found = self.answers.get(name)
        return found.pop(0) if isinstance(found, list) else found


def test_tidb_gives_a_tso_and_is_read_as_of_one() -> None:
    server: Any = Server("8.0.11-TiDB-v8.5.0", rows=[("449590000000000001",)])
    assert position_of(server).tso == 449590000000000001
    assert server.asked == ["BEGIN", "SELECT @@tidb_current_ts", "ROLLBACK"]
    assert begin_statements(452912345678901234, is_tidb=True) == ("SET @@tidb_snapshot = '452912345678901234'",)
    assert end_statements(is_tidb=True) == ("SET @@tidb_snapshot = ''",)
    assert "SET SESSION time_zone = '+00:00'" in session_statements(is_tidb=True)
    # TiDB refuses the statement, and writes nothing in a session with a snapshot.
    assert "SET SESSION TRANSACTION READ ONLY" not in session_statements(is_tidb=True)


@pytest.mark.parametrize(
    ("version", "replica", "server_id", "statements"),
    [
        ("8.0.36", (), 7, ["SHOW MASTER STATUS", "SHOW SLAVE STATUS"]),
        ("8.4.0", (), 7, ["SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS"]),
        ("9.1.0", [("of another",)], None, ["SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS"]),
        ("11.4.2-MariaDB", SourceError("denied"), None, ["SHOW MASTER STATUS", "SHOW SLAVE STATUS"]),
    ],
)
def test_position_is_asked_in_the_words_of_a_version(
    version: str, replica: Any, server_id: int | None, statements: list[str]
) -> None:
    """The server's id only where it writes all that is in its binlog."""
    server: Any = Server(version, rows=[("binlog.000007", "154", "", "", "")], replica=replica, server_id="7")
    found = position_of(server)
    assert (str(found), found.server_id) == ("binlog.000007, 154", server_id)
    assert server.asked == statements


def test_server_without_a_binlog_is_refused() -> None:
    server: Any = Server("8.0.36", rows=[])
    with pytest.raises(SourceError, match="writes no binlog"):
        position_of(server)


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
    server: Any = Server("8.0.36", keys)
    found = ranges_of(server, table("CREATE TABLE t (id INT PRIMARY KEY)", estimated), 30)
    assert [each.upper for each in found] == [*((str(bound),) for bound in bounds), None]
    assert [each.lower for each in found] == [None, *((str(bound),) for bound in bounds)]
    assert len(server.asked) == asked


def test_transactions_that_are_committing_are_waited_for() -> None:
    """Those that were there at the beginning, not those that come after."""
    one, other = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23#10", "3e11fa47-71ca-11e1-9e33-c80aa9429562:25#12"
    answers = [f"{one}:24#11", f"{one}", f"{one}", other, "never asked"]
    server: Any = Server("8.0.36", gtid_mode="ON", gtid_owned=answers)
    wait_for_commits(server)
    assert answers == ["never asked"]


def test_server_that_lists_no_commits_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    server: Any = Server("5.7.44", gtid_mode="OFF")
    wait_for_commits(server)
    assert slept == [2]
    server = Server("5.7.44", gtid_mode="OFF", rpl_semi_sync_master_enabled="ON")
    with pytest.raises(SourceError, match="semi-synchronous"):
        wait_for_commits(server)
