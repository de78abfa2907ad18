"""Inputs that users of other tools have reported, or that documents of tools show, each played stage by stage: every
table equals its rows, or is held with the right reason.

A case is `{name}/case.json` of the archive: `kind` and `options` of the source, other settings of the `feed`, and
`right`, the result in words; `expected.json` has the rows after each stage. A `sink` lays `sink/{stage}` over the stage
before, a `dump` is read beside a sink, and `kafka` sends `msgs/{stage}.jsonl`.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.segments import totals
from cdc_lakehouse.operate.state import uncounted_lines
from tests.kit.data_sets import ARCHIVES
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

CASES = dict(
    line.split(": ", 1) if ": " in line else (line, "")
    for line in ARCHIVES.joinpath("cases.txt").read_text(encoding="utf-8").splitlines()
)
"""By case, the tables that are held at the end, each with a part of the reason."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cases")
    with tarfile.open(ARCHIVES / "cases.tar.xz") as packed:
        packed.extractall(directory)
    return directory


class Case:
    def __init__(
        self, directory: Path, new_lake: Callable[..., TestLake], patch: pytest.MonkeyPatch, **feed: Any
    ) -> None:
        self._directory = directory
        self.truth = Truth(directory)
        told = json.loads((directory / "case.json").read_text(encoding="utf-8"))
        self._topic = MemoryTopic(patch) if told["kind"] == "kafka" else None
        source: dict[str, Any] = dict(told["options"])
        if self._topic is not None:
            source = {"type": "kafka", "bootstrap_servers": "localhost:1", "topics": ["cdc"], **source}
        if told["kind"] == "dump":
            source["initial"] = {"uri": str(directory / "dump"), **source["initial"]}
        self.lake = new_lake(source=source, **told.get("feed", {}), **feed)

    def advance(self, stage: int) -> None:
        if self._topic is None:
            shutil.copytree(self._directory / f"sink/{stage}", self.lake.sink, dirs_exist_ok=True)
        else:
            lines = (self._directory / f"msgs/{stage}.jsonl").read_text(encoding="utf-8").splitlines()
            self._topic.send(map(json.loads, lines))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CASES)
def test_case_equals_its_rows_or_is_held_with_its_reason(
    name: str, cases: Path, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / name, new_lake, monkeypatch)
    for stage in range(len(case.truth.stages)):
        case.advance(stage)
        done = run_all(case.lake.run())
        held = {done.applied.lives[id].last.name.table: reason for id, reason in done.applied.held.items()}
        said = dict(each.split(" because ") for each in CASES[name].split(" | ") if each)
        assert held.keys() == said.keys() and all(words in held[table] for table, words in said.items()), held
        expected = case.truth.tables(stage)
        tables = case.lake.tables()
        case.lake.check(expected, except_for={each for each in {*expected, *tables} if each[1] in held})
        for summary in (each.current_snapshot().summary for each in tables.values() if each.current_snapshot()):
            # A data file has one deletion vector, however many runs have deleted rows of it.
            assert int(summary["total-delete-files"]) <= int(summary["total-data-files"])


@pytest.mark.parametrize("policy", ["ignore", "quarantine"])
def test_tombstones_are_counted_or_hold_by_policy(
    policy: str, cases: Path, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / "topic-tombstones", new_lake, monkeypatch, policy={"tombstones": policy})
    case.advance(0)
    done = run_all(case.lake.run())
    (segment,) = case.lake.machinery("segments")
    assert (segment["tombstones"], segment["quarantined"]) == ((1, 0) if policy == "ignore" else (0, 1))
    assert uncounted_lines(case.lake.lake, case.lake.name) == []
    assert all("has no value" in reason for reason in done.applied.held.values())
    assert len(done.applied.held) == segment["quarantined"]
    assert totals(case.lake.run().segments.rows).tombstones == segment["tombstones"]


def test_dump_without_its_position_is_refused(
    cases: Path, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / "mydumper-without-position", new_lake, monkeypatch)
    case.advance(0)
    with pytest.raises(SourceError, match=r"does not say its position.*dump MySQL again with its binlog on"):
        run_all(case.lake.run())


def test_cases_are_all_played(cases: Path) -> None:
    assert {each.name for each in cases.iterdir()} == {*CASES, "mydumper-without-position"}
