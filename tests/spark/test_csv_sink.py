"""csv sinks: what decides which column a value is, options that do not fit, and rows that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.events import Events
from tests.kit.hand_sinks import CREATE, ID, HandSink, integer, row, text
from tests.kit.kills import KillAtCall
from tests.kit.lakes import TestLake, run_all, write_config

pytestmark = pytest.mark.spark

VIRTUAL = (ID, integer("g"), integer("a"), text("s"))
"""`g` is a virtual generated column; a table older than the feed, of which no statement says so."""


def csv(**options: Any) -> dict[str, Any]:
    return {"protocol": "csv", "csv": {"include-commit-ts": True, **options}}


def quarantined(lake: TestLake) -> list[tuple[str, int | None, str]]:
    return [(r["error_class"], r["line"], r["state"]) for r in lake.machinery("quarantine")]


def two_tables(lake: TestLake, *lines: str) -> HandSink:
    """Table `sound`, and table `t` with the columns of `VIRTUAL` and these lines."""
    sink = HandSink(lake.sink)
    sink.schema("sound", 1, ID, text("s"))
    sink.rows("d/sound", 1, row("I", "sound", 5, "1", '"x"'))
    sink.schema("t", 1, *VIRTUAL)
    sink.rows("d/t", 1, *lines)
    sink.checkpoint(9)
    return sink


def test_a_virtual_column_that_nothing_marks_holds_the_table_until_it_is_named(
    new_lake: Callable[..., TestLake],
) -> None:
    lake = new_lake(source=csv())
    two_tables(lake, row("I", "t", 5, "1", "2", '"three"'), row("U", "t", 6, "1", "20", r"\N"))
    done = run_all(lake.run())
    (reason,) = done.applied.held.values()
    assert "3 values" in reason and "4 columns" in reason and 'tables.settings."d.t".virtual_columns' in reason
    assert quarantined(lake) == [("UnknownColumns", None, "open")]
    assert lake.rows("sound") == [(1, "x")]

    settings = {"settings": {"d.t": {"virtual_columns": ["G"]}}}
    root = lake.config.lake.warehouse.removeprefix("file://").removesuffix("/warehouse")
    config = write_config(
        lake.sink.parent / "named.yaml", type(lake.sink)(root), lake.sink, lake.name, source=csv(), tables=settings
    )
    lake.config = config
    lake.go_through()
    assert quarantined(lake) == [("UnknownColumns", None, "replayed")]
    assert lake.rows("t") == [(1, 20, None)]


def test_the_header_decides_where_it_has_as_many_names_as_there_are_values(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=csv(**{"output-field-header": True}))
    sink = two_tables(lake)
    sink.rows("d/t", 1, "ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,id,a,s",
              row("I", "t", 5, "1", "2", '"three"'))  # fmt: skip
    lake.go_through()
    assert lake.rows("t") == [(1, 2, "three")]


def test_the_statement_decides(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=csv())
    sink = two_tables(lake)
    columns = "`id` BIGINT PRIMARY KEY, `g` INT GENERATED ALWAYS AS (`a`+1) VIRTUAL, `a` INT, `s` VARCHAR(50)"
    sink.schema("t", 1, *VIRTUAL, action=CREATE, query=f"CREATE TABLE `t` ({columns})")
    sink.rows("d/t", 1, row("I", "t", 5, "1", "2", '"three"'))
    lake.go_through()
    assert lake.rows("t") == [(1, 2, "three")]


def test_columns_of_expression_indexes_are_never_in_rows(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=csv())
    sink = HandSink(lake.sink)
    sink.schema("t", 1, ID, text("s"), text("_V$_ix_0"))
    sink.rows("d/t", 1, row("I", "t", 5, "1", '"x"'))
    sink.checkpoint(9)
    lake.go_through()
    assert lake.rows("t") == [(1, "x")]


PLAIN = row("I", "t", 5, "1", "2", "3", '"x"')


@pytest.mark.parametrize(
    ("options", "line", "said"),
    [
        ({}, '"I","t","d",1,2,3,"x"', "include-commit-ts"),
        ({"output-old-value": True}, PLAIN, "output-old-value"),
        ({}, row("I", "t", 5, "1", "2", "3", '"x"', extra=["false"]), "output-old-value"),
        ({}, row("I", "t", 5, '"1"', "1", "2", "3", '"x"'), "output-handle-key"),
        ({"delimiter": ";"}, PLAIN, "delimiter"),
        ({"delimiter": "|#|"}, PLAIN, "delimiter"),
        ({"quote": "'"}, PLAIN, "quote"),
        ({"quote": ""}, PLAIN, "quote"),
    ],
)
def test_an_option_that_the_rows_contradict_is_named(
    options: dict[str, Any], line: str, said: str, new_lake: Callable[..., TestLake]
) -> None:
    lake = new_lake(source=csv(**options))
    sink = HandSink(lake.sink)
    sink.schema("t", 1, *VIRTUAL)
    sink.rows("d/t", 1, line)
    sink.checkpoint(9)
    with pytest.raises(SourceError) as refused:
        run_all(lake.run())
    assert said in str(refused.value) and "source.csv" in str(refused.value)


def test_rows_wait_for_their_schema_file(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=csv())
    sink = HandSink(lake.sink)
    sink.rows("d/t", 1, row("I", "t", 5, "1", '"x"'))
    sink.checkpoint(9)
    done = run_all(lake.run())
    (reason,) = done.applied.held.values()
    assert "schema file" in reason
    sink.schema("t", 1, ID, text("s"))
    lake.go_through()
    assert lake.rows("t") == [(1, "x")]


def test_an_update_with_old_values_is_one_event(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=csv(**{"output-old-value": True}))
    sink = HandSink(lake.sink)
    sink.schema("t", 1, ID, text("s"))
    sink.rows(
        "d/t", 1,
        row("I", "t", 5, "1", '"x"', extra=["false"]),
        row("D", "t", 6, "1", '"x"', extra=["true"]), row("I", "t", 6, "2", '"y"', extra=["true"]),
        row("D", "t", 7, "2", '"y"', extra=["false"]), row("I", "t", 7, "3", '"z"', extra=["false"]),
    )  # fmt: skip
    sink.checkpoint(9)
    run_all(lake.run())
    events = sorted(lake.machinery("events"), key=lambda event: event["line"])
    assert [event["op"] for event in events] == ["I", "U", "D", "I"]
    assert events[1]["before"] == {"id": "1", "s": "x"} and events[1]["after"] == {"id": "2", "s": "y"}
    assert lake.rows("t") == [(3, "z")]


def test_a_file_that_goes_between_a_crash_and_the_look_at_its_bad_rows(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=csv(), policy={"quarantine": "skip"})
    sink = two_tables(lake, PLAIN)
    place = sink.rows("d/t", 1, row("I", "t", 6, "2", "2", "3", '"x"'), "garbage", index=2)
    with KillAtCall(Events, "commit", 1, after=True)(lake) as killed:
        run_all(lake.run())
    assert killed.happened
    place.unlink()
    run_all(lake.run())
    assert lake.rows("t") == [(1, 2, 3, "x"), (2, 2, 3, "x")]
    assert quarantined(lake) == [("NotLookedAt", None, "open")]
