"""Tables that cannot have their names in the catalog, what maintenance says of tables at which something fails, and
patterns that no table has. Tables that get their names are in tests/scenarios/renames.txt."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import TablesConfig
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CatalogUnreachableError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.pipeline.apply import TableLocation, rename_to_source_names
from cdc_lakehouse.pipeline.feed_tables import TakenNames, unmatched_patterns
from tests.changelog.statements import history
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.lakes import TestLake
from tests.lake import CREATE, DROP, ID, NOON, RENAME, change, make_current_table


def named(lake: TestLake, other: dict[str, Any] | None, error: Exception | None = None) -> str:
    """`a` is to be called `b`, which may be another table's, and `c` is to be called `d`."""
    tables, lives = CurrentTables(lake.lake, lake.feed), dict[str, Incarnation]()
    for name, more in {"a": {}, "c": {}, **({} if other is None else {"b": other})}.items():
        changes = [change(10, name, CREATE), *([change(20, name, DROP)] if "dropped" in more else [])]
        ((id, life),) = history(*changes).incarnations().items()
        properties = {"cdc_dropped-ts": "20"} if "dropped" in more else {"cdc_feed": more["feed"]} if more else {}
        make_current_table(lake, life, tables.identifier(TableName("d", name)), **properties)
        lives |= {} if "dropped" in more else {id: life}

    def rename(old: tuple[str, str], new: tuple[str, str]) -> None:
        if error is not None and new[1] == "b":
            raise error
        real(old, new)

    real: Any = lake.lake.catalog.rename_table
    at = {name: tables.identifier(TableName("d", name)) for name in "abcd"}
    placed = [TableLocation(lives[f"d.{now}#1"], at[now], at[name]) for now, name in ("ab", "cd")]
    with mock.patch.object(lake.lake.catalog, "rename_table", rename):
        ((held, reason),) = rename_to_source_names(tables, placed, lives).items()
    made = [lake.lake.catalog.load_table(each) for each in lake.lake.catalog.list_tables(at["a"].namespace)]
    found = sorted(f"{each.properties['cdc.incarnation'][2]} is {each.name()[-1]}" for each in made)
    return f"{', '.join(found)}; {held} held: {reason}".replace(lake.name, "f")


def taken(exclude: str, since: int) -> str:
    """`a` became `b` at 20, and `a` again at 30."""
    found = History()
    renamed = [change(at, to, RENAME, f"RENAME TABLE {of} TO {to}") for at, of, to in [(20, "a", "b"), (30, "b", "a")]]
    found.apply([change(10, "a", CREATE), *renamed])
    names = TakenNames.of(TablesConfig(include=("*.*",), exclude=tuple(f"d.{each}" for each in exclude)), found, since)
    return "".join(name for name in "ab" if names.takes_name(TableName("d", name))) or "none"


def unmatched(lake: TestLake, *include: str) -> list[str]:
    lake.configure(tables={"include": include})
    found = lake.run().history
    assert unmatched_patterns(lake.feed.tables, found.history) == []
    found.record([change(4, "", 1, "CREATE DATABASE `d`"), change(5, "t", 0, "", ID)], NOON)
    found.record([change(7, "before", 0, "", ID), change(8, "u", 14, "RENAME TABLE `before` TO `u`", ID)], NOON)
    return unmatched_patterns(lake.feed.tables, found.history)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/names.txt"), ids=str)
def test_names_are_given_taken_and_matched(lake: TestLake, case: Case, update: bool) -> None:
    of_lake = {"named": functools.partial(named, lake), "unmatched": functools.partial(unmatched, lake)}
    case.compare(evaluated(case, {**of_lake, "taken": taken, "away": CatalogUnreachableError("away")}), update=update)


def test_table_without_a_database_is_no_asset(lake: TestLake) -> None:
    """Rows of none were taken once. Dagster knows no group without a name."""
    lake.run().history.record([replace(change(5, "u", CREATE), database=""), change(6, "t", CREATE)], NOON)
    keys = build_definitions(lake.config).resolve_all_asset_keys()
    assert any(key.path[-2:] == ["d", "t"] for key in keys) and not any("" in key.path for key in keys)
