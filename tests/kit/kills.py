"""Runs that are killed.

`KillAtCommit` ends a run before its n-th commit. Every commit, by PyIceberg or by Iceberg's Java API, is a statement in
the catalog's database, where triggers count them, and refuse the n-th and all later ones: nobody keeps a list of the
places that commit, and no thread of the run goes on. Between two commits a run does nothing that another can see:
before the n-th is after the one before it. `KillAtCall` ends a run at a call of a method, for what it does outside of
the lake. `before_commit` does something else between two commits.
"""

import contextlib
import functools
import itertools
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi, TableTransaction
from tests.kit.lakes import TestLake

SAID: Final = "the run is killed before this commit"
_REFUSE: Final = f"SELECT RAISE(ABORT, '{SAID}') WHERE (SELECT count(*) FROM test_commits) >= {{}}"
_HOLD: Final = (
    "SELECT (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000000) SELECT max(i) FROM n)"
    " WHERE (SELECT count(*) FROM test_commits) = {}"
)
_TABLES: Final = ("iceberg_tables", "iceberg_namespace_properties")


def open_catalog(lake: TestLake, **how: Any) -> contextlib.closing[sqlite3.Connection]:
    """The catalog's database, each statement of which is a transaction; it is closed at the end."""
    path = lake.lake.catalog.properties["uri"].removeprefix("sqlite:///").partition("?")[0]
    return contextlib.closing(sqlite3.connect(path, **{"timeout": 60, "isolation_level": None, **how}))


class Crash(BaseException):
    """Not an Exception: nothing in the project may catch it, as nothing can catch a kill."""


@dataclass
class Killed:
    """What became of a run, when its block has ended."""

    happened: bool = False
    commits: list[str] = field(default_factory=list[str])
    """What it has committed: `insert segments`, `update d.t`, `rename d.t2`."""


@dataclass(frozen=True)
class KillAtCommit:
    """Before the n-th commit (from 1); a run of fewer goes through."""

    number: int

    @contextlib.contextmanager
    def __call__(self, lake: TestLake) -> Iterator[Killed]:
        killed = Killed()
        with _triggers(lake, self.number, _REFUSE) as catalog, _refusals_that_are_logged() as logged:
            try:
                yield killed
                # A table that cannot be removed does not end a run: nothing comes after that.
                killed.happened = bool(logged)
            except Exception as error:
                if not any(SAID in str(each) for each in _chain(error)):
                    raise
                killed.happened = True
            finally:
                found = catalog.execute("SELECT what FROM test_commits ORDER BY rowid").fetchall()
                killed.commits = [
                    what.replace(f" cdc_{lake.name}.", " ").replace(f" {lake.name}__", " ") for (what,) in found
                ]
        assert not killed.happened or len(killed.commits) == self.number - 1


@contextlib.contextmanager
def _refusals_that_are_logged() -> Iterator[list[str]]:
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(said) if SAID in (said := record.getMessage()) else None
    logger = logging.getLogger("cdc_lakehouse")
    assert logger.isEnabledFor(logging.WARNING), "somebody has silenced the log, and refusals would not be seen"
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def hold_commit(lake: TestLake, number: int) -> Iterator[Callable[[], bool]]:
    """The n-th commit since the block began (from 1), by whatever process, takes some seconds in the database: time to
    kill who makes it. Asks whether one is there."""
    with _triggers(lake, number, _HOLD) as catalog:

        def is_there() -> bool:
            if catalog.execute("SELECT count(*) FROM test_commits").fetchone()[0] != number - 1:
                return False
            # Whoever writes now makes that commit.
            catalog.execute("PRAGMA busy_timeout = 0")
            try:
                catalog.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            else:
                catalog.execute("ROLLBACK")
                return False
            finally:
                catalog.execute("PRAGMA busy_timeout = 60000")

        yield is_there


@contextlib.contextmanager
def _triggers(lake: TestLake, number: int, at: str) -> Iterator[sqlite3.Connection]:
    """For each table and kind of statement of the catalog: it is written down, and the n-th is met."""
    made = ["CREATE TABLE test_commits (what TEXT);"]
    remove = "DROP TABLE IF EXISTS test_commits;"
    for table, kind in itertools.product(_TABLES, ("INSERT", "UPDATE", "DELETE")):
        remove += f"DROP TRIGGER IF EXISTS test_{kind}_{table};"
        row = "OLD" if kind == "DELETE" else "NEW"
        name = f"{row}.table_namespace || '.' || {row}.table_name" if table == "iceberg_tables" else f"{row}.namespace"
        verb = f"'{kind.lower()} '"
        if kind == "UPDATE" and table == "iceberg_tables":
            same = "OLD.table_name = NEW.table_name AND OLD.table_namespace = NEW.table_namespace"
            verb = f"CASE WHEN {same} THEN 'update ' ELSE 'rename ' END"
        made.append(
            f"CREATE TRIGGER test_{kind}_{table} BEFORE {kind} ON {table} BEGIN"
            f" {at.format(number - 1)};"
            f" INSERT INTO test_commits VALUES ({verb} || {name}); END;"
        )
    with open_catalog(lake) as catalog:
        catalog.executescript(remove + "".join(made))
        try:
            yield catalog
        finally:
            catalog.executescript(remove)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def kill_everywhere(lake: TestLake, run: Callable[[], Any]) -> list[str]:
    """Runs of which each is killed after one commit, until one gets through. As long as nothing that a reader sees has
    changed, runs are killed after more and more. Gives the commits that kills came right after."""
    hit: list[str] = []
    number, before = 2, _visible(lake)
    while True:
        with KillAtCommit(number)(lake) as killed:
            run()
        if not killed.happened:
            return hit
        assert len(hit) < 100, f"runs get no further: {hit}"
        hit.append(killed.commits[-1])
        after = _visible(lake)
        number = number + 1 if after == before else 2
        before = after


def _visible(lake: TestLake) -> dict[str, Any]:
    """The state of all tables of a feed. Of `segments` what is decoded: each run gives what an earlier one left there a
    new batch. Of `events` its rows: a batch that was not marked is decoded again in the place of them."""
    namespaces = lake.lake.catalog.list_namespaces()
    found: dict[str, Any] = {name: None for (name,) in namespaces if lake.name in (name[4:], name.partition("__")[0])}
    for name in lake.metadata():
        if name.endswith(".segments"):
            found[name] = sorted((row["segment"], row["state"]) for row in lake.machinery("segments"))
            continue
        table = lake.lake.catalog.load_table(tuple(name.split(".", 1)))
        is_of_events = name.endswith(".events")
        state = lake.events_by_segment() if is_of_events else table.metadata.current_snapshot_id
        found[name] = (state, None if is_of_events else table.properties)
    return found


@contextlib.contextmanager
def _calls(methods: Iterable[tuple[type, str]], take: Callable[[int, Callable[[], Any]], Any]) -> Iterator[list[str]]:
    """In the place of calls of methods, `take` is given the number of each (from 1) and what it does; gives the names
    of those that were begun."""
    begun, lock = list[str](), threading.Lock()

    def hooked(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            with lock:
                begun.append(name)
                number = len(begun)
            return take(number, functools.partial(real, *arguments, **keywords))

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in methods:
            patch.setattr(owner, name, hooked(name, getattr(owner, name)))
        yield begun


@dataclass(frozen=True)
class KillAtCall:
    """At the n-th call (from 1) of a method, before or after it did what it does."""

    owner: type
    name: str
    number: int
    after: bool

    @contextlib.contextmanager
    def __call__(self, _: TestLake) -> Iterator[Killed]:
        killed = Killed()

        def take(number: int, call: Callable[[], Any]) -> Any:
            if number < self.number:
                return call()
            killed.happened = True
            if number == self.number and self.after:
                call()
            raise Crash  # The other threads of a killed process do not go on either.

        with contextlib.suppress(Crash), _calls([(self.owner, self.name)], take):
            yield killed


def before_commit(number: int, do: Callable[[], object]) -> contextlib.AbstractContextManager[list[str]]:
    """Do something before the n-th commit of the block (from 1); gives the commits that were begun."""

    def take(at: int, call: Callable[[], Any]) -> Any:
        if at == number:
            do()
        return call()

    by_java = ((TableTransaction, "commit"), (IcebergJavaApi, "create"))
    return _calls(((SqlCatalog, "commit_table"), (SqlCatalog, "create_table"), *by_java), take)


Kill = KillAtCommit | KillAtCall
