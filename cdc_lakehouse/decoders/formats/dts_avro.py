r"""Messages of Alibaba DTS in its own format, DTS Avro.

An INSERT, UPDATE or DELETE has one row: `fields` are its columns, `beforeImages` and `afterImages` their values in the
same order. A DDL's statement is `afterImages` as text. COMMIT ends a transaction, and BEGIN means that the previous one
has ended; HEARTBEAT, CHECKPOINT and the other operations carry nothing to apply.

- `objectName` is `db`, `db.table` or `db.schema.table`; a dot inside a name is the six characters `\u002E`.
- The tag `pk_uk_info` is JSON: `{"PRIMARY":["id"],"uk_1":["a","b"]}`. The key is PRIMARY and nothing else: whether a
  unique key's columns may be NULL is not said, and rows with NULL in it may be many. `{}` says that there is no primary
  key; without the tag nothing is said.
- `sourcePosition` is `offset@file`: the byte in the binlog file, and the number at the end of the file's name. All rows
  of one binlog event may have the same: their order is the topic's.
- `sourceTimestamp` is in seconds. The tag `GTID` is on BEGIN and DDL only.
- A value of no more than 2 bytes, or none, and one of 48 bytes that is no record, only move the topic's offset on.

A message's value is the bare Avro binary of one Record: no header, no schema id, no length. There are two schemas,
which differ at the end: the public example's ends with `bornTimestamp long`, which the SDK 2.0.0 does not have. So this
field is read where bytes remain for it, and then no bytes may remain.

The numbers of column types are MySQL's own (`enum_field_types`), as in its binlog, and are less precise than the
declaration, so that a statement that declares the column is preferred:

- Whether an integer is unsigned, how many bits a BIT has and how many digits a fraction is not said. The type given
  holds either: a TINYINT is a `smallint`, a BIGINT a `decimal(20,0)`, a DATETIME a `datetime(6)`.
- A DECIMAL's digits and whether a string is text or bytes are said by its value. For NULL nothing is said, and no type
  is given. All TEXT and BLOB types have one number: the largest is given.
- Lengths and the labels of ENUM and SET are not said.

A DateTime has seven parts, each present or null: a DATE only the first three, a TIME only the last four, a YEAR only
the first. The part `millis` holds microseconds. All parts of a negative TIME are negative. The number of fractional
digits of a column is unknown: six are printed, or none where they are zero.

Numbers keep their digits, a DECIMAL with its declared scale. Text of any character set becomes Unicode, bytes one
character each (ISO-8859-1). ENUM and SET are their labels. A geometry is its WKB, one character per byte, or its WKT:
the SRID that MySQL (and Canal) puts before the WKB is not sent, and none is added.

A TIMESTAMP is a moment in UTC, with the offset. Zero seconds are MySQL's `0000-00-00 00:00:00`: that is how it stores
the zero value, and the type's range begins a second later (MySQL manual, "The DATE, DATETIME, and TIMESTAMP Types").

Source of the facts: the service's SDK (com.aliyun.dts:dts-new-subscribe-sdk 1.4.0 and 2.0.0: the field orders, union
branches and conversions of its classes; the 2 bytes) and records that it wrote; records of the service as the public
examples of consumers print them (positions such as `4711@12`, the tags; the 48 bytes, in that of 2020; types by
number); MySQL's `field_types.h`.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import io
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import fastavro

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange, TransactionEnd
from cdc_lakehouse.changelog.mysql_types import CharsetError, text
from cdc_lakehouse.decoders.format import Format, Redelivery, Row, shown, sized
from cdc_lakehouse.decoders.json_object import OPS, parse

Image = tuple[str, Any] | None
"""One column's value: the name of its union branch with the branch's content; None for NULL."""


def _record(name: str, /, **fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": type} for field, type in fields.items()]}


def _enum(name: str, symbols: str) -> dict[str, object]:
    return {"type": "enum", "name": name, "symbols": symbols.split()}


_MOST: Final = {"year": 9999, "month": 12, "day": 31, "hour": 23, "minute": 59, "second": 59, "millis": 999_999}
"""The parts of a date and time, and the largest value of each."""
# The order is part of the format: a value begins with the number of its branch.
_IMAGE: Final = [
    "null",
    _record("Integer", precision="int", value="string"),
    _record("Character", charset="string", value="bytes"),
    _record("Decimal", value="string", precision="int", scale="int"),
    _record("Float", value="double", precision="int", scale="int"),
    _record("Timestamp", timestamp="long", millis="int"),
    _record("DateTime", **{part: ["null", "int"] for part in _MOST}),
    _record("TimestampWithTimeZone", value="DateTime", timezone="string"),
    _record("BinaryGeometry", type="string", value="bytes"),
    _record("TextGeometry", type="string", value="string"),
    _record("BinaryObject", type="string", value="bytes"),
    _record("TextObject", type="string", value="string"),
    _enum("EmptyObject", "NULL NONE"),
]
_IMAGE_BY_NAME: Final = [branch if isinstance(branch, str) else branch["name"] for branch in _IMAGE]
_SOURCE_TYPES: Final = "MySQL Oracle SQLServer PostgreSQL MongoDB Redis DB2 PPAS DRDS HBASE HDFS FILE OTHER"
_OPERATIONS: Final = """INSERT UPDATE DELETE DDL BEGIN COMMIT ROLLBACK ABORT HEARTBEAT CHECKPOINT COMMAND FILL FINISH
    CONTROL RDB NOOP INIT"""
_SCHEMA: Final = _record(
    "Record", version="int", id="long", sourceTimestamp="long", sourcePosition="string", safeSourcePosition="string",
    sourceTxid="string", source=_record("Source", sourceType=_enum("SourceType", _SOURCE_TYPES), version="string"),
    operation=_enum("Operation", _OPERATIONS), objectName=["null", "string"],
    processTimestamps=["null", {"type": "array", "items": "long"}], tags={"type": "map", "values": "string"},
    fields=["null", "string", {"type": "array", "items": _record("Field", name="string", dataTypeNumber="int")}],
    beforeImages=["null", "string", {"type": "array", "items": _IMAGE}],
    afterImages=["null", "string", {"type": "array", "items": _IMAGE_BY_NAME}],
)  # fmt: skip
"""The schema without `bornTimestamp`."""

_PARSED: Final = fastavro.parse_schema(_SCHEMA)
_LONG: Final = fastavro.parse_schema("long")


def read_record(value: bytes) -> Mapping[str, Any]:
    """Return the record that all of the bytes are. Raises MessageError. Values of rows stay as they are in Avro, and
    are not checked: a byte string may not be text, a month may be 13."""
    body = io.BytesIO(sized(value))
    try:
        read: Any = fastavro.schemaless_reader(body, _PARSED, None, return_named_type=True)
        rest = len(value) - body.tell()
        if 0 < rest <= 10:  # The most bytes of Avro's long.
            fastavro.schemaless_reader(body, _LONG, None)
            rest = len(value) - body.tell()
    except (EOFError, IndexError, ValueError) as error:
        # An invalid length, branch or symbol, text that is not UTF-8, or a premature end.
        raise MessageError(
            f"the message is not a record of DTS in Avro, or is cut short: see byte {body.tell()} of {len(value)}",
            advice="see that the DTS task writes DTS Avro to this topic",
        ) from error
    if rest:
        raise MessageError(f"after the record of DTS in Avro {rest} bytes are left over")
    return read


_BY_NUMBER: Final = {
    1: "smallint", 2: "mediumint", 9: "int", 3: "bigint", 8: "decimal(20,0)", 16: "bit(64)",
    4: "float", 5: "double", 13: "year", 10: "date",
    7: "timestamp(6)", 17: "timestamp(6)", 12: "datetime(6)", 18: "datetime(6)", 11: "time(6)", 19: "time(6)",
    245: "json", 247: "enum", 248: "set", 255: "geometry",
}  # fmt: skip
# The type as bytes, and as text.
_STRINGS: Final = {
    15: ("varbinary", "varchar"), 253: ("varbinary", "varchar"), 254: ("binary", "char"),
    249: ("tinyblob", "tinytext"), 250: ("mediumblob", "mediumtext"), 251: ("longblob", "longtext"),
    252: ("longblob", "longtext"),
}  # fmt: skip
_DECIMALS: Final = frozenset({0, 246})
# MySQL's later DATE, which the public example reads as a DATETIME.
_NEW_DATE: Final = 14
_MOST_DIGITS, _MOST_FRACTION = 65, 30
# The type names of objects, where the number may be a string's.
_OBJECT_TYPES: Final = frozenset({"json", "enum", "set"})


def column_type(number: int, images: Iterable[Image]) -> str | None:
    """Return the MySQL type text of a column with these values in one record, None where they do not show it."""
    if number in _BY_NUMBER:
        return _BY_NUMBER[number]
    as_bytes_or_text = _STRINGS.get(number, (None, None))
    for branch, value in filter(None, images):
        found = None
        match branch:
            case "Character":
                found = as_bytes_or_text[value["charset"].lower() != "binary"]
            case "TextObject" | "BinaryObject":
                type = value["type"].lower()
                found = type if type in _OBJECT_TYPES else as_bytes_or_text[branch == "TextObject"]
            case "Decimal" if number in _DECIMALS:
                precision, scale = value["precision"], value["scale"]
                if 0 < precision <= _MOST_DIGITS and 0 <= scale <= min(precision, _MOST_FRACTION):
                    found = f"decimal({precision},{scale})"
            case "DateTime" if number == _NEW_DATE:
                found = "date" if value["hour"] is None else "datetime(6)"
            case _:
                pass
        if found is not None:
            return found
    return None


_ZERO: Final = "0000-00-00 00:00:00"
_DATE: Final = frozenset({"year", "month", "day"})
_TIME: Final = frozenset({"hour", "minute", "second"})
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_OFFSET: Final = re.compile(r"(?:GMT|UTC)?([+-])(0?[0-9]|1[0-4]):?([0-5][0-9])")


def _date_time(parts: Mapping[str, int | None]) -> str:
    """Return a DATE, DATETIME, TIME or YEAR, by which parts are present. Raises MessageError for other parts."""
    there = {name for name in _MOST if parts[name] is not None}
    of = there - {"millis"}
    if of not in ({"year"}, _DATE, _TIME, _DATE | _TIME) or (of != there and not of >= _TIME):
        raise MessageError(f"the parts {', '.join(sorted(there)) or 'none'} make no date or time of MySQL")
    size, most, sign = {name: parts[name] or 0 for name in _MOST}, _MOST, ""
    if of == _TIME:
        if min(size.values()) < 0 < max(size.values()):
            raise MessageError("of a time some parts are negative and some are not")
        sign = "-" if min(size.values()) < 0 else ""
        # It is a duration.
        size, most = {name: abs(value) for name, value in size.items()}, {**_MOST, "hour": 838}
    for name, value in size.items():
        if not 0 <= value <= most[name]:
            raise MessageError(f"the {name} of a date or time is not between 0 and {most[name]}")
    if of == {"year"}:
        return f"{size['year']:04d}"
    date = f"{size['year']:04d}-{size['month']:02d}-{size['day']:02d}"
    fraction = f".{size['millis']:06d}" if size["millis"] else ""
    time = f"{sign}{size['hour']:02d}:{size['minute']:02d}:{size['second']:02d}{fraction}"
    return date if of == _DATE else time if of == _TIME else f"{date} {time}"


def _zoned(parts: Mapping[str, int | None], zone: str) -> str:
    """Return a date and time in a time zone as a moment in UTC, with its offset: `2024-11-21 02:40:00.123456+00:00`.
    Raises MessageError for a zone that is no offset: the offset of a name may follow a rule that has changed since."""
    text, offset = _date_time(parts), datetime.timedelta()
    if zone not in ("UTC", "GMT", "Z"):
        found = _OFFSET.fullmatch(zone)
        if found is None:
            raise MessageError(f"the zone {shown(zone)} is no offset such as +08:00")
        sign, hours, minutes = found.groups()
        offset = datetime.timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if len(text) < len(_ZERO):
            raise MessageError("a date and time with a zone lacks its date or its time")
        return (moment - offset).replace(tzinfo=datetime.UTC).isoformat(" ")
    except (ValueError, OverflowError) as error:
        raise MessageError("a date and time with a zone is no moment of the years 1 to 9999") from error


_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,65}(\.[0-9]{0,65})?([eE][+-]?[0-9]{1,2})?")
_EXACT: Final = decimal.Context(prec=300, traps=[decimal.InvalidOperation, decimal.Inexact])
_TEXTS: Final = _OBJECT_TYPES | {"text", "xml"}


def value_text(image: Image, number: int) -> str | None:
    """Return a value's text, None for NULL. `number` is the column's `dataTypeNumber`. Raises MessageError."""
    if image is None or image == ("EmptyObject", "NULL"):
        return None
    branch, value = image
    match branch:
        case "Integer":
            if not _INTEGER.fullmatch(value["value"]):
                raise MessageError("an integer is not written in at most 20 digits")
            return value["value"]
        case "Character" | "BinaryObject" if branch == "Character" or value["type"].lower() in _TEXTS:
            try:
                return text(value["value"], value.get("charset", "utf8mb4"))
            except CharsetError as error:
                raise MessageError(f"a text cannot be read: {error.message}") from error
        case "Decimal":
            if not _DECIMAL.fullmatch(value["value"]):
                raise MessageError("a decimal is not a number of MySQL's size")
            found, scale = decimal.Decimal(value["value"]), value["scale"]
            if 0 <= scale <= _MOST_FRACTION and -int(found.as_tuple().exponent) < scale:
                found = found.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT)
            return f"{found:f}"
        case "Float":
            return _float(value["value"], single=number == 4)  # MySQL's FLOAT.
        case "Timestamp":
            seconds, micros = value["timestamp"], value["millis"]
            if not 0 <= micros <= _MOST["millis"]:
                raise MessageError("the microseconds of a timestamp are not between 0 and 999999")
            try:
                moment = _EPOCH + datetime.timedelta(seconds=seconds, microseconds=micros)
            except OverflowError as error:
                raise MessageError("a timestamp is outside the years 1 to 9999") from error
            return _ZERO if moment == _EPOCH else moment.isoformat(" ")
        case "DateTime":
            return _date_time(value)
        case "TimestampWithTimeZone":
            return _zoned(value["value"], value["timezone"])
        case "BinaryObject" | "BinaryGeometry":
            return value["value"].decode("latin-1")
        case _:
            return value["value"]


def _float(number: float, *, single: bool) -> str:
    """Return the fewest digits that read as the same number, of four bytes where the column is a FLOAT."""
    if not math.isfinite(number):
        raise MessageError("a float is not a number of MySQL: it is infinite or none")
    for digits in range(6, 10) if single else ():
        shorter = float(f"{number:.{digits}g}")
        if ctypes.c_float(shorter).value == number:
            return repr(shorter)
    return repr(number)


_NO_OP, _NO_OP_2020 = 2, 48
_POSITION: Final = re.compile("([0-9]{1,18})@([0-9]{1,18})")
_DOT: Final = "\\u002E"
# INIT is a row of the full load, as in the service's Canal JSON, if it occurs.
_ROWS: Final[Mapping[str, Literal["I", "U", "D"]]] = {**OPS, "INIT": "I"}
# Sources whose type numbers and values are MySQL's; OTHER stands for sources that the list does not name, such as TiDB.
_SOURCES: Final = frozenset({"MySQL", "DRDS", "OTHER"})


def decode(value: bytes | None) -> Message:
    """Decode a record: one change, one statement, the end of a transaction, or nothing. Raises MessageError."""
    if value is None or len(value) <= _NO_OP:
        return Message(Origin())
    try:
        record = read_record(value)
    except MessageError:
        if len(value) == _NO_OP_2020:
            return Message(Origin())
        raise
    position = _POSITION.fullmatch(record["sourcePosition"])
    try:
        origin = Origin(
            time_ms=record["sourceTimestamp"] * 1000,
            # With leading zeros, as in names of binlog files, so that it compares as text.
            log_file=None if position is None else f"{int(position[2]):06d}",
            log_offset=None if position is None else int(position[1]),
            gtid=record["tags"].get("GTID"),
        )
        return Message(origin, _parts(record))
    except MessageError as error:
        try:
            database, *rest = _names(record["objectName"] or "")
        except MessageError:
            raise error from None
        raise error.within(database, rest[-1] if rest else None) from error


FORMAT: Final = Format(
    make=lambda options: decode,
    labels="labels",
    transactions="some",
    redelivery=Redelivery(messages_before=20_000, shared_positions=True),
)


def _parts(record: Mapping[str, Any]) -> tuple[MessagePart, ...]:
    operation, object_name, after = record["operation"], record["objectName"], record["afterImages"]
    has_images = bool(record["beforeImages"] or after)
    is_row = operation in _ROWS and (operation != "INIT" or after is not None)
    if is_row or operation == "DDL":
        source = record["source"]["sourceType"]
        if source not in _SOURCES:
            raise MessageError(f"the change is of a source {source}", advice="only those of MySQL and TiDB can be read")
        if is_row:
            return (_row_change(record),)
        if not isinstance(after, str) or not after:
            raise MessageError("a DDL has no statement")
        names = _names(object_name) if object_name else [""]
        return (Ddl(names[0], names[-1] if len(names) > 1 else "", after),)
    if operation in ("COMMIT", "BEGIN") and not has_images:
        return (TransactionEnd(),)
    if has_images:
        raise MessageError(f"an operation {operation} with images is not known")
    return ()


def _row_change(record: Mapping[str, Any]) -> RowChange:
    names = _names(record["objectName"] or "")
    if len(names) < 2:
        raise MessageError(f"the objectName {shown(record['objectName'] or '')} of a row names no table")
    fields, op = record["fields"], _ROWS[record["operation"]]
    if not fields or isinstance(fields, str):
        raise MessageError("the row's columns are not named: fields is no list of them")
    columns: dict[str, int] = {field["name"]: field["dataTypeNumber"] for field in fields}
    if len(columns) < len(fields):
        raise MessageError("two columns of the row have the same name")
    before = None if op == "I" else record["beforeImages"]
    after = None if op == "D" else record["afterImages"]
    for what, images in (("beforeImages", before), ("afterImages", after)):
        if isinstance(images, str):
            raise MessageError(f"{what} of a row is text")
        if images is not None and len(images) != len(columns):
            raise MessageError(f"{what} has {len(images)} values for {len(columns)} columns")
    if (before if op == "D" else after) is None:
        raise MessageError(f"the {record['operation']} has no row")
    rows = _row(columns, before), _row(columns, after)
    types = {
        name: column_type(number, [images[place] for images in (before, after) if images])
        for place, (name, number) in enumerate(columns.items())
    }
    key, tag = None, record["tags"].get("pk_uk_info")
    if tag:
        key = parse(tag, "the tag pk_uk_info").get("PRIMARY", [])
        if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
            raise MessageError("PRIMARY of the tag pk_uk_info is no list of names")
    known = {name: type for name, type in types.items() if type is not None}
    return RowChange(names[0], names[-1], op, *rows, known, None if key is None else tuple(key))


def _names(object_name: str) -> list[str]:
    names = [name.replace(_DOT, ".") for name in object_name.split(".")]
    if len(names) > 3 or not all(names):
        raise MessageError(f"the objectName {shown(object_name)} is not db, db.table or db.schema.table")
    return names


def _row(columns: Mapping[str, int], images: list[Image] | None) -> Row | None:
    if images is None:
        return None
    row: Row = {}
    for (name, number), image in zip(columns.items(), images, strict=True):
        if image == ("EmptyObject", "NONE"):
            continue  # The record leaves the column out.
        try:
            row[name] = value_text(image, number)
        except MessageError as error:
            raise MessageError(f"column {shown(name)}: {error.message}") from error
    return row
