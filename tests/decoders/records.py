"""Entries and packets of Canal, made by hand; and records of DTS in Avro: those that the service's own SDK wrote, and
others written by fastavro."""

import base64
import io
import itertools
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro

from cdc_lakehouse.sources.canal.wire import entries_pb2, packets_pb2

_DATA = Path(__file__).parents[1] / "data" / "dts"

_SCHEMA = json.loads((_DATA / "record.avsc").read_text(encoding="utf-8"))
OLDER = fastavro.parse_schema(_SCHEMA)
NEWER = fastavro.parse_schema({**_SCHEMA, "fields": [*_SCHEMA["fields"], {"name": "bornTimestamp", "type": "long"}]})

Image = tuple[str, Any] | None
_IMAGES = ("beforeImages", "afterImages")
TIME_PARTS = ("year", "month", "day", "hour", "minute", "second", "millis")


def sdk_records() -> list[tuple[bytes, dict[str, Any]]]:
    """Each record of `com.aliyun.dts:dts-new-subscribe-sdk`, with all its values and how the SDK reads it."""
    bodies = (_DATA / "records.b64").read_text(encoding="ascii").split()
    values = (_DATA / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [(base64.b64decode(body), json.loads(value)) for body, value in zip(bodies, values, strict=True)]


def body(*, born: int | None = 1_732_156_800_789, **values: Any) -> bytes:
    """A record; what is not given is that of a HEARTBEAT. Without `born` it is of the older schema."""
    record = {
        "version": 0, "id": 61, "sourceTimestamp": 1_709_629_810, "sourcePosition": "4711@12",
        "safeSourcePosition": "4700@12", "sourceTxid": "0", "source": {"sourceType": "MySQL", "version": "8.0.28"},
        "operation": "HEARTBEAT", "tags": {},
        **dict.fromkeys(("objectName", "processTimestamps", "fields", *_IMAGES)), **values,
    }  # fmt: skip
    for images in _IMAGES:
        # fastavro's writer knows the branch of a symbol without its name, and not always with it.
        if isinstance(row := record[images], list):
            record[images] = [image[1] if image and image[0] == "EmptyObject" else image for image in row]
    out = io.BytesIO()
    if born is None:
        fastavro.schemaless_writer(out, OLDER, record)
    else:
        fastavro.schemaless_writer(out, NEWER, {**record, "bornTimestamp": born})
    return out.getvalue()


def row_body(columns: Sequence[tuple[str, int, Image]], **values: Any) -> bytes:
    """An INSERT of one row: name, `dataTypeNumber` and value of each column."""
    return body(
        **{
            "operation": "INSERT",
            "objectName": "shop.t",
            "fields": [{"name": name, "dataTypeNumber": number} for name, number, _ in columns],
            "afterImages": [image for _, _, image in columns],
            **values,
        }
    )


def character(charset: str, value: bytes) -> Image:
    return "Character", {"charset": charset, "value": value}


IMAGES: dict[str, Callable[..., Image]] = {
    "integer": lambda digits: ("Integer", {"precision": 8, "value": digits}),
    "decimal": lambda digits, scale, precision=65: (
        "Decimal", {"value": digits, "precision": precision, "scale": scale}
    ),
    "double": lambda value: ("Float", {"value": value, "precision": 8, "scale": 2}),
    # A FLOAT of four bytes, as a double of eight: the digits are those of the four.
    "four_bytes": lambda value: IMAGES["double"](struct.unpack("<f", struct.pack("<f", value))[0]),
    "character": character,
    "timestamp": lambda seconds, micros=0: ("Timestamp", {"timestamp": seconds, "millis": micros}),
    "date_time": lambda **parts: ("DateTime", {name: parts.get(name) for name in TIME_PARTS}),
    "zoned": lambda image, zone: ("TimestampWithTimeZone", {"value": image[1], "timezone": zone}),
    "text_object": lambda type, value: ("TextObject", {"type": type, "value": value}),
    "binary_object": lambda type, value: ("BinaryObject", {"type": type, "value": value}),
}  # fmt: skip
"""The value of a column, by the name that cases give it."""
NULL, LEFT_OUT = ("EmptyObject", "NULL"), ("EmptyObject", "NONE")

Row = dict[str, str | None]


class DtsSource:
    """A database `shop` as DTS sees it: what happens in it becomes `records`, in order. Rows are of texts; the key is
    `id`."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._clock, self._offset, self._file = itertools.count(1), 4, 77

    def rotate(self) -> None:
        """The next binlog file begins: offsets begin again."""
        self._offset, self._file = 4, self._file + 1

    def statement(self, sql: str, table: str) -> None:
        self.say("DDL", objectName=f"shop.{table}", afterImages=sql)

    def say(self, *operations: str, **values: Any) -> None:
        self.records += [body(operation=each, **values, **self._place()) for each in operations]

    def change(self, table: str, *changes: tuple[Row | None, Row | None]) -> None:
        """Rows of one event of the binlog, each before and after it: they have one place."""
        place = self._place() | {"tags": {"pk_uk_info": '{"PRIMARY":["id"]}', "thread_id": "42"}}
        for before, after in changes:
            images = {
                name: row and [None if text is None else character("utf8mb4", text.encode()) for text in row.values()]
                for name, row in zip(_IMAGES, (before, after), strict=True)
            }
            operation = "INSERT" if before is None else "DELETE" if after is None else "UPDATE"
            columns = [(name, 253, None) for name in before or after or ()]
            self.records.append(row_body(columns, operation=operation, objectName=f"shop.{table}", **images, **place))

    def _place(self) -> dict[str, Any]:
        number = next(self._clock)
        self._offset += 31
        position = f"{self._offset}@{self._file}"
        return {"id": 1_700_000 + number, "sourceTimestamp": 1_732_156_800 + number // 3, "sourcePosition": position}


# --- Canal ---


def column(
    name: str, value: str | None, *, key: bool = False, updated: bool = False, index: int = 0
) -> entries_pb2.Column:
    said = {} if value is None else {"value": value}
    return entries_pb2.Column(
        index=index, name=name, is_null=value is None, is_key=key, updated=updated, mysql_type="int(11)", **said
    )


def entry(change: entries_pb2.RowChange | bytes, **header: Any) -> bytes:
    """Of the table `t` of the database `d`, at the first byte of a file, unless the header says something else."""
    place = {"schema_name": "d", "table_name": "t", "logfile_name": "bin.1", "logfile_offset": 0}
    return entries_pb2.Entry(
        header=entries_pb2.Header(execute_time=5000, **{**place, **header}),
        entry_type=entries_pb2.ROW_DATA,
        store_value=change if isinstance(change, bytes) else change.SerializeToString(),
    ).SerializeToString()


def packet(*entries: bytes, **said: Any) -> bytes:
    """A value of a topic with `entries`."""
    content = packets_pb2.Messages(batch_id=1 if entries else 0, messages=entries).SerializeToString()
    return packets_pb2.Packet(**{"type": packets_pb2.MESSAGES, "body": content, **said}).SerializeToString()
