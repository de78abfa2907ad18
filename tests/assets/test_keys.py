"""Asset keys have one shape, and outputs names that Dagster takes."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from cdc_lakehouse.assets import keys
from cdc_lakehouse.changelog.schema import TableName

NAMES = st.text(st.sampled_from("aA_-/ `订é%0"), min_size=1, max_size=5)
TABLES = st.builds(TableName, NAMES, NAMES)


def test_keys_name_feed_layer_database_and_table() -> None:
    table = TableName("sh.op", "or/ders")
    assert keys.raw_key("f").path == ["f", "raw"]
    assert keys.events_key("f").path == ["f", "events"]
    assert keys.schema_key("f", table).path == ["f", "schema", "sh.op", "or/ders"]
    assert keys.current_key("f", table).path == ["f", "current", "sh.op", "or/ders"]
    assert keys.checkpoint_key("f").path == ["f", "checkpoint"]


@given(one=TABLES, other=TABLES)
@example(one=TableName("a_b", "c"), other=TableName("a", "b_c"))
@example(one=TableName("a", "b__c"), other=TableName("a__b", "c"))
@example(one=TableName("d", "T"), other=TableName("d", "t"))
@example(one=TableName("a._", "b"), other=TableName("a", "_.b"))
def test_each_table_has_an_output_name_of_its_own(one: TableName, other: TableName) -> None:
    name = keys.output_name("current", one)
    assert re.fullmatch(r"[A-Za-z0-9_]+", name)
    assert (name == keys.output_name("current", other)) == (one == other)
    assert name != keys.output_name("schema", one)
