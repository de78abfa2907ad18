"""The answers that unit tests replay are those of a real MySQL: each question is asked again (`make golden` writes the
answers). Without strict mode, in which the server refuses what would lose data; `utf8mb4`, in the zone UTC."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from tests.kit import golden
from tests.servers.ddl_oracle import shown, tables_of
from tests.servers.mysql import MySqlServer, load_zone

pytestmark = pytest.mark.server


class Server:
    """In a session that is not strict."""

    def __init__(self, mysql: MySqlServer) -> None:
        connection = mysql.connect()
        connection.autocommit(True)
        self.cursor = connection.cursor()
        self.run("SET sql_mode = ''")

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)

    def begin(self) -> None:
        self.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d CHARACTER SET utf8mb4", "USE d")

    def in_zone(self, zone: str) -> None:
        if "/" in zone:
            load_zone(self.cursor, zone)
        self.run(f"SET time_zone = '{zone}'")

    def shown(self, name: str, kind: str, rows: int) -> list[str | None]:
        """A column as text: all digits of numbers, bytes in hexadecimal, moments in UTC."""
        self.run("SET time_zone = '+00:00'")
        self.cursor.execute(f"SELECT {_text(name, kind.lower())} FROM t ORDER BY id LIMIT {rows}")
        return [text for (text,) in self.cursor.fetchall()]


def _text(name: str, kind: str) -> str:
    if re.match(r"bit|float", kind):
        return f"CAST({name} + {'0e0' if kind.startswith('float') else '0'} AS CHAR)"
    return f"CONCAT('0x', HEX({name}))" if _is_bytes(kind) else f"CAST({name} AS CHAR)"


def _is_bytes(kind: str) -> bool:
    return re.match(r"(var)?binary|(tiny|medium|long)?blob", kind) is not None


def _put(text: str, kind: str) -> Any:
    return bytes.fromhex(text[2:]) if _is_bytes(kind) else int(text) if kind.startswith("bit") else text


def conversions(server: Server) -> Iterator[dict[str, Any]]:
    """`values`: of the first type, and what an ALTER TABLE to each of the others in turn makes of them."""
    asked = golden.read("conversions")
    zones = [each.get("zone", "+00:00") for each in asked]
    answers: dict[int, dict[str, str | None]] = {}
    for zone in sorted(set(zones)):
        numbers = [n for n, each in enumerate(zones) if each == zone]
        types = {n: asked[n]["types"] for n in numbers}
        values = {n: [_put(text, types[n][0]) for text in asked[n]["values"]] for n in numbers}
        server.begin()
        server.run(f"CREATE TABLE t (id int, {', '.join(f'c{n} {types[n][0]}' for n in numbers)})")
        server.cursor.executemany(
            f"INSERT INTO t VALUES (%s, {', '.join(['%s'] * len(numbers))})",
            [[k, *(each[k % len(each)] for each in values.values())] for k in range(max(map(len, values.values())))],
        )
        given = {n: server.shown(f"c{n}", types[n][0], len(values[n])) for n in numbers}
        for step in range(1, max(map(len, types.values()))):
            server.in_zone(zone)
            modified = [f"MODIFY c{n} {types[n][step]}" for n in numbers if step < len(types[n])]
            server.run(f"ALTER TABLE t {', '.join(modified)}")
        for n in numbers:
            answers[n] = dict(zip(given[n], server.shown(f"c{n}", types[n][-1], len(values[n])), strict=True))
    return ({**each, "values": answers[n]} for n, each in enumerate(asked))


_ZERO_DATES_TOO = "'STRICT_ALL_TABLES'"


def defaults(server: Server) -> Iterator[dict[str, Any]]:
    """`defaults`: literals (none is an empty one), what information_schema prints of each, and what a row has that is
    older than the column (null for what is computed); null where the server refuses the definition. In strict mode."""
    server.begin()
    for question in golden.read("defaults"):
        # A column of dates that must not be NULL begins with a zero date, which a server may refuse.
        server.run(f"SET sql_mode = {_ZERO_DATES_TOO if 'NOT NULL' in question['column'] else 'DEFAULT'}")
        server.run("DROP TABLE IF EXISTS t", "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
        answers: dict[str, list[str | None] | None] = dict.fromkeys(question["defaults"])
        made: dict[str, str] = {}
        for number, literal in enumerate(answers):
            default = f" DEFAULT {literal}" * bool(literal)
            with contextlib.suppress(pymysql.MySQLError):
                server.run(f"ALTER TABLE t ADD c{number} {question['column']}{default}")
                made[f"c{number}"] = literal
        for column in tables_of(server.cursor, "d")["t"].columns[1:]:
            (held,) = server.shown(column["name"], question["column"], 1)
            answers[made[column["name"]]] = [column["default"], None if _is_now(column) else held]
        yield {**question, "defaults": answers}


def _is_now(column: dict[str, Any]) -> bool:
    return column["data_type"] in ("timestamp", "datetime") and str(column["default"]).startswith("CURRENT_TIMESTAMP")


def ddl(server: Server) -> Iterator[dict[str, Any]]:
    """`log`: statements from an empty database on, and the tables after each."""
    server.run("SET sql_mode = DEFAULT")
    for question in golden.read("ddl"):
        server.begin()
        log: dict[str, Any] = {}
        for statement in question["log"]:
            server.run(statement)
            log[statement] = {name: shown(table) for name, table in tables_of(server.cursor, "d").items()}
        yield {**question, "log": log}


def types(server: Server) -> Iterator[dict[str, Any]]:
    """`is`: how information_schema has a declared type."""
    asked = golden.read("types")
    server.begin()
    for question in asked:
        server.run(f"CREATE TABLE t (c {question['declared']})")
        yield {**question, "is": tables_of(server.cursor, "d")["t"].columns[0]["type"]}
        server.run("DROP TABLE t")


def partitions(server: Server) -> Iterator[dict[str, Any]]:
    """`gone`: which rows of `rows` (`id` and others) a partition takes with it when it is emptied."""
    server.begin()
    for question in golden.read("partitions"):
        server.in_zone(question.get("zone", "+00:00"))
        server.run("DROP TABLE IF EXISTS t", question["table"])
        marks = ", ".join(["%s"] * len(question["rows"][0]))
        server.cursor.executemany(f"INSERT INTO t VALUES ({marks})", question["rows"])
        server.run(f"ALTER TABLE t TRUNCATE PARTITION {question['partition']}", "SELECT CAST(id AS CHAR) FROM t")
        left = {id for (id,) in server.cursor.fetchall()}
        yield {**question, "gone": [row[0] for row in question["rows"] if row[0] not in left]}


ANSWERS: dict[str, Callable[[Server], Iterator[dict[str, Any]]]] = {
    "conversions": conversions,
    "defaults": defaults,
    "ddl": ddl,
    "types": types,
    "partitions": partitions,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_of_the_server(mysql: MySqlServer, name: str, update: bool) -> None:
    asked, answered = golden.read(name), list(ANSWERS[name](Server(mysql)))
    if update:
        golden.write(name, answered)
    else:
        assert [each for each in zip(asked, answered, strict=True) if each[0] != each[1]] == []
