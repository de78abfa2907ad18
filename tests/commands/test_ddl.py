"""`ddl apply`: `cases/ddl.txt` has scripts, on one line each, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands import call
from tests.kit.case_files import Case, read_cases

CASES = read_cases(Path(__file__).with_name("cases") / "ddl.txt")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_script_gives_tables_or_a_fault_with_its_place(case: Case, update: bool) -> None:
    (line,) = case.own
    script = line.replace(r"\n", "\n")
    done = call("ddl", "apply", script=script)
    assert "Traceback" not in done.output
    said = [each.rstrip() for each in f"{done.stdout}{done.stderr}".splitlines() if each.strip()]
    case.compare([*said, f"exit code {done.exit_code}"], update=update)


def test_result_as_json_has_databases_tables_and_the_fault() -> None:
    columns = [
        {"name": "d", "type": "datetime(3)", "nullable": True, "default": None, "key": False},
        {"name": "id", "type": "bigint(20) unsigned", "nullable": False, "default": None, "key": True},
        {"name": "n;ame", "type": "varchar(20)", "nullable": False, "default": "a;b", "key": False},
    ]
    script = CASES[-1].own[0].replace(r"\n", "\n")
    assert json.loads(call("ddl", "apply", "--json", script=script).stdout) == {
        "databases": ["other", "shop"],
        "tables": [
            {"database": "other", "table": "u", "columns": columns},
            {"database": "shop", "table": "t", "columns": columns},
        ],
    }
    result = call("ddl", "apply", "--json", script="CREATE TABLE t (a INT);\nALTER TABLE t\n DORP a;\nDROP TABLE t")
    document = json.loads(result.stdout)
    assert result.exit_code == 2 and [table["table"] for table in document["tables"]] == ["t"]
    fault = document["error"]
    said = (fault["class"], fault["line"], fault["column"], fault["statement"])
    assert said == ("DdlSyntaxError", 3, 2, "ALTER TABLE t\n DORP a")


def test_script_that_is_not_utf8_is_2() -> None:
    result = call("ddl", "apply", script=b"USE a;\nCREATE TABLE \xff (a INT)")
    assert result.exit_code == 2 and "line 2" in result.stderr


BETWEEN = (";", " ;\n", "; -- c;\n", "; /* ; */ ", ";\n# ';\n", ";;\t")


@given(st.lists(st.tuples(st.sampled_from(["USE d", "use `d", "CREATE DATABASE d"]), st.sampled_from(BETWEEN))))
def test_no_statement_of_a_script_is_lost(parts: list[tuple[str, str]]) -> None:
    texts = [f"{word}{n}{'`' if '`' in word else ''}{end}" for n, (word, end) in enumerate(parts)]
    done = call("ddl", "apply", "--json", script="".join(texts))
    assert json.loads(done.stdout)["databases"] == sorted(f"d{n}" for n in range(len(parts)))


@given(st.text(alphabet="a;'\"`\\-/*!#$ \nT", max_size=60))
def test_any_script_is_applied_or_refused_with_a_place(script: str) -> None:
    done = call("ddl", "apply", script=script)
    assert done.exit_code in (0, 2) and (done.exception is None or isinstance(done.exception, SystemExit))
    assert done.exit_code == 0 or "line " in done.stderr


@pytest.mark.parametrize("piece", ["USE a;", "'a;", "/* ", "a -- b\n", ";", "`", "/", "-", "''", r"'\'"])
def test_long_script_is_read_in_time(piece: str) -> None:
    """Without quadratic steps: a hundred thousand of anything ends."""
    assert call("ddl", "apply", script=piece * 20_000).exit_code in (0, 2)
