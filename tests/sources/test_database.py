"""What is asked of source databases that the tests cannot start: TiDB, and other versions than their own MySQL.

`cases/tables.txt` has the statements that read tables in ranges of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
from tests.kit.case_files import Case, evaluated, read_cases


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
        if isinstance(found, Exception):
            raise found
        return found.pop(0) if isinstance(found, list) else found


def position(version: str, **answers: Any) -> str:
    """The server's id only where it writes all that is in its binlog."""
    server: Any = Server(version, **{"rows": [("binlog.000007", "154", "", "", "")], "server_id": "7", **answers})
    found = position_of(server)
    return f"{found.tso or found} of server {found.server_id}: {'; '.join(server.asked)}"


def ranges(keys: Sequence[int], estimated: int) -> str:
    server: Any = Server("8.0.36", keys)
    found = ranges_of(server, table("CREATE TABLE t (id INT PRIMARY KEY)", estimated), 30)
    assert [each.lower for each in found[1:]] == [each.upper for each in found[:-1]]
    assert (found[0].lower, found[-1].upper) == (None, None)
    return f"{' '.join(str(*each.upper) for each in found[:-1] if each.upper)}, asked {len(server.asked)} times"


def waited(**answers: Any) -> str:
    server: Any = Server("8.0.36", **answers)
    with patch("time.sleep") as slept:
        wait_for_commits(server)
    return f"left {answers.get('gtid_owned')}, slept {[call.args[0] for call in slept.call_args_list]}"


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases" / "servers.txt"), ids=str)
def test_server_is_asked_in_the_words_of_its_version(case: Case, update: bool) -> None:
    names = {"position": position, "ranges": ranges, "waited": waited, "SourceError": SourceError}
    names |= {"begin": begin_statements, "end": end_statements, "session": session_statements}
    case.compare(evaluated(case, names), update=update)
