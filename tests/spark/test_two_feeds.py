"""Two feeds in one catalog, parts of one change log in one namespace: whatever one does between two commits of the
other, or at the same time, every table is right, and neither waits for the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import TURN
from tests.kit.changefeed import Changefeed
from tests.kit.kills import before_commit
from tests.kit.lakes import TestLake, check_events, run_all
from tests.kit.log import Column, Ddl, RowChange, fold, seen

pytestmark = pytest.mark.spark

TS = 450_000_000_000_000_000
NAMES = ("a", "b", "c", "d")


class Parts:
    """A change log of four tables, two to each feed. `advance` writes changes, DDL among them, for both."""

    def __init__(self, new_lake: Callable[..., TestLake], number: int) -> None:
        namespace = f"parts{number}__{{database}}"
        self.first = new_lake(namespace=namespace, tables={"include": ["shop.a*", "shop.b*"]})
        self.second = new_lake(
            namespace=namespace,
            tables={"include": ["*.*"], "exclude": ["shop.a*", "shop.b*"]},
            source={"uri": str(self.first.sink)},
        )
        self.feed, self._at = Changefeed(self.first.sink), TS
        for name in NAMES:
            self._send(Ddl, name, "create", (Column("id", "int"), Column("v", "int")), ("id",))

    def _send(self, kind: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._at += 1
        self.feed.send(kind(self._at, *arguments, **named))

    def advance(self) -> None:
        for name, table in list(self.feed.tables.items()):
            rows = [row for row, _ in table.rows.values()]
            for row in rows[::2]:
                self._send(RowChange, name, row, {**row, "v": str(self._at % 1000)})
            for row in rows[1::4]:
                self._send(RowChange, name, row, None)
            new = {column.name: None for column in table.columns} | {"id": str(self._at % 100_000)}
            self._send(RowChange, name, None, new)
        for name in [name for name in self.feed.tables if name[0] in "ac"]:
            self._send(Ddl, name, "rename table", new_name=name[0] if len(name) > 1 else f"{name}_renamed")
        self.feed.checkpoint(self._at)

    def check(self) -> None:
        wanted = {name: table.typed() for name, table in fold(self.feed.entries, self.feed.checkpoint_ts).items()}
        for lake, initials in ((self.first, "ab"), (self.second, "cd")):
            found = {name: seen(table.schema(), table.scan()) for (_, name), table in lake.tables().items()}
            assert found == {name: table for name, table in wanted.items() if name[0] in initials}
            check_events(lake)


def test_feed_between_any_two_commits_of_another(new_lake: Callable[..., TestLake]) -> None:
    parts = Parts(new_lake, 1)
    for number in itertools.count(1) if TURN is None else itertools.count(1 + TURN % 3, 3):
        parts.advance()
        others: list[object] = []
        with before_commit(number, lambda: others.append(parts.second.go_through())) as begun:  # noqa: B023
            parts.first.go_through()
        if not others:
            break
        parts.check()
    assert number > 8 and len(begun) < number
    parts.second.go_through()
    parts.check()


def test_feeds_run_at_the_same_time(new_lake: Callable[..., TestLake]) -> None:
    parts = Parts(new_lake, 2)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            parts.advance()
            done = list(pool.map(lambda lake: run_all(lake.run()), (parts.first, parts.second)))
            assert [each.applied.held for each in done] == [{}, {}]
            parts.check()
