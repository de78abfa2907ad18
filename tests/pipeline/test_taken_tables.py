"""Which names' rows are wanted, by what is known of the tables that have them."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import TablesConfig
from cdc_lakehouse.pipeline.taken_tables import TakenNames
from tests.lake import CREATE, change

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
