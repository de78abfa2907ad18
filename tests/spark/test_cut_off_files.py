"""Files that a crash cut off: what a changefeed sends again takes their place, and nothing else does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.lake.check_queries import cut_tables, uncounted_lines
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.hand_sinks import CSV
from tests.kit.lakes import TestLake, run_all
from tests.model.changefeed import DATABASE, Changefeed
from tests.model.fold import Column, Ddl, RowChange, fold

pytestmark = pytest.mark.spark

COLUMNS = (Column("id", "int"), Column("v", "varchar(20)"))


class Crashing:
    """Tables t0 and t1 and their changefeed. The first three rows of t0 are applied."""

    def __init__(self, lake: TestLake, *, csv: bool) -> None:
        self.lake, self.feed = lake, Changefeed(lake.sink, csv=csv)
        self._clock = itertools.count(450_000_000_000_000_000, 1 << 18)
        for name in ("t0", "t1"):
            self.feed.send(Ddl(next(self._clock), name, "create", columns=COLUMNS, key=("id",)))
        self.put(range(3))
        self.advance()
        assert not self.run().applied.held

    def put(self, ids: range, table: str = "t0") -> None:
        for id in ids:
            row = {"id": str(id), "v": f"a text of {id}"}
            self.feed.send(RowChange(next(self._clock), table, None, {**row}))

    def crash(self) -> None:
        """The newest file of t0 is all but its end."""
        self.feed.flush(9)
        path = max((self.lake.sink / DATABASE / "t0").rglob("CDC*[0-9].*"))
        path.write_bytes(path.read_bytes()[:-14])

    def advance(self) -> None:
        """All that was sent is written, in files of up to nine rows, and the checkpoint covers it."""
        self.feed.flush(9)
        self.feed.advance(0)

    def run(self, **options: Any) -> Steps:
        return run_all(self.lake.run(**options))

    def states(self) -> list[str]:
        return [row["state"] for row in self.lake.machinery("quarantine")]

    def is_right(self, table: str) -> bool:
        """As of the checkpoint, by the model's own fold."""
        seen = self.lake.tables()[DATABASE, table].scan().to_arrow().to_pylist()
        true = fold(self.feed.entries, self.feed.checkpoint_ts)[table].rows.values()
        rows = {(row["id"], row["v"], row["_commit_ts"]) for row in seen}
        return len(seen) == len(rows) and rows == {(int(row["id"] or 0), row["v"], ts) for row, ts in true}


@pytest.fixture(params=["canal-json", "csv"])
def crashing(request: pytest.FixtureRequest, new_lake: Callable[..., TestLake]) -> Crashing:
    csv = request.param == "csv"
    return Crashing(new_lake(source=CSV) if csv else new_lake(), csv=csv)


def test_a_file_that_was_cut_off_holds_its_table_until_its_rows_come_again(crashing: Crashing) -> None:
    crashing.put(range(3, 7))
    crashing.crash()
    assert list(crashing.run().applied.held) == [f"{DATABASE}.t0#1"]
    assert crashing.states() == ["open"]

    crashing.feed.restart()
    crashing.put(range(7, 9))
    crashing.advance()
    assert not crashing.run().applied.held
    (row,) = crashing.lake.machinery("quarantine")
    assert row["state"] == "redelivered" and "CDC00000000000000000003" in row["message"]
    assert crashing.is_right("t0")

    segments = sorted(crashing.lake.machinery("segments"), key=lambda row: row["segment"])
    assert [(row["lines"], row["events"], row["quarantined"]) for row in segments] == [(3, 3, 0), (4, 3, 1), (6, 6, 0)]
    assert uncounted_lines(crashing.lake.lake, crashing.lake.name) == []
    tables = cut_tables(crashing.lake.lake, crashing.lake.feed)
    counts = {each.name.table: (each.rows, each.in_snapshot) for each in tables}
    assert counts.pop("t0") == (9, 9) and set(counts.values()) <= {(0, 0)}
    before = crashing.lake.metadata()
    crashing.run()
    assert crashing.lake.metadata() == before
    dates = {each["feed_date"] for each in crashing.lake.machinery("segments")} - {None}
    assert not crashing.run(dates=frozenset(dates)).applied.held
    assert crashing.states() == ["redelivered"] and crashing.is_right("t0")


def test_the_table_stays_held_while_other_rows_come_and_the_others_go_on(crashing: Crashing) -> None:
    """The changefeed goes on as though all had been written: the last row of the file, and its last line, are lost."""
    crashing.put(range(3, 7))
    crashing.crash()
    crashing.put(range(7, 15))
    crashing.put(range(4), "t1")
    crashing.advance()
    assert list(crashing.run().applied.held) == [f"{DATABASE}.t0#1"]
    assert crashing.states() == ["open"] and crashing.is_right("t1")


def test_a_file_that_comes_with_its_rows_sent_again_holds_nothing_whatever_the_limit(
    new_lake: Callable[..., TestLake],
) -> None:
    crashing = Crashing(new_lake(policy={"max_quarantined_rows": 0}), csv=False)
    crashing.put(range(3, 7))
    crashing.crash()
    crashing.feed.restart()
    crashing.advance()
    assert not crashing.run().applied.held
    assert crashing.states() == ["redelivered"] and crashing.is_right("t0")
