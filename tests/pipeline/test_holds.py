"""Which tables cannot go on, and that nothing else is held with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lakehouse.changelog.history import ObservedColumns, Statement, schema_changes
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.commands.common import problem_lines
from cdc_lakehouse.decoders.problems import EXPIRED_FILES, LISTED_PER_SEGMENT, Rejected
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.operate.decisions import hold_table
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, _evolve, evolve
from tests.kit.decoding import Reading
from tests.kit.lakes import TestLake
from tests.lake import CREATE, DROP, NOON, RENAME, change, segment, text
from tests.pipeline import DAY, T0, Sink, kafka, lake_in

A, B = change(10, "a", CREATE), change(10, "b", CREATE)
KEYLESS = change(10, "log", CREATE, "CREATE TABLE log (x VARCHAR(20))", text("x"), text("y"))
DROPPED = change(20, "log", DROP, "DROP TABLE log", text("x"))
EXCHANGE = change(20, "a", 42, "ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b")
EMPTIED = change(20, "a", 20, "ALTER TABLE a DROP PARTITION p0")
FILE = segment("d/a/10/CDC000001.json")
GAP = [
    segment("d/a/10/2026-06-01/CDC_7_000008.json", file_index=8, dispatcher="7"),
    segment("d/b/10/2026-06-01/CDC000001.json"),
]


def run_of(directory: Path, *changes: SchemaChange, segments: Iterable[Segment] = (), **feed: Any) -> FeedRun:
    run = lake_in(directory, **feed).run()
    run.history.record(changes, NOON)
    if rows := list(segments):
        run.segments.land(rows)
    return run


def holds(run: FeedRun, upto: int = 100) -> dict[str, str]:
    return dict(find_holds(run, run.history.history.incarnations(), upto))


def bad(segment: str, database: str | None = "d", table: str | None = "a", kind: str = "BadLine") -> Rejected:
    return Rejected(segment, 3, kind, "it is bad", None, database, table)


def quarantine(run: FeedRun, *rejected: Rejected) -> None:
    """These are open, and no others."""
    run.quarantine.replace(lambda _: True, rejected, NOON)


def key(*columns: str) -> dict[str, Any]:
    return {"tables": {"settings": {"d.log": {"primary_key": list(columns)}}}}


@pytest.mark.parametrize(
    ("changes", "segments", "feed", "upto", "held"),
    [
        ([A, B], [FILE], {}, 100, {}),
        ([A, KEYLESS], [], {}, 100, {"d.log#1": 'tables.settings."d.log".primary_key'}),
        ([KEYLESS], [], key("Y", "x"), 100, {}),
        ([KEYLESS], [], key("x", "gone"), 100, {"d.log#1": "columns that the table does not have: gone"}),
        ([KEYLESS, DROPPED], [], {}, 100, {}),
        # Above the checkpoint the schema file may still come.
        ([A, B], [segment("d/a/50/CDC000001.json")], {}, 49, {}),
        ([A, B], [segment("d/a/50/CDC000001.json")], {}, 50, {"d.a#1": ""}),
        ([A, B], GAP, {"policy": {"index_gap": "hold"}}, 100, {"d.a#1": "has no file 1, 2, 3, 4, 5 and 2 more"}),
        ([A, B], GAP, {"policy": {"index_gap": "skip"}}, 100, {}),
        ([A, B, EXCHANGE], [], {}, 100, {"d.a#1": "ALTER TABLE a EXCHANGE", "d.b#1": "of table d.a are not known"}),
        ([A, EXCHANGE], [], {"tables": {"exclude": ["d.a", "d.b"]}}, 100, {}),
        ([A, EMPTIED], [], {}, 100, {"d.a#1": "older than the feed. Load the table again"}),
        ([A, EMPTIED], [], {}, 100, {"d.a#1": "`cdc-lakehouse load --table d.a`"}),
        ([A, replace(EXCHANGE, query=f"{EXCHANGE.query} /* {'x' * 1_000_000} */")], [], {}, 100, {"d.a#1": "/* xxx"}),
    ],
)  # fmt: skip
def test_what_holds_a_table_and_no_other(
    tmp_path: Path, changes: list[SchemaChange], segments: list[Segment], feed: dict[str, Any], upto: int,
    held: dict[str, str],
) -> None:  # fmt: skip
    """`held` has a part of what is said."""
    found = holds(run_of(tmp_path, *changes, segments=segments, **feed), upto)
    assert list(found) == list(held)
    assert [words for id, words in held.items() if words not in found[id] or len(found[id]) > 2000] == []


def test_what_to_do_is_shown_in_a_line_of_its_own(tmp_path: Path) -> None:
    """Statements and people's reasons have sentences, which are no advice."""
    comment = replace(EMPTIED, query="ALTER TABLE a DROP PARTITION p0 COMMENT 'Nr. 1'")
    names = ("b", "c", "e", "f", "g")
    tables = [A, comment, *(change(10, name, CREATE) for name in names), KEYLESS]
    version, expired = segment("d/b/50/CDC000001.json"), bad("x", table="e", kind=EXPIRED_FILES)
    gap = segment("d/c/10/CDC000003.json", file_index=3)
    run = run_of(tmp_path, *tables, segments=[version, gap], policy={"index_gap": "hold"}, **key("gone"))
    quarantine(run, expired, bad("x", table="f"))
    hold_table(run, "d.g", "it is wrong. See Nr. 1", "ann", NOON)
    lines = problem_lines({id.partition("#")[0]: why for id, why in holds(run).items()}, 0, [], [])[2:]
    shown = {reason.split()[1][:-1]: (reason, advice) for reason, advice in zip(lines[::2], lines[1::2], strict=True)}
    ways_out = {
        "d.a": "Load the table again from a dump", "d.b": "Restore the schema file", "d.c": "Restore the files",
        "d.e": "Load the table again from a later", "d.f": "The next run takes", "d.g": "`cdc-lakehouse resume d.g`",
        "d.log": "Correct it",
    }  # fmt: skip
    assert [table for table, (_, said) in shown.items() if not said.startswith(f"      {ways_out[table]}")] == []
    assert shown.keys() == ways_out.keys() and "COMMENT 'Nr. 1': " in shown["d.a"][0]
    assert "ann" in shown["d.g"][0] and "it is wrong. See Nr. 1" in shown["d.g"][0]


def test_table_of_a_dump_is_not_held_by_statement_before(tmp_path: Path) -> None:
    dump = replace(change(30, "a", CREATE, "CREATE TABLE a (id INT PRIMARY KEY)"), action=None, columns=(), kind="load")
    run = run_of(tmp_path, A, EMPTIED, dump)
    assert sorted(run.history.history.incarnations()) == ["d.a#1", "d.a@30#1"]
    assert list(holds(run)) == ["d.a#1"]


@pytest.mark.parametrize(
    ("row", "held"),
    [
        (bad("d/a/10/CDC000001.json"), ["d.a#1"]),
        (bad("elsewhere", table="b"), ["d.b#1"]),
        (bad("d/meta/schema", table=None), ["d.a#1", "d.b#1"]),
        (bad("other/meta/schema", database="other", table=None), []),
        (bad("anything", database=None, table=None), ["d.a#1", "d.b#1"]),
        (bad("d/a/10/CDC000001.json", kind="BadValue"), []),
        (bad("topic", database=None, table=None, kind="BadWatermark"), []),
        (bad("d/a/10/meta/CDC.index", kind="UnreadableIndex"), ["d.a#1"]),
        (bad("d/new/meta/schema", table="new"), ["d.new"]),
    ],
)
def test_what_is_quarantined_holds_the_tables_that_it_is_of(tmp_path: Path, row: Rejected, held: list[str]) -> None:
    run = run_of(tmp_path, A, B, segments=[FILE])
    quarantine(run, row)
    found = holds(run)
    assert sorted(found) == held
    for reason in found.values():
        assert f"{row.segment} line 3: it is bad" in reason
        assert all(f"`cdc-lakehouse quarantine {command}`" in reason for command in ("list", "replay", "discard"))


def test_segment_is_of_the_table_that_had_the_name_then(tmp_path: Path) -> None:
    """Its path says `d/a`, and that name is another table's by now. Of many reasons a few are shown. A message says
    only the name: it can be of any table that has or had it."""
    moved = change(20, "old", RENAME, "RENAME TABLE d.a TO d.old")
    run = run_of(tmp_path, A, moved, change(30, "a", CREATE), segments=[FILE])
    quarantine(run, *(replace(bad("d/a/10/CDC000001.json"), line=line) for line in range(9)))
    ((held, reason),) = holds(run).items()
    assert run.history.history.incarnations()[held].last.name.table == "old" and "; and 4 more." in reason
    quarantine(run, bad("topic/0/00000000000000000000"))
    assert sorted(holds(run)) == ["d.a#1", "d.a#2"]


def test_statement_not_understood_that_names_no_table_is_quarantined(tmp_path: Path) -> None:
    """It holds no table, and stays in the quarantine until a person gives it up."""
    lake = lake_in(tmp_path)
    sink = Sink(lake.sink, "a")
    for at, statement in ((5, "FROBNICATE x"), (6, "FROBNICATE a")):
        sink.writer.write_ddl(SchemaChange(T0 + at, "d", "", 9999, statement, (), ""), DAY)
    sink.checkpoint(9)
    for is_new in (True, False):
        assert bool(Steps(lake.run()).evolved) == is_new
        (row,) = lake.run().quarantine.open()
        assert (row.error_class, row.database, row.raw) == ("BadStatement", "d", b"FROBNICATE x")
        assert "names no table that is known" in row.message
    assert [reason.partition(":")[0] for reason in holds(lake.run(), T0 + 9).values()] == ["FROBNICATE a"]
    open_rows = {row.id for row in lake.run().quarantine.open()}
    lake.run().quarantine.discard(open_rows, "ann", "harmless", NOON)
    Steps(lake.run()).upto(evolve)
    assert lake.run().quarantine.open() == []


@pytest.mark.parametrize(
    ("message", "held"),
    [
        (
            b'{"database": "d", "table": "big", "type": "UPDATE", "isDdl": false, "data": [{"id": "1"}], "old": [{}],'
            b'"pkNames": ["id"], "mysqlType": {"id": "int"}, "es": 1, "_tidb": {"commitTs": 9, "onlyHandleKey": true}}',
            ["d.big#1"],
        ),
        (b'{"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 786432000000000000}}', []),
    ],
)
@pytest.mark.parametrize("times", [1, LISTED_PER_SEGMENT + 7])
def test_however_many_bad_messages_name_a_table_it_alone_is_held(
    tmp_path: Path, message: bytes, held: list[str], times: int
) -> None:
    form = "ticdc-canal-json"
    run, reading = lake_in(tmp_path, source=kafka(form, "t")).run(), Reading(form)
    columns = [ObservedColumns(5 << 18, "d", table, (("id", "int"),), ("id",), "t/0/1@5") for table in ("a", "big")]
    run.history.record(schema_changes(columns, escapes=True), NOON)
    reading.landed_ms = 1_780_000_000_000
    reading.read([[message] * times], [times])
    assert reading.bad == times
    quarantine(run, *(each for found in reading.summaries.values() for bad in found.bad.values() for each in bad))
    assert run.quarantine.count() == times
    assert sorted(holds(run, 10 << 18)) == held


def test_a_row_that_contradicts_a_dump_holds_whatever_rows_are_read_late(lake: TestLake) -> None:
    columns, load = (("id", "int"), ("c", "int")), "CREATE TABLE t (id INT PRIMARY KEY, c DATE)"
    log: list[Statement | ObservedColumns] = [ObservedColumns(110, "d", "t", columns, ("id",), "p0:1")]
    lake.run().history.record([SchemaChange(100, "d", "t", None, load, (), "//dump/100/t", kind="load")], NOON)

    def holds() -> list[str]:
        run = lake.run()
        found = schema_changes(log, escapes=True)
        source: Any = SimpleNamespace(schema_changes=lambda _: (found, ()), schema_faults=set())
        vars(run)["source"] = source
        _evolve(run, source, None)
        return [version.origin for version in run.history.history.versions if version.effect == "hold"]

    assert holds() == ["p0:1"]
    log.append(ObservedColumns(90, "d", "t", columns, ("id",), "p1:1"))
    assert holds() == ["p0:1"]
    log.append(Statement(105, "d", "t", "ALTER TABLE t MODIFY c INT", "p1:2"))
    assert holds() == []
