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

Source of the facts: the service's SDK (dts-new-subscribe-sdk 1.4.0 and 2.0.0) and records that it wrote; records of the
service as the public examples of consumers print them (positions such as `4711@12`, the tags). The 48 bytes are in the
public example of 2020, the 2 bytes in the SDK.

Parse a record of Alibaba DTS in Avro: from bytes to its fields.

A message's value is the bare Avro binary of one Record: no header, no schema id, no length. There are two schemas,
which differ at the end: the public example's ends with `bornTimestamp long`, which the SDK 2.0.0 does not have. So this
field is read where bytes remain for it, and then no bytes may remain.

Source of the schema: `Record` and its parts in the SDK of the service (com.aliyun.dts:dts-new-subscribe-sdk 1.4.0 and
2.0.0), read by the field orders and union branches of its classes, and records that it wrote.

Column types of DTS Avro records: the number of the type and the values, as MySQL type text.

The numbers are MySQL's own (`enum_field_types`), as in its binlog, and are less precise than the declaration:

- Whether an integer is unsigned, how many bits a BIT has and how many digits a fraction is not said. The type given is
  one that holds either: a TINYINT is a `smallint`, a BIGINT a `decimal(20,0)`, a DATETIME a `datetime(6)`.
- A DECIMAL's digits and whether a string is text or bytes are said by its value. For NULL nothing is said, and no type
  is given. All TEXT and BLOB types have one number: the largest is given.
- Lengths and the labels of ENUM and SET are not said.

So a statement that declares the column is more precise. Source of the facts: MySQL's `field_types.h`, and the public
example's converter of the service.

Dates and times of DTS Avro records as MySQL prints them.

A DateTime has seven parts, each present or null: a DATE only the first three, a TIME only the last four, a YEAR only
the first. The part `millis` holds microseconds. All parts of a negative TIME are negative. The number of fractional
digits of a column is unknown: six are printed, or none where they are zero.

Source of the facts: the conversion of its own records by the service's SDK (dts-new-subscribe-sdk 1.4.0, 2.0.0).

Values of DTS Avro records as text.

Numbers keep their digits, a DECIMAL with its declared scale. Text of any character set becomes Unicode, bytes one
character each (ISO-8859-1). ENUM and SET are their labels. A geometry is its WKB, one character per byte, or its WKT:
the SRID that MySQL (and Canal) puts before the WKB is not sent, and none is added.

A TIMESTAMP is a moment in UTC, with the offset. Zero seconds are MySQL's `0000-00-00 00:00:00`: that is how it stores
the zero value, and the type's range begins a second later (MySQL manual, "The DATE, DATETIME, and TIMESTAMP Types").

The branches, and that a column is left out by EmptyObject NONE, are those of the service's SDK (dts-new-subscribe-sdk
1.4.0 and 2.0.0).
"""

from __future__ import annotations

import datetime
import decimal
import io
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import fastavro

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange, TransactionEnd
from cdc_lakehouse.changelog.mysql_types import CharsetError, text
from cdc_lakehouse.decoders.format import Format, Redelivery, Row, shown, sized
from cdc_lakehouse.decoders.json.object import OPS, parse

Image = tuple[str, Any] | None
"""One column's value: the name of its union branch with the branch's content; None for NULL."""


@dataclass(frozen=True, slots=True)
class DtsRecord:
    """The fields of a Record that are used. `source_timestamp` is in seconds since 1970 (UTC), the other names are the
    schema's."""

    source_timestamp: int
    source_position: str
    source_type: str
    operation: str
    object_name: str | None
    tags: Mapping[str, str]
    fields: Sequence[Mapping[str, Any]] | str | None
    """`name` and `dataTypeNumber` of each column, in order."""
    before_images: Sequence[Image] | str | None
    after_images: Sequence[Image] | str | None


def _record(name: str, /, **fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": type} for field, type in fields.items()]}


def _enum(name: str, symbols: str) -> dict[str, object]:
    return {"type": "enum", "name": name, "symbols": symbols.split()}


_OPTIONAL_INT: Final = ["null", "int"]
_DATE_TIME: Final = _record(
    "DateTime", year=_OPTIONAL_INT, month=_OPTIONAL_INT, day=_OPTIONAL_INT, hour=_OPTIONAL_INT, minute=_OPTIONAL_INT,
    second=_OPTIONAL_INT, millis=_OPTIONAL_INT,
)  # fmt: skip
# The order is part of the format: a value begins with the number of its branch.
_IMAGE: Final = [
    "null",
    _record("Integer", precision="int", value="string"),
    _record("Character", charset="string", value="bytes"),
    _record("Decimal", value="string", precision="int", scale="int"),
    _record("Float", value="double", precision="int", scale="int"),
    _record("Timestamp", timestamp="long", millis="int"),
    _DATE_TIME,
    _record("TimestampWithTimeZone", value="DateTime", timezone="string"),
    _record("BinaryGeometry", type="string", value="bytes"),
    _record("TextGeometry", type="string", value="string"),
    _record("BinaryObject", type="string", value="bytes"),
    _record("TextObject", type="string", value="string"),
    _enum("EmptyObject", "NULL NONE"),
]
_IMAGE_BY_NAME: Final = [branch if isinstance(branch, str) else branch["name"] for branch in _IMAGE]
SCHEMA: Final[Mapping[str, Any]] = _record(
    "Record",
    version="int",
    id="long",
    sourceTimestamp="long",
    sourcePosition="string",
    safeSourcePosition="string",
    sourceTxid="string",
    source=_record(
        "Source",
        sourceType=_enum(
            "SourceType", "MySQL Oracle SQLServer PostgreSQL MongoDB Redis DB2 PPAS DRDS HBASE HDFS FILE OTHER"
        ),
        version="string",
    ),
    operation=_enum(
        "Operation",
        "INSERT UPDATE DELETE DDL BEGIN COMMIT ROLLBACK ABORT HEARTBEAT CHECKPOINT COMMAND FILL FINISH CONTROL RDB "
        "NOOP INIT",
    ),
    objectName=["null", "string"],
    processTimestamps=["null", {"type": "array", "items": "long"}],
    tags={"type": "map", "values": "string"},
    fields=["null", "string", {"type": "array", "items": _record("Field", name="string", dataTypeNumber="int")}],
    beforeImages=["null", "string", {"type": "array", "items": _IMAGE}],
    afterImages=["null", "string", {"type": "array", "items": _IMAGE_BY_NAME}],
)
"""The schema without `bornTimestamp`."""

_PARSED: Final = fastavro.parse_schema(dict(SCHEMA))
_LONG: Final = fastavro.parse_schema("long")
_LONGEST_LONG: Final = 10
"""The maximum length of Avro's long, in bytes."""


def read_record(value: bytes) -> DtsRecord:
    """The record that the bytes are, all of them. Raises MessageError.

    Values of rows stay as they are in Avro, and are not checked: a byte string may not be text, a month may be 13.
    """
    body = io.BytesIO(sized(value))
    try:
        read: Any = fastavro.schemaless_reader(body, _PARSED, None, return_named_type=True)
        rest = len(value) - body.tell()
        if 0 < rest <= _LONGEST_LONG:
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
    return DtsRecord(
        read["sourceTimestamp"], read["sourcePosition"], read["source"]["sourceType"], read["operation"],
        read["objectName"], read["tags"], read["fields"], read["beforeImages"], read["afterImages"],
    )  # fmt: skip


_BY_NUMBER: Final = {
    1: "smallint", 2: "mediumint", 9: "int", 3: "bigint", 8: "decimal(20,0)", 16: "bit(64)",
    4: "float", 5: "double", 13: "year", 10: "date",
    7: "timestamp(6)", 17: "timestamp(6)", 12: "datetime(6)", 18: "datetime(6)", 11: "time(6)", 19: "time(6)",
    245: "json", 247: "enum", 248: "set", 255: "geometry",
}  # fmt: skip
# The type as text, and as bytes.
_STRINGS: Final = {
    15: ("varchar", "varbinary"), 253: ("varchar", "varbinary"), 254: ("char", "binary"),
    249: ("tinytext", "tinyblob"), 250: ("mediumtext", "mediumblob"), 251: ("longtext", "longblob"),
    252: ("longtext", "longblob"),
}  # fmt: skip
_DECIMALS: Final = frozenset({0, 246})
# MySQL's later DATE, which the public example reads as a DATETIME.
_NEW_DATE: Final = 14
_MOST_DIGITS, _MOST_FRACTION = 65, 30
# The type names of objects, where the number may be a string's.
OBJECT_TYPES: Final = frozenset({"json", "enum", "set"})


def column_type(number: int, images: Iterable[Image]) -> str | None:
    """Return the MySQL type text of a column with these values in one record, None where they do not show it."""
    known = _BY_NUMBER.get(number)
    if known is not None:
        return known
    types = (_type_of_value(number, *image) for image in images if image is not None)
    return next((type for type in types if type is not None), None)


def _type_of_value(number: int, branch: str, value: Any) -> str | None:
    match branch:
        case "Character":
            return _string(number, is_text=value["charset"].lower() != "binary")
        case "TextObject" | "BinaryObject":
            type = value["type"].lower()
            return type if type in OBJECT_TYPES else _string(number, is_text=branch == "TextObject")
        case "Decimal" if number in _DECIMALS:
            precision, scale = value["precision"], value["scale"]
            sound = 0 < precision <= _MOST_DIGITS and 0 <= scale <= min(precision, _MOST_FRACTION)
            return f"decimal({precision},{scale})" if sound else None
        case "DateTime" if number == _NEW_DATE:
            return "date" if value["hour"] is None else "datetime(6)"
        case _:
            return None


def _string(number: int, *, is_text: bool) -> str | None:
    names = _STRINGS.get(number)
    return None if names is None else names[0 if is_text else 1]


ZERO: Final = "0000-00-00 00:00:00"

_DATE: Final = ("year", "month", "day")
_TIME: Final = ("hour", "minute", "second")
_MOST: Final = {"year": 9999, "month": 12, "day": 31, "hour": 23, "minute": 59, "second": 59, "millis": 999_999}
_MOST_HOURS: Final = 838
"""The maximum hours of a TIME, which is a duration."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_OFFSET: Final = re.compile(r"(?:GMT|UTC)?([+-])(0?[0-9]|1[0-4]):?([0-5][0-9])")

Parts = Mapping[str, int | None]


def date_time(parts: Parts) -> str:
    """Return a DATE, DATETIME, TIME or YEAR, by which parts are present. Raises MessageError for parts that form none
    of these."""
    there = {name for name in (*_DATE, *_TIME, "millis") if parts[name] is not None}
    if there == {"year"}:
        return f"{_part(parts, 'year'):04d}"
    if there == set(_DATE):
        return _date(parts)
    if there - {"millis"} == {*_DATE, *_TIME}:
        return f"{_date(parts)} {_time(parts)}"
    if there - {"millis"} == set(_TIME):
        return _duration(parts)
    raise MessageError(f"the parts {', '.join(sorted(there)) or 'none'} make no date or time of MySQL")


def timestamp(seconds: int, micros: int) -> str:
    """Return a moment in UTC, with its offset: `2024-11-21 02:40:00.123456+00:00`. `seconds` counts from 1970.

    Raises MessageError for a moment outside the years 1 to 9999.
    """
    if not 0 <= micros <= _MOST["millis"]:
        raise MessageError("the microseconds of a timestamp are not between 0 and 999999")
    try:
        moment = _EPOCH + datetime.timedelta(seconds=seconds, microseconds=micros)
    except OverflowError as error:
        raise MessageError("a timestamp is outside the years 1 to 9999") from error
    return _utc(moment)


def zoned(parts: Parts, zone: str) -> str:
    """Return a date and time in a time zone, as a moment in UTC like that of `timestamp`.

    Raises MessageError for a time zone that is no offset: the offset of a name may depend on a rule that has changed
    since.
    """
    text = date_time(parts)
    offset = _offset(zone)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if len(text) < len(ZERO):
            raise MessageError("a date and time with a zone lacks its date or its time")
        return _utc((moment - offset).replace(tzinfo=datetime.UTC))
    except (ValueError, OverflowError) as error:
        raise MessageError("a date and time with a zone is no moment of the years 1 to 9999") from error


def _utc(moment: datetime.datetime) -> str:
    return moment.isoformat(" ")


def _offset(zone: str) -> datetime.timedelta:
    if zone in ("UTC", "GMT", "Z"):
        return datetime.timedelta()
    found = _OFFSET.fullmatch(zone)
    if found is None:
        raise MessageError(f"the zone {shown(zone)} is no offset such as +08:00")
    sign, hours, minutes = found.groups()
    size = datetime.timedelta(hours=int(hours), minutes=int(minutes))
    return -size if sign == "-" else size


def _date(parts: Parts) -> str:
    return f"{_part(parts, 'year'):04d}-{_part(parts, 'month'):02d}-{_part(parts, 'day'):02d}"


def _time(parts: Parts) -> str:
    clock = f"{_part(parts, 'hour'):02d}:{_part(parts, 'minute'):02d}:{_part(parts, 'second'):02d}"
    return clock + _fraction(_part(parts, "millis"))


def _duration(parts: Parts) -> str:
    values = {name: parts[name] or 0 for name in (*_TIME, "millis")}
    if min(values.values()) < 0 < max(values.values()):
        raise MessageError("of a time some parts are negative and some are not")
    sign = "-" if min(values.values()) < 0 else ""
    size = {name: abs(value) for name, value in values.items()}
    if size["hour"] > _MOST_HOURS:
        raise MessageError(f"a time has more than {_MOST_HOURS} hours")
    minute, second, micros = (_part(size, name) for name in ("minute", "second", "millis"))
    return f"{sign}{size['hour']:02d}:{minute:02d}:{second:02d}{_fraction(micros)}"


def _fraction(micros: int) -> str:
    return f".{micros:06d}" if micros else ""


def _part(parts: Parts, name: str) -> int:
    value = parts[name] or 0
    if not 0 <= value <= _MOST[name]:
        raise MessageError(f"the {name} of a date or time is not between 0 and {_MOST[name]}")
    return value


_FLOAT: Final = 4
"""The number of MySQL's FLOAT."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,65}(\.[0-9]{0,65})?([eE][+-]?[0-9]{1,2})?")
_MOST_DECIMAL_FRACTION: Final = 30
_EXACT: Final = decimal.Context(prec=300, traps=[decimal.InvalidOperation, decimal.Inexact])
_TEXTS: Final = OBJECT_TYPES | {"text", "xml"}


def is_absent(image: Image) -> bool:
    """Whether the record leaves the column out."""
    return image == ("EmptyObject", "NONE")


def value_text(image: Image, number: int) -> str | None:
    """Return a value's text, None for NULL. `number` is the column's `dataTypeNumber`. Raises MessageError."""
    if image is None or image == ("EmptyObject", "NULL"):
        return None
    branch, value = image
    if branch == "Float":
        return _float(value["value"], single=number == _FLOAT)
    return _READERS[branch](value)


def _integer(value: Mapping[str, Any]) -> str:
    digits: str = value["value"]
    if not _INTEGER.fullmatch(digits):
        raise MessageError("an integer is not written in at most 20 digits")
    return digits


def _decimal(value: Mapping[str, Any]) -> str:
    digits, scale = value["value"], value["scale"]
    if not _DECIMAL.fullmatch(digits):
        raise MessageError("a decimal is not a number of MySQL's size")
    number = decimal.Decimal(digits)
    if 0 <= scale <= _MOST_DECIMAL_FRACTION and -int(number.as_tuple().exponent) < scale:
        number = number.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT)
    return f"{number:f}"


def _float(number: float, *, single: bool) -> str:
    """Return the fewest digits that read as the same number, of four bytes where the column is a FLOAT."""
    if not math.isfinite(number):
        raise MessageError("a float is not a number of MySQL: it is infinite or none")
    if single:
        for digits in range(6, 10):
            shorter = float(f"{number:.{digits}g}")
            if _single(shorter) == _single(number) == number:
                return repr(shorter)
    return repr(number)


def _single(number: float) -> float | None:
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return None


def _character(value: Mapping[str, Any]) -> str:
    try:
        return text(value["value"], value["charset"])
    except CharsetError as error:
        raise MessageError(f"a text cannot be read: {error.message}") from error


def _timestamp(value: Mapping[str, Any]) -> str:
    seconds, micros = value["timestamp"], value["millis"]
    return ZERO if seconds == micros == 0 else timestamp(seconds, micros)


def _zoned(value: Mapping[str, Any]) -> str:
    return zoned(value["value"], value["timezone"])


def _object(value: Mapping[str, Any]) -> str:
    if value["type"].lower() not in _TEXTS:
        return _bytes(value)
    try:
        return value["value"].decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageError("an object that is text is not UTF-8") from error


def _bytes(value: Mapping[str, Any]) -> str:
    return value["value"].decode("latin-1")


def _text(value: Mapping[str, Any]) -> str:
    return value["value"]


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "Integer": _integer,
    "Character": _character,
    "Decimal": _decimal,
    "Timestamp": _timestamp,
    "DateTime": date_time,
    "TimestampWithTimeZone": _zoned,
    "BinaryGeometry": _bytes,
    "TextGeometry": _text,
    "BinaryObject": _object,
    "TextObject": _text,
}


_NO_OP, _NO_OP_2020 = 2, 48
_POSITION: Final = re.compile("([0-9]{1,18})@([0-9]{1,18})")
_DOT: Final = "\\u002E"
# INIT is a row of the full load, as in the service's Canal JSON, if it occurs.
_ROWS: Final[Mapping[str, Literal["I", "U", "D"]]] = {**OPS, "INIT": "I"}
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
