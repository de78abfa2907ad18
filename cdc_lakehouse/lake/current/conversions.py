"""Convert values of one column type to another as MySQL does in ALTER TABLE … MODIFY COLUMN.

Rows that were written before a type change are not sent again, so the change is carried out here. In strict SQL mode an
ALTER that would lose data fails in the source, so every value here can be converted; rounding follows MySQL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.mysql_types import BLOBS, FLOATS, INTEGERS, TEXTS, ColumnType, type_change
from cdc_lakehouse.duckdb_sql import (
    at_zone,
    cast,
    in_zone,
    labels_literal,
    let,
    matches,
    text_literal,
    try_cast,
    when,
)
from cdc_lakehouse.errors import DdlError
from cdc_lakehouse.lake.current.value_parsing import (
    ValueFormat,
    decimal_text,
    enum_index,
    enum_label,
    is_number,
    moment_text,
    number,
    padded,
    plain_digits,
    set_labels,
    set_number,
)

_NUMBERS: Final = INTEGERS | {"decimal", "float", "double", "bit", "year"}
_WHOLE: Final = INTEGERS | {"bit", "year"}
_MOMENTS: Final = frozenset({"date", "datetime", "timestamp"})
# Stored as MySQL's own text.
_WORDS: Final = TEXTS | {"enum", "set", "json", "time"}

# A two-digit year lies between 1970 and 2069. MySQL accepts any punctuation between the parts, or none.
_MARKED: Final = (
    r"^\s*(\d{2}|\d{4})[[:punct:]](\d{1,2})[[:punct:]](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?)?\s*$"
)
_PACKED: Final = r"^\s*(\d{2}|\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?(?:\.(\d*))?\s*$"
_CLOCK: Final = r"^(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?$"

# Takes the name of a value of the first type; returns an expression of the second type.
Convert = Callable[[str, ColumnType, ColumnType, ValueFormat], str]


def convert_through(value: str, types: Sequence[ColumnType], value_format: ValueFormat) -> str:
    """Convert a value of the first type through each later type of a column; return an expression. Raises `DdlError`
    for a pair of types without a conversion."""
    for old, new in itertools.pairwise(types):
        value = _convert(value, old, new, value_format)
    return value


def _convert(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if type_change(old, new) != "convert":
        return cast(value, value_format.type_of(new))
    conversion = _conversion(old, new)
    return let(value, lambda named: conversion(named, old, new, value_format))


def _conversion(old: ColumnType, new: ColumnType) -> Convert:
    for olds, news, conversion in _TABLE:
        if old.name in olds and new.name in news:
            return conversion
    raise DdlError(
        f"values of type {old.name} cannot be converted to {new.name}",
        advice="load the table again from a dump made after the statement, or create it anew in the source",
    )


# --- Numbers ---


def _number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    target = value_format.type_of(new)
    if target == "string" or value_format.type_of(old) == "string":
        # A DECIMAL with more digits than Iceberg supports is stored as its exact text.
        exact = cast(value, "double") if old.name == "float" else value
        return _text_to_number(_digits(exact, old, value_format), old, new, value_format)
    if old.name in FLOATS and new.name in _WHOLE:
        value = f"round_even({cast(value, 'double')}, 0)"  # MySQL rounds floating-point numbers here.
    if old.name in FLOATS and target.startswith("decimal"):
        # Converted by its digits: DuckDB multiplies, which can be slightly off.
        return let(cast(cast(value, "double"), "string"), lambda text: number(text, target))
    if old.name == "decimal" and new.name in FLOATS:
        return try_cast(cast(value, "string"), target)
    return try_cast(value, target)


def _digits(value: str, old: ColumnType, value_format: ValueFormat) -> str:
    """Return all digits of a number, without an exponent and without the ".0" of an integer."""
    iceberg = value_format.type_of(old)
    if iceberg.startswith("decimal"):
        return decimal_text(value, iceberg)
    if old.name not in FLOATS:
        return cast(value, "string")

    def plain(text: str) -> str:
        digits = when(f"contains({text}, 'e')", plain_digits(text), text)
        return f"regexp_replace({digits}, '\\.0?$', '')"

    return let(cast(value, "string"), plain)


def _number_to_text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if old.name in FLOATS and value_format.database == "mysql":
        return _text_of_mysql(value, old, value_format)
    text = _digits(value, old, value_format)
    return f"lpad({text}, 4, '0')" if old.name == "year" else text


def _text_of_mysql(value: str, old: ColumnType, value_format: ValueFormat) -> str:
    """Return a floating-point number as MySQL prints it: integers from 1e15 on and numbers below 1e-15 with an
    exponent, and a FLOAT with six digits. TiDB prints all digits."""

    def shown(number: str) -> str:
        digits = _digits(number, replace(old, name="double"), value_format)
        large = f"abs({number}) >= 1e15 AND {number} = trunc({number})"
        small = f"{number} <> 0 AND abs({number}) < 1e-15"
        exponent = f"regexp_replace({cast(number, 'string')}, 'e-0*', 'e-')"
        return when(large, let(digits, shortened), when(small, exponent, digits))

    def shortened(digits: str) -> str:
        head = f"regexp_extract({digits}, '^-?[0-9]')"
        rest = f"rtrim(substr({digits}, length({head}) + 1), '0')"
        point = when(f"{rest} = ''", "''", "'.'")
        return f"{head} || {point} || {rest} || 'e' || (length({digits}) - length({head}))"

    number = cast(value, "double")
    return let(cast(f"printf('%.5e', {number})", "double") if old.name == "float" else number, shown)


def _text_to_number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    target = value_format.type_of(new)

    def read(text: str) -> str:
        if target == "string":
            return _fixed(text, new)
        if new.name in _WHOLE:
            return try_cast(number(text, "decimal(38,0)"), target)
        return number(text, target)

    return let(f"trim({value})", read)


def _fixed(text: str, new: ColumnType) -> str:
    """Return a number's text with the new type's number of fractional digits, rounded half away from zero."""
    scale = new.fraction

    def rounded(digits: str) -> str:
        whole, fraction = (f"split_part({digits}, '.', {part})" for part in (1, 2))
        more = when(f"left({fraction}, 1) >= '5'", "1", "0")
        total = f"CAST(ltrim({whole}, '-') AS BIGNUM) + CAST({more} AS BIGNUM)"
        return let(cast(total, "string"), lambda units: signed(units, f"starts_with({digits}, '-')"))

    def signed(units: str, negative: str) -> str:
        sign = when(f"{negative} AND {units} <> '0'", "'-'", "''")
        return f"{sign} || {let(filled(units), pointed)}"

    def filled(units: str) -> str:
        return f"lpad({units}, CAST(greatest(length({units}), {scale + 1}) AS INTEGER), '0')"

    def pointed(units: str) -> str:
        return f"left({units}, -{scale}) || '.' || right({units}, {scale})" if scale else units

    return when(is_number(text), let(plain_digits(text, scale), rounded))


# --- Dates and times ---


def _local(value: str, old: ColumnType, value_format: ValueFormat) -> str:
    """Convert a date or a moment to a local TIMESTAMP."""
    return in_zone(value, value_format.zone) if old.name == "timestamp" else cast(value, "timestamp")


def _of_local(local: str, new: ColumnType, value_format: ValueFormat) -> str:
    match new.name:
        case "date":
            return cast(local, "date")
        case "datetime":
            return _rounded(local, new.fraction)
        case _:
            return at_zone(_rounded(local, new.fraction), value_format.zone)


def _rounded(local: str, digits: int) -> str:
    """Round fractional seconds that do not fit, as MySQL does; it does not truncate them."""
    if digits >= 6:
        return local
    unit = 10 ** (6 - digits)
    micros = f"epoch_us({local}) + {unit // 2}"
    # A remainder has the sign of the dividend.
    return let(micros, lambda micros: f"make_timestamp({micros} - ({micros} % {unit} + {unit}) % {unit})")


def _moment(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if value_format.type_of(old) == "string" or value_format.type_of(new) == "string":
        raise DdlError(
            f"a {old.name} kept as text cannot become a {new.name}", advice="set zero_dates of the table to null"
        )
    return _of_local(_local(value, old, value_format), new, value_format)


def _moment_to_text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if value_format.type_of(old) == "string":
        return value
    return cast(value, "string") if old.name == "date" else moment_text(_local(value, old, value_format), old.fraction)


def _text_to_moment(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return value if value_format.type_of(new) == "string" else _of_local(_read(value), new, value_format)


def _read(text: str) -> str:
    """Parse a date with or without a time, as MySQL reads it, to TIMESTAMP; NULL for other texts."""
    names = "['year', 'month', 'day', 'hour', 'minute', 'second', 'fraction']"
    marked, packed = (f"regexp_extract({text}, {text_literal(form)}, {names})" for form in (_MARKED, _PACKED))

    def joined(parts: str) -> str:
        century = when(f"length({parts}.year) = 4", "''", when(f"{parts}.year < '70'", "'20'", "'19'"))
        day = f"{century} || {parts}.year || '-' || {parts}.month || '-' || {parts}.day"
        hour, minute, second = (f"lpad({parts}.{name}, 2, '0')" for name in ("hour", "minute", "second"))
        time = f"{hour} || ':' || {minute} || ':' || {second} || '.' || rpad({parts}.fraction, 6, '0')"
        more = when(f"substr({parts}.fraction, 7, 1) >= '5'", "1", "0")
        known = f"{parts}.year <> '0000' AND {hour} < '24'"
        moment = try_cast(f"{day} || ' ' || {time}", "timestamp")
        return when(known, f"{moment} + to_microseconds({more})")

    return let(when(matches(text, _MARKED), marked, packed), joined)


def _number_to_moment(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    """Convert a number to a date or a moment: 20260102 is a day, 20260102030405 a moment; either may lack the
    century."""

    def stamp(whole: str) -> str:
        """Return fourteen digits."""
        day = f"{whole} + {when(f'{whole} <= 691231', '20000000', when(f'{whole} <= 991231', '19000000', '0'))}"
        seconds = when(
            f"{whole} <= 691231235959", "20000000000000", when(f"{whole} <= 991231235959", "19000000000000", "0")
        )
        full = when(f"{whole} < 100000000", f"({day}) * 1000000", f"{whole} + {seconds}")
        known = when(f"{whole} = 0", "0", when(f"{whole} > 0", full))
        return f"lpad(CAST({known} AS VARCHAR), 14, '0')"

    def moment(text: str) -> str:
        whole = f"TRY_CAST(split_part({text}, '.', 1) AS HUGEINT)"
        return let(let(whole, stamp), lambda digits: written(digits, f"split_part({text}, '.', 2)"))

    def written(digits: str, fraction: str) -> str:
        if value_format.type_of(new) != "string":
            return _of_local(_read(f"{digits} || '.' || {fraction}"), new, value_format)
        text = f"regexp_replace({digits}, '(....)(..)(..)(..)(..)(..)', '\\1-\\2-\\3 \\4:\\5:\\6')"
        if new.name == "date":
            text = f"left({text}, 10)"
        elif new.fraction:
            text = f"{text} || '.' || rpad({fraction}, {new.fraction}, '0')"
        return when(f"{digits} = '{'0' * 14}' OR {_read(digits)} IS NOT NULL", text)

    return let(_digits(value, old, value_format), moment)


def _moment_to_number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if value_format.type_of(old) == "string":
        text = f"regexp_replace({value}, '[- :]', '', 'g')"
    elif old.name == "date":
        text = f"strftime({value}, '%Y%m%d')"
    else:
        local = _local(value, old, value_format)
        # For an integer the moment is rounded, not the number: 59.6 seconds become the next minute.
        text = f"strftime({_rounded(local, 0 if new.name in _WHOLE else 6)}, '%Y%m%d%H%M%S.%f')"
    return _text_to_number(text, old, new, value_format)


def _moment_to_time(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    text = f"split_part({_moment_to_text(value, old, new, value_format)}, ' ', 2)"
    if old.name == "date":
        text = when(f"{value} IS NOT NULL", "'00:00:00'")
    return let(text, lambda text: _time(text, old, new, value_format))


def _time(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    """Convert a TIME, which is kept as text; fractional seconds that do not fit are rounded away from zero."""
    unit, per_second = 10 ** (6 - new.fraction), 10**new.fraction

    def in_units(parts: str) -> str:
        hours, minutes, seconds = (f"TRY_CAST({parts}.{name} AS BIGINT)" for name in ("hours", "minutes", "seconds"))
        fraction = f"TRY_CAST(rpad({parts}.fraction, 6, '0') AS BIGINT)"
        micros = f"(({hours} * 60 + {minutes}) * 60 + {seconds}) * 1000000 + {fraction}"
        return let(f"({micros} + {unit // 2}) // {unit}", lambda units: shown(units, f"{parts}.sign"))

    def shown(units: str, sign: str) -> str:
        seconds = f"({units} // {per_second})"
        clock = f"printf('%02d:%02d:%02d', {seconds} // 3600, {seconds} // 60 % 60, {seconds} % 60)"
        if new.fraction:
            clock += f" || printf('.%0{new.fraction}d', {units} % {per_second})"
        return when(f"{units} = 0", "''", sign) + f" || {clock}"

    names = "['sign', 'hours', 'minutes', 'seconds', 'fraction']"
    parts = f"regexp_extract({value}, {text_literal(_CLOCK)}, {names})"
    # Other forms of text, such as a number of seconds, are unchanged.
    return when(matches(value, _CLOCK), let(parts, in_units), value)


# --- Texts and bytes ---


def _same(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return value


def _text_to_bytes(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return padded(f"encode({value})", new)


def _bytes(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return padded(value, new)


def _bytes_to_text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return f"decode({value})"


# --- Labels ---


def _set(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    """Return the labels of a SET in the order of the new declaration."""
    own = f"list_contains(string_split({value}, ','), label)"
    return when(
        f"{value} IS NOT NULL",
        f"array_to_string(list_filter({labels_literal(new.elements)}, lambda label: {own}), ',')",
    )


def _set_to_number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if not old.elements:
        raise DdlError("a set whose labels are not known cannot become a number")
    return _exact(set_number(value, old), new, value_format)


def _number_to_set(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return let(_digits(value, old, value_format), lambda text: set_labels(text, new))


def _enum_to_number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if not old.elements:
        raise DdlError("an enum whose labels are not known cannot become a number")
    return _exact(enum_index(value, old), new, value_format)


def _number_to_enum(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return let(cast(value, "int"), lambda index: enum_label(index, new))


def _exact(value: str, new: ColumnType, value_format: ValueFormat) -> str:
    """Convert an integer, or its text, to another type that can hold it."""
    target = value_format.type_of(new)
    return let(cast(value, "string"), lambda text: _fixed(text, new)) if target == "string" else cast(value, target)


# The first matching row applies.
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
