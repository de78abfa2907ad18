"""What commands, checks and sensors show of a feed: `cases/` has sessions, with what happens and what is printed; and
what `connect` prints for catalogs that no test here runs an engine over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc_lakehouse.commands.connect import SNIPPETS
from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import Identifier
from tests.commands import call
from tests.kit.case_files import Case, read_cases
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import NOON, before, publish
from tests.kit.sessions import Session
from tests.pipeline import Sink

NAMES = ("status", "quarantine", "holds", "checks", "errors", "sensor", "init", "alerts")
CASES = read_cases(*(Path(__file__).with_name("cases") / f"{name}.txt" for name in NAMES))


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


RED, YELLOW, GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


def test_terminal_shows_problems_in_colour(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    Sink(lake.sink).checkpoint(10)
    now = NOON.now(NOON.tzinfo)

    def first_words(colour: str, *options: str) -> list[str]:
        lines = call("status", *options, terminal=True, config=lake.config_path).stdout.splitlines()
        return [line[5:].split()[0] for line in lines if line.startswith(colour)]

    publish(lake, {"a": 1, "b": 1}, at=before(now, 3))
    assert first_words(GREEN, "--check") == ["feed"]
    assert first_words(RED, "--check") == first_words(YELLOW, "--check") == []
    lake.configure(tables={"settings": {"d.a": {"freshness_minutes": 1}}})
    publish(lake, {"a": 1, "b": 1}, {"d.x": "bad"}, at=before(now, 3))
    assert first_words(RED) == ["feed", "feed", "d.x", "d.x:"] and first_words(YELLOW) == ["d.a"]
    assert "\x1b" not in call("status", config=lake.config_path).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call("status", terminal=True, config=lake.config_path).stdout


@pytest.mark.parametrize("command", ["status", "show", "plan"])
def test_looking_before_the_first_run_makes_nothing(tmp_path: Path, command: str) -> None:
    assert call("sample", "--directory", str(tmp_path), "--transactions", "20").exit_code == 0
    files = sorted(tmp_path.iterdir())
    result = call(command, config=tmp_path / "lakehouse.yaml")
    assert result.exit_code == (2 if command == "show" else 0), result.output
    assert sorted(tmp_path.iterdir()) == files
