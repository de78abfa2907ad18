"""A database as DTS sees it: what happens in it becomes records in Avro, and its rows are kept beside as a reader of
the lake should see them. Shares nothing with the decoder: values of rows are what Python has for them."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.decoders.messages.dts_records import Image, body, character, date_time, row_body

BEGAN: Final = 1_732_156_800
UTC: Final = datetime.UTC
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def _integer(value: int) -> Image:
    return "Integer", {"precision": 20, "value": str(value)}


def _decimal(value: decimal.Decimal) -> Image:
    return "Decimal", {"value": str(value), "precision": 20, "scale": 4}


def _float(value: float) -> Image:
    return "Float", {"value": value, "precision": 22, "scale": 31}


def _timestamp(value: datetime.datetime) -> Image:
    seconds = (value - _EPOCH) // datetime.timedelta(seconds=1)
    return "Timestamp", {"timestamp": seconds, "millis": value.microsecond}


def _datetime(value: datetime.datetime) -> Image:
    return date_time(
        year=value.year, month=value.month, day=value.day, hour=value.hour, minute=value.minute, second=value.second,
        millis=value.microsecond,
    )  # fmt: skip


def _date(value: datetime.date) -> Image:
    return date_time(year=value.year, month=value.month, day=value.day)


def _time(value: str) -> Image:
    sign = -1 if value.startswith("-") else 1
    hour, minute, second = (int(part) * sign for part in value.removeprefix("-").split(":"))
    return date_time(hour=hour, minute=minute, second=second, millis=0)


def _object(kind: str) -> Callable[[Any], Image]:
    return lambda value: ("TextObject", {"type": kind, "value": value})


@dataclass(frozen=True)
class Kind:
    """A column's declaration, the number that DTS has for it, and how it writes a value."""

    declared: str
    number: int
    image: Callable[[Any], Image]


KINDS: Final[Mapping[str, Kind]] = {
    "id": Kind("BIGINT", 8, _integer),
    "big": Kind("BIGINT UNSIGNED", 8, _integer),
    "tiny": Kind("TINYINT", 1, _integer),
    "bits": Kind("BIT(64)", 16, _integer),
    "price": Kind("DECIMAL(20,4)", 246, _decimal),
    "ratio": Kind("DOUBLE", 5, _float),
    "name": Kind("VARCHAR(40)", 253, lambda value: character("utf8mb4", value.encode())),
    "old_name": Kind("VARCHAR(40) CHARACTER SET gbk", 253, lambda value: character("gbk", value.encode("gbk"))),
    "raw": Kind("VARBINARY(40)", 253, lambda value: character("binary", value)),
    "body": Kind("BLOB", 252, lambda value: ("BinaryObject", {"type": "blob", "value": value})),
    "at": Kind("TIMESTAMP(6)", 7, _timestamp),
    "told": Kind("DATETIME(6)", 12, _datetime),
    "day": Kind("DATE", 10, _date),
    "span": Kind("TIME", 11, _time),
    "year": Kind("YEAR", 13, lambda value: date_time(year=value)),
    "doc": Kind("JSON", 245, _object("json")),
    "state": Kind("ENUM('new','paid','1')", 247, _object("enum")),
    "tags": Kind("SET('a','b','c')", 248, _object("set")),
}
Row = dict[str, Any]


def value(column: str, n: int) -> Any:
    """Some value of the column; now and then NULL."""
    if column != "id" and (n + len(column)) % 5 == 0:
        return None
    moment = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012, UTC) + datetime.timedelta(hours=n)
    match column:
        case "id":
            return n
        case "big" | "bits":
            return decimal.Decimal((1 << 64) - 1 - n)
        case "tiny":
            return n % 256 - 128
        case "price":
            return decimal.Decimal(n) * decimal.Decimal("-1.0001")
        case "ratio":
            return n / 7
        case "name":
            return f"vär 中文 😀 {n}"
        case "old_name":
            return f"中文{n}"
        case "raw" | "body":
            return bytes([0, 255, n % 256, 0])
        case "at":
            return moment
        case "told":
            return moment.replace(tzinfo=None)
        case "day":
            return moment.date()
        case "span":
            return f"-{n % 800:02d}:34:56"
        case "year":
            return 1901 + n % 255
        case "doc":
            return json.dumps({"n": n, "t": "中"}, ensure_ascii=False)
        case "state":
            return ("new", "paid", "1")[n % 3]
        case _:
            return ("", "a", "a,c", "a,b,c")[n % 4]


def row(n: int, columns: Sequence[str], *, id: int | None = None) -> Row:
    return {column: value(column, n) for column in columns} | {"id": n if id is None else id}


@dataclass
class Table:
    columns: list[str]
    rows: dict[int, Row] = field(default_factory=dict[int, Row])


class DtsSource:
    """Tables of the database `shop`. What is done is in `records`, in order; `born` says which schema they are of."""

    def __init__(self, *, born: int | None = 1_732_156_800_789) -> None:
        self.tables: dict[str, Table] = {}
        self.records: list[bytes] = []
        self._born = born
        self._clock = itertools.count(1)
        self._offset, self._file = 4, 77

    def rotate(self) -> None:
        """The next binlog file begins: offsets begin again."""
        self._offset, self._file = 4, self._file + 1

    def create(self, table: str, columns: Sequence[str], *, told: bool = True) -> None:
        """Without `told` the table is older than the topic."""
        self.tables[table] = Table(list(columns))
        if told:
            declared = ", ".join(f"`{column}` {KINDS[column].declared}" for column in columns)
            self.statement(f"CREATE TABLE `{table}` ({declared}, PRIMARY KEY (`id`))", table)

    def statement(self, sql: str, table: str | None = None) -> None:
        name = "shop" if table is None else f"shop.{table}"
        self._add(body(operation="DDL", objectName=name, afterImages=sql, **self._place()))

    def begin(self) -> None:
        self._add(body(operation="BEGIN", **self._place()))

    def commit(self) -> None:
        self._add(body(operation="COMMIT", **self._place()))

    def beside(self) -> None:
        """What tells nothing of rows."""
        self._add(body(operation="HEARTBEAT", **self._place()))
        self._add(body(operation="CHECKPOINT", **self._place()))
        self.records.append(b"\0")

    def insert(self, table: str, *rows: Row) -> None:
        """Rows of one event of the binlog: they have one place."""
        place = self._place()
        for new in rows:
            self.tables[table].rows[new["id"]] = new
            self._row("INSERT", table, place, None, new)

    def update(self, table: str, id: int, new: Row) -> None:
        rows = self.tables[table].rows
        old = rows.pop(id)
        rows[new["id"]] = new
        self._row("UPDATE", table, self._place(), old, new)

    def delete(self, table: str, id: int) -> None:
        self._row("DELETE", table, self._place(), self.tables[table].rows.pop(id), None)

    def _row(self, operation: str, table: str, place: Row, before: Row | None, after: Row | None) -> None:
        columns = self.tables[table].columns
        images: dict[str, Any] = {
            name: None if image is None else [_image(column, image[column]) for column in columns]
            for name, image in (("beforeImages", before), ("afterImages", after))
        }
        fields = [{"name": column, "dataTypeNumber": KINDS[column].number} for column in columns]
        self._add(
            row_body(
                (),
                operation=operation,
                objectName=f"shop.{table}",
                fields=fields,
                tags={"pk_uk_info": '{"PRIMARY":["id"]}', "thread_id": "42"},
                **images,
                **place,
            )
        )

    def _add(self, value: bytes) -> None:
        self.records.append(value)

    def _place(self) -> Row:
        number = next(self._clock)
        self._offset += 31
        return {
            "id": 1_700_000 + number,
            "sourceTimestamp": BEGAN + number // 3,
            "sourcePosition": f"{self._offset}@{self._file}",
            "born": self._born,
        }


def _image(column: str, value: Any) -> Image:
    return None if value is None else KINDS[column].image(value)


def check(lake_tables: Mapping[tuple[str, str], Any], source: Mapping[str, Table]) -> None:
    """Each table of the lake holds the rows of the source's, and there is no other."""
    assert {table for _, table in lake_tables} == set(source)
    for (_, name), seen in lake_tables.items():
        columns = source[name].columns
        arrow = seen.scan().to_arrow()
        assert [each for each in arrow.column_names if each != "_commit_ts"] == columns, name
        found = sorted(arrow.select(columns).to_pylist(), key=lambda each: each["id"])
        wanted = sorted(source[name].rows.values(), key=lambda each: each["id"])
        assert found == wanted, f"rows of {name}"
