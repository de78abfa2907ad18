"""Which tables cannot go on, beside those of tests/commands/cases/holds.txt; which cannot have their names in the
catalog (those that get them are in tests/scenarios/renames.txt); and patterns that no table has."""

import functools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cdc_lakehouse.changelog.history import History, Incarnation, LogEntry, schema_changes
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import TablesConfig
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CatalogUnreachableError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.pipeline.apply import TableLocation, rename_to_source_names
from cdc_lakehouse.pipeline.feed_tables import TakenNames, unmatched_patterns
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, _evolve, evolve
from tests.changelog.statements import history
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.decoding import Reading
from tests.kit.lakes import TestLake
from tests.lake import CREATE, DROP, ID, NOON, RENAME, change, make_current_table
from tests.pipeline import DAY, T0, Sink, kafka, lake_in

A = change(10, "a", CREATE)
EMPTIED = change(20, "a", 20, "ALTER TABLE a DROP PARTITION p0")


def run_of(directory: Path, *changes: SchemaChange) -> FeedRun:
    run = lake_in(directory).run()
    run.history.record(changes, NOON)
    return run


def holds(run: FeedRun, upto: int = 100) -> dict[str, str]:
    return dict(find_holds(run, run.history.history.incarnations(), upto))


def test_table_of_a_dump_is_not_held_by_statement_before(tmp_path: Path) -> None:
    dump = replace(change(30, "a", CREATE, "CREATE TABLE a (id INT PRIMARY KEY)"), action=None, columns=(), kind="load")
    run = run_of(tmp_path, A, EMPTIED, dump)
    assert sorted(run.history.history.incarnations()) == ["d.a#1", "d.a@30#1"]
    assert list(holds(run)) == ["d.a#1"]


def test_long_statement_is_cut_in_the_reason(tmp_path: Path) -> None:
    run = run_of(tmp_path, A, replace(EMPTIED, query=f"{EMPTIED.query} /* {'x' * 1_000_000} */"))
    (reason,) = holds(run).values()
    assert "/* xxx" in reason and len(reason) < 2000


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
    columns = [LogEntry(5 << 18, "d", name, "t/0/1@5", columns=(("id", "int"),), key=("id",)) for name in ("a", "big")]
    run.history.record(schema_changes(columns, escapes=True), NOON)
    reading.landed_ms = 1_780_000_000_000
    reading.read([[message] * times], [times])
    assert reading.bad == times
    run.quarantine.replace(lambda _: True, reading.rejected, NOON)
    assert run.quarantine.count() == times
    assert sorted(holds(run, 10 << 18)) == held


def test_a_row_that_contradicts_a_dump_holds_whatever_rows_are_read_late(lake: TestLake) -> None:
    columns, load = (("id", "int"), ("c", "int")), "CREATE TABLE t (id INT PRIMARY KEY, c DATE)"
    log = [LogEntry(110, "d", "t", "p0:1", columns=columns, key=("id",))]
    lake.run().history.record([SchemaChange(100, "d", "t", None, load, (), "//dump/100/t", kind="load")], NOON)

    def holds() -> list[str]:
        run = lake.run()
        found = schema_changes(log, escapes=True)
        source: Any = SimpleNamespace(schema_changes=lambda _: (found, ()), schema_faults=set())
        vars(run)["source"] = source
        _evolve(run, source, None)
        return [version.origin for version in run.history.history.versions if version.effect == "hold"]

    assert holds() == ["p0:1"]
    log.append(LogEntry(90, "d", "t", "p1:1", columns=columns, key=("id",)))
    assert holds() == ["p0:1"]
    log.append(LogEntry(105, "d", "t", "p1:2", "ALTER TABLE t MODIFY c INT"))
    assert holds() == []


# --- Names ---


def named(lake: TestLake, other: dict[str, Any] | None, error: Exception | None = None) -> str:
    """`a` is to be called `b`, which may be another table's, and `c` is to be called `d`."""
    tables, lives = CurrentTables(lake.lake, lake.feed), dict[str, Incarnation]()
    for name, more in {"a": {}, "c": {}, **({} if other is None else {"b": other})}.items():
        changes = [change(10, name, CREATE), *([change(20, name, DROP)] if "dropped" in more else [])]
        ((id, life),) = history(*changes).incarnations().items()
        properties = {"cdc_dropped-ts": "20"} if "dropped" in more else {"cdc_feed": more["feed"]} if more else {}
        make_current_table(lake, life, tables.identifier(TableName("d", name)), **properties)
        lives |= {} if "dropped" in more else {id: life}

    def rename(old: tuple[str, str], new: tuple[str, str]) -> None:
        if error is not None and new[1] == "b":
            raise error
        real(old, new)

    real: Any = lake.lake.catalog.rename_table
    at = {name: tables.identifier(TableName("d", name)) for name in "abcd"}
    placed = [TableLocation(lives[f"d.{now}#1"], at[now], at[name]) for now, name in ("ab", "cd")]
    with mock.patch.object(lake.lake.catalog, "rename_table", rename):
        ((held, reason),) = rename_to_source_names(tables, placed, lives).items()
    made = [lake.lake.catalog.load_table(each) for each in lake.lake.catalog.list_tables(at["a"].namespace)]
    found = sorted(f"{each.properties['cdc.incarnation'][2]} is {each.name()[-1]}" for each in made)
    return f"{', '.join(found)}; {held} held: {reason}".replace(lake.name, "f")


def taken(exclude: str, since: int) -> str:
    """`a` became `b` at 20, and `a` again at 30."""
    found = History()
    renamed = [change(at, to, RENAME, f"RENAME TABLE {of} TO {to}") for at, of, to in [(20, "a", "b"), (30, "b", "a")]]
    found.apply([change(10, "a", CREATE), *renamed])
    names = TakenNames.of(TablesConfig(include=("*.*",), exclude=tuple(f"d.{each}" for each in exclude)), found, since)
    return "".join(name for name in "ab" if names.takes_name(TableName("d", name))) or "none"


def unmatched(lake: TestLake, *include: str) -> list[str]:
    lake.configure(tables={"include": include})
    found = lake.run().history
    assert unmatched_patterns(lake.feed.tables, found.history) == []
    found.record([change(4, "", 1, "CREATE DATABASE `d`"), change(5, "t", 0, "", ID)], NOON)
    found.record([change(7, "before", 0, "", ID), change(8, "u", 14, "RENAME TABLE `before` TO `u`", ID)], NOON)
    return unmatched_patterns(lake.feed.tables, found.history)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/names.txt"), ids=str)
def test_names_are_given_taken_and_matched(lake: TestLake, case: Case, update: bool) -> None:
    of_lake = {"named": functools.partial(named, lake), "unmatched": functools.partial(unmatched, lake)}
    case.compare(evaluated(case, {**of_lake, "taken": taken, "away": CatalogUnreachableError("away")}), update=update)


def test_table_without_a_database_is_no_asset(lake: TestLake) -> None:
    """Rows of none were taken once. Dagster knows no group without a name."""
    lake.run().history.record([replace(change(5, "u", CREATE), database=""), change(6, "t", CREATE)], NOON)
    keys = build_definitions(lake.config).resolve_all_asset_keys()
    assert any(key.path[-2:] == ["d", "t"] for key in keys) and not any("" in key.path for key in keys)
