"""Events whose keys are one value in several texts are events of one row: the tables are what folding them by the
values gives."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, PrimitiveType
from pyroaring import BitMap64

from cdc_lakehouse.changelog.mysql_types import ColumnType, type_change
from cdc_lakehouse.changelog.positions import row_stage
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, image_text
from cdc_lakehouse.lake.current.key_texts import TableKey
from cdc_lakehouse.lake.current.keyed_events import KeyedSpan, KeyedSpans
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS, Target
from cdc_lakehouse.lake.current.update_tasks import StoredTable, TableUpdate, update_tables
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.files import StoredFile, write_file
from tests.kit.duckdb_sql import connection

T = ColumnType.of
V = Column(2, "v", T("int"))
LATER = 50
"""When the second version begins."""
PLAIN, LABELS = ValueFormat(), ValueFormat(labels_uncertain=True)
CANAL = ValueFormat("America/New_York", trailing_zeros_cut=True)


class Event(NamedTuple):
    """A change of a row by the text of its key, and the value that this is; the key of before where it is another."""

    op: str
    commit_ts: int
    text: str
    key: Any
    old_text: str | None = None
    old_key: Any = None


def folded(events: Sequence[Event]) -> dict[Any, int]:
    """The last commit-ts of each key, in plain Python."""
    rows: dict[Any, int] = {}
    for event in sorted(events, key=lambda event: event.commit_ts):
        rows.pop(event.key if event.old_text is None else event.old_key, None)
        if event.op != "D":
            rows[event.key] = event.commit_ts
    return rows


def version(commit_ts: int, key: ColumnType) -> TableVersion:
    columns = (Column(1, "k", key), V)
    return TableVersion(commit_ts, TableName("d", "t"), "d.t#1", "alter", "evolve", "", "", columns, key=(1,))


def row(event: Event) -> dict[str, Any]:
    image = image_text({"k": event.text, "v": "1"})
    before = image_text({"k": event.old_text, "v": "1"}) if event.old_text is not None else None
    return {
        "schema_name": "d", "table_name": "t", "op": event.op, "commit_ts": event.commit_ts,
        "before": image if event.op == "D" else before, "after": None if event.op == "D" else image, "segment": "s",
        "line": event.commit_ts, SYNTHETIC: False,
    }  # fmt: skip


class Table:
    """A table in a directory, whose rows are one file."""

    def __init__(self, directory: Path, value_format: ValueFormat) -> None:
        self.directory = directory
        self.value_format = value_format
        self.rows: list[dict[str, Any]] = []
        self.known: TableVersion | None = None

    def apply(self, types: Sequence[ColumnType], events: Sequence[Event]) -> dict[Any, int]:
        """The last commit-ts of each key that the lake has then; `types` are those that the key has had."""
        versions = [version(at, key) for at, key in zip((1, LATER), types, strict=False)]
        now = versions[-1]
        key = TableKey.of(now.columns[:1], versions, self.value_format)
        ends = [0, *(each.commit_ts for each in versions[1:]), 1000]
        spans = [
            KeyedSpan(0, n, "d", "t", row_stage(ends[n]), row_stage(ends[n + 1]), ("k",), key.texts(each))
            for n, each in enumerate(versions)
        ]
        schema = pa.schema([EVENTS.field(name) for name in CHANGE_COLUMNS])
        keyed = KeyedSpans(spans).keyed(connection(), pa.Table.from_pylist([*map(row, events)], schema))
        stored = self.stored()
        plan = TableUpdate(
            0, "d.t", Target(now.columns, dict(enumerate(versions))), key.read_as, self.value_format,
            self.schema(now), f"file://{self.directory}", {}, stored, (), (), skips_rejected=False,
        )  # fmt: skip
        results = [result for batch in update_tables({}, [plan], keyed) for result in batch.to_pylist()]
        assert {result["kind"] for result in results} <= {"file", "counts", "deleted"}, results
        for result in results:
            if result["kind"] == "deleted":
                gone = BitMap64.deserialize(result["data"])
                self.rows = [each for place, each in enumerate(self.rows) if place not in gone]
            if result["kind"] == "file":
                self.rows += pq.read_table(json.loads(result["text"])["file-path"].removeprefix("file://")).to_pylist()
        self.known = now
        found = [(each["k"], each[COMMIT_TS]) for each in self.rows]
        assert len(dict(found)) == len(found), found
        return dict(found)

    def schema(self, now: TableVersion) -> Schema:
        kind = PrimitiveType.model_validate(self.value_format.type_of(now.columns[0].type))
        return Schema(
            NestedField(1, "k", kind), NestedField(2, "v", IntegerType()), NestedField(3, COMMIT_TS, LongType())
        )

    def stored(self) -> StoredTable | None:
        if not self.rows or self.known is None:
            return None
        schema, path = self.schema(self.known), str(self.directory / "stored.parquet")
        rows = pa.Table.from_pylist(self.rows)
        written = json.loads(write_file(PyArrowFileIO(), path, schema, rows, {}))
        file = StoredFile(path, written["file-size-in-bytes"], rows.num_rows)
        return StoredTable((file,), schema, {1: 1, 2: 2}, self.known)


def moment(hour: int) -> datetime.datetime:
    return datetime.datetime(2024, 11, 3, hour, 30, tzinfo=datetime.UTC)


def enum(*labels: str) -> ColumnType:
    return T("enum", elements=labels)


def of_two(first: str, second: str, key: Any) -> list[Event]:
    """One key in two texts; another version can be between them."""
    return [Event("R", 10, first, key), Event("U", 60, second, key)]


NOON = datetime.datetime.fromisoformat("2024-01-01 12:00:00")
FULL = bytes.fromhex("0123456789abcdef0123456789abcd00")
CASES = {
    "BINARY without its zeros": (CANAL, [T("binary", length=16)], of_two(
        FULL.decode("latin-1"), FULL.rstrip(b"\0").decode("latin-1"), FULL)),
    "BINARY of nothing but zeros": (CANAL, [T("binary", length=2)], of_two("\0\0", "", b"\0\0")),
    "BINARY to VARBINARY": (CANAL, [T("binary", length=3), T("varbinary", length=9)], of_two("a", "a\0\0", b"a\0\0")),
    "ZEROFILL": (CANAL, [T("int unsigned zerofill")], of_two("0000000005", "5", 5)),
    "INT to INT ZEROFILL": (CANAL, [T("int unsigned"), T("int zerofill")], of_two("5", "0000000005", 5)),
    "DECIMAL": (CANAL, [T("decimal", length=10, scale=2)], of_two("1.00", "1.0", Decimal("1.00"))),
    "DECIMAL with more digits": (CANAL, [T("decimal", length=10, scale=2), T("decimal", length=12, scale=2)],
        of_two("-1.50", "-1.5", Decimal("-1.50"))),
    "DECIMAL of 40 digits": (CANAL, [T("decimal", length=40, scale=2)], of_two("1.00", "1.0", "1.00")),
    "DOUBLE": (CANAL, [T("double")], of_two("-15000000000", "-1.5E10", -1.5e10)),
    "DOUBLE, two zeros": (CANAL, [T("double")], of_two("0", "-0.0", 0.0)),
    "FLOAT to DOUBLE": (PLAIN, [T("float"), T("double")],
        of_two("0.1", "0.10000000149011612", 0.10000000149011612)),
    "BIT": (CANAL, [T("bit", length=8)], of_two("5", "05", 5)),
    "YEAR": (CANAL, [T("year")], of_two("0000", "0", 0)),
    "DATETIME with a fraction": (PLAIN, [T("datetime"), T("datetime", scale=3)],
        of_two("2024-01-01 12:00:00", "2024-01-01 12:00:00.000", NOON)),
    "DATETIME(3) with six digits": (PLAIN, [T("datetime", scale=3)],
        of_two("2024-01-01 12:00:00.120", "2024-01-01 12:00:00.120000", NOON.replace(microsecond=120000))),
    "a zero DATETIME with a fraction": (PLAIN, [T("datetime"), T("datetime", scale=3)],
        of_two("0000-00-00 00:00:00", "0000-00-00 00:00:00.000", None)),
    "TIMESTAMP with a fraction": (PLAIN, [T("timestamp"), T("timestamp", scale=6)],
        of_two("2024-11-03 06:30:00", "2024-11-03 06:30:00.000000", moment(6))),
    "TIMESTAMP with its offset": (CANAL, [T("timestamp")],
        [*of_two("2024-11-03 06:30:00+00:00", "2024-11-03 06:30:00Z", moment(6)),
         *of_two("2024-11-03 01:30:00", "2024-11-03T05:30:00+00:00", moment(5))]),
    "labels of an ENUM in another order": (PLAIN, [enum("a", "b"), enum("b", "a")],
        [*of_two("1", "2", "a"), Event("I", 11, "2", "b")]),
    "a label of a SET between the others": (PLAIN, [T("set", elements=("a", "c")), T("set", elements=("a", "b", "c"))],
        of_two("2", "4", "c")),
    "ENUM to VARCHAR": (PLAIN, [enum("a", "b"), T("varchar", length=9)], of_two("1", "a", "a")),
    "ENUM as number and label": (LABELS, [enum("a", "b")], of_two("2", "b", "b")),
    "another key": (CANAL, [T("decimal", length=10, scale=2)], [
        *of_two("1.00", "1.0", Decimal("1.00")), Event("I", 61, "3.0", Decimal("3.00")),
        Event("U", 62, "2.0", Decimal("2.00"), "1.00", Decimal("1.00")), Event("D", 63, "3.00", Decimal("3.00"))]),
}  # fmt: skip


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_a_key_is_one_whatever_its_text(tmp_path: Path, name: str, cut: int) -> None:
    """Read together, and where another run has applied some already."""
    value_format, types, events = CASES[name]
    assert all(type_change(old, new) != "convert" for old, new in itertools.pairwise(types))
    table = Table(tmp_path, value_format)
    if cut:
        table.apply(types[:1], events[:cut])
    assert table.apply(types, events[cut:]) == folded(events)


@pytest.mark.parametrize(
    "type",
    ["int", "bigint unsigned", "varchar", "varbinary", "date", "datetime", "time", "enum('a','b')", "char", "tinyint"],
)
def test_keys_of_one_text_are_taken_as_they_are(type: str) -> None:
    elements = ("a", "b") if type.startswith("enum") else ()
    found = version(1, T(type.partition("(")[0], elements=elements))
    key = TableKey.of(found.columns[:1], [found, found], CANAL)
    assert key.texts(found) == () and key.read_as is key.columns


def test_an_update_of_the_same_key_in_another_text_moves_no_row() -> None:
    found = version(1, T("decimal", length=10, scale=2))
    key = TableKey.of(found.columns[:1], [found], CANAL)
    event = row(Event("U", 10, "1.0", None, "1.00"))
    span = KeyedSpan(0, 0, "d", "t", 0, 1000, ("k",), key.texts(found))
    schema = pa.schema([EVENTS.field(name) for name in CHANGE_COLUMNS])
    keyed = KeyedSpans([span]).keyed(connection(), pa.Table.from_pylist([event], schema)).to_pylist()
    assert [(each["key"], each["upsert"]) for each in keyed] == [(["1.00"], True)]
