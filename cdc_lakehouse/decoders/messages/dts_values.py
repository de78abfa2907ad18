"""Values of DTS Avro records as text.

Numbers keep their digits, a DECIMAL with its declared scale. Text of any character set becomes Unicode, bytes one
character each (ISO-8859-1). ENUM and SET are their labels. A geometry is its WKB, one character per byte, or its WKT:
the SRID that MySQL (and Canal) puts before the WKB is not sent, and none is added.

A TIMESTAMP is a moment in UTC, with the offset. Zero seconds are MySQL's `0000-00-00 00:00:00`: that is how it stores
the zero value, and the type's range begins a second later (MySQL manual, "The DATE, DATETIME, and TIMESTAMP Types").

The branches, and that a column is left out by EmptyObject NONE, are those of the service's SDK (dts-new-subscribe-sdk
1.4.0 and 2.0.0)."""

from __future__ import annotations

import decimal
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc_lakehouse.changelog.charsets import CharsetError, text
from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.messages import dts_times
from cdc_lakehouse.decoders.messages.dts_record import Image
from cdc_lakehouse.decoders.messages.dts_types import OBJECT_TYPES

_FLOAT: Final = 4
"""The number of MySQL's FLOAT."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,65}(\.[0-9]{0,65})?([eE][+-]?[0-9]{1,2})?")
_MOST_FRACTION: Final = 30
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
    if 0 <= scale <= _MOST_FRACTION and -int(number.as_tuple().exponent) < scale:
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
    return dts_times.ZERO if seconds == micros == 0 else dts_times.timestamp(seconds, micros)


def _zoned(value: Mapping[str, Any]) -> str:
    return dts_times.zoned(value["value"], value["timezone"])


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
    "DateTime": dts_times.date_time,
    "TimestampWithTimeZone": _zoned,
    "BinaryGeometry": _bytes,
    "TextGeometry": _text,
    "BinaryObject": _object,
    "TextObject": _text,
}
