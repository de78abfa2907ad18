"""Tables that cannot go on: what ends a hold, and what goes on in spite of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse import read
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT
from cdc_lakehouse.lake.current import update_tasks
from cdc_lakehouse.pipeline.reading import NotReadableError
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.lakes import TestLake, run_all
from tests.model.changefeed import DATABASE, Changefeed
from tests.model.fold import Column, Ddl, RowChange, Values

pytestmark = pytest.mark.spark

COLUMNS = (Column("id", "int"), Column("v", "int"))
_clock = itertools.count(450_000_000_000_000_000, 1 << 18)


class Table:
    """One table t0 and its changefeed."""

    def __init__(self, lake: TestLake) -> None:
        self.lake = lake
        self.feed = Changefeed(lake.sink)

    def create(self, *key: str) -> None:
        self.feed.send(Ddl(next(_clock), "t0", "create", columns=COLUMNS, key=key))

    def drop(self) -> None:
        self.feed.send(Ddl(next(_clock), "t0", "drop"))

    def put(self, id: int, v: int | None, before: int | None = None) -> None:
        self.feed.send(RowChange(next(_clock), "t0", _row(id, before) if before is not None else None, _row(id, v)))

    def spoil(self, old: str, new: str) -> Callable[[], None]:
        """Change a text in the newest file; gives what mends it."""
        self.feed.flush(9)
        path = max(self.lake.sink.rglob("CDC*.json"), key=lambda path: (path.parent.name, path.name))
        sound = path.read_bytes()
        assert old.encode() in sound
        path.write_bytes(sound.replace(old.encode(), new.encode()))

        def mend() -> None:
            path.write_bytes(sound)

        return mend

    def run(self) -> Steps:
        self.feed.advance(0)
        return run_all(self.lake.run())

    def rows(self) -> dict[int, int | None]:
        table = self.lake.tables()[DATABASE, "t0"]
        return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}

    def open(self) -> list[str]:
        return [row["error_class"] for row in self.lake.machinery("quarantine") if row["state"] == "open"]

    def left_out(self) -> dict[tuple[int, int | None], int]:
        """By data file and line, how many rows an open row of the quarantine stands for."""
        rows = [row for row in self.lake.machinery("quarantine") if row["state"] == "open"]
        numbers = {path: number for number, path in enumerate(sorted({row["segment"] for row in rows}), 1)}
        return {(numbers[row["segment"]], row["line"]): row["count"] for row in rows}


def _row(id: int, v: int | None) -> Values:
    return {"id": str(id), "v": None if v is None else str(v)}


def test_a_held_table_that_is_dropped_makes_way_for_a_new_one(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake())
    table.create()
    table.put(1, 10)
    assert "primary_key" in str(table.run().applied.held)
    table.drop()
    table.create("id")
    table.put(2, 20)
    assert not table.run().applied.held
    assert table.rows() == {2: 20}


def test_a_table_that_is_dropped_while_it_is_held_stays_at_its_last_good_cut(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    table.run()
    table.put(2, 20)
    mend = table.spoil('"v":"20"', '"v":"twenty"')
    assert table.run().applied.held
    table.drop()
    table.create("id")
    table.put(3, 30)
    done = table.run()
    assert not done.applied.held
    assert table.rows() == {3: 30}
    (namespace,) = {
        name for name in table.lake.lake.catalog.list_namespaces() if name[0].startswith(f"{table.lake.name}__")
    }
    (aside,) = [name for name in table.lake.lake.catalog.list_tables(namespace) if "dropped" in name[-1]]
    old = table.lake.lake.catalog.load_table(aside)
    assert old.properties["cdc.dropped-ts"] and old.scan().to_arrow().column("id").to_pylist() == [1]

    before = table.lake.metadata()
    table.run()
    assert table.lake.metadata() == before
    mend()
    assert not table.run().applied.held
    assert table.rows() == {3: 30}


@pytest.mark.parametrize("dropped", [False, True])
def test_read_of_a_held_table_above_its_last_good_cut_is_refused(
    new_lake: Callable[..., TestLake], dropped: bool
) -> None:
    """One change of two can be read: a state of them was never true."""
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    good = table.run().published.cut.checkpoint_ts
    table.put(1, 20, before=10)
    table.put(2, 30)
    mend = table.spoil('"v":"20"', '"v":"twenty"' if not dropped else '"v":}')
    bad = table.run().published.cut.checkpoint_ts
    assert bad > good and table.open()
    name, config = f"{DATABASE}.t0", table.lake.config
    if dropped:
        table.drop()
        table.run()
    else:
        assert read(config, name).column("v").to_pylist() == [10]
    with pytest.raises(NotReadableError, match=f"last good cut is at {good} .*last_good"):
        read(config, name, as_of=bad)
    for at, last_good in ((good, False), (bad, True)):
        assert read(config, name, as_of=at, last_good=last_good).column("v").to_pylist() == [10]
    mend()
    table.run()
    assert sorted(read(config, name, as_of=bad).column("v").to_pylist()) == [20, 30]


LEFT_OUT: dict[str, Any] = {"exclude": [f"{DATABASE}.t0"]}


def test_a_held_table_that_is_left_out_and_taken_again_has_all_that_came_meanwhile(
    new_lake: Callable[..., TestLake],
) -> None:
    """How far a table is applied stands on the table: cuts that it was no part of say nothing of it."""
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    table.run()
    table.put(1, 90, before=10)
    table.put(3, 30)
    mend = table.spoil('"v":"30"', '"v":"thirty"')
    assert table.run().applied.held
    table.lake.configure(tables=LEFT_OUT)
    table.put(4, 40)
    assert not table.run().applied.held, "a table that is left out is not held"
    mend()
    table.run()
    assert table.rows() == {1: 10}
    table.lake.configure(tables={})
    assert not table.run().applied.held
    assert table.rows() == {1: 90, 3: 30, 4: 40}


def test_a_table_that_is_emptied_while_it_is_left_out(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    table.run()
    table.lake.configure(tables=LEFT_OUT)
    table.feed.send(Ddl(next(_clock), "t0", "truncate"))
    table.put(7, 70)
    table.run()
    table.lake.configure(tables={})
    table.run()
    assert table.rows() == {7: 70}


@pytest.mark.parametrize("partial", [False, True], ids=["whole rows", "a partial row beside"])
def test_by_policy_a_table_goes_on_without_bad_rows(new_lake: Callable[..., TestLake], partial: bool) -> None:
    table = Table(new_lake(policy={"quarantine": "skip"}))
    table.create("id")
    table.put(1, 10)
    table.run()
    if partial:
        change = RowChange(next(_clock), "t0", _row(1, 10), _row(1, 10), frozenset({"v"}))
        table.feed.send(change)
    table.put(2, 20)
    table.put(3, 30)
    mend = table.spoil('"v":"20"', '"v":"twenty"')
    done = table.run()
    assert not done.applied.held
    assert table.rows() == {1: 10, 3: 30}
    assert table.open() == ["BadValue"]

    table.put(4, 40)
    table.run()
    assert table.rows() == {1: 10, 3: 30, 4: 40}
    assert table.open() == ["BadValue"], "what was passed by is still told"

    mend()
    table.run()
    assert table.rows() == {1: 10, 2: 20, 3: 30, 4: 40}
    assert table.open() == []


def test_rows_that_were_passed_by_hold_their_table_when_the_policy_does(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake(policy={"quarantine": "skip"}))
    table.create("id")
    table.put(1, 10)
    table.run()
    table.put(2, 20)
    mend = table.spoil('"v":"20"', '"v":"twenty"')
    table.run()
    table.put(3, 30)
    table.run()
    assert table.rows() == {1: 10, 3: 30}

    table.lake.configure(policy={"quarantine": "hold"})
    assert "do not fit" in str(table.run().applied.held)
    assert table.open() == ["BadValue"] and table.rows() == {1: 10, 3: 30}
    table.put(4, 40)
    assert table.run().applied.held and table.open() == ["BadValue"]
    mend()
    assert not table.run().applied.held
    assert table.open() == [] and table.rows() == {1: 10, 2: 20, 3: 30, 4: 40}


def test_another_key_of_the_configuration_makes_the_table_anew(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake(tables={"settings": {"shop.t0": {"primary_key": ["v"]}}}))
    table.create()
    table.put(1, 10)
    table.put(2, 10)
    table.run()
    assert table.rows() == {2: 10}, "they were taken for one row"
    table.lake.configure(tables={"settings": {"shop.t0": {"primary_key": ["id"]}}})
    assert [each.rebuilt for each in table.run().applied.tables] == [True]
    assert table.rows() == {1: 10, 2: 10}
    before = table.lake.metadata()
    table.run()
    assert table.lake.metadata() == before


def test_another_namespace_has_all_rows(new_lake: Callable[..., TestLake]) -> None:
    """The tables of before stay where they are, as they were."""
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    table.run()
    table.lake.configure(namespace="elsewhere_{feed}_{database}")
    table.run()
    table.put(2, 20)
    table.run()
    catalog, name = table.lake.lake.catalog, table.lake.name
    there = catalog.load_table((f"elsewhere_{name}_{DATABASE}", "t0"))
    assert sorted(there.scan().to_arrow()["id"].to_pylist()) == [1, 2]
    run = table.lake.run()
    (shown,) = run.checkpoints.rows(run.last_cut.checkpoint_ts)
    assert shown.row_count == 2 and there.snapshot_by_id(shown.snapshot_id) is not None


def test_bad_rows_beyond_those_that_are_listed_are_counted(
    new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_tasks, "REJECTED_LISTED", 2)
    table = Table(new_lake(policy={"quarantine": "skip"}))
    table.create("id")
    table.put(1, 10)
    table.run()
    table.put(7, 70)
    for id in range(2, 7):
        table.put(id, 20)
    mend_first = table.spoil('"v":"20"', '"v":"twenty"')
    for id in (8, 9):
        table.put(id, 20)
    mend_second = table.spoil('"v":"20"', '"v":"twenty"')
    done = table.run()
    assert not done.applied.held
    assert table.rows() == {1: 10, 7: 70}
    assert table.left_out() == {(1, 2): 1, (1, 3): 1, (1, 4): 3, (2, 1): 2}
    assert done.run.quarantine.count() == 7

    before = table.lake.metadata()
    table.run()
    assert table.lake.metadata() == before

    mend_second()
    table.run()
    assert table.rows() == {1: 10, 7: 70, 8: 20, 9: 20}
    assert table.left_out() == {(1, 2): 1, (1, 3): 1, (1, 4): 3}
    mend_first()
    table.run()
    assert table.rows() == {1: 10, 7: 70, **dict.fromkeys([*range(2, 7), 8, 9], 20)}
    assert table.open() == []


def test_bad_lines_beyond_those_that_are_listed_are_counted(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake(policy={"quarantine": "skip"}))
    table.create("id")
    for id in range(LISTED_PER_SEGMENT + 3):
        table.put(id, 10)
    table.feed.flush(LISTED_PER_SEGMENT + 3)
    table.spoil('"isDdl":false', '"isDdl":true')
    done = table.run()
    listed = {(1, line): 1 for line in range(1, LISTED_PER_SEGMENT + 1)}
    assert table.left_out() == {**listed, (1, None): 3}
    assert done.run.quarantine.count() == LISTED_PER_SEGMENT + 3


def test_a_partial_update_of_a_row_that_was_never_seen_is_not_guessed(new_lake: Callable[..., TestLake]) -> None:
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    table.run()
    table.put(2, 20)
    table.feed.flush(1)
    table.feed.send(RowChange(next(_clock), "t0", _row(2, 20), _row(2, 20), frozenset({"v"})))
    (path,) = table.lake.sink.rglob("CDC00000000000000000002.json")
    sound = path.read_bytes()
    path.write_bytes(b"")
    assert "do not fit" in str(table.run().applied.held)
    path.write_bytes(sound)
    assert not table.run().applied.held
    assert table.rows() == {1: 10, 2: 20}


def test_partial_rows_have_columns_of_any_name_and_their_zero_dates_are_counted(
    new_lake: Callable[..., TestLake],
) -> None:
    table = Table(new_lake())
    # Names that the lake, or its engines, have for something else.
    left_out = ("v", "_file", "_COMMIT_TS", 'say "x"', "n" * 64)
    given = ("cdc:x", "_pos", "a.b", "it's", "m" * 64)
    columns = (Column("id", "int"), Column("day", "datetime"), *(Column(each, "int") for each in (*left_out, *given)))
    table.feed.send(Ddl(next(_clock), "t0", "create", columns=columns, key=("id",)))
    old = {"id": "1", "day": "2026-01-01 00:00:00", **dict.fromkeys((*left_out, *given), "10")}
    table.feed.send(RowChange(next(_clock), "t0", None, old))
    table.run()
    zero = {"day": "0000-00-00 00:00:00"}
    new = {**old, **zero, **dict.fromkeys(given, "11")}
    table.feed.send(RowChange(next(_clock), "t0", old, new, frozenset(left_out)))
    table.feed.send(RowChange(next(_clock), "t0", None, {**old, **zero, "id": "2"}))
    (applied,) = table.run().applied.tables
    assert (applied.upserts, applied.zero_dates) == (2, 2)
    rows = table.lake.tables()[DATABASE, "t0"].scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values())[:-1] for row in rows) == [
        (1, None, *[10] * 5, *[11] * 5),
        (2, None, *[10] * 10),
    ]


def test_keys_that_are_one_in_the_lake_stay_rows_of_their_own(new_lake: Callable[..., TestLake]) -> None:
    """Two zero dates, which become NULL: to change one row of theirs all of them are made anew, also in a rebuild."""
    table = Table(new_lake())
    columns = (Column("id", "int"), Column("day", "datetime"), Column("v", "int"))
    table.feed.send(Ddl(next(_clock), "t0", "create", columns=columns, key=("id", "day")))
    days = ("0000-00-00 00:00:00", "2020-00-10 10:00:00", "2026-01-01 00:00:00")
    first, second, whole = ({"id": "1", "day": day, "v": str(v)} for v, day in zip((10, 20, 30), days, strict=True))

    def rows(**options: Any) -> list[int]:
        table.feed.advance(0)
        table.lake.go_through(**options)
        found = table.lake.tables()[DATABASE, "t0"].scan().to_arrow().to_pylist()
        assert all((row["day"] is None) == (row["v"] < 30) for row in found)
        return sorted(row["v"] for row in found)

    for row in (first, second, whole):
        table.feed.send(RowChange(next(_clock), "t0", None, row))
    assert rows() == [10, 20, 30]
    changed = {**first, "v": "11"}
    table.feed.send(RowChange(next(_clock), "t0", first, changed))
    assert rows() == [11, 20, 30]
    assert rows(rebuild=frozenset({TableName(DATABASE, "t0")})) == [11, 20, 30]
    table.feed.send(RowChange(next(_clock), "t0", second, None))
    table.feed.send(RowChange(next(_clock), "t0", whole, {**whole, "v": "31"}))
    assert rows() == [11, 31]
    dates = {row["feed_date"] for row in table.lake.machinery("segments")} - {None}
    assert rows(dates=frozenset(dates)) == [11, 31]
