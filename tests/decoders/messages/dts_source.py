"""A database as DTS sees it: what happens in it becomes records in Avro, and its rows are kept beside as a reader of
the lake should see them. Shares nothing with the decoder: values of rows are what Python has for them."""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.decoders.messages.dts_records import Image, body, character, row_body

BEGAN: Final = 1_732_156_800
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A column's declaration, the number that DTS has for it, its image of a value, and a value for a number."""

    declared: str
    number: int
    image: Callable[[Any], Image]
    value: Callable[[int], Any]


KINDS: Final[Mapping[str, Kind]] = {
    "id": Kind("BIGINT", 8, lambda value: ("Integer", {"precision": 20, "value": str(value)}), int),
    "name": Kind("VARCHAR(40)", 253, lambda value: character("utf8mb4", value.encode()), "vär 中文 {}".format),
    "price": Kind(
        "DECIMAL(20,4)", 246, lambda value: ("Decimal", {"value": str(value), "precision": 20, "scale": 4}),
        lambda n: n * decimal.Decimal("-1.0001"),
    ),
}  # fmt: skip


def value(column: str, n: int) -> Any:
    """Some value of the column; now and then NULL."""
    return None if column != "id" and (n + len(column)) % 5 == 0 else KINDS[column].value(n)


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
