"""Which tables cannot go on, and that nothing else is held with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, evolve
from tests.lake import CREATE, DROP, ID, NOON, RENAME, change, segment, text
from tests.pipeline import DAY, T0, Sink, lake_in

A, B = change(10, "a", CREATE), change(10, "b", CREATE)
KEYLESS = change(10, "log", CREATE, "CREATE TABLE log (x VARCHAR(20))", text("x"), text("y"))


FILE = segment("d/a/10/CDC000001.json")
GAP = [
    segment("d/a/10/2026-06-01/CDC_7_000003.json", file_index=3, dispatcher="7"),
    segment("d/b/10/2026-06-01/CDC000001.json"),
]


def run_of(directory: Path, *changes: SchemaChange, segments: Iterable[Segment] = (), **feed: Any) -> FeedRun:
    run = lake_in(directory, **feed).run()
    run.history.record(changes, NOON)
    if rows := list(segments):
        run.segments.land(rows)
    return run


def holds(run: FeedRun, upto: int = 100) -> dict[str, str]:
    return dict(find_holds(run, run.history.history.incarnations(), upto).reasons)


def bad(segment: str, database: str | None = "d", table: str | None = "a", kind: str = "BadLine") -> Rejected:
    return Rejected(segment, 3, kind, "it is bad", None, database, table)


def quarantine(run: FeedRun, *rejected: Rejected) -> None:
    """These are open, and no others."""
    run.quarantine.replace(lambda _: True, rejected, NOON)


DROPPED = change(20, "log", DROP, "DROP TABLE log", text("x"))
EXCHANGE = change(20, "a", 42, "ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b")


@pytest.mark.parametrize(
    ("changes", "segments", "policy", "upto", "held"),
    [
        pytest.param([A, B], [FILE], {}, 100, {}, id="sound"),
        pytest.param([A, KEYLESS], [], {}, 100, {"d.log#1": 'tables.settings."d.log".primary_key'}, id="no key"),
        pytest.param([KEYLESS, DROPPED], [], {}, 100, {}, id="no key, dropped"),
        # Above the checkpoint the schema file may still come.
        pytest.param([A, B], [segment("d/a/50/CDC000001.json")], {}, 49, {}, id="schema file to come"),
        pytest.param([A, B], [segment("d/a/50/CDC000001.json")], {}, 50, {"d.a#1": ""}, id="schema file missing"),
        pytest.param([A, B], GAP, {"index_gap": "hold"}, 100, {"d.a#1": "has no file 1, 2"}, id="data file missing"),
        pytest.param([A, B], GAP, {"index_gap": "skip"}, 100, {}, id="data file missing, skipped"),
        pytest.param([A, B, EXCHANGE], [], {}, 100, {"d.a#1": "ALTER TABLE a EXCHANGE",
                     "d.b#1": "partitions of table d.a are not known"}, id="a DDL that cannot be carried out"),
    ],
)  # fmt: skip
def test_what_holds_a_table_and_no_other(
    tmp_path: Path,
    changes: list[SchemaChange],
    segments: list[Segment],
    policy: dict[str, str],
    upto: int,
    held: dict[str, str],
) -> None:
    """`held` has a part of what is said."""
    found = holds(run_of(tmp_path, *changes, segments=segments, policy=policy), upto)
    assert list(found) == list(held)
    assert [words for id, words in held.items() if words not in found[id]] == []


def test_what_is_held_by_ddl_is_said_a_way_out_that_is_one(tmp_path: Path) -> None:
    run = run_of(tmp_path, A, change(20, "a", 20, "ALTER TABLE a DROP PARTITION p0"))
    told = holds(run)["d.a#1"]
    assert "older than the feed. Load the table again" in told and "`cdc-lakehouse load --table d.a`" in told
    assert all("Load" not in (version.hold or "") for version in run.history.history.versions)

    dump = replace(change(30, "a", CREATE, "CREATE TABLE a (id INT PRIMARY KEY)"), action=None, columns=(), kind="load")
    run.history.record([dump], NOON)
    assert sorted(run.history.history.incarnations()) == ["d.a#1", "d.a@30#1"]
    assert "d.a@30#1" not in holds(run)
    assert holds(run_of(tmp_path / "left out", A, EXCHANGE, tables={"exclude": ["d.a", "d.b"]})) == {}


@pytest.mark.parametrize(
    ("key", "columns"), [(["y"], ["y"]), (["Y", "x"], ["y", "x"]), (["x", "gone"], []), (None, [])]
)
def test_a_configured_key_is_taken_whole_or_not(tmp_path: Path, key: list[str] | None, columns: list[str]) -> None:
    settings = {"d.log": {"primary_key": key}} if key else {}
    run = run_of(tmp_path, KEYLESS, tables={"settings": settings})
    assert [column.name for column in key_columns(run.feed, run.history.history.versions[0])] == columns
    assert list(holds(run)) == ([] if columns else ["d.log#1"])
    unknown = "primary_key names columns that the table does not have: gone" in holds(run).get("d.log#1", "")
    assert unknown == (key is not None and "gone" in key)


def test_a_configured_key_goes_before_the_tables_own(tmp_path: Path) -> None:
    own = change(10, "a", CREATE, "", ID, SourceColumn("code", text("x").type, nullable=False))
    run = run_of(tmp_path, own, tables={"settings": {"d.a": {"primary_key": ["code"]}}})
    assert [column.name for column in key_columns(run.feed, run.history.history.versions[0])] == ["code"]


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


def test_a_segment_is_of_the_table_that_had_the_name_then(tmp_path: Path) -> None:
    """Its path says `d/a`, and that name is another table's by now."""
    moved = change(20, "old", RENAME, "RENAME TABLE d.a TO d.old")
    run = run_of(tmp_path, A, moved, change(30, "a", CREATE), segments=[FILE])
    quarantine(run, bad("d/a/10/CDC000001.json"))
    (held,) = holds(run)
    assert run.history.history.incarnations()[held].last.name.table == "old"


@pytest.mark.parametrize(("policy", "held"), [("hold", ["d.a#1"]), ("skip", [])])
@pytest.mark.parametrize(
    ("setting", "kind"),
    [("quarantine", "NotJson"), ("index_gap", "MissingFile"), ("index_gap", "UnreadableIndex")],
)
def test_what_is_mended_or_skipped_by_policy_is_not_held(
    tmp_path: Path, setting: str, kind: str, policy: str, held: list[str]
) -> None:
    run = run_of(tmp_path, A, policy={setting: policy})
    quarantine(run, bad("s", kind=kind))
    assert list(holds(run)) == held
    quarantine(run)
    assert holds(run) == {}


def test_of_many_reasons_a_few_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    run = run_of(tmp_path, A)
    quarantine(run, *(bad(f"s{number}") for number in range(9)))
    assert "; and 4 more." in holds(run)["d.a#1"]


def test_a_reason_has_the_beginning_of_a_long_statement(tmp_path: Path) -> None:
    statement = f"{EXCHANGE.query} /* {'x' * 1_000_000} */"
    reason = holds(run_of(tmp_path, A, change(20, "a", 42, statement)))["d.a#1"]
    assert reason.startswith(f"{EXCHANGE.query} /* xxx")
    assert len(reason) < 2000


def test_statement_not_understood_that_names_no_table_is_quarantined(tmp_path: Path) -> None:
    """It holds no table, and stays in the quarantine until a person gives it up."""
    lake = lake_in(tmp_path)
    sink = Sink(lake.sink, "a")
    for at, statement in ((5, "FROBNICATE x"), (6, "FROBNICATE a")):
        sink.writer.write_ddl(SchemaChange(T0 + at, "d", "", 9999, statement, (), ""), DAY)
    sink.checkpoint(9)
    for _ in range(2):
        evolved = Steps(lake.run()).evolved
        (row,) = lake.run().quarantine.open()
        assert (row.error_class, row.database, row.raw) == ("BadStatement", "d", b"FROBNICATE x")
        assert "names no table that is known" in row.message
    assert evolved.versions == ()
    assert [reason.partition(":")[0] for reason in holds(lake.run(), T0 + 9).values()] == ["FROBNICATE a"]
    lake.run().quarantine.discard({row.id}, "ann", "harmless", NOON)
    Steps(lake.run()).upto(evolve)
    assert lake.run().quarantine.open() == []
