"""The history of tables is the same however its changes came and whenever it is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from tests import lake
from tests.lake import ADD_COLUMN, CREATE, DROP, ID, LATER, NOON, RENAME, TRUNCATE, change, text

Runs = Callable[[], SchemaHistory]

STORY = [
    change(10, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)"),
    change(20, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x")),
    change(30, "b", RENAME, "RENAME TABLE d.a TO d.b", ID, text("x")),
    change(40, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)"),
    change(50, "b", TRUNCATE, "TRUNCATE TABLE b", ID, text("x")),
    change(60, "a", DROP, "DROP TABLE a"),
    change(70, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY, y VARCHAR(20))", ID, text("y")),
]
TOLD = {
    "d.a#1": [("d.a", 10, "create", ["id"]), ("d.a", 20, "evolve", ["id", "x"]), ("d.b", 30, "move", ["id", "x"]),
              ("d.b", 50, "empty", ["id", "x"])],
    "d.a#2": [("d.a", 40, "create", ["id"]), ("d.a", 60, "drop", ["id"])],
    "d.a#3": [("d.a", 70, "create", ["id", "y"])],
}  # fmt: skip


RESTARTS = [
    replace(change(ts, name, 0, "", *columns), kind="columns")
    for ts, name, *columns in (
        (12, "a", ID), (13, "a", ID), (22, "a", ID, text("x")), (33, "b", ID, text("x")), (45, "a", ID),
        (55, "b", ID, text("x")), (75, "a", ID, text("y")),
    )
]  # fmt: skip
"""What a changefeed writes of its tables when it starts again: they have not changed."""


@pytest.fixture
def history(tmp_path: Path) -> Runs:
    return lake.runs(SchemaHistory, tmp_path)


def told(history: SchemaHistory) -> dict[str, list[tuple[str, int, str, list[str]]]]:
    return {
        id: [(str(v.name), v.commit_ts, v.effect, [column.name for column in v.columns]) for v in life.versions]
        for id, life in history.history.incarnations().items()
    }


def table_of(directory: Path) -> list[dict[str, Any]]:
    rows = lake.stored(directory, "schema_history").scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["number"])


def test_no_changes_are_no_commit(history: Runs, tmp_path: Path) -> None:
    assert history().record([], NOON) == []
    assert lake.stored(tmp_path, "schema_history") is None


def test_a_story_is_read_as_it_was_told(history: Runs) -> None:
    first = history()
    made = first.record(STORY, NOON)
    assert [version.commit_ts for version in made] == [10, 20, 30, 40, 50, 60, 70]
    assert told(first) == told(history()) == TOLD
    assert history().history.versions == first.history.versions == made
    assert history().changes.keys() == {each.origin for each in STORY}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(STORY + RESTARTS), cuts=st.sets(st.integers(1, len(STORY) - 1), max_size=3))
def test_changes_in_any_order_and_number_of_runs_make_one_history(
    tmp_path_factory: pytest.TempPathFactory, order: list[SchemaChange], cuts: set[int]
) -> None:
    directory = tmp_path_factory.mktemp("order")
    history = lake.runs(SchemaHistory, directory)
    for low, high in itertools.pairwise([0, *sorted(cuts), len(order)]):
        history().record(order[low:high], NOON)
    again = history()
    assert told(again) == TOLD
    assert again.changes == {each.origin: each for each in STORY + RESTARTS}
    assert [row["number"] for row in table_of(directory)] == list(range(1, len(STORY) + 1))
    described = again.history.described()
    for each in STORY + RESTARTS:
        version = described[TableName(each.database, each.table), each.commit_ts]
        assert version.effect == "drop" or [column.name for column in version.columns] == [c.name for c in each.columns]


def test_schema_history_restarts_without_changes_add_no_rows(history: Runs, tmp_path: Path) -> None:
    history().record(STORY, NOON)
    before = history().history.versions
    for restart in range(100, 140):
        again = replace(change(restart, "a", 0, "", ID, text("y")), kind="columns")
        assert history().record([again], LATER) == []
    rows = table_of(tmp_path)
    assert history().history.versions == before and len(rows) == len(STORY)
    assert {each["change"] for row in rows for each in row["repeats"]} == {None}, "a place and a time, no columns"
    assert len(history().changes) == len(STORY) + 40, "their files are not read again"
    # A change that comes late, from before the restarts: what they show is no repetition any more.
    late = change(120, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN z VARCHAR(20)", ID, text("y"), text("z"))
    made = history().record([replace(late, commit_ts=119, origin="late")], LATER)
    assert [version.commit_ts for version in made] == [119]
    assert [each.commit_ts for each in history().history.versions][-2:] == [119, 120]


def test_a_late_change_gives_the_versions_it_made_and_leaves_when_others_were_applied(
    history: Runs, tmp_path: Path
) -> None:
    history().record([STORY[0], *STORY[2:]], NOON)
    made = history().record([STORY[1]], LATER)
    assert [(version.commit_ts, version.effect) for version in made] == [(20, "evolve")]
    applied = {row["origin"]: row["applied_at"] for row in table_of(tmp_path)}
    assert applied == {each.origin: LATER if each is STORY[1] else NOON for each in STORY}


def test_a_change_of_several_tables_is_kept_once(history: Runs, tmp_path: Path) -> None:
    gone = change(20, "", lake.DROP_DATABASE, "DROP DATABASE d")
    history().record([change(10, "a", CREATE), change(11, "b", CREATE), gone], NOON)
    rows = table_of(tmp_path)
    assert [row["table"] for row in rows if row["origin"] == gone.origin] == ["", "a", "b"]
    assert [row["change"] is not None for row in rows if row["origin"] == gone.origin] == [True, False, False]
    assert {life.dropped_ts for life in history().history.incarnations().values()} == {20}


def test_rows_say_what_people_ask(history: Runs, tmp_path: Path) -> None:
    history().record(STORY[:3], NOON)
    last = table_of(tmp_path)[-1]
    assert (last["statement"], last["effect"], last["previous_table"]) == ("RENAME TABLE d.a TO d.b", "move", "a")
    assert last["primary_key"] == ["id"]
    assert last["columns"] == [
        {"id": 1, "name": "id", "type": "bigint", "nullable": False, "key": True, "initial_default": None},
        {"id": 2, "name": "x", "type": "varchar(20)", "nullable": True, "key": False, "initial_default": None},
    ]


def test_names_with_dots_are_tables_of_their_own(history: Runs) -> None:
    one = SchemaChange(10, "x.y", "z", CREATE, "CREATE TABLE z (id BIGINT PRIMARY KEY)", (ID,), "one")
    other = SchemaChange(11, "x", "y.z", CREATE, "CREATE TABLE `y.z` (id BIGINT PRIMARY KEY)", (ID,), "other")
    history().record([one, other], NOON)
    assert len(history().history.incarnations()) == 2
