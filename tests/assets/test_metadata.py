"""The numbers of materializations, as Dagster stores them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from cdc_lakehouse.assets import metadata
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, state_of
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.table_health import TableHealth
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.segments import Segment, Totals, as_rows, totals
from cdc_lakehouse.pipeline.apply import Applied, AppliedTable
from cdc_lakehouse.pipeline.publish import Published
from cdc_lakehouse.pipeline.source import Landed
from tests.changelog.statements import history
from tests.lake import ADD_COLUMN, CREATE, ID, NOON, change, make_current_table, segment, text
from tests.pipeline import lake_in

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
    change(
        T + 1, "t", ADD_COLUMN, "ALTER TABLE t ADD COLUMN x VARCHAR(20) DEFAULT 'new' COMMENT 'what it is'",
        ID, replace(text("x"), default="new"),
    ),
)  # fmt: skip


def test_of_what_landed() -> None:
    landed = Landed(tuple(SEGMENTS), ("it went backwards",), T, 3)
    seen = stored(metadata.landed_metadata(landed, sums(SEGMENTS[:2]), sums(SEGMENTS[:1]), LATER))
    assert (seen["segments"], seen["bytes"], seen["source_lag_seconds"]) == (2, 20, 90.0)
    assert (seen["new_segments"], seen["new_bytes"]) == (1, 10)
    assert seen["source_checkpoint_ts"] == str(T) and seen["source_checkpoint_time"] == NOON.timestamp()
    assert "it went backwards" in seen["faults"]


def test_of_decoded_segments() -> None:
    seen = stored(metadata.events_metadata(sums(SEGMENTS), sums(SEGMENTS[:1]), 9, by_date=True))
    counts = {
        "dagster/partition_row_count": 4,
        "inserts": 2,
        "updates": 1,
        "deletes": 1,
        "quarantined": 1,
        "segments": 3,
        "bytes": 30,
    }
    assert {name: seen[name] for name in counts} == counts
    assert (seen["new_segments"], seen["new_events"]) == (1, SEGMENTS[0].events)
    # Of a date there are its own rows and those of the table, which are not the same number.
    assert (seen["dagster/row_count"], seen["first_commit_ts"], seen["last_commit_ts"]) == (9, str(T), str(T + 9))
    undated = stored(metadata.events_metadata(sums(SEGMENTS), sums([]), 4, by_date=False))
    assert undated["dagster/row_count"] == 4 and "dagster/partition_row_count" not in undated


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
    assert [each.description for each in columns] == [None, "default new; comment: what it is"]
    # Columns that rows do not have are not in a table's schema.
    id, x = versions[1].columns
    carried = metadata.column_schema(replace(versions[1], columns=(id, replace(x, carried=False))))
    assert [column.name for column in carried.columns] == ["id"]


def applied() -> tuple[AppliedTable, Applied]:
    (life,) = STORY.incarnations().values()
    state = TableState(
        Identifier("d", "t"), life.id, life.last.name, T, 1, "x", (), (), ("id",), row_count=41, snapshot_id=2**62,
        dropped_ts=None, format_version=3, counts_rows=False,
    )  # fmt: skip
    table = AppliedTable(life, state, ("id",), upserts=5, deletes=2, zero_dates=1, older=3, rebuilt=True)
    return table, Applied(T, {life.id: life}, (table,), {})


@pytest.fixture
def lake_table(tmp_path: Path) -> Any:
    """A current-state table of the columns of `STORY`, in one snapshot."""
    lake = lake_in(tmp_path)
    (life,) = STORY.incarnations().values()
    columns = pa.schema([("id", pa.int64()), ("x", pa.string()), ("_commit_ts", pa.int64())])
    where = CurrentTables(lake.lake, lake.feed).identifier(life.last.name)
    table = make_current_table(lake, life, where, columns, cdc_columns='[[1, "id"], [2, "x"]]')
    table.append(pa.table({"id": [1, 2], "x": ["a", "b"], "_commit_ts": [T, T]}, schema=columns))
    return lake.lake.load(where)


def test_of_a_table(lake_table: Any) -> None:
    seen = stored(metadata.table_metadata("f", table_of(lake_table), lake_table, T, LATER))
    wanted = {"upserts": 5, "deletes": 2, "zero_dates_as_null": 1, "rebuilt": True, "lag_seconds": 90.0}
    assert {name: seen[name] for name in wanted} == wanted
    (snapshot,) = lake_table.snapshots()
    # A snapshot id is beyond what a browser counts with.
    assert seen["snapshot_id"] == str(snapshot.snapshot_id)
    assert seen["dagster/row_count"] == 2 and "rows" not in seen, "no number is plotted twice"
    assert seen["dagster/table_name"] == "lake." + ".".join(lake_table.name()[-2:])
    files = [task.file for task in lake_table.scan().plan_files()]
    assert (seen["files"], seen["bytes"]) == (len(files), sum(file.file_size_in_bytes for file in files))
    assert seen["delete_ratio"] == 0.0


def test_a_tables_columns_are_those_of_iceberg_with_the_sources_in_their_descriptions(lake_table: Any) -> None:
    seen = stored(metadata.table_metadata("f", table_of(lake_table), lake_table, T, LATER))
    shown = {
        each.name: (each.type, each.description, each.constraints.nullable, dict(each.tags))
        for each in seen["dagster/column_schema"].columns
    }
    assert list(shown) == [field.name for field in lake_table.schema().fields]
    assert shown == {
        "id": ("long", "source: bigint NOT NULL", True, {"key": ""}),
        "x": ("string", "source: varchar(20); default new; comment: what it is", True, {}),
        "_commit_ts": ("long", "TSO of the latest change of the row", True, {}),
    }


def test_a_tables_columns_come_from_the_source_and_from_events(lake_table: Any) -> None:
    found = stored(metadata.table_metadata("f", table_of(lake_table), lake_table, T, LATER))["dagster/column_lineage"]
    lineage = {
        name: sorted(("/".join(dep.asset_key.path), dep.column_name) for dep in deps)
        for name, deps in found.deps_by_column.items()
    }
    assert lineage == {
        "id": [("f/events", "after"), ("f/schema/d/t", "id")],
        "x": [("f/events", "after"), ("f/schema/d/t", "x")],
        "_commit_ts": [("f/events", "commit_ts")],
    }


def test_deleted_rows_are_a_share_of_those_in_the_files() -> None:
    numbers = metadata.health_metadata(TableHealth(3, 1234, 48, 7, 2))
    assert numbers == {"files": 3, "bytes": 1234, "average_file_bytes": 411, "delete_ratio": round(7 / 48, 4)}
    assert metadata.health_metadata(TableHealth())["delete_ratio"] == 0
    compacted = stored(metadata.health_metadata(TableHealth(compacted_at=NOON)))["last_compaction"]
    assert compacted == NOON.timestamp()


def table_of(table: Any) -> AppliedTable:
    changed, _ = applied()
    return replace(changed, state=state_of(Identifier(*table.name()[-2:]), table))


def test_of_a_cut() -> None:
    _, done = applied()
    held = {TableName("d", "b"): "second", TableName("d", "a"): "first"}
    rows = tuple(CutRow(T, "d", name, None, 20, NOON) for name in ("t", "u"))
    seen = stored(metadata.checkpoint_metadata(Published(Cut(T), rows, True), done, held, LATER))
    wanted = {"tables": 2, "tables_changed": 1, "rows": 40, "tables_held": 2, "new_cut": True, "lag_seconds": 90.0}
    assert {name: seen[name] for name in wanted} == wanted
    assert seen["held"].index("first") < seen["held"].index("second")


def test_of_nothing() -> None:
    """A source without a checkpoint, segments without an event, and nothing published."""
    landed = stored(metadata.landed_metadata(Landed(files_listed=0), sums([]), sums([]), LATER))
    assert landed == {"segments": 0, "bytes": 0, "new_segments": 0, "new_bytes": 0, "files_listed": 0}
    events = stored(metadata.events_metadata(sums(SEGMENTS[1:2]), sums([]), 0, by_date=True))
    assert events["dagster/partition_row_count"] == 0 and not any("commit" in name for name in events)
    cut = stored(metadata.checkpoint_metadata(Published(Cut(), (), False), Applied(0, {}, (), {}), {}, LATER))
    assert (cut["tables"], cut["new_cut"]) == (0, False)
    assert not {"held", "lag_seconds", "checkpoint_ts"} & set(cut)


def test_names_and_statements_of_the_source_are_shown_as_they_are() -> None:
    """They are nobody's to choose: an image would be loaded by whoever looks."""
    name, why = TableName("d", "![x](http://a/b)"), "<img src=x> `a` **b**\n# c"
    shown = metadata.held_list({name: why}).value
    assert shown == r"- **d.!\[x\](http://a/b)**: \<img src=x\> \`a\` \*\*b\*\* # c"
    query = "CREATE TABLE t (id INT PRIMARY KEY COMMENT '```\n![x](http://a/b)')"
    (life,) = history(change(T, "t", CREATE, query)).incarnations().values()
    statements = str(metadata.schema_metadata(list(life.versions), {life.id: life})["statements"].value)
    assert statements.count("````") == 2 and "````sql\n" in statements
