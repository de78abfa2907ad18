"""What a replay of quarantined rows lands again, what is forgotten, and what a repair writes."""

import datetime
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.commands.decisions import replay_rows
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.topic_reader import PartitionSummary
from cdc_lakehouse.errors import QuarantineLimitError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.segments import Archive, contents_of
from cdc_lakehouse.operate.maintenance import Retention
from cdc_lakehouse.operate.verify import Difference, Differences, TableResult, plan_repair
from cdc_lakehouse.pipeline.dump import DumpSource
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import require_few_rejected
from cdc_lakehouse.sources.object_store import LocalStore, UnreadableDirectory
from cdc_lakehouse.sources.record_log import LogPartition, OffsetRange
from tests.kit import dumps
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import land, offsets, publish, segment
from tests.lake import CREATE, NOON
from tests.pipeline import T0, Sink, events_of, kafka, lake_in


def reject(run: FeedRun, *segments: str, line: int | None = 1, kind: str = "NotJson") -> None:
    rows = [Rejected(segment, line, kind, "it is bad", b"x", "d", "a") for segment in segments]
    run.quarantine.replace(lambda _: False, rows, NOON)


def test_replay_lands_decoded_segments_that_are_unchanged(lake: TestLake) -> None:
    lake.configure(policy={"max_quarantined_rows": 0})
    sink = Sink(lake.sink, "t", checkpoint=10)
    first, second, unread = (sink.file("t", at=at) for at in (1, 2, 3))
    run = lake.run()
    run.source.land()
    events_of(lake, pa.table({"segment": [first, second]}))
    landed = [each for found in run.segments.undecoded("file").values() for each in found]
    run.segments.mark_decoded([replace(each, state="decoded", events=1) for each in landed if each.segment != unread])
    reject(run, unread, line=None, kind="UnreadableSegment")
    require_few_rejected(run)  # An unreadable file does not count.
    reject(run, first, second)
    with pytest.raises(QuarantineLimitError):
        require_few_rejected(run)
    run.quarantine.discard({row.id for row in run.quarantine.open()}, "ann", "test data", NOON)

    # A row that each run tries again anyway is left; a decision is taken back.
    run, snapshot = lake.run(), lake.run().appended().snapshot_id
    landed, others = replay_rows(run, [row for row in run.quarantine.rows if row.segment != second])
    assert [each.segment for each in landed] == [first] and [row.segment for row in others] == [unread]
    (waiting,) = lake.run().segments.undecoded("file")[2]
    assert (waiting.segment, contents_of(waiting.replaces), waiting.events) == (first, [(1, snapshot)], None)
    states = {row.segment: row.state for row in lake.run().quarantine.rows}
    assert (states[first], states[second]) == ("open", "discarded")
    # Once more before the next run: it waits already.
    assert replay_rows(lake.run(), [row for row in lake.run().quarantine.rows if row.segment == first])[0] == []

    for spoil in (lambda path: path.write_text("{}\r\n"), lambda path: path.unlink()):
        spoil(lake.sink / second)
        run, said = lake.run(), rf"cannot decode 1 segment again.*{second}.*content changed"
        with lake.without_changes(), pytest.raises(SourceError, match=said):
            replay_rows(run, run.quarantine.rows)


def test_replay_of_range_of_topic_lands_its_batch(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, source=kafka("canal-json", "t"))
    places = ((0, 0, 1), (1, 0, 1), (0, 10, 2))
    ranges = [OffsetRange(LogPartition("t", number), start, start + 9, 10).segment for number, start, _ in places]
    batches = [batch for _, _, batch in places]
    land(lake, *(offsets(name, batch=n, record_batch=n, events=3) for name, n in zip(ranges, batches, strict=True)))
    reject(lake.run(), ranges[0], line=4, kind="BadMessage")
    run = lake.run()
    replay_rows(run, run.quarantine.rows)
    (landed,) = lake.run().segments.undecoded("offsets").values()
    assert sorted((row.segment, row.batch, row.record_batch, row.events) for row in landed) == sorted(
        (name, 3, 1, None) for name in ranges[:2]
    )
    # Times of messages are judged anew. Where nobody has asked for it, they are judged as before.
    assert all(row.landed_at > NOON for row in landed)
    run.signals.write(2, {("t", 0, 2): PartitionSummary(0, 0, left_out={("d", "t")})})
    times = {row.segment: row.landed_at for row in run.source.land_left_out()}
    assert times[ranges[2]] == NOON


def test_replay_of_file_of_dump_lands_that_file_alone(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dumps.dumpling(dump, [dumps.DumpTable("d", "t", {"id": "int PRIMARY KEY"}, [(1,), (2,)])], rows_per_file=1)
    lake = lake_in(tmp_path, source={"initial": {"type": "dumpling", "uri": str(dump), "start_ts": 1}})
    Sink(lake.sink, checkpoint=10)
    assert lake.feed.initial is not None
    first, second = DumpSource(lake.run(), lake.feed.initial).land().new
    run = lake.run()
    run.segments.mark_decoded([replace(each, state="decoded", events=1) for each in (first, second)])
    reject(run, first.segment, kind="NotAValue")
    run = lake.run()
    ((landed,), _) = replay_rows(run, run.quarantine.rows)
    assert (landed.segment, landed.batch, landed.state) == (first.segment, 2, "landed")
    run.segments.mark_decoded([replace(landed, state="decoded", events=1)])
    next(dump.glob("*.000000000.csv")).unlink()
    run = lake.run()
    with lake.without_changes(), pytest.raises(SourceError, match="no longer has 1 file"):
        replay_rows(run, run.quarantine.rows)


# --- What is forgotten ---


def test_old_cuts_go_where_the_archive_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_in(tmp_path, source={"archive": True}, maintenance={"keep_archive_days": 1})
    land(lake, segment("d/t/1"))
    for at in (5, 6):
        publish(lake, {"t": 1}, at=T0 + at)

    monkeypatch.setattr(LocalStore, "_walk", lambda *_: iter([UnreadableDirectory("c/archive", "Permission denied")]))
    with pytest.raises(SourceError, match=r"list the archive: Permission denied \[segment c/archive\]") as found:
        Retention(lake.feed, lake.lake, clock=lambda: NOON + datetime.timedelta(days=9)).remove()
    assert "let this user list" in str(found.value.advice) and "keep_archive_days" in str(found.value.advice)
    assert [row["checkpoint_ts"] for row in lake.machinery("checkpoints")] == [T0 + 6]


def test_archive_that_is_not_there_is_empty_and_lost_store_fails(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, source={"archive": True})
    publish(lake, {"t": 1}, at=T0)
    archive = Archive(lake.run().lake, lake.name, lake.run().store)
    assert archive.copies() == []
    lake.warehouse.rename(tmp_path / "elsewhere")
    with pytest.raises(SourceUnreachableError):
        archive.copies()


# --- What a repair writes: texts as the feed's log has them, and nothing where that is not known ---

TYPES = {
    "e": ColumnType.of("enum", elements=("a", "b")), "s": ColumnType.of("set", elements=("x", "y", "z")),
    "b": ColumnType.of("varbinary", length=9), "n": ColumnType.of("bit", length=9), "t": ColumnType.of("timestamp"),
    "t3": ColumnType.of("timestamp", scale=3), "dt": ColumnType.of("datetime"), "g": ColumnType.of("point"),
}  # fmt: skip
"""All but the key."""


def lacking(row: dict[str, Any]) -> Difference:
    return Difference("missing", {"id": row["id"]}, (), row, None, row)


def repaired(directory: Path, found: Difference | None, key: str = "int", left_out: tuple[str, ...] = ()) -> str:
    """What is written for a difference, or for too many (None) of a table with such a key."""
    id = SourceColumn("id", ColumnType.of(key), nullable=False, primary_key=True)
    columns = (id, *(SourceColumn(name, type) for name, type in TYPES.items() if name != "g" or left_out))
    run = lake_in(directory, source={"time_zone": "Asia/Shanghai"}).run()
    run.history.record([SchemaChange(T0, "d", "t", CREATE, "CREATE TABLE t (id INT)", columns, "o")], NOON)
    (life,) = run.history.history.incarnations()
    counts: Any = {"extra": 10_001} if found is None else {"different": 1, "differences": (found,)}
    table, unread = TableName("d", "t"), dict.fromkeys(left_out, "not read")
    repair = plan_repair(
        run, TableResult(table, "different", None, T0 + 5, life, left_out=unread, **counts), "somebody"
    )
    assert (repair.checkpoint_ts, repair.requested_by) == (T0 + 5, "somebody")
    (row,) = repair.rows
    return f"{row.op} {row.image}"


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/repairs.txt"), ids=str)
def test_repair_writes_values_as_the_log_has_them(tmp_path: Path, case: Case, update: bool) -> None:
    names = {"lacking": lacking, "Difference": Difference, "repaired": functools.partial(repaired, tmp_path)}
    found = evaluated(case, {**names, **{name: eval(row) for name, row in case.settings.items()}})
    case.compare([re.sub(r"feed \w+", "feed f", each) for each in found], update=update)


def test_row_that_the_lake_has_twice_is_not_deleted() -> None:
    """Of one that is right the source has a row."""
    differences = Differences([("id", TYPES["b"]), ("v", TYPES["b"])], 1, 9)
    differences.compare([("k", "1", "a")], [("k", "1", "a"), ("k", "1", "b")], None)
    differences.compare([], [("l", "2", "a")], None)
    assert [(each.kind, each.source, each.correct) for each in differences.shown] == [
        ("extra", None, {"id": "1", "v": "a"}),
        ("extra", None, None),
    ]
