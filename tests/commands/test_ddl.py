"""`ddl apply` as a script sees it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.commands.ddl import split
from tests.commands import call

SCRIPT = """-- a shop
USE shop;
CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT, `n;ame` VARCHAR(20) NOT NULL DEFAULT 'a;b', PRIMARY KEY (id));
DELIMITER //
CREATE PROCEDURE p() BEGIN SELECT 1; SELECT 2; END //
DELIMITER ;
ALTER TABLE t ADD d DATETIME(3) FIRST; CREATE TABLE other.u LIKE t
"""


def ddl(*arguments: str, script: str | bytes) -> Result:
    return call("ddl", *arguments, script=script)


def told(*arguments: str, script: str) -> dict[str, Any]:
    return json.loads(ddl(*arguments, "--json", script=script).stdout)


def test_apply_as_json() -> None:
    result = ddl("apply", "--json", script=SCRIPT)
    assert result.exit_code == 0
    columns = [
        {"name": "d", "type": "datetime(3)", "nullable": True, "default": None, "key": False},
        {"name": "id", "type": "bigint(20) unsigned", "nullable": False, "default": None, "key": True},
        {"name": "n;ame", "type": "varchar(20)", "nullable": False, "default": "a;b", "key": False},
    ]
    assert json.loads(result.stdout) == {
        "databases": ["other", "shop"],
        "tables": [
            {"database": "other", "table": "u", "columns": columns},
            {"database": "shop", "table": "t", "columns": columns},
        ],
    }


def test_apply_in_words() -> None:
    result = ddl("apply", script=SCRIPT)
    assert result.exit_code == 0
    assert [words for words in ("shop.t", "bigint(20) unsigned", "PRI") if words not in result.stdout] == []


def test_the_database_of_names_without_one() -> None:
    for arguments, database in (((), "test"), (("--database", "shop"), "shop")):
        result = told("apply", *arguments, script="CREATE TABLE t (a INT)")
        assert [table["database"] for table in result["tables"]] == [database] == result["databases"]


def test_databases_without_tables() -> None:
    script = "CREATE DATABASE a; USE b; CREATE DATABASE c; DROP DATABASE c"
    assert told("apply", script=script) == {"databases": ["a", "b"], "tables": []}


def test_apply_stops_at_what_is_not_understood() -> None:
    statement = "ALTER TABLE t\n DORP a"
    result = ddl("apply", "--json", script=f"CREATE TABLE t (a INT);\n{statement};\nDROP TABLE t")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert [table["table"] for table in document["tables"]] == ["t"]
    fault = document["error"]
    said = (fault["class"], fault["line"], fault["column"], fault["statement"])
    assert said == ("DdlSyntaxError", 3, 2, statement)
    assert "DdlSyntaxError" in result.stderr and "line 3" in result.stderr and "Traceback" not in result.stderr


def test_apply_notes_what_does_not_fit() -> None:
    alter = "ALTER TABLE t DROP nope, ADD d DATETIME NOT NULL DEFAULT '0000-00-00'"
    result = ddl("apply", "--json", script=f"CREATE TABLE t (a INT);\n{alter}; DROP TABLE u")
    assert result.exit_code == 0
    assert [column["name"] for column in json.loads(result.stdout)["tables"][0]["columns"]] == ["a", "d"]
    assert result.stderr == "note, line 2: the statement names column nope, which is not known\n"


def test_what_is_understood_is_0() -> None:
    assert [ddl("apply", script=script).exit_code for script in (SCRIPT, "")] == [0, 0]


def test_what_is_not_utf8_is_2() -> None:
    result = ddl("apply", script=b"USE a;\nCREATE TABLE \xff (a INT)")
    assert result.exit_code == 2 and "line 2" in result.stderr


# --- Scripts ---


def texts(script: str) -> list[str]:
    return [statement.text for statement in split(script)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" ;; \n; -- nothing\n/* ; */ # ;", []),
        ("USE a; USE b", ["USE a", "USE b"]),
        ("A 'x;''y' \"z;\" `w;``v`; B", ["A 'x;''y' \"z;\" `w;``v`", "B"]),
        (r"A 'x\';y'; B", [r"A 'x\';y'", "B"]),
        ("A -- b;\nC; D", ["A -- b;\nC", "D"]),
        ("A --b; C", ["A --b", "C"]),
        ("A # b;\n; /* c; */ D /* e; */;", ["A # b;", "D /* e; */"]),
        ("/*!40101 SET x = 1; */; /*T![ttl] y */ A;", ["/*!40101 SET x = 1; */", "/*T![ttl] y */ A"]),
        ("DELIMITER //\nA; B; // C //\ndelimiter ;\nD;E", ["A; B;", "C", "D", "E"]),
        ("DELIMITER $$\nA$B$$C;", ["A$B", "C;"]),
        ("A delimiter; B", ["A delimiter", "B"]),
        ("A 'open; B", ["A 'open; B"]),
        ("A /* open; B", ["A /* open; B"]),
        ("A / B - C; D", ["A / B - C", "D"]),
    ],
)
def test_statements_of_a_script(script: str, expected: list[str]) -> None:
    assert texts(script) == expected


def test_places() -> None:
    script = "-- first\nUSE a;\n\nCREATE\n TABLE t;  DROP TABLE t"
    assert [(each.line, each.column) for each in split(script)] == [(2, 1), (4, 1), (5, 12)]
    assert [each.place(2, 5) for each in split(script)] == [(3, 5), (5, 5), (6, 5)]
    assert [each.place(1, 5) for each in split(script)] == [(2, 5), (4, 5), (5, 16)]


COMMENTS = re.compile(r"/\*.*?(?:\*/|\Z)|(?:#|--(?!\S))[^\n]*", re.DOTALL)


@given(st.text(alphabet="a;'\"`\\-/*!#$ \nT", max_size=60))
def test_any_script_is_split_without_loss(script: str) -> None:
    lines, end = script.split("\n"), 0
    for each in [*split(script), None]:
        start = len(script) if each is None else sum(len(line) + 1 for line in lines[: each.line - 1]) + each.column - 1
        assert COMMENTS.sub("", script[end:start]).strip("; \n") == ""
        if each is not None:
            assert each.text.strip() and script.startswith(each.text, start)
            end = start + len(each.text)


@pytest.mark.parametrize("piece", ["USE a;", "'a;", "/* ", "a -- b\n", ";", "`", "/", "-", "''", r"'\'"])
def test_long_scripts_take_no_longer_than_they_are_long(piece: str) -> None:
    assert len(texts(piece * 100_000)) <= 100_000
