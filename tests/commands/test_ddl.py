"""`ddl apply`: `cases/ddl.txt` has scripts, on one line each, options, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands import call
from tests.kit.case_files import Case, bytes_of, read_cases


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "ddl.txt"), ids=str)
def test_script_gives_tables_or_a_fault_with_its_place(case: Case, update: bool) -> None:
    (line,) = case.own
    done = call("ddl", "apply", *case.settings.get("options", ()), script=bytes_of(line.replace(r"\n", "\n")))
    assert "Traceback" not in done.output
    said = [each.rstrip() for each in f"{done.stdout}{done.stderr}".splitlines() if each.strip()]
    case.compare([*said, f"exit code {done.exit_code}"], update=update)


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
