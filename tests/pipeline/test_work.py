"""What a run has to do for each table: as much as is new, and nothing when nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import row_stage, synthetic_stage
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.current.key_texts import TableKey
from cdc_lakehouse.lake.current.tables import CurrentTables, schema_fingerprint
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.holds import Holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import TableChanges, find_changed_tables
from tests.kit.lakes import TestLake
from tests.lake import ADD_COLUMN, CREATE, DROP, ID, NOON, RENAME, TRUNCATE, change, make_current_table, segment, text
from tests.pipeline import lake_in, lives_upto

A, B = change(10, "a", CREATE), change(10, "b", CREATE)


def decoded(table: str, batch: int, low: int | None, high: int | None, **more: Any) -> Segment:
    counts = {"events": 0 if low is None else 2, "min_commit_ts": low, "max_commit_ts": high, **more}
    return segment(f"d/{table}/10/CDC{batch:06}.json", batch, "decoded", file_index=batch, **counts)


def stages(work: TableChanges) -> list[tuple[int, int]]:
    return [(span.above, span.upto) for span in work.spans(TableKey(work.key))]


class Feed:
    """Tables a and b, with segments in batch 1, published up to 50."""

    def __init__(self, directory: Path, *changes: SchemaChange, held: tuple[tuple[str, str], ...] = ()) -> None:
        self.lake: TestLake = lake_in(directory)
        run = self.lake.run()
        run.history.record([A, B, *changes], NOON)
        run.segments.land([decoded("a", 1, 20, 40), decoded("b", 1, 20, 40)])
        run.checkpoints.publish(Cut(50, 1, len(run.history.history.versions), run.settings, held), [])

    def land(self, *segments: Segment) -> None:
        if segments:
            self.lake.run().segments.land(segments)

    def table(self, name: str, *, applied_ts: int = 50, batch: int = 1, read_as: str | None = None) -> None:
        """The current-state table as an earlier run left it."""
        run = self.lake.run()
        tables = CurrentTables(run.lake, run.feed)
        life = lives_upto(run, 50)[f"d.{name}#1"]
        lineage = schema_fingerprint(life, run.value_format(life.last)) if read_as is None else read_as
        applied = {"cdc_applied-ts": str(applied_ts), "cdc_applied-batch": str(batch)}
        make_current_table(self.lake, life, tables.identifier(life.last.name), **applied, cdc_lineage=lineage)

    def work(self, upto: int = 50, **held: str) -> tuple[dict[str, TableChanges], dict[str, str]]:
        run: FeedRun = self.lake.run()
        tables, lives = CurrentTables(run.lake, run.feed), lives_upto(run, upto)
        found, more = find_changed_tables(run, tables, lives, Holds(held), upto)
        assert [each.number for each in found] == list(range(len(found)))
        return {each.life.id: each for each in found}, {**held, **more.reasons}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


NEW = decoded("a", 2, 55, 58)
OTHER, REPLACED = (replace(NEW, replaces=f"[[{batch}, 7, null]]") for batch in (2, 1))
EMPTIED = decoded("a", 2, None, None, replaces="[[1, 7, null]]")


@pytest.mark.parametrize(
    ("changes", "landed", "upto", "tables"),
    [
        pytest.param([], [], 50, [], id="nothing new"),
        pytest.param([], [], 60, [], id="a checkpoint that moved"),
        pytest.param([], [NEW], 60, ["d.a#1"], id="new"),
        pytest.param([], [decoded("a", 2, 30, 30)], 50, ["d.a#1"], id="late"),
        pytest.param([], [decoded("a", 2, None, None)], 60, [], id="empty"),
        pytest.param([], [EMPTIED], 60, ["d.a#1"], id="emptied"),
        pytest.param([], [replace(NEW, state="landed")], 60, [], id="not decoded"),
        pytest.param([change(45, "a", DROP, "DROP TABLE a")], [decoded("a", 2, 30, 30), decoded("b", 3, 30, 30)], 60,
                     ["d.b#1"], id="dropped before the last cut"),
    ],
)  # fmt: skip
def test_what_is_new_is_work_for_its_table_alone(
    tmp_path: Path, changes: list[SchemaChange], landed: list[Segment], upto: int, tables: list[str]
) -> None:
    feed = Feed(tmp_path, *changes)
    feed.land(*landed)
    found, held = feed.work(upto)
    assert (list(found), held) == (tables, {})


@pytest.mark.parametrize(("upto", "tables"), [(59, []), (60, ["d.b#1"])])
def test_events_above_the_checkpoint_wait_until_it_has_come(feed: Feed, upto: int, tables: list[str]) -> None:
    feed.land(decoded("b", 2, 60, 70))
    run = feed.lake.run()
    run.checkpoints.publish(Cut(55, 2, 2, run.settings), [])
    assert list(feed.work(upto)[0]) == tables


def test_a_held_table_has_no_work(feed: Feed) -> None:
    feed.land(NEW)
    assert feed.work(60, **{"d.a#1": "reason"}) == ({}, {"d.a#1": "reason"})


def test_a_table_that_was_held_takes_up_all_that_it_missed(tmp_path: Path) -> None:
    feed = Feed(tmp_path, held=(("d.a#1", "reason"),))
    feed.table("a", applied_ts=30)
    found, held = feed.work()
    assert list(found) == ["d.a#1"] and held == {}
    assert (found["d.a#1"].applied_ts, found["d.a#1"].checkpoint_ts) == (30, 50)


def test_other_settings_are_work_for_all_tables(feed: Feed) -> None:
    run = feed.lake.run()
    run.checkpoints.publish(Cut(50, 1, 2, "settings of before"), [])
    assert list(feed.work()[0]) == ["d.a#1", "d.b#1"]


OTHER_KEY = SourceColumn("id", ColumnType.of("VARCHAR", length=20), nullable=False, primary_key=True)
LATE = decoded("a", 2, 30, 58)
UP = synthetic_stage(60)


@pytest.mark.parametrize(
    ("changes", "table", "landed", "wanted", "spans"),
    [
        pytest.param([], None, [NEW], {"state": None, "applied_ts": 0, "checkpoint_ts": 60, "rebuild": False},
                     [(row_stage(10), UP)], id="a table that is not there begins at the beginning"),
        pytest.param([], {}, [NEW], {"applied_ts": 50, "checkpoint_ts": 60, "rebuild": False, "redecoded": ()},
                     [(synthetic_stage(50), UP)], id="a table goes on from where it stands"),
        pytest.param([], {"applied_ts": 60, "batch": 2}, [NEW], {"applied_ts": 60, "redecoded": ()}, [],
                     id="what a crashed run published is not applied twice"),
        pytest.param([], {}, [LATE], {"redecoded": (LATE,), "reads_all_events": True}, [(row_stage(10), UP)],
                     id="events that the table has passed are looked up among all"),
        pytest.param([], {}, [OTHER], {"redecoded": (OTHER,),
                     "reads_all_events": True}, [(row_stage(10), UP)], id="decoded again"),
        pytest.param([], {}, [REPLACED], {"redecoded": (), "rebuild": True},
                     [(row_stage(10), UP)], id="decoded again, and the snapshot with what was applied is gone"),
        pytest.param([], {"read_as": "another"}, [LATE], {"rebuild": True, "replaces_all_rows": True, "redecoded": ()},
                     [(row_stage(10), UP)], id="a table written under another lineage is worked out anew"),
        pytest.param([change(58, "a", TRUNCATE, "TRUNCATE TABLE a")], {}, [],
                     {"void_upto_ts": 58, "replaces_all_rows": True}, [(row_stage(58), UP)], id="truncate"),
        pytest.param([change(58, "a", 12, "ALTER TABLE a MODIFY COLUMN id VARCHAR(20)", OTHER_KEY)], {}, [],
                     {"void_upto_ts": 58, "replaces_all_rows": True}, [(row_stage(58), UP)],
                     id="the text of a key changes its meaning"),
        pytest.param([change(45, "a", TRUNCATE, "TRUNCATE TABLE a")], {}, [NEW], {"replaces_all_rows": False},
                     [(synthetic_stage(50), UP)], id="a truncate that was applied before clears nothing"),
    ],
)  # fmt: skip
def test_what_is_done_for_a_table(
    tmp_path: Path,
    changes: list[SchemaChange],
    table: dict[str, Any] | None,
    landed: list[Segment],
    wanted: dict[str, Any],
    spans: list[tuple[int, int]],
) -> None:
    feed = Feed(tmp_path, *changes)
    if table is not None:
        feed.table("a", **table)
    feed.land(*landed)
    work = feed.work(60)[0]["d.a#1"]
    assert {name: getattr(work, name) for name in wanted} == wanted
    assert stages(work) == spans
    assert {span.key_columns for span in work.spans(TableKey(work.key))} <= {("id",)}


def test_events_go_to_the_names_and_columns_of_their_time(tmp_path: Path) -> None:
    feed = Feed(
        tmp_path,
        change(30, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x")),
        change(55, "c", RENAME, "RENAME TABLE d.a TO d.c", ID, text("x")),
    )
    work = feed.work(60)[0]["d.a#1"]
    assert [(span.table, span.version_no) for span in work.spans(TableKey(work.key))] == [("a", 0), ("a", 1), ("c", 2)]
    assert stages(work) == [(row_stage(10), row_stage(30)), (row_stage(30), row_stage(55)), (row_stage(55), UP)]
    assert [column.name for column in work.applied_version.columns] == ["id"]
    assert (str(work.target.name), [column.name for column in work.target.columns]) == ("d.c", ["id", "x"])


def test_the_texts_of_a_key_are_worked_out_where_a_value_has_several(tmp_path: Path) -> None:
    first, second = (
        SourceColumn("id", ColumnType.of("enum", elements=labels), nullable=False, primary_key=True)
        for labels in (("a", "b"), ("b", "a"))
    )
    altered = change(55, "k", 12, "ALTER TABLE k MODIFY id ENUM('b', 'a')", second)
    feed = Feed(tmp_path, change(10, "k", CREATE, "", first), altered, change(55, "p", CREATE))
    feed.land(decoded("k", 2, 20, 58))
    work = feed.work(60)[0]
    plain, key = (table.table_key(ValueFormat()) for table in (work["d.p#1"], work["d.k#1"]))
    assert plain.read_as == plain.columns and not any(span.key_texts for span in work["d.p#1"].spans(plain))
    assert [column.type.name for column in key.read_as] == ["varchar"]
    texts = [span.key_texts for span in work["d.k#1"].spans(key)]
    assert len(set(texts)) == 2 and all(len(each) == 1 and each[0] for each in texts)


def test_an_emptied_partition_is_told_with_the_partitions_before_it(tmp_path: Path) -> None:
    ranges = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    feed = Feed(
        tmp_path,
        change(12, "p", CREATE, f"CREATE TABLE p (id BIGINT PRIMARY KEY) {ranges}"),
        change(55, "p", 20, "ALTER TABLE p DROP PARTITION p0"),
    )
    work = feed.work(60)[0]["d.p#1"]
    (gone,) = work.emptied(0)
    assert (gone.names, len(gone.target.versions)) == (("p0",), 1)
    assert [partition.name for partition in gone.scheme.partitions] == ["p0", "p1"]
    assert work.emptied(55) == () and work.void_upto_ts == 0


def test_rows_that_did_not_fit_are_not_tried_again_until_something_is_new(tmp_path: Path) -> None:
    feed = Feed(tmp_path, held=(("d.a#1", "2 rows do not fit"),))
    row = Rejected("s", 1, "BadValue", "m", None, "d", "a")
    feed.lake.run().quarantine.replace(lambda _: False, [row], NOON)
    assert feed.work() == ({}, {"d.a#1": "2 rows do not fit"})
    assert list(feed.work(60)[0]) == ["d.a#1"]
    feed.land(decoded("b", 2, 55, 58))
    assert list(feed.work()[0]) == ["d.a#1", "d.b#1"]
