"""Convert values of one column type to another as MySQL does in ALTER TABLE … MODIFY COLUMN.

Rows that were written before a type change are not sent again, so the change is carried out here. In strict SQL mode an
ALTER that would lose data fails in the source. Where one is in the log, the source has fitted the values to the new
type, as it does without strict mode: `abc` as a number is 0, a number that is too large the largest one. A value that
cannot be computed is NULL, which `conversions` tells from a NULL of the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.mysql_types import (
    BASIC_PLANE,
    BLOBS,
    FLOATS,
    INTEGERS,
    LABELS,
    MOST_BYTES,
    TEXTS,
    ColumnType,
    codec_of,
    narrows_charset,
    type_change,
    whole_range,
)
from cdc_lakehouse.duckdb_sql import (
    at_zone,
    cast,
    decode,
    encode,
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
    MOMENTS,
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

_WHOLE: Final = INTEGERS | {"bit", "year"}
_NUMBERS: Final = _WHOLE | FLOATS | {"decimal"}

# A two-digit year lies between 1970 and 2069. MySQL accepts any punctuation between the parts, or none.
_MARKED: Final = (
    r"^\s*(\d{2}|\d{4})[[:punct:]](\d{1,2})[[:punct:]](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?)?\s*$"
)
_PACKED: Final = r"^\s*(\d{2}|\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?(?:\.(\d*))?\s*$"
_CLOCK: Final = r"^\s*(-?)(?:(\d{1,9})\s+)?(\d{1,9}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?\s*$"
_PACKED_CLOCK: Final = r"^\s*(-?)()(\d{0,6}?)(\d{0,2}?)(\d{0,2})(?:\.(\d*))?\s*$"
_NO_DAY: Final = r"^\s*([^0-9\s]|[0-9]*\s*$)"
_LONG: Final = r"\s*\d{12,}(\.\d*)?\s*"
_NO_TIME: Final = r"^\s*-?([^-0-9.\s]|$)"
_LAST_SECOND: Final = (838 * 60 + 59) * 60 + 59
_LEADING_NUMBER: Final = r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_LEADING_DIGITS: Final = r"^\s*([+-]?\d+)"
_SET_NUMBER: Final = r"\s*[+]?\d+"
_WHOLE_NUMBER: Final = r"^\s*[+-]?\d+\s*$"
_WIDTHS: Final = {
    "tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "bigint": 20, "float": 12, "double": 22, "decimal": 10,
}  # fmt: skip
_LARGEST: Final = {"float": "3.4028234663852886e38", "double": "1.7976931348623157e308"}
_TIMESTAMPS: Final = "'1970-01-01 00:00:01+00' AND '2038-01-19 03:14:07.999999+00'"

_VARCHAR: Final = ColumnType("varchar")

# Takes the name of a value of the first type; returns an expression of the second type.
Convert = Callable[[str, ColumnType, ColumnType, ValueFormat], str]


def convert_through(value: str, types: Sequence[ColumnType], value_format: ValueFormat) -> str:
    """Convert a value of the first type through each later type of a column; return an expression. Raises `DdlError`
    for a pair of types without a conversion."""
    for old, new in itertools.pairwise(types):
        value = _convert(value, old, new, value_format)
    return value


def conversions(
    relation: str, types: Sequence[ColumnType], value_format: ValueFormat
) -> tuple[str, str, list[str], list[str]]:
    """Convert the column `v0` of a relation through the types of a column. Return a relation that has also the results,
    the name of the last one, and the conditions that a value was lost and that it became a zero date, which the policy
    makes NULL."""
    lost: list[str] = []
    zeros: list[str] = []
    for place, (old, new) in enumerate(itertools.pairwise(types)):
        value, result = f"v{place}", f"v{place + 1}"
        relation = f"(SELECT *, {_convert(value, old, new, value_format)} AS {result} FROM {relation})"
        if type_change(old, new) == "convert":
            missing, zero = f"{value} IS NOT NULL AND {result} IS NULL", _is_zero_date(value, old, new, value_format)
            lost.append(f"({missing} AND NOT {zero})" if zero else f"({missing})")
            zeros += [f"({missing} AND {zero})"] if zero else []
    return relation, f"v{max(len(types) - 1, 0)}", lost, zeros


def _is_zero_date(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str | None:
    """Return the condition that a value without a moment is a zero date (or has a part of zero) in the source; None
    where the policy does not make these NULL."""
    if value_format.zero_dates != "null" or new.name not in MOMENTS:
        return None
    return _is_no_date(value) if old.name in TEXTS | LABELS else "true"


def _is_no_date(text: str) -> str:
    """Return the condition that a server makes a text without a moment a zero date, and not the date it begins
    with."""
    return f"({matches(text, _MARKED)} OR regexp_matches({text}, {text_literal(_NO_DAY)}))"


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
        advice="load the table again from a dump made after the statement, or create it again in the source",
    )


# --- Numbers ---


def _number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    target = value_format.type_of(new)
    if target == "string" or value_format.type_of(old) == "string":
        # A DECIMAL with more digits than Iceberg supports is stored as its exact text.
        exact = cast(value, "double") if old.name == "float" else value
        return _text_to_number(_digits(exact, old, value_format), old, new, value_format)
    if new.name in FLOATS:
        exact = try_cast(cast(value, "string") if old.name == "decimal" else value, "double")
        return let(exact, lambda exact: _real(exact, old, new))
    if old.name in FLOATS and new.name in _WHOLE:
        value = f"round_even({cast(value, 'double')}, 0)"  # MySQL rounds floating-point numbers here.
    elif old.name in FLOATS:
        # Converted by its digits: DuckDB multiplies, which can be slightly off.
        scale = f"decimal(38,{new.fraction})"
        exact = let(cast(cast(value, "double"), "string"), lambda text: number(text, scale))
        return _fitted_number(exact, f"{value} < 0", new, target)
    scale = new.fraction if new.name == "decimal" else 0

    def fitted(number: str) -> str:
        exact = try_cast(number, f"decimal(38,{scale})")
        if old.name == "float":  # MySQL makes a large one the least BIGINT.
            return when(f"abs({number}) < 9.2e18", _fitted_number(exact, "false", new, target))
        return _fitted_number(exact, f"{number} < 0", new, target)

    return let(value, fitted)


def _fitted_number(exact: str, is_negative: str, new: ColumnType, target: str) -> str:
    """Return an exact number (with the scale of the type, at most 38 digits; NULL beyond these, where `is_negative`
    decides) as the nearest one of the type, as a server does without strict mode."""
    if new.name == "year":
        return let(exact, lambda n: cast(when(f"{is_negative} IS NOT NULL", _year(n)), target))
    least, most = (try_cast(text_literal(limit), f"decimal(38,{new.fraction})") for limit in _limits(new))
    below, above = (most if new.name == "bit" else least), most  # The bits of a negative number do not fit.
    beyond = when(is_negative, below, when(f"NOT ({is_negative})", above))
    fitted = let(
        exact, lambda n: when(f"{n} < {least}", below, when(f"{n} > {most}", above, f"coalesce({n}, {beyond})"))
    )
    return cast(fitted, target)


def _limits(column: ColumnType) -> tuple[str, str]:
    if column.name != "decimal":
        least, most = whole_range(column)
        return str(least), str(most)
    whole = "9" * (column.precision - column.fraction) or "0"
    most = f"{whole}.{'9' * column.fraction}" if column.fraction else whole
    return ("0" if column.unsigned else f"-{most}"), most


def _year(number: str) -> str:
    near = when(f"{number} < 70", f"{number} + 2000", when(f"{number} < 100", f"{number} + 1900", number))
    return when(f"{number} BETWEEN 1 AND 99 OR {number} BETWEEN 1901 AND 2155", near, "0")


def _real(value: str, old: ColumnType, new: ColumnType) -> str:
    """Return a DOUBLE as a floating-point number of a type: FLOAT(M,D) and DOUBLE(M,D) hold D digits after the
    point."""
    most, digits = _LARGEST[new.name], new.scale
    if digits is not None:
        # MySQL rounds a value when it is written, and shows one that it does not write again with fewer digits.
        kept = old.scale if old.name == new.name else digits
        if kept is not None:
            value = f"floor({value}) + round_even(({value} - floor({value})) * 1e{kept}, 0) / 1e{kept}"
        within = str(10 ** (new.length - digits) - 10.0**-digits) if new.length else most
        if old.name == new.name:  # A value that is too large stays when it is not written again.
            value = let(value, lambda value: when(f"abs({value}) <= {within}", value))
        else:
            most = within
        value = cast(f"printf('%.{digits}f', {cast(value, 'double')})", "double")
    least = "0" if new.unsigned else f"-{most}"

    def fitted(value: str) -> str:
        return cast(
            when(f"{value} IS NOT NULL", f"least(greatest({value}, {least}::DOUBLE), {most}::DOUBLE)"), new.name
        )

    return let(value, fitted)


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
    is_mysql = value_format.database == "mysql"
    if old.name in FLOATS and is_mysql:
        fixed = f"printf('%.{old.scale}f', {cast(value, 'double')})"
        text = _text_of_mysql(value, old, value_format) if old.scale is None else fixed
    else:
        text = _digits(value, old, value_format)
    if old.zerofill and is_mysql:
        width = old.length or _WIDTHS[old.name]
        text = f"lpad({text}, {width + bool(old.name == 'decimal' and old.scale)}, '0')"
    text = f"lpad({text}, 4, '0')" if old.name == "year" else text
    return text if new.name == "json" else _fitted_text(text, old, new)


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
    """Convert the number that a text begins with, 0 where there is none."""
    target = value_format.type_of(new)
    pattern = _LEADING_DIGITS if new.name == "bit" and old.name in TEXTS else _LEADING_NUMBER
    found = f"regexp_extract({value}, {text_literal(pattern)}, 1)"

    def read(text: str) -> str:
        if target == "string":
            return _fixed(text, new)
        if new.name in FLOATS:
            return let(try_cast(text, "double"), lambda real: _real(real, old, new))
        exact = number(text, f"decimal(38,{new.fraction if new.name == 'decimal' else 0})")
        # A number of many digits, or one with a large exponent.
        is_negative = when(f"NOT contains(lower({text}), 'e-')", f"starts_with({text}, '-')")
        if new.name != "year" or old.name not in TEXTS:
            return _fitted_number(exact, is_negative, new, target)
        years = _fitted_number(exact, is_negative, new, target)
        # 0 is a year of two digits, 0000 and abc are no years.
        two_digits = f"{exact} = 0 AND length({value}) <> 4 AND {matches(value, '.*[0-9].*')}"
        return when(two_digits, "2000", years)

    return let(when(f"{found} = '' AND {value} IS NOT NULL", "'0'", found), read)


def _fixed(text: str, new: ColumnType) -> str:
    """Return a number's text with the new type's number of fractional digits, rounded half away from zero; the nearest
    number of the type where it is too large."""
    scale, most = new.fraction, new.precision

    def rounded(digits: str) -> str:
        whole, fraction = (f"split_part({digits}, '.', {part})" for part in (1, 2))
        more = when(f"left({fraction}, 1) >= '5'", "1", "0")
        total = f"CAST(ltrim({whole}, '-') AS BIGNUM) + CAST({more} AS BIGNUM)"
        negative = f"starts_with({digits}, '-')"
        fitted = let(
            cast(total, "string"), lambda units: when(f"length({units}) > {most}", f"repeat('9', {most})", units)
        )
        fitted = when(negative, "'0'", fitted) if new.unsigned else fitted
        return let(fitted, lambda units: signed(units, negative))

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
            return cast(_rounded(local, 0), "date")
        case "datetime":
            return _rounded(local, new.fraction)
        case _:
            moment = at_zone(_rounded(local, new.fraction), value_format.zone)
            return let(moment, lambda moment: when(f"{moment} BETWEEN {_TIMESTAMPS}", moment))


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
    text = value
    if value_format.type_of(old) != "string":
        local = _local(value, old, value_format)
        text = cast(value, "string") if old.name == "date" else moment_text(local, old.fraction)
    return _fitted_text(text, old, new)


def _text_to_moment(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if value_format.type_of(new) != "string":
        return _of_local(_read(value), new, value_format)
    digits = 10 if new.name == "date" else 19 + new.fraction + bool(new.fraction)
    zero = text_literal("0000-00-00 00:00:00.000000"[:digits])
    local = _rounded(_read(value), 0 if new.name == "date" else new.fraction)
    shown = let(local, lambda local: f"left({moment_text(local, 6)}, {digits})")
    return f"coalesce({shown}, {when(_is_no_date(value), zero)})"


def _read(text: str) -> str:
    """Parse a date with or without a time, as MySQL reads it, to TIMESTAMP; NULL for other texts."""
    names = "['year', 'month', 'day', 'hour', 'minute', 'second', 'fraction']"
    marked = f"regexp_extract({text}, {text_literal(_MARKED)}, {names})"
    # Five digits lack one of the day.
    whole = when(matches(text, r"\d{5}"), f"left({text}, 4) || '0' || right({text}, 1)", text)
    packed = f"regexp_extract({whole}, {text_literal(_PACKED)}, {names})"

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
    return let(_digits(value, old, value_format), lambda text: _text_to_moment(text, old, new, value_format))


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
    text = f"split_part({_moment_to_text(value, old, _VARCHAR, value_format)}, ' ', 2)"
    if old.name == "date":
        text = when(f"{value} IS NOT NULL", "'00:00:00'")
    return let(text, lambda text: _time(text, old, new, value_format))


def _number_to_time(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return let(_digits(value, old, value_format), lambda text: _time(text, old, new, value_format))


def _time(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    """Read a TIME, which is kept as text, as MySQL does: with days, without seconds, as digits, or of a date with a
    time. Fractional seconds that do not fit are rounded away from zero."""
    unit, per_second = 10 ** (6 - new.fraction), 10**new.fraction

    def in_units(parts: str) -> str:
        days, hours, minutes, seconds = (
            f"coalesce(TRY_CAST({parts}.{name} AS BIGINT), 0)" for name in ("days", "hours", "minutes", "seconds")
        )
        fraction = f"coalesce(TRY_CAST(rpad({parts}.fraction, 6, '0') AS BIGINT), 0)"
        micros = f"((({days} * 24 + {hours}) * 60 + {minutes}) * 60 + {seconds}) * 1000000 + {fraction}"
        units = f"least(({micros} + {unit // 2}) // {unit}, {_LAST_SECOND * per_second})"
        is_time = f"{minutes} < 60 AND {seconds} < 60"
        return let(when(is_time, units, "0"), lambda units: shown(units, f"{parts}.sign"))

    def shown(units: str, sign: str) -> str:
        seconds = f"({units} // {per_second})"
        clock = f"printf('%02d:%02d:%02d', {seconds} // 3600, {seconds} // 60 % 60, {seconds} % 60)"
        if new.fraction:
            clock += f" || printf('.%0{new.fraction}d', {units} % {per_second})"
        return when(f"{units} = 0", "''", sign) + f" || {clock}"

    def parts(pattern: str) -> str:
        names = "['sign', 'days', 'hours', 'minutes', 'seconds', 'fraction']"
        return let(f"regexp_extract({value}, {text_literal(pattern)}, {names})", in_units)

    of_date = f"strftime({_read(value)}, '%H:%M:%S.%f')"
    dated = f"({matches(value, _MARKED)} AND contains(trim({value}), ' ')) OR {matches(value, _LONG)}"
    zero = shown("0", "''")
    plain = when(matches(value, _PACKED_CLOCK), parts(_PACKED_CLOCK))
    no_time = f"regexp_matches({value}, {text_literal(_NO_TIME)})"
    clock = when(matches(value, _CLOCK), parts(_CLOCK), when(no_time, zero, plain))
    if old.name in MOMENTS or old.name == "time":
        return clock
    names = "['sign', 'days', 'hours', 'minutes', 'seconds', 'fraction']"
    read = let(f"regexp_extract({of_date}, {text_literal(_CLOCK)}, {names})", in_units)
    return when(dated, f"coalesce({when(f'{_read(value)} IS NOT NULL', read)}, {zero})", clock)


# --- Texts and bytes ---


def _same(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return value


def _text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return _fitted_text(value, old, new)


def _fitted_text(text: str, old: ColumnType, new: ColumnType) -> str:
    """Return a text as a column of the new type has it. Longer ones are cut; NULL where the server cuts bytes."""
    if narrows_charset(old.charset, new.charset):
        text = let(text, lambda text: when(_is_in_charset(text, new.charset), text))
    if new.name in MOST_BYTES:
        most = MOST_BYTES[new.name]
        return let(text, lambda text: when(f"octet_length({_encoded(text, new.charset)}) <= {most}", text))
    if new.length is not None:
        text = f"left({text}, {new.length})"
    return f"rtrim({text}, ' ')" if new.name == "char" else text


def _is_in_charset(text: str, charset: str | None) -> str:
    if charset in BASIC_PLANE:
        return f"NOT regexp_matches({text}, '[\\x{{10000}}-\\x{{10FFFF}}]')"
    return f"{_encoded(text, charset)} IS NOT NULL"


def _encoded(text: str, charset: str | None) -> str:
    """Return the bytes of a text in a character set, UTF-8 where it is not known; NULL where it lacks a character."""
    codec, corrections = codec_of(charset)
    back = {new: old for old, new in corrections.items() if new > 0x7F}
    if back:
        characters = (text_literal("".join(map(chr, each))) for each in (back.keys(), back.values()))
        text = f"translate({text}, {', '.join(characters)})"
    return encode(text, codec)


def _text_to_bytes(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return _bytes(_encoded(value, old.charset), old, new, value_format)


def _bytes(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    most = MOST_BYTES.get(new.name, new.length)
    # A slice of a BLOB ends at its last byte.
    return padded(value if most is None else f"({value})[1:{most}]", new)


def _bytes_to_text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    codec, corrections = codec_of(new.charset)
    text = decode(value, codec)
    if corrections:
        characters = (text_literal("".join(map(chr, each))) for each in (corrections.keys(), corrections.values()))
        text = f"translate({text}, {', '.join(characters)})"
    return text if new.name == "json" else _fitted_text(text, old, new)


# --- Labels ---


def _to_labels(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    """Return the label of an ENUM, or labels of a SET in the order of its declaration, for a text: those of the same
    text, or the number. Others become the empty error value."""
    if not new.elements:
        return value
    labels = labels_literal(new.elements)
    # By the usual collation of MySQL case and accents make no difference, by that of TiDB they do. The log does not
    # tell which of them a column has.
    folded, plain = (
        f"list_transform({labels}, lambda label: {each})" for each in (_folded("label"), "rtrim(label, ' ')")
    )

    def found(part: str) -> str:
        """Return the place of a label, 0 for none, -1 where that depends on the collation."""
        place, near = f"list_position({plain}, rtrim({part}, ' '))", f"list_position({folded}, {_folded(part)})"
        other = near if value_format.database == "mysql" else f"coalesce({place}, {when(f'{near} > 0', '-1')})"
        is_plain = is_ascii if value_format.database == "mysql" else "true"
        missing = when(f"{is_plain} AND {_is_ascii(part)}", "0", "-1")
        return f"coalesce({when(f'{place} <> {near}', '-1', other)}, {missing})"

    is_ascii = "true" if all(label.isascii() for label in new.elements) else "false"
    if new.name == "enum":
        index = f"TRY_CAST(trim({value}) AS INTEGER)"
        own = f"coalesce({labels}[{when(f'{index} > 0', index)}], '')"

        def label(place: str) -> str:
            missing = when(f"{matches(value, _WHOLE_NUMBER)}", own, "''")
            return when(f"{place} > 0", f"{labels}[{place}]", when(f"{place} = 0", missing))

        return when(f"{value} IS NOT NULL", let(found(value), label))

    def chosen(places: str) -> str:
        own = f"list_filter({labels}, lambda label, place: list_contains({places}, place))"
        is_number = f"NOT list_has_any({places}, {labels_of_places}) AND {matches(value, _SET_NUMBER)}"
        bits = f"coalesce({let(f'trim({value})', lambda text: set_labels(text, new))}, '')"
        shown = when(is_number, bits, f"array_to_string({own}, ',')")
        return when(f"NOT list_contains({places}, -1)", shown)

    labels_of_places = f"range(1, {len(new.elements) + 1})"
    places = f"list_transform(string_split({value}, ','), lambda part: {found('part')})"
    return when(f"{value} IS NOT NULL", let(f"CAST({places} AS BIGINT[])", chosen))


def _is_ascii(text: str) -> str:
    return f"strlen({text}) = length({text})"


def _folded(text: str) -> str:
    return f"rtrim(lower(strip_accents({text})), ' ')"


def _number_to_labels(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if old.name != "bit":
        return let(_number_to_text(value, old, _VARCHAR, value_format), lambda t: _to_labels(t, old, new, value_format))
    if new.name == "enum":
        return when(f"{value} IS NOT NULL", f"coalesce({enum_label(cast(value, 'long'), new)}, '')")
    mask = f"CAST({value} AS UBIGINT) & CAST({2 ** len(new.elements) - 1} AS UBIGINT)"
    return let(cast(mask, "string"), lambda text: set_labels(text, new))


def _moment_to_labels(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    text = _moment_to_text(value, old, _VARCHAR, value_format)
    return let(text, lambda text: _to_labels(text, old, new, value_format))


def _labels_to_number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if not old.elements:
        raise DdlError(f"{old.name} whose labels are not known cannot become a number")
    number = set_number(value, old) if old.name == "set" else cast(enum_index(value, old), "string")
    return let(number, lambda text: _text_to_number(text, old, new, value_format))


# The first matching row applies.
_TABLE: Final[tuple[tuple[frozenset[str], frozenset[str], Convert], ...]] = (
    (frozenset(_NUMBERS), frozenset(_NUMBERS), _number),
    (frozenset(_NUMBERS), LABELS, _number_to_labels),
    (frozenset(_NUMBERS), MOMENTS, _number_to_moment),
    (frozenset(_NUMBERS), frozenset({"time"}), _number_to_time),
    (frozenset(_NUMBERS), frozenset(TEXTS | {"json"}), _number_to_text),
    (LABELS, frozenset(_NUMBERS), _labels_to_number),
    (TEXTS, frozenset(_NUMBERS), _text_to_number),
    (frozenset(TEXTS | LABELS | {"time"}), LABELS, _to_labels),
    (frozenset(TEXTS | LABELS), MOMENTS, _text_to_moment),
    (frozenset(TEXTS | LABELS | {"time"}), frozenset({"time"}), _time),
    (MOMENTS, frozenset(_NUMBERS), _moment_to_number),
    (MOMENTS, MOMENTS, _moment),
    (MOMENTS, frozenset({"time"}), _moment_to_time),
    (MOMENTS, TEXTS, _moment_to_text),
    (MOMENTS, LABELS, _moment_to_labels),
    (frozenset(TEXTS | LABELS | {"time", "json"}), TEXTS, _text),
    (TEXTS, frozenset({"json"}), _same),
    (frozenset(TEXTS | LABELS | {"time", "json"}), BLOBS, _text_to_bytes),
    (BLOBS, frozenset(TEXTS | {"json"}), _bytes_to_text),
    (BLOBS, BLOBS, _bytes),
)
