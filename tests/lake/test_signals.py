"""What messages say beside rows is kept as often as it is news."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.history import History, ObservedColumns, Statement, schema_changes
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.topic_reader import PartitionSummary, origin_of
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.tables.source_metadata import SCHEMA, Position, Signal, Signals
from tests.kit.lakes import TestLake

SHAPES = {
    "a": (("id", "int"), ("a", "int")),
    "ab": (("id", "int"), ("a", "int"), ("b", "int")),
    "a as text": (("id", "int"), ("a", "varchar")),
}
BEFORE = {("x", n): (34, 34 + n) for n in range(4)}
STATEMENTS = ("ALTER TABLE t ADD b INT", "ALTER TABLE t DROP b", "DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)")


def observed(ts: int, shape: str) -> ObservedColumns:
    return ObservedColumns(ts, "d", "t", SHAPES[shape], ("id",), origin_of("x", 0, ts, ts))


def finds(*log: ObservedColumns | Statement) -> PartitionSummary:
    """An entry's offset is its commit-ts."""
    return PartitionSummary(
        0,
        0,
        statements=[(entry.commit_ts, entry) for entry in log if isinstance(entry, Statement)],
        observed={n: (entry.commit_ts, entry) for n, entry in enumerate(log) if isinstance(entry, ObservedColumns)},
    )


def statement(ts: int, text: str) -> Statement:
    return Statement(ts, "d", "t", text, origin_of("x", 0, ts, ts))


def test_signals_many_batches_leave_one_position_a_partition(lake: TestLake) -> None:
    """A run makes objects of what is news, not of each batch before it; without news of the batches before the first
    that can be decoded again, a position of each partition is left."""
    for batch in range(1, 36):
        told = {
            ("x", n, batch): replace(finds(observed(10, "a")), last_ts=batch, watermark=batch + n) for n in range(4)
        }
        Signals(lake.lake, lake.name).write(batch, told)
    signals = Signals(lake.lake, lake.name)
    assert [row.kind for row in signals.rows] == ["columns"] and len(signals.position_rows) == 140
    assert signals.positions_before(35) == BEFORE and signals.last_ts(35) == 34
    signals.summarize(35)
    assert len(signals.position_rows) == 8 and len(lake.machinery("signals")) == 9
    again = Signals(lake.lake, lake.name)
    assert (again.positions(), again.positions_before(35)) == (signals.positions(), BEFORE)
    stored = lake.lake.load(system_table(lake.name, "signals"))
    assert stored is not None and len(stored.metadata.snapshots) <= 30 and len(list(stored.scan().plan_files())) <= 16


TOLD = st.lists(st.sampled_from([*SHAPES, *STATEMENTS]), min_size=1, max_size=12)


@given(TOLD, st.randoms(use_true_random=False))
def test_what_is_left_out_changes_no_schema(told: list[str], rng: Any) -> None:
    """In any number of batches and partitions, each with a part of the log."""
    log = [observed(ts, each) if each in SHAPES else statement(ts, each) for ts, each in enumerate(told, 10)]
    signals = Signals.__new__(Signals)
    signals._table, signals._stored = _NoTable(), SCHEMA.empty_table()  # type: ignore[assignment]
    cuts = sorted(rng.randrange(len(log) + 1) for _ in range(3))
    for batch, (first, end) in enumerate(zip([0, *cuts], [*cuts, len(log)], strict=True), 1):
        parts: list[list[Any]] = [[], []]
        for each in log[first:end]:
            parts[rng.randrange(2)].append(each)
        signals.write(batch, {("x", number, batch): finds(*part) for number, part in enumerate(parts)})
    assert made(signals.schema_signals()) == made(log)


class _NoTable:
    def write(self, *_: Any, **__: Any) -> None:
        pass


def made(told: Any) -> list[tuple[Any, ...]]:
    """Versions of the table; those that only hold it count once, for it stays held."""
    history = History()
    versions = history.apply(schema_changes(told, escapes=True))
    found = [(each.commit_ts, each.effect, each.columns) for each in versions if each.hold is None]
    held = [(each.commit_ts, each.hold) for each in versions if each.hold is not None]
    return [*found, *held[:1]]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 20), st.none() | st.integers(1, 20), st.none() | st.integers(1, 20)
        ),
        max_size=12,
    ),
    st.integers(1, 8),
)
def test_positions_that_are_one_a_partition_say_what_they_said(
    rows: list[tuple[int, int, int | None, int | None]], before: int
) -> None:
    signals = Signals.__new__(Signals)
    found = {
        (n % 9, partition): Signal(n % 9, "position", "x", partition, None, ts, watermark, ended)
        for n, (partition, ts, watermark, ended) in enumerate(rows)
    }
    positions = pa.Table.from_pylist([asdict(each) for each in found.values()], SCHEMA)
    signals._table, signals._stored = _NoTable(), positions  # type: ignore[assignment]

    def said() -> list[object]:
        later = range(before, 10)
        return [signals.positions(), *((signals.last_ts(n), signals.positions_before(n)) for n in later)]

    expected, count = said(), len(signals.position_rows)
    assert signals.positions() == _positions_by_row(list(found.values()))
    outdated = signals.outdated(before)
    signals.summarize(before)
    assert said() == expected and signals.outdated(before) == 0
    assert count - outdated <= len(signals.position_rows) <= count - outdated + 2


def _positions_by_row(rows: list[Signal]) -> dict[tuple[str, int], Position]:
    found: dict[tuple[str, int], Position] = {}
    for row in sorted(rows, key=lambda row: row.batch):
        known = found.get((row.topic, row.partition), Position(0, 0, None))
        ended_ts = known.ended_ts if row.ended_ts is None else row.ended_ts
        last_ts, watermark = max(row.commit_ts, known.last_ts), max(row.watermark or 0, known.watermark)
        found[row.topic, row.partition] = Position(last_ts, watermark, ended_ts)
    return found


def test_tables_of_a_topic_with_a_rename_typed_in_another_case_are_the_source_s(lake: TestLake) -> None:
    signals = Signals(lake.lake, lake.name)
    signals.write(1, {("x", 0, 1): finds(observed(10, "a"), Statement(20, "d", "u", "RENAME TABLE T TO u", "x"))})
    assert signals.tables("x") == {TableName("d", "t")}
