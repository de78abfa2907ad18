"""Messages of Alibaba DTS in its own format, DTS Avro.

An INSERT, UPDATE or DELETE has one row: `fields` are its columns, `beforeImages` and `afterImages` their values in the
same order. A DDL's statement is `afterImages` as text. COMMIT ends a transaction, and BEGIN means that the previous one
has ended; HEARTBEAT, CHECKPOINT and the other operations carry nothing to apply.

- `objectName` is `db`, `db.table` or `db.schema.table`; a dot inside a name is the six characters `\\u002E`.
- The tag `pk_uk_info` is JSON: `{"PRIMARY":["id"],"uk_1":["a","b"]}`. The key is PRIMARY and nothing else: whether a
  unique key's columns may be NULL is not said, and rows with NULL in it may be many. `{}` says that there is no primary
  key; without the tag nothing is said.
- `sourcePosition` is `offset@file`: the byte in the binlog file, and the number at the end of the file's name. All rows
  of one binlog event may have the same: their order is the topic's.
- `sourceTimestamp` is in seconds. The tag `GTID` is on BEGIN and DDL only.
- A value of no more than 2 bytes, or none, and one of 48 bytes that is no record, only move the topic's offset on.

Source of the facts: the service's SDK (dts-new-subscribe-sdk 1.4.0 and 2.0.0) and records that it wrote; records of the
service as the public examples of consumers print them (positions such as `4711@12`, the tags). The 48 bytes are in the
public example of 2020, the 2 bytes in the SDK."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders.messages.dts_record import DtsRecord, Image, read_record
from cdc_lakehouse.decoders.messages.dts_types import column_type
from cdc_lakehouse.decoders.messages.dts_values import is_absent, value_text
from cdc_lakehouse.decoders.messages.format import Format, Redelivery, Row, shown
from cdc_lakehouse.decoders.messages.json_object import parse

_NO_OP, _NO_OP_2020 = 2, 48
_POSITION: Final = re.compile("([0-9]{1,18})@([0-9]{1,18})")
_DOT: Final = "\\u002E"
# INIT is a row of the full load, as in the service's Canal JSON, if it occurs.
_ROWS: Final[Mapping[str, Literal["I", "U", "D"]]] = {"INSERT": "I", "INIT": "I", "UPDATE": "U", "DELETE": "D"}
# Sources whose type numbers and values are MySQL's; OTHER stands for sources that the list does not name, such as TiDB.
_SOURCES: Final = frozenset({"MySQL", "DRDS", "OTHER"})


def decode(key: bytes | None, value: bytes | None) -> Message:
    """Decode a record: one change, one statement, the end of a transaction, or nothing. Raises MessageError."""
    if value is None or len(value) <= _NO_OP:
        return Message(Origin())
    try:
        record = read_record(value)
    except MessageError:
        if len(value) == _NO_OP_2020:
            return Message(Origin())
        raise
    try:
        return Message(_origin(record), _parts(record))
    except MessageError as error:
        raise _named(error, record.object_name) from error


FORMAT: Final = Format(
    name="dts-avro",
    make=lambda options: decode,
    labels="labels",
    transactions="some",
    redelivery=Redelivery(messages_before=20_000, shared_positions=True),
)


def _named(error: MessageError, object_name: str | None) -> MessageError:
    """Add the table that the record names to the error, if it can be read."""
    try:
        database, *rest = _names(object_name or "")
    except MessageError:
        return error
    return error.within(database, rest[-1] if rest else None)


def _origin(record: DtsRecord) -> Origin:
    position = _POSITION.fullmatch(record.source_position)
    return Origin(
        time_ms=record.source_timestamp * 1000,
        # With leading zeros, as in names of binlog files, so that it compares as text.
        log_file=None if position is None else f"{int(position[2]):06d}",
        log_offset=None if position is None else int(position[1]),
        gtid=record.tags.get("GTID"),
    )


def _parts(record: DtsRecord) -> tuple[MessagePart, ...]:
    match record.operation:
        case "INSERT" | "UPDATE" | "DELETE":
            return (_row_change(record),)
        case "INIT" if record.after_images is not None:
            return (_row_change(record),)
        case "DDL":
            return (_ddl(record),)
        case "COMMIT" | "BEGIN" if not (record.before_images or record.after_images):
            return (TransactionEnd(),)
        case operation:
            if record.before_images or record.after_images:
                raise MessageError(f"an operation {operation} with images is not known")
            return ()


def _ddl(record: DtsRecord) -> Ddl:
    _check_source(record)
    if not isinstance(record.after_images, str) or not record.after_images:
        raise MessageError("a DDL has no statement")
    names = [] if not record.object_name else _names(record.object_name)
    return Ddl(names[0] if names else "", names[-1] if len(names) > 1 else "", record.after_images)


def _row_change(record: DtsRecord) -> RowChange:
    _check_source(record)
    names = _names(record.object_name or "")
    if len(names) < 2:
        raise MessageError(f"the objectName {shown(record.object_name or '')} of a row names no table")
    database, table = names[0], names[-1]
    try:
        columns = _columns(record)
        op = _ROWS[record.operation]
        before = None if op == "I" else _images(record.before_images, columns, "beforeImages")
        after = None if op == "D" else _images(record.after_images, columns, "afterImages")
        if (op == "D" and before is None) or (op != "D" and after is None):
            raise MessageError(f"the {record.operation} has no row")
        return RowChange(
            database,
            table,
            op,
            _row(columns, before),
            _row(columns, after),
            _types(columns, before or (), after or ()),
            _key(record.tags.get("pk_uk_info")),
        )
    except MessageError as error:
        raise error.within(database, table) from error


def _check_source(record: DtsRecord) -> None:
    if record.source_type not in _SOURCES:
        raise MessageError(
            f"the change is of a source {record.source_type}", advice="only those of MySQL and TiDB can be read"
        )


def _names(object_name: str) -> list[str]:
    names = [name.replace(_DOT, ".") for name in object_name.split(".")]
    if len(names) > 3 or not all(names):
        raise MessageError(f"the objectName {shown(object_name)} is not db, db.table or db.schema.table")
    return names


Columns = Mapping[str, int]
"""The `dataTypeNumber` of each column, in order."""


def _columns(record: DtsRecord) -> Columns:
    if not record.fields or isinstance(record.fields, str):
        raise MessageError("the row's columns are not named: fields is no list of them")
    columns = {field["name"]: field["dataTypeNumber"] for field in record.fields}
    if len(columns) < len(record.fields):
        raise MessageError("two columns of the row have the same name")
    return columns


def _images(images: object, columns: Columns, what: str) -> list[Image] | None:
    if images is None:
        return None
    if not isinstance(images, list):
        raise MessageError(f"{what} of a row is text")
    if len(images) != len(columns):
        raise MessageError(f"{what} has {len(images)} values for {len(columns)} columns")
    return images


def _row(columns: Columns, images: list[Image] | None) -> Row | None:
    if images is None:
        return None
    return {
        name: _value(name, number, image)
        for (name, number), image in zip(columns.items(), images, strict=True)
        if not is_absent(image)
    }


def _value(name: str, number: int, image: Image) -> str | None:
    try:
        return value_text(image, number)
    except MessageError as error:
        raise MessageError(f"column {shown(name)}: {error.message}") from error


def _types(columns: Columns, *rows: list[Image] | tuple[()]) -> dict[str, str]:
    types = (
        (name, column_type(number, [images[place] for images in rows if images]))
        for place, (name, number) in enumerate(columns.items())
    )
    return {name: type for name, type in types if type is not None}


def _key(pk_uk_info: str | None) -> tuple[str, ...] | None:
    if not pk_uk_info:
        return None
    match parse(pk_uk_info, "the tag pk_uk_info").get("PRIMARY", []):
        case list() as names if all(isinstance(name, str) for name in names):
            return tuple(map(str, names))
        case _:
            raise MessageError("PRIMARY of the tag pk_uk_info is no list of names")
