"""Text of the source as values of Iceberg types, as Spark expressions. What cannot be read is reported, never nulled.

Notation of the text: numbers plain or with an exponent; BIT as an unsigned number; times as MySQL prints them; VECTOR
as a JSON list. In Canal-JSON ENUM is its 1-based index, 0 for the empty error value, SET a bit mask, and a binary value
one character a byte (ISO-8859-1); in TiCDC's csv ENUM and SET are their labels, and a binary value is base64 or hex.
In DTS's Avro they are labels, too; in its Canal JSON they may be either, and what can be a label is one.
"""

from __future__ import annotations

import datetime
import decimal
import zoneinfo
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.mysql_types import BLOBS, LABELS, ColumnType, iceberg_type

_SPARK_TYPES: Final = {
    "long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp", "list<float>": "array<float>",
}  # fmt: skip
Binary = Literal["characters", "base64", "hex"]

_ZONED: Final = frozenset({"date", "datetime", "timestamp"})
_MOMENT: Final = "yyyy-MM-dd HH:mm:ss.SSSSSS"
_LOOKS_LIKE_A_DATE: Final = r"^\d{4}-\d{2}-\d{2}"
_FIRST_DATE: Final = "0001-01-01"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How the text of a feed's table is read: the zone of TIMESTAMP text, what zero and partial dates become, whether
    ENUM and SET are labels already or may be (a value that is no label is a number then), the notation of binary
    values, and whether a DECIMAL's fraction can lack zeros at its end, as Canal has it."""

    zone: str = "UTC"
    zero_dates: Literal["null", "string", "error"] = "null"
    labels: bool = False
    labels_uncertain: bool = False
    binary: Binary = "characters"
    trailing_zeros_cut: bool = False

    @property
    def zone_info(self) -> datetime.tzinfo:
        return zoneinfo.ZoneInfo(self.zone)

    def type_of(self, column: ColumnType) -> str:
        """The column's Iceberg type."""
        return "string" if self.zero_dates == "string" and column.name in _ZONED else iceberg_type(column)


def spark_type(iceberg: str) -> str:
    return _SPARK_TYPES.get(iceberg, iceberg)


def value(text: Column, column: ColumnType, value_format: ValueFormat) -> Column:
    """The text's value, NULL for NULL and for what cannot be read (see `parse_failed`)."""
    target = value_format.type_of(column)
    if column.name in LABELS and column.elements and not value_format.labels:
        numbered = _enum(text, column) if column.name == "enum" else set_labels(text, column)
        return F.coalesce(_own_labels(text, column), numbered) if value_format.labels_uncertain else numbered
    if column.name in BLOBS:
        found = _bytes(text, value_format.binary)
        # Canal cuts the zero bytes that a BINARY(n) is filled with.
        return F.rpad(found, column.length, F.lit(b"\x00")) if column.name == "binary" and column.length else found
    if target == "string":
        whole = value_format.trailing_zeros_cut and column.name == "decimal" and column.fraction > 0
        return _with_all_digits(text, column.fraction) if whole else text
    match column.name:
        case "date":
            day = F.when(F.length(text) == 10, text.try_cast("date"))
            return F.when(day >= F.lit(_FIRST_DATE).cast("date"), day)
        case "datetime":
            moment = F.when(F.length(text) >= 19, text.try_cast("timestamp_ntz"))
            return F.when(moment >= F.lit(_FIRST_DATE).cast("timestamp_ntz"), moment)
        case "timestamp":
            zoned = text
            if value_format.zone != "UTC":
                # DTS says the offset itself.
                zoned = F.when(text.endswith("+00:00"), text).otherwise(F.concat(text, F.lit(f" {value_format.zone}")))
            return F.when(F.length(text) >= 19, zoned.try_cast("timestamp"))
        case "vector":
            return F.from_json(text, "array<float>")
        case _:
            return text.try_cast(spark_type(target))


def parse_failed(text: Column, typed: Column, column: ColumnType, value_format: ValueFormat) -> Column:
    """Whether `typed`, which `value` made of `text`, has lost something."""
    lost = text.isNotNull() & typed.isNull()
    if value_format.zero_dates == "null" and column.name in _ZONED:
        return lost & ~text.rlike(_LOOKS_LIKE_A_DATE)
    return lost


def zero_date(text: Column, typed: Column, column: ColumnType, value_format: ValueFormat) -> Column | None:
    """Whether a value became NULL by the policy on zero dates; None for columns that it does not concern."""
    if value_format.zero_dates != "null" or column.name not in _ZONED:
        return None
    return text.isNotNull() & typed.isNull() & text.rlike(_LOOKS_LIKE_A_DATE)


def text(typed: Column, column: ColumnType, value_format: ValueFormat) -> Column:
    """A value as the source would write it: what `value` reads as the same value again."""
    target = value_format.type_of(column)
    if column.name in LABELS and column.elements and not value_format.labels and not value_format.labels_uncertain:
        return _enum_number(typed, column) if column.name == "enum" else set_number(typed, column)
    if column.name in BLOBS:
        return _notation(typed, value_format.binary)
    match target.partition("(")[0]:
        case "timestamp":
            return F.date_format(typed, _MOMENT)
        case "timestamptz":
            # A session's zone is UTC.
            local = F.from_utc_timestamp(typed, value_format.zone)
            return F.date_format(local, _MOMENT)
        case "list<float>":
            return F.to_json(typed)
        case _:
            return typed.cast("string")


def may_collide(column: ColumnType, value_format: ValueFormat) -> bool:
    """Whether values of the type that differ in the source can be the same NULL in the lake."""
    return value_format.zero_dates == "null" and column.name in _ZONED


def _bytes(text: Column, notation: Binary) -> Column:
    if notation == "characters":
        return F.when(~text.rlike(r"[^\x{00}-\x{FF}]"), F.encode(text, "ISO-8859-1"))
    return F.try_to_binary(text, F.lit(notation))


def _notation(value: Column, notation: Binary) -> Column:
    match notation:
        case "characters":
            return F.decode(value, "ISO-8859-1")
        case "base64":
            return F.base64(value)
        case "hex":
            return F.hex(value)


def _labels(column: ColumnType) -> Column:
    return F.array(*(F.lit(label) for label in column.elements))


def _enum(text: Column, column: ColumnType) -> Column:
    index = text.try_cast("int")
    return F.when(index == 0, F.lit("")).when(index > 0, F.get(_labels(column), index - 1))


def set_labels(text: Column, column: ColumnType) -> Column:
    """Labels of the set bits, in the order of the declaration, joined by commas."""
    unsigned = text.try_cast("decimal(20,0)")
    wrap = F.lit(decimal.Decimal(1 << 63)).cast("decimal(20,0)")
    # Bit 63 is the sign of a long.
    mask = F.when(unsigned < wrap, unsigned.cast("bigint")).otherwise((unsigned - wrap - wrap).cast("bigint"))
    members = F.filter(_labels(column), lambda label, position: F.getbit(mask, position) == 1)
    known = (unsigned >= 0) & (unsigned < F.lit(decimal.Decimal(1 << len(column.elements))))
    return F.when(known, F.array_join(members, ","))


def _own_labels(text: Column, column: ColumnType) -> Column:
    """The text itself where it is a label of the ENUM, or labels of the SET; else NULL."""
    labels = _labels(column)
    if column.name == "enum":
        return F.when((text == "") | F.array_contains(labels, text), text)
    members = F.split(text, ",")
    return F.when((text == "") | (F.size(F.array_except(members, labels)) == 0), text)


def _with_all_digits(text: Column, count: int) -> Column:
    """Of a number, with so many digits in its fraction at least."""
    whole = F.substring_index(text, ".", 1)
    fraction = F.coalesce(F.get(F.split(text, r"\."), F.lit(1)), F.lit(""))
    short = text.rlike(r"^-?\d+(\.\d+)?$") & (F.length(fraction) < count)
    return F.when(short, F.concat(whole, F.lit("."), F.rpad(fraction, count, "0"))).otherwise(text)


def _enum_number(label: Column, column: ColumnType) -> Column:
    return F.when(label == "", F.lit("0")).otherwise(F.array_position(_labels(column), label).cast("string"))


def set_number(labels: Column, column: ColumnType) -> Column:
    members = F.split(labels, ",")
    nothing = F.lit(decimal.Decimal(0)).cast("decimal(20,0)")
    total = nothing
    for place, label in enumerate(column.elements):
        bit = F.lit(decimal.Decimal(1 << place)).cast("decimal(20,0)")
        total = (total + F.when(F.array_contains(members, label), bit).otherwise(nothing)).cast("decimal(20,0)")
    return F.when(labels.isNotNull(), total.cast("string"))
