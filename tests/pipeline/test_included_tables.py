"""Patterns of `tables.include`, compared with the tables that a feed has seen."""

from __future__ import annotations

import pytest

from cdc_lakehouse.pipeline.included_tables import unmatched_patterns
from tests.kit.lakes import TestLake
from tests.lake import ID, NOON, change


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
    assert unmatched_patterns(lake.feed, history.history) == []
    history.record([change(4, "", 1, "CREATE DATABASE `d`"), change(5, "t", 0, "", ID)], NOON)
    history.record([change(7, "before", 0, "", ID), change(8, "u", 14, "RENAME TABLE `before` TO `u`", ID)], NOON)
    found = unmatched_patterns(lake.feed, history.history)
    assert found == [f"the pattern {each}" for each in unmatched]
