"""What goes wrong at one table leaves the others alone; what goes wrong with the engine is no fault of a table."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.cli import main
from cdc_lakehouse.errors import EngineError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.iceberg_java import TableTransaction
from cdc_lakehouse.operate.maintenance import Maintenance
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, DROP, T0, HandSink, put
from tests.kit.lakes import TestLake, run_all

pytestmark = pytest.mark.spark


class Tables:
    """The tables `a` and `b`, each with a row that every step updates."""

    def __init__(self, lake: TestLake) -> None:
        self.lake = lake
        self.sink = HandSink(lake.sink)
        self._steps = itertools.count(1)
        self.at = 0
        for table in ("a", "b"):
            self.create(table, 1)
        self.change()
        lake.go_through()
        self.check()

    def create(self, table: str, at: int) -> None:
        self.sink.schema(table, at, *COLUMNS, action=CREATE, query=f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)")

    def change(self, *tables: str, version: int = 1) -> None:
        number = next(self._steps)
        self.at = number * 100
        for table in tables or ("a", "b"):
            kind = "I" if number == 1 else "U"
            put(self.sink, table, version, (kind, self.at, 1, number), index=number)
        self.sink.checkpoint(self.at + 50)

    def value(self, table: str) -> tuple[Any, ...]:
        ((_, value, text),) = self.lake.rows(table)
        return value, text

    def check(self, a: int | None = None, cut: int | None = None) -> None:
        """`b` is as of the last step, `a` too or as of an earlier one; the newest cut is the last step's or that of an
        earlier one, and shows `a` where `a` is as of it."""
        last = self.at // 100
        upto = last if a is None else a
        assert self.value("a") == (upto, f"a{upto * 100}")
        assert self.value("b") == (last, f"b{last * 100}")
        run = self.lake.run()
        shown = last if cut is None else cut
        assert run.last_cut.checkpoint_ts == T0 + shown * 100 + 50
        names = {row.table for row in run.last_cut_rows}
        assert names == ({"b"} if shown > upto else {"a", "b"})
        assert bool(run.last_cut.held) == (shown > upto)

    def metadata_file(self, table: str) -> Path:
        found = self.lake.lake.catalog.load_table((f"{self.lake.name}__d", table))
        return Path(found.metadata_location.removeprefix("file:"))

    def command(self, *words: str) -> str:
        found = CliRunner().invoke(main, words, env={"CDC_LAKEHOUSE_CONFIG": str(self.lake.config_path)})
        assert found.exit_code == 0, found.output
        return found.output

    def names(self) -> set[str]:
        return {name for _, name in self.lake.lake.catalog.list_tables(f"{self.lake.name}__d")}


@pytest.fixture
def tables(new_lake: Callable[..., TestLake]) -> Tables:
    return Tables(new_lake(source=CSV))


@contextlib.contextmanager
def refused(lake: TestLake, statement: str, table: str) -> Iterator[None]:
    """The catalog's database refuses statements of a kind for one table."""
    path = lake.lake.catalog.properties["uri"].removeprefix("sqlite:///").partition("?")[0]
    where = f"OLD.table_name = '{table}' AND OLD.table_namespace = '{lake.name}__d'"
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as catalog:
        catalog.execute(
            f"CREATE TRIGGER test_{statement} BEFORE {statement} ON iceberg_tables WHEN {where} "
            "BEGIN SELECT RAISE(ABORT, 'the catalog refuses this'); END"
        )
        try:
            yield
        finally:
            catalog.execute(f"DROP TRIGGER test_{statement}")


@contextlib.contextmanager
def engine_away(table: str, times: int) -> Iterator[None]:
    """So many commits of a table find that the engine does not answer."""
    real: Any = TableTransaction.commit
    left = itertools.count(times, -1)

    def commit(self: Any, **arguments: Any) -> Any:
        if f".{table} " in f"{self._table} " and next(left) > 0:
            raise EngineError("Spark's JVM does not answer (ConnectionRefusedError)")
        return real(self, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableTransaction, "commit", commit)
        yield


def test_a_commit_that_fails(tables: Tables) -> None:
    tables.change()
    with refused(tables.lake, "UPDATE", "a"):
        held = run_all(tables.lake.run()).applied.held
    assert set(held) == {"d.a#1"} and "could not be written" in held["d.a#1"]
    tables.check(a=1)
    tables.lake.go_through()
    tables.check()

    # The engine, once: the run itself tries again.
    tables.change()
    with engine_away("a", 1):
        tables.lake.go_through()
    tables.check()

    # For longer than a run tries: no cut says that something is wrong with the table.
    tables.change()
    with engine_away("a", 100), pytest.raises(EngineError, match="does not answer"):
        run_all(tables.lake.run())
    tables.check(a=3, cut=3)
    tables.lake.go_through()
    tables.check()
    before = tables.lake.metadata()
    tables.lake.go_through()
    assert tables.lake.metadata() == before


def test_a_table_whose_metadata_cannot_be_read(tables: Tables) -> None:
    file = tables.metadata_file("a")
    sound = file.read_bytes()
    for damage in (file.unlink, lambda: file.write_bytes(sound[:200])):
        tables.change()
        damage()
        (reason,) = run_all(tables.lake.run()).applied.held.values()
        assert str(file) in reason and "restore it, or make the table anew with `cdc-lakehouse rebuild d.a`" in reason
        tables.check(a=1)

    assert str(file) in tables.command("status")
    assert str(file) in tables.command("plan")
    # Those of its last good cut, made of its events.
    assert '"a100"' in tables.command("show", "d.a", "--json")
    unread = Lake(tables.lake.config.lake, tables.lake.config.storage)
    done = Maintenance(tables.lake.feed, unread, tables.lake.session).maintain(dry_run=True)
    said = {each.table.rpartition(".")[2]: each.actions.deferred for each in done.tables}
    assert str(file) in str(said.pop("a")) and said == {"b": None, "events": None}

    file.write_bytes(sound)
    tables.lake.go_through()
    tables.check()
    tables.metadata_file("a").write_bytes(b"{}")
    tables.change()
    tables.lake.go_through(rebuild=frozenset({TableName("d", "a")}))
    tables.check()
    tables.change()
    tables.lake.go_through()
    tables.check()


def test_a_table_that_is_dropped(tables: Tables) -> None:
    """It can be neither marked nor removed at first: the others go on, and a later run does it."""
    tables.lake.configure(tables={"settings": {"d.p": {"ddl": {"drop": "purge"}}}})
    for table in ("c", "k", "p"):
        tables.create(table, 1)
        put(tables.sink, table, 1, ("I", 110, 1, 1))
    tables.change()
    tables.lake.go_through()
    tables.sink.rows("d/k", 1, "garbage", index=2)
    for table in ("c", "k", "p"):
        query = f"DROP TABLE `d`.`{table}`"
        tables.sink.schema(table, 210, *COLUMNS, action=DROP, query=query)
    file = tables.metadata_file("c")
    sound = file.read_bytes()
    file.unlink()
    tables.change()
    with refused(tables.lake, "UPDATE", "k"), refused(tables.lake, "DELETE", "p"):
        held = run_all(tables.lake.run()).applied.held
    assert set(held) == {"d.c#1", "d.k#1"}
    assert str(file) in held["d.c#1"] and "could not be marked as dropped" in held["d.k#1"]
    assert (tables.value("a"), tables.value("b")) == ((3, "a300"), (3, "b300"))
    assert tables.names() == {"a", "b", "c", "k", "p"}

    file.write_bytes(sound)
    tables.lake.go_through()
    assert tables.names() == {"a", "b", "c", "k"}
    assert {table for _, table in tables.lake.tables()} == {"a", "b"}
    before = tables.lake.metadata()
    tables.lake.go_through()
    assert tables.lake.metadata() == before
