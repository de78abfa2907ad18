"""Entries and packets of Canal, made by hand; and records of DTS in Avro: those that the service's own SDK wrote, and
others written by fastavro."""

import base64
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro

from cdc_lakehouse.changelog.events import RowChange
from cdc_lakehouse.decoders.formats.dts_avro import decode
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


def change(value: bytes) -> RowChange:
    """The one change that the message has."""
    (part,) = decode(value).parts
    assert isinstance(part, RowChange)
    return part


def integer(digits: str) -> Image:
    return "Integer", {"precision": 8, "value": digits}


def decimal(digits: str, scale: int, precision: int = 65) -> Image:
    return "Decimal", {"value": digits, "precision": precision, "scale": scale}


def double(value: float) -> Image:
    return "Float", {"value": value, "precision": 8, "scale": 2}


def character(charset: str, value: bytes) -> Image:
    return "Character", {"charset": charset, "value": value}


def timestamp(seconds: int, micros: int = 0) -> Image:
    return "Timestamp", {"timestamp": seconds, "millis": micros}


def date_time(**parts: int) -> Image:
    return "DateTime", {name: parts.get(name) for name in TIME_PARTS}


def zoned(image: Image, zone: str) -> Image:
    assert image is not None
    return "TimestampWithTimeZone", {"value": image[1], "timezone": zone}


def text_object(type: str, value: str) -> Image:
    return "TextObject", {"type": type, "value": value}


def binary_object(type: str, value: bytes) -> Image:
    return "BinaryObject", {"type": type, "value": value}


NULL: Image = ("EmptyObject", "NULL")
LEFT_OUT: Image = ("EmptyObject", "NONE")


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
        self.records.append(body(operation="DDL", objectName=f"shop.{table}", afterImages=sql, **self._place()))

    def begin(self) -> None:
        self.records.append(body(operation="BEGIN", **self._place()))

    def commit(self) -> None:
        self.records.append(body(operation="COMMIT", **self._place()))

    def beside(self) -> None:
        """What tells nothing of rows."""
        self.records += [body(operation=each, **self._place()) for each in ("HEARTBEAT", "CHECKPOINT")] + [b"\0"]

    def change(self, table: str, *changes: tuple[Row | None, Row | None]) -> None:
        """Rows of one event of the binlog, each before and after it: they have one place."""
        place = self._place()
        for before, after in changes:
            images = {
                name: row and [_text(text) for text in row.values()]
                for name, row in zip(_IMAGES, (before, after), strict=True)
            }
            operation = "INSERT" if before is None else "DELETE" if after is None else "UPDATE"
            fields = [{"name": name, "dataTypeNumber": 253} for name in before or after or ()]
            tags = {"pk_uk_info": '{"PRIMARY":["id"]}', "thread_id": "42"}
            said = {"fields": fields, "tags": tags, **images, **place}
            self.records.append(row_body((), operation=operation, objectName=f"shop.{table}", **said))

    def _place(self) -> dict[str, Any]:
        number = next(self._clock)
        self._offset += 31
        position = f"{self._offset}@{self._file}"
        return {"id": 1_700_000 + number, "sourceTimestamp": 1_732_156_800 + number // 3, "sourcePosition": position}


def _text(text: str | None) -> Image:
    return None if text is None else character("utf8mb4", text.encode())


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
