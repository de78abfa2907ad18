"""The numbers of materializations, as Dagster stores them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from cdc_lakehouse.assets import metadata
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.lake.current.tables import TableState
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.segments import Segment, Totals, as_rows, totals
from cdc_lakehouse.pipeline.apply import Applied, AppliedTable
from cdc_lakehouse.pipeline.publish import Published
from cdc_lakehouse.pipeline.source import Landed
from tests.changelog.statements import history
from tests.lake import ADD_COLUMN, CREATE, ID, NOON, change, segment, text

T = tso(NOON)
LATER = NOON + datetime.timedelta(seconds=90)
SEGMENTS = [
    segment("d/t/1/CDC000001.json", state="decoded", events=3, inserts=2, updates=1, deletes=0, quarantined=1,
            min_commit_ts=T + 5, max_commit_ts=T + 9),
    segment("d/t/1/CDC000002.json", state="decoded", events=0, inserts=0, updates=0, deletes=0, quarantined=0),
    segment("d/u/1/CDC000001.json", state="decoded", events=1, inserts=0, updates=0, deletes=1, quarantined=0,
            min_commit_ts=T, max_commit_ts=T),
]  # fmt: skip


def sums(segments: list[Segment]) -> Totals:
    return totals(as_rows(segments))


def stored(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of metadata once Dagster has taken it."""
    return {name: value.value for name, value in dg.AssetMaterialization("a", metadata=metadata).metadata.items()}


STORY = history(
    change(T, "t", CREATE, "CREATE TABLE t (id BIGINT PRIMARY KEY)"),
    change(T + 1, "t", ADD_COLUMN, "ALTER TABLE t ADD COLUMN x VARCHAR(20)", ID, text("x")),
)


def test_of_what_landed() -> None:
    landed = Landed(tuple(SEGMENTS), ("it went backwards",), T, 3)
    seen = stored(metadata.landed_metadata(landed, sums(SEGMENTS[:2]), sums(SEGMENTS[:1]), LATER))
    assert (seen["segments"], seen["bytes"], seen["source_lag_seconds"]) == (2, 20, 90.0)
    assert (seen["new_segments"], seen["new_bytes"]) == (1, 10)
    assert seen["source_checkpoint_ts"] == str(T) and seen["source_checkpoint_time"] == NOON.timestamp()
    assert "it went backwards" in seen["faults"]


def test_of_decoded_segments() -> None:
    seen = stored(metadata.events_metadata(sums(SEGMENTS), sums(SEGMENTS[:1])))
    counts = {"events": 4, "inserts": 2, "updates": 1, "deletes": 1, "quarantined": 1, "segments": 3, "bytes": 30}
    assert {name: seen[name] for name in counts} == counts
    assert (seen["new_segments"], seen["new_events"]) == (1, SEGMENTS[0].events)
    assert (seen["dagster/row_count"], seen["first_commit_ts"], seen["last_commit_ts"]) == (4, str(T), str(T + 9))


def test_of_ddl() -> None:
    versions = list(STORY.versions)
    noted = [replace(versions[0], note="a note"), versions[1]]
    lives = {noted[0].incarnation: Incarnation(noted[0].incarnation, tuple(noted))}
    seen = stored(metadata.schema_metadata(noted, lives))
    assert (seen["ddl"], seen["effects"], seen["version_ts"]) == (2, "create, evolve", str(T + 1))
    assert "ALTER TABLE t ADD COLUMN x" in seen["statements"] and "2026-06-01 12:00:00" in seen["statements"]
    assert "```diff\n+ x varchar(20)\n```" in seen["statements"] and "+ id" not in seen["statements"]
    assert "a note" in seen["notes"]
    columns = seen["dagster/column_schema"].columns
    shown = [(each.name, each.type, each.constraints.nullable, dict(each.tags)) for each in columns]
    assert shown == [("id", "bigint", False, {"key": ""}), ("x", "varchar(20)", True, {})]
    # Columns that rows do not have are not in a table's schema.
    id, x = versions[1].columns
    carried = metadata.column_schema(replace(versions[1], columns=(id, replace(x, carried=False))))
    assert [column.name for column in carried.columns] == ["id"]


def applied(held: dict[str, str]) -> tuple[AppliedTable, Applied]:
    (life,) = STORY.incarnations().values()
    state = TableState(
        Identifier("d", "t"), life.id, life.last.name, T, 1, "x", (), (), (), row_count=41, snapshot_id=2**62,
        dropped_ts=None,
    )  # fmt: skip
    table = AppliedTable(life, state, ("id",), upserts=5, deletes=2, zero_dates=1, rebuilt=True)
    return table, Applied(T, {life.id: life}, (table,), held)


def test_of_a_table() -> None:
    table, _ = applied({})
    seen = stored(metadata.table_metadata(table, T, LATER))
    wanted = {"rows": 41, "upserts": 5, "deletes": 2, "zero_dates_as_null": 1, "rebuilt": True, "lag_seconds": 90.0}
    assert {name: seen[name] for name in wanted} == wanted
    # A snapshot id is beyond what a browser counts with.
    assert seen["snapshot_id"] == str(2**62)
    assert (seen["dagster/row_count"], seen["iceberg_table"]) == (41, "d.t")


def test_of_a_cut() -> None:
    _, done = applied({"d.b#1": "second", "d.a#1": "first"})
    rows = tuple(CutRow(T, "d", name, None, 20, NOON) for name in ("t", "u"))
    seen = stored(metadata.checkpoint_metadata(Published(Cut(T), rows, True), done, LATER))
    wanted = {"tables": 2, "tables_changed": 1, "rows": 40, "tables_held": 2, "new_cut": True, "lag_seconds": 90.0}
    assert {name: seen[name] for name in wanted} == wanted
    assert seen["held"].index("first") < seen["held"].index("second")


def test_of_nothing() -> None:
    """A source without a checkpoint, segments without an event, and nothing published."""
    landed = stored(metadata.landed_metadata(Landed(files_listed=0), sums([]), sums([]), LATER))
    assert landed == {"segments": 0, "bytes": 0, "new_segments": 0, "new_bytes": 0, "files_listed": 0}
    events = stored(metadata.events_metadata(sums(SEGMENTS[1:2]), sums([])))
    assert events["events"] == 0 and not any("commit" in name for name in events)
    cut = stored(metadata.checkpoint_metadata(Published(Cut(), (), False), Applied(0, {}, (), {}), LATER))
    assert (cut["tables"], cut["new_cut"]) == (0, False)
    assert not {"held", "lag_seconds", "checkpoint_ts"} & set(cut)
