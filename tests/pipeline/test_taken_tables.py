"""Which names' rows are wanted, by what is known of the tables that have them; and patterns that no table has."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import TablesConfig
from cdc_lakehouse.pipeline.feed_tables import TakenNames, unmatched_patterns
from tests.kit.lakes import TestLake
from tests.lake import CREATE, ID, NOON, change

RENAME = 14


@pytest.mark.parametrize(
    ("exclude", "since", "taken"),
    [
        (["d.a"], 0, {"a", "b"}),
        (["d.a"], 25, {"a", "b"}),
        (["d.a"], 30, {"b"}),
        (["d.b"], 35, {"a", "b"}),
        (["d.a", "d.b"], 0, set[str]()),
    ],
)
def test_a_table_is_wanted_that_has_a_taken_name_since_the_last_cut(
    exclude: list[str], since: int, taken: set[str]
) -> None:
    """`a` became `b` at 20, and `a` again at 30."""
    history = History()
    renamed = [change(at, to, RENAME, f"RENAME TABLE {of} TO {to}") for at, of, to in [(20, "a", "b"), (30, "b", "a")]]
    history.apply([change(10, "a", CREATE), *renamed])
    names = TakenNames.of(TablesConfig(exclude=exclude), history.incarnations().values(), since)
    assert {name for name in ("a", "b") if names.takes_name(TableName("d", name))} == taken


def test_earlier_name_typed_in_another_case_takes_the_rows() -> None:
    """The table is older than the feed: its name before is known from the RENAME alone."""
    history = History()
    history.apply([change(20, "b", RENAME, "RENAME TABLE Old TO b", ID)])
    names = TakenNames.of(TablesConfig(include=["d.b"]), history.incarnations().values(), 0)
    assert names.takes("d", "old") and names.takes("D", "OLD") and not names.takes("d", "older")


@pytest.mark.parametrize(
    ("include", "unmatched"),
    [
        (["*.*"], []),
        (["d.t", "d.?", "d.[tu]"], []),
        (["d.t*", "shop.*"], ["shop.* of tables.include matches none of the 3 tables that were seen"]),
        (["D.T"], ["D.T of tables.include matches none of the 3 tables that were seen; d.t differs in letter case"]),
        (["d.before"], []),  # What a table was called before.
        (["d."], ["d. of tables.include matches none of the 3 tables that were seen"]),
    ],
)
def test_patterns_without_a_table(lake: TestLake, include: list[str], unmatched: list[str]) -> None:
    lake.configure(tables={"include": include})
    history = lake.run().history
    assert unmatched_patterns(lake.feed.tables, history.history) == []
    history.record([change(4, "", 1, "CREATE DATABASE `d`"), change(5, "t", 0, "", ID)], NOON)
    history.record([change(7, "before", 0, "", ID), change(8, "u", 14, "RENAME TABLE `before` TO `u`", ID)], NOON)
    found = unmatched_patterns(lake.feed.tables, history.history)
    assert found == [f"the pattern {each}" for each in unmatched]
