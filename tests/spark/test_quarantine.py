"""Rejected rows beyond those that are listed one by one. What else becomes of rejected rows is in tests/scenarios."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT
from cdc_lakehouse.lake.current import update_tasks
from tests.kit.changefeed import Changefeed
from tests.kit.lakes import TestLake
from tests.kit.log import Column, Ddl, RowChange

pytestmark = pytest.mark.spark


class Rejecting:
    """Table t, of which some rows are spoiled."""

    def __init__(self, lake: TestLake) -> None:
        self.lake, self.feed = lake, Changefeed(lake.sink, database="d")
        self._clock = itertools.count(450_000_000_000_000_000, 1 << 18)
        columns = (Column("id", "int"), Column("v", "int"))
        self.feed.send(Ddl(next(self._clock), "t", "create", columns=columns, key=("id",)))

    def put(self, *ids: int, old: str = "", new: str = "") -> None:
        for id in ids:
            self.feed.send(RowChange(next(self._clock), "t", None, {"id": str(id), "v": "20"}))
            if old:
                self.feed.spoil(lambda change, line: line(change).replace(old, new))

    def run(self) -> list[tuple[Any, ...]]:
        self.feed.flush(LISTED_PER_SEGMENT + 3)
        self.feed.advance(0)
        self.lake.go_through()
        return self.lake.rows("t")

    def left_out(self) -> dict[tuple[int, int | None], int]:
        """By data file and line, the rows that an open row of the quarantine stands for."""
        rows = [row for row in self.lake.machinery("quarantine") if row["state"] == "open"]
        numbers = {path: number for number, path in enumerate(sorted({row["segment"] for row in rows}), 1)}
        return {(numbers[row["segment"]], row["line"]): row["count"] for row in rows}


def test_invalid_values_beyond_those_listed_are_counted(
    new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_tasks, "REJECTED_LISTED", 2)
    table = Rejecting(new_lake(policy={"quarantine": "skip"}))
    table.put(7)
    table.put(2, 3, 4, 5, 6, old='"v":"20"', new='"v":"twenty"')
    table.feed.flush(9)
    table.put(8, 9, old='"v":"20"', new='"v":"twenty"')
    assert table.run() == [(7, 20)]
    assert table.left_out() == {(1, 2): 1, (1, 3): 1, (1, 4): 3, (2, 1): 2}
    assert table.lake.run().quarantine.count() == 7
    before = table.lake.metadata()
    table.run()
    assert table.lake.metadata() == before
    table.feed.mend()
    assert table.run() == [(id, 20) for id in range(2, 10)]
    assert table.left_out() == {}


def test_invalid_lines_beyond_those_listed_are_counted(new_lake: Callable[..., TestLake]) -> None:
    table = Rejecting(new_lake(policy={"quarantine": "skip"}))
    table.put(*range(LISTED_PER_SEGMENT + 3), old='"isDdl":false', new='"isDdl":true')
    assert table.run() == []
    listed = {(1, line): 1 for line in range(1, LISTED_PER_SEGMENT + 1)}
    assert table.left_out() == {**listed, (1, None): 3}
    assert table.lake.run().quarantine.count() == LISTED_PER_SEGMENT + 3
