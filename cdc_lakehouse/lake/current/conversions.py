"""Values of one column type as values of another, the way MySQL converts them in ALTER TABLE … MODIFY COLUMN.

Rows that were written before a type change are not sent again, so the change is carried out here. In strict SQL mode an
ALTER that would lose data fails in the source, so whatever reaches this point can be converted; rounding is MySQL's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType, type_change
from cdc_lakehouse.errors import DdlError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, spark_type

_NUMBERS: Final = INTEGERS | {"decimal", "float", "double", "bit", "year"}
_EXACT: Final = INTEGERS | {"decimal", "bit", "year"}
_MOMENTS: Final = frozenset({"date", "datetime", "timestamp"})
# What is kept as MySQL's own text.
_WORDS: Final = TEXTS | {"enum", "set", "json", "time"}

Convert = Callable[[Column, ColumnType, ColumnType, ValueFormat], Column]


def convert_through(value: Column, types: Sequence[ColumnType], value_format: ValueFormat) -> Column:
    """A typed value of the first type, taken through each of those that a column had after it. Raises `DdlError` for a
    pair that has no conversion."""
    for old, new in itertools.pairwise(types):
        value = _convert(value, old, new, value_format)
    return value


def _convert(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if type_change(old, new) != "convert":
        return value.cast(spark_type(value_format.type_of(new)))
    for olds, news, conversion in _TABLE:
        if old.name in olds and new.name in news:
            return conversion(value, old, new, value_format)
    raise DdlError(
        f"values of type {old.name} cannot be converted to {new.name}",
        advice="set policy for the table, or rebuild it from the source",
    )


def _number(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    target = value_format.type_of(new)
    if target == "string":  # DECIMAL of more digits than Iceberg holds: its exact text.
        return _fixed(value.cast("decimal(38,18)").cast("string") if old.name in ("float", "double") else value, new)
    if old.name in ("float", "double") and new.name in _EXACT - {"decimal"}:
        value = F.rint(value)  # MySQL rounds floating-point numbers half to even here.
    elif old.name == "decimal" and new.name in _EXACT - {"decimal"}:
        value = F.round(_plain(value, old), 0)
    return value.try_cast(spark_type(target))


def _plain(value: Column, old: ColumnType) -> Column:
    # A DECIMAL that does not fit Iceberg's is text in the lake.
    return value.try_cast("decimal(38,0)") if old.precision > 38 else value


def _fixed(value: Column, new: ColumnType) -> Column:
    """A number's text with the digits of the new scale."""
    text = value.cast("string")
    whole = F.substring_index(text, ".", 1)
    if new.fraction == 0:
        return whole
    fraction = F.when(F.instr(text, ".") > 0, F.substring_index(text, ".", -1)).otherwise(F.lit(""))
    return F.concat(whole, F.lit("."), F.rpad(fraction, new.fraction, "0"))


def _number_to_text(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if old.name not in ("float", "double"):
        text = value.cast("string")
        return F.lpad(text, 4, "0") if old.name == "year" else text
    # Plain digits, no exponent and no ".0" of a whole number.
    exact = value.cast("string")
    wide = F.regexp_replace(value.cast("decimal(38,18)").cast("string"), r"\.?0+$", "")
    return F.when(exact.contains("E"), F.coalesce(wide, exact)).otherwise(F.regexp_replace(exact, r"\.0$", ""))


def _text_to_number(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    target = value_format.type_of(new)
    text = F.trim(value)
    if target == "string":
        return _fixed(text, new)
    if new.name in _EXACT - {"decimal"}:
        return F.round(text.try_cast("decimal(38,10)"), 0).try_cast(spark_type(target))
    return text.try_cast(spark_type(target))


def _moment_to_text(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if value_format.type_of(old) == "string":
        return value
    local = value
    if old.name == "timestamp":
        local = F.from_utc_timestamp(value, value_format.zone)
    pattern = "yyyy-MM-dd" if old.name == "date" else "yyyy-MM-dd HH:mm:ss"
    if old.fraction:
        pattern += "." + "S" * old.fraction
    return F.date_format(local, pattern)


def _text_to_moment(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if value_format.type_of(new) == "string":
        return value
    if new.name == "date":
        return F.to_date(value.try_cast("timestamp_ntz"))
    local = _rounded(value.try_cast("timestamp_ntz"), new)
    return local if new.name == "datetime" else _zoned(local, value_format)


def _moment(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if value_format.type_of(old) == "string" or value_format.type_of(new) == "string":
        raise DdlError(
            f"a {old.name} kept as text cannot become a {new.name}", advice="set zero_dates of the table to null"
        )
    local = value
    if old.name == "timestamp":
        local = F.from_utc_timestamp(value, value_format.zone).cast("timestamp_ntz")
    elif old.name == "date":
        local = value.cast("timestamp_ntz")
    match new.name:
        case "date":
            return F.to_date(local)
        case "datetime":
            return _rounded(local, new)
        case _:
            return _zoned(_rounded(local, new), value_format)


def _zoned(local: Column, value_format: ValueFormat) -> Column:
    return F.to_utc_timestamp(local.cast("timestamp"), value_format.zone)


def _rounded(local: Column, new: ColumnType) -> Column:
    """MySQL rounds, not cuts, fractional seconds that do not fit."""
    if new.fraction >= 6:
        return local
    unit = 10 ** (6 - new.fraction)
    micros = F.unix_micros(local.cast("timestamp"))
    return F.timestamp_micros((F.floor((micros + unit // 2) / unit) * unit).cast("bigint")).cast("timestamp_ntz")


def _same(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    return value


def _text_to_bytes(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    return _padded(F.encode(value, "UTF-8"), new)


def _bytes(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    return _padded(value, new)


def _padded(value: Column, new: ColumnType) -> Column:
    """BINARY(n) is filled with zero bytes."""
    return F.rpad(value, new.length, F.lit(b"\x00")) if new.name == "binary" and new.length else value


def _bytes_to_text(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    return F.decode(value, "UTF-8")


def _number_to_moment(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    """20260102 is a day, 20260102030405 a moment."""
    digits = value.cast("decimal(38,0)").cast("string")
    digits = F.when(F.length(digits) <= 8, F.rpad(F.lpad(digits, 8, "0"), 14, "0")).otherwise(F.lpad(digits, 14, "0"))
    parts = [F.substring(digits, start, length) for start, length in ((1, 4), (5, 2), (7, 2), (9, 2), (11, 2), (13, 2))]
    day, time = F.concat_ws("-", *parts[:3]), F.concat_ws(":", *parts[3:])
    return _text_to_moment(F.concat_ws(" ", day, time), old, new, value_format)


def _moment_to_number(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    digits = F.regexp_replace(_moment_to_text(value, old, new, value_format), "[- :]", "")
    return _text_to_number(digits, old, new, value_format)


def _moment_to_time(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    text = (
        F.lit("00:00:00")
        if old.name == "date"
        else F.substring_index(_moment_to_text(value, old, new, value_format), " ", -1)
    )
    return F.when(value.isNotNull(), _time(text, old, new, value_format))


def _time(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    """TIME is kept as text; fractional seconds that do not fit are rounded away from zero."""
    place = [F.regexp_extract(value, r"^(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?$", part) for part in range(1, 6)]
    sign, hours, minutes, seconds, fraction = place
    unit = 10 ** (6 - new.fraction)
    whole = (hours.cast("bigint") * 60 + minutes.cast("bigint")) * 60 + seconds.cast("bigint")
    micros = whole * 1_000_000 + F.rpad(fraction, 6, "0").cast("bigint")
    units = F.floor((micros + unit // 2) / unit).cast("bigint")
    per_second = 10**new.fraction
    total = F.floor(units / per_second).cast("bigint")
    text = F.concat(
        sign,
        _two_digits(F.floor(total / 3600)),
        F.lit(":"),
        _two_digits(F.floor(total / 60) % 60),
        F.lit(":"),
        _two_digits(total % 60),
    )
    if new.fraction:
        text = F.concat(text, F.lit("."), F.lpad((units % per_second).cast("string"), new.fraction, "0"))
    # Other forms of text, such as a number of seconds, stay as they are.
    return F.when(hours == "", value).otherwise(text)


def _two_digits(number: Column) -> Column:
    text = number.cast("bigint").cast("string")
    return F.when(F.length(text) < 2, F.lpad(text, 2, "0")).otherwise(text)


def _set(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    """Labels stand in the order of the declaration."""
    members = F.split(value, ",")
    labels = F.array(*(F.lit(label) for label in new.elements))
    return F.array_join(F.array_intersect(labels, members), ",")


def _set_to_number(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if not old.elements:
        raise DdlError("a set whose labels are not known cannot become a number")
    return value_parsing.set_number(value, old).cast(spark_type(value_format.type_of(new)))


def _number_to_set(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    return value_parsing.set_labels(value.cast("string"), new)


def _enum_to_number(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    if not old.elements:
        raise DdlError("an enum whose labels are not known cannot become a number")
    index = F.array_position(F.array(*(F.lit(label) for label in old.elements)), value)
    return index.cast(spark_type(value_format.type_of(new)))


def _number_to_enum(value: Column, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> Column:
    labels = F.array(*(F.lit(label) for label in new.elements))
    return F.get(labels, value.cast("int") - 1)


# First row that fits.
_TABLE: Final[tuple[tuple[frozenset[str], frozenset[str], Convert], ...]] = (
    (frozenset(_NUMBERS), frozenset(_NUMBERS), _number),
    (frozenset(_NUMBERS), frozenset({"enum"}), _number_to_enum),
    (frozenset(_NUMBERS), frozenset({"set"}), _number_to_set),
    (frozenset({"set"}), frozenset(_NUMBERS), _set_to_number),
    (frozenset({"set"}), frozenset({"set"}), _set),
    (frozenset(_NUMBERS), frozenset(_MOMENTS), _number_to_moment),
    (frozenset(_MOMENTS), frozenset(_NUMBERS), _moment_to_number),
    (frozenset(_MOMENTS), frozenset({"time"}), _moment_to_time),
    (frozenset(TEXTS | {"time"}), frozenset({"time"}), _time),
    (frozenset({"enum"}), frozenset(_NUMBERS), _enum_to_number),
    (frozenset(_NUMBERS), frozenset(_WORDS), _number_to_text),
    (frozenset(TEXTS), frozenset(_NUMBERS), _text_to_number),
    (frozenset(_MOMENTS), frozenset(_MOMENTS), _moment),
    (frozenset(_MOMENTS), frozenset(TEXTS), _moment_to_text),
    (frozenset(TEXTS), frozenset(_MOMENTS), _text_to_moment),
    (frozenset(_WORDS), frozenset(_WORDS), _same),
    (frozenset(_WORDS), frozenset(BLOBS), _text_to_bytes),
    (frozenset(BLOBS), frozenset(TEXTS | {"json"}), _bytes_to_text),
    (frozenset(BLOBS), frozenset(BLOBS), _bytes),
)
