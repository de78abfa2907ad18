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
from cdc_lakehouse.lake.current.tables import CurrentTables, schema_fingerprint
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
    return [(span.above, span.upto) for span in work.spans()]


class Feed:
    """Tables a and b, with segments in batch 1, published up to 50."""

    def __init__(self, directory: Path, *changes: SchemaChange, held: tuple[tuple[str, str], ...] = ()) -> None:
        self.lake: TestLake = lake_in(directory)
        run = self.lake.run()
        run.history.record([A, B, *changes], NOON)
        run.segments.land([decoded("a", 1, 20, 40), decoded("b", 1, 20, 40)], {})
        run.checkpoints.publish(Cut(50, 1, len(run.history.history.versions), run.settings, held), [])

    def land(self, *segments: Segment) -> None:
        self.lake.run().segments.land(segments, {})

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


@pytest.mark.parametrize("upto", [50, 60])
def test_without_anything_new_there_is_no_work(feed: Feed, upto: int) -> None:
    assert feed.work(upto) == ({}, {})


@pytest.mark.parametrize(
    ("new", "upto", "tables"),
    [
        (decoded("a", 2, 55, 58), 60, ["d.a#1"]),
        (decoded("a", 2, 30, 30), 50, ["d.a#1"]),
        (decoded("a", 2, None, None), 60, []),
        (decoded("a", 2, None, None, replaces_snapshot=7), 60, ["d.a#1"]),
        (replace(decoded("a", 2, 55, 58), state="landed"), 60, []),
    ],
    ids=["new", "late", "empty", "emptied", "not decoded"],
)
def test_new_segments_are_work_for_their_table_alone(feed: Feed, new: Segment, upto: int, tables: list[str]) -> None:
    feed.land(new)
    assert list(feed.work(upto)[0]) == tables


@pytest.mark.parametrize(("upto", "tables"), [(59, []), (60, ["d.b#1"])])
def test_events_above_the_checkpoint_wait_until_it_has_come(tmp_path: Path, upto: int, tables: list[str]) -> None:
    feed = Feed(tmp_path)
    feed.land(decoded("b", 2, 60, 70))
    run = feed.lake.run()
    run.checkpoints.publish(Cut(55, 2, 2, run.settings), [])
    assert list(feed.work(upto)[0]) == tables


def test_a_held_table_has_no_work(feed: Feed) -> None:
    feed.land(decoded("a", 2, 55, 58))
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


def test_a_table_that_is_not_there_begins_at_the_beginning(feed: Feed) -> None:
    feed.land(decoded("a", 2, 55, 58))
    work = feed.work(60)[0]["d.a#1"]
    assert (work.state, work.applied_ts, work.checkpoint_ts, work.rebuild) == (None, 0, 60, False)
    assert stages(work) == [(row_stage(10), synthetic_stage(60))]
    assert [span.key_columns for span in work.spans()] == [("id",)]


def test_a_table_goes_on_from_where_it_stands(feed: Feed) -> None:
    feed.table("a")
    feed.land(decoded("a", 2, 55, 58))
    work = feed.work(60)[0]["d.a#1"]
    assert (work.applied_ts, work.checkpoint_ts, work.rebuild, work.redecoded) == (50, 60, False, ())
    assert stages(work) == [(synthetic_stage(50), synthetic_stage(60))]


def test_a_table_that_a_crashed_run_published_is_not_applied_twice(feed: Feed) -> None:
    feed.table("a", applied_ts=60, batch=2)
    feed.land(decoded("a", 2, 55, 58))
    work = feed.work(60)[0]["d.a#1"]
    assert (work.applied_ts, list(work.spans()), work.redecoded) == (60, [], ())


@pytest.mark.parametrize("late", [decoded("a", 2, 30, 58), decoded("a", 2, 55, 58, replaces_snapshot=7)])
def test_events_that_the_table_has_passed_are_looked_up_among_all(feed: Feed, late: Segment) -> None:
    feed.table("a")
    feed.land(late)
    work = feed.work(60)[0]["d.a#1"]
    assert work.redecoded == (late,) and work.reads_all_events
    assert stages(work) == [(row_stage(10), synthetic_stage(60))]


def test_a_table_written_under_another_lineage_is_worked_out_anew(feed: Feed) -> None:
    feed.table("a", read_as="another")
    feed.land(decoded("a", 2, 30, 58))
    work = feed.work(60)[0]["d.a#1"]
    assert (work.rebuild, work.replaces_all_rows, work.redecoded) == (True, True, ())
    assert stages(work) == [(row_stage(10), synthetic_stage(60))]


OTHER_KEY = SourceColumn("id", ColumnType.of("VARCHAR", length=20), nullable=False, primary_key=True)


@pytest.mark.parametrize(
    "ended",
    [
        change(58, "a", TRUNCATE, "TRUNCATE TABLE a"),
        # The text of a key changes its meaning.
        change(58, "a", 12, "ALTER TABLE a MODIFY COLUMN id VARCHAR(20)", OTHER_KEY),
    ],
    ids=["truncate", "key"],
)
def test_what_was_before_a_truncate_or_another_meaning_of_the_key_is_void(tmp_path: Path, ended: SchemaChange) -> None:
    feed = Feed(tmp_path, ended)
    feed.table("a")
    work = feed.work(60)[0]["d.a#1"]
    assert (work.void_upto_ts, work.replaces_all_rows) == (58, True)
    assert stages(work) == [(row_stage(58), synthetic_stage(60))]


def test_a_truncate_that_was_applied_before_clears_nothing(tmp_path: Path) -> None:
    feed = Feed(tmp_path, change(45, "a", TRUNCATE, "TRUNCATE TABLE a"))
    feed.table("a")
    feed.land(decoded("a", 2, 55, 58))
    assert not feed.work(60)[0]["d.a#1"].replaces_all_rows


def test_events_go_to_the_names_and_columns_of_their_time(tmp_path: Path) -> None:
    feed = Feed(
        tmp_path,
        change(30, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x")),
        change(55, "c", RENAME, "RENAME TABLE d.a TO d.c", ID, text("x")),
    )
    work = feed.work(60)[0]["d.a#1"]
    assert [(span.table, span.version_no) for span in work.spans()] == [("a", 0), ("a", 1), ("c", 2)]
    assert stages(work) == [
        (row_stage(10), row_stage(30)), (row_stage(30), row_stage(55)), (row_stage(55), synthetic_stage(60)),
    ]  # fmt: skip
    assert [column.name for column in work.applied_version.columns] == ["id"]
    assert (str(work.target.name), [column.name for column in work.target.columns]) == ("d.c", ["id", "x"])


def test_an_emptied_partition_is_told_with_the_partitions_before_it(tmp_path: Path) -> None:
    ranges = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    feed = Feed(
        tmp_path,
        change(12, "p", CREATE, f"CREATE TABLE p (id BIGINT PRIMARY KEY) {ranges}"),
        change(55, "p", 20, "ALTER TABLE p DROP PARTITION p0"),
    )
    work = feed.work(60)[0]["d.p#1"]
    (gone,) = work.emptied(0)
    assert (gone.commit_ts, gone.name) == (55, "p0")
    assert [partition.name for partition in gone.scheme.partitions] == ["p0", "p1"]
    assert work.emptied(55) == () and work.void_upto_ts == 0


def test_a_table_that_was_dropped_before_the_last_cut_is_over(tmp_path: Path) -> None:
    feed = Feed(tmp_path, change(45, "a", DROP, "DROP TABLE a"))
    feed.land(decoded("a", 2, 30, 30), decoded("b", 3, 30, 30))
    assert list(feed.work(60)[0]) == ["d.b#1"]


def test_rows_that_did_not_fit_are_not_tried_again_until_something_is_new(tmp_path: Path) -> None:
    feed = Feed(tmp_path, held=(("d.a#1", "2 rows do not fit"),))
    row = Rejected("s", 1, "BadValue", "m", None, "d", "a")
    feed.lake.run().quarantine.replace(lambda _: False, [row], NOON)
    assert feed.work() == ({}, {"d.a#1": "2 rows do not fit"})
    assert list(feed.work(60)[0]) == ["d.a#1"]
    feed.land(decoded("b", 2, 55, 58))
    assert list(feed.work()[0]) == ["d.a#1", "d.b#1"]
