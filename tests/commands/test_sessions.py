"""What commands, checks and sensors show of a feed: `cases/` has sessions, with what happens and what is printed; and
what `connect` prints for catalogs that no test here runs an engine over. `ddl.txt` has scripts for `ddl apply`, on one
line each, options, and what is printed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.commands.connect import SNIPPETS
from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import Identifier
from tests.commands import call
from tests.kit.case_files import Case, bytes_of, read_cases
from tests.kit.sessions import Session

NAMES = ("status", "canal", "quarantine", "holds", "checks", "errors", "sensor", "init", "alerts")
CASES = read_cases(*(Path(__file__).with_name("cases") / f"{name}.txt" for name in NAMES))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_session_prints(
    case: Case, tmp_path: Path, data_sets: Path, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    session = Session(tmp_path, monkeypatch, **case.settings)
    session.data = data_sets
    case.compare(session.results(case), update=update)


S3 = {"endpoint": "http://s3:9000", "region": "eu-1", "path_style": True}


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "connect.txt"), ids=str)
def test_snippet_names_catalog_and_store(case: Case, update: bool) -> None:
    engine, warehouse, catalog = case.own[0].split(" ", 2)
    config = LakeConfig.model_validate({"warehouse": warehouse, "catalog": json.loads(catalog)})
    lake = Lake(config, StorageConfig.model_validate({"s3": S3}))
    text = SNIPPETS[engine](lake, Identifier("shop", "orders"), 7)
    assert "very secret" not in text
    case.compare([line for line in text.splitlines() if line], update=update)


@pytest.mark.parametrize("command", ["status", "show", "plan"])
def test_looking_before_the_first_run_makes_nothing(tmp_path: Path, command: str) -> None:
    assert call("sample", "--directory", str(tmp_path), "--transactions", "20").exit_code == 0
    files = sorted(tmp_path.iterdir())
    result = call(command, config=tmp_path / "lakehouse.yaml")
    assert result.exit_code == (2 if command == "show" else 0), result.output
    assert sorted(tmp_path.iterdir()) == files


# --- `ddl apply` ---


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
