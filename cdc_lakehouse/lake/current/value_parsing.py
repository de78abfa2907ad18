"""Convert texts of the source to values of Iceberg types, as DuckDB expressions. Texts that cannot be read are
reported, never silently set to NULL.

Notation of the texts: numbers plain or with an exponent; BIT as an unsigned number; times as MySQL prints them; VECTOR
as a JSON list. In Canal-JSON an ENUM is its 1-based index, 0 for the empty error value, a SET is a bit mask, and a
binary value has one character for each byte (ISO-8859-1). In TiCDC's CSV, ENUM and SET are their labels, and a binary
value is base64 or hex. In DTS's Avro they are labels too; in its Canal JSON they may be either, and a text that can be
a label is taken as one.

Values are converted from one column type to another as MySQL does in ALTER TABLE … MODIFY COLUMN. Rows that were
written before a type change are not sent again, so the change is carried out here. In strict SQL mode an ALTER that
would lose data fails in the source. Where one is in the log, the source has fitted the values to the new type, as it
does without strict mode: `abc` as a number is 0, a number that is too large the largest one. A value that cannot be
computed is NULL, which `conversions` tells from a NULL of the source.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pyarrow as pa

from cdc_lakehouse.changelog.mysql_types import (
    BASIC_PLANE,
    BLOBS,
    FLOATS,
    INTEGERS,
    LABELS,
    MOST_BYTES,
    TEXTS,
    ColumnType,
    Form,
    codec_of,
    iceberg_type,
    narrows_charset,
    type_change,
    whole_range,
)
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.duckdb_sql import (
    LATIN1,
    NULL,
    at_zone,
    bytes_literal,
    cast,
    decode,
    encode,
    in_zone,
    labels_literal,
    let,
    matches,
    text_in_zone,
    text_literal,
    try_cast,
    when,
)
from cdc_lakehouse.errors import DdlError

MOMENTS: Final = frozenset({"date", "datetime", "timestamp"})

# DuckDB accepts more than a server writes: 1e3 and 1.5 as integers, 1_000 as a number, 24:00:00 as a time.
_INTEGER: Final = r"\s*[+-]?\d+\s*"
_PLAIN_NUMBER: Final = r"\s*[+-]?(\d+\.?\d*|\.\d+)\s*"
_PARTS: Final = r"\s*([+-]?)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?\s*"
_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_MOMENT: Final = r"\d{4}-\d{1,2}-\d{1,2}[ T]([01]?\d|2[0-3]):\d{1,2}:\d{1,2}(\.\d*)?"
_SOME_OFFSET: Final = r"(Z|[+-]\d{2}:\d{2})"
# Forms in which a server may write an invalid date.
_LOOKS_LIKE_A_DATE: Final = rf"{_DAY}([ T]\d{{2}}:\d{{2}}:\d{{2}}(\.\d*)?{_SOME_OFFSET}?)?"
_FLOAT: Final = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_FLOATS: Final = rf"\s*\[\s*({_FLOAT}\s*(,\s*{_FLOAT}\s*)*)?\]\s*"
_HEX: Final = r"([0-9A-Fa-f]{2})*"
_BASE64: Final = r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How the texts of a feed's table are read.

    zone: of TIMESTAMP text. zero_dates: what zero and partial dates become. labels, labels_uncertain: whether ENUM and
    SET are labels, or may be (then a value that is no label is a number). binary: the notation of binary values.
    trailing_zeros_cut: whether a DECIMAL's fraction can lack trailing zeros, as in Canal. database: the source's kind,
    because they print floating-point numbers differently."""

    zone: str = "UTC"
    zero_dates: Literal["null", "string", "error"] = "null"
    labels: bool = False
    labels_uncertain: bool = False
    binary: Literal["characters", "base64", "hex"] = "characters"
    trailing_zeros_cut: bool = False
    database: Literal["mysql", "tidb"] = "tidb"

    @property
    def zone_info(self) -> datetime.tzinfo:
        return zone_of(self.zone)

    def type_of(self, column: ColumnType) -> str:
        """Return the column's Iceberg type."""
        return "string" if self.zero_dates == "string" and column.name in MOMENTS else iceberg_type(column)


def value(text: str, column: ColumnType, value_format: ValueFormat) -> str:
    """Return the expression of the text's value: NULL for NULL and for texts that cannot be read (see `unread`).
    `text` is a VARCHAR that is cheap to repeat, such as the name of a column."""
    target = value_format.type_of(column)
    if column.name in LABELS and column.elements and not value_format.labels:
        numbered = set_labels(text, column)
        if column.name == "enum":
            numbered = let(number(text, "int"), lambda index: enum_label(index, column))
        if not value_format.labels_uncertain:
            return numbered
        # A text that is a label, or labels of a SET, is taken as such.
        labels = labels_literal(column.elements)
        own = f"list_contains({labels}, {text})"
        if column.name == "set":
            own = f"list_has_all({labels}, string_split({text}, ','))"
        known = when(f"{text} = '' OR {own}", text)
        return f"coalesce({known}, {numbered})"
    if column.name in BLOBS:
        match value_format.binary:
            case "characters":
                content = encode(text, LATIN1)
            case "base64":
                cleaned = f"regexp_replace({text}, '\\s', '', 'g')"
                wrapped = when(matches(cleaned, _BASE64), f"from_base64({cleaned})")
                content = when(matches(text, _BASE64), f"from_base64({text})", wrapped)
            case "hex":
                content = when(matches(text, _HEX), f"from_hex({text})")
        return padded(content, column)  # Canal cuts the zero bytes that pad a BINARY(n).
    if target == "string":
        if not (value_format.trailing_zeros_cut and column.name == "decimal" and column.fraction):
            return text
        fraction = f"split_part({text}, '.', 2)"
        plain = matches(text, r"-?\d+(\.\d+)?")
        filled = f"split_part({text}, '.', 1) || '.' || rpad({fraction}, {column.fraction}, '0')"
        return when(f"{plain} AND length({fraction}) < {column.fraction}", filled, text)
    match column.name:
        case "date":
            return when(f"{matches(text, _DAY)} AND {text} >= '0001'", try_cast(text, target))
        case "datetime":
            known = matches(text, f"{_MOMENT}{_SOME_OFFSET}?")
            return when(f"{known} AND length({text}) >= 19 AND {text} >= '0001'", try_cast(text, target))
        case "timestamp":
            # DTS writes the offset itself, and a dump's text has it where clocks go back (`duckdb_sql.text_in_zone`).
            zoned = when(matches(text, _MOMENT + _SOME_OFFSET), try_cast(text, "timestamptz"))
            local = at_zone(try_cast(text, "timestamp"), value_format.zone)
            return when(f"length({text}) >= 19 AND {text} >= '0001'", when(matches(text, _MOMENT), local, zoned))
        case "vector":
            return when(matches(text, _FLOATS), try_cast(text, target))
        case _:
            return number(text, target)


def number(text: str, target: str) -> str:
    """Return the expression of a number of an Iceberg type, NULL for other texts. Digits that a decimal cannot hold are
    rounded half away from zero; an integer must have no fraction and no exponent."""
    if target in ("float", "double"):
        return when(f"NOT contains({text}, '_')", try_cast(text, target))
    if target in ("int", "long"):
        return when(matches(text, _INTEGER), try_cast(text, target))
    # DuckDB fails, or returns wrong values, for some numbers of many digits with an exponent.
    with_exponent = when(is_number(text), try_cast(plain_digits(text), target))
    return when(matches(text, _PLAIN_NUMBER), try_cast(text, target), with_exponent)


def integers(texts: Any, kind: pa.DataType) -> Any:
    """Return integers whose texts are all digits, with or without a minus sign, in a tenth of DuckDB's time; None for
    others."""
    with contextlib.suppress(pa.ArrowInvalid):
        # Arrow reads hexadecimal digits, too.
        if not any(pc.any(pc.starts_with(texts, each)).as_py() for each in ("0x", "0X")):
            return texts.cast(kind)
    return None


def is_number(text: str) -> str:
    """Return the condition that a text is a number, with or without an exponent."""
    return matches(text, rf"\s*{_FLOAT}\s*")


def plain_digits(text: str, shift: int = 0) -> str:
    """Return the expression of a number's text without its exponent, times ten to the `shift`; NULL for an exponent of
    more than nine digits. The result may have a point without digits after it, and leading and trailing zeros."""

    def moved(digits: str, point: str) -> str:
        small = f"'0.' || repeat('0', least(-{point}, 1000)) || {digits}"
        # A number of a thousand digits fits no type.
        filled = f"rpad({digits}, CAST(greatest(least({point}, 1000), length({digits})) AS INTEGER), '0')"
        large = f"left({filled}, {point}) || '.' || substr({digits}, {point} + 1)"
        return when(f"{point} <= 0", small, large)

    def joined(parts: str) -> str:
        exponent = f"coalesce(TRY_CAST(nullif({parts}.exponent, '') AS INTEGER), 0)"
        digits = let(
            f"{parts}.whole || {parts}.fraction",
            lambda digits: let(f"length({parts}.whole) + {exponent} + {shift}", lambda point: moved(digits, point)),
        )
        return when(f"length({parts}.exponent) <= 9", f"replace({parts}.sign, '+', '') || {digits}")

    names = "['sign', 'whole', 'fraction', 'exponent']"
    return let(f"regexp_extract({text}, {text_literal(f'^{_PARTS}$')}, {names})", joined)


def unread(text: str, typed: str, column: ColumnType, value_format: ValueFormat) -> tuple[str, str | None]:
    """Return the conditions that `text` could not be read to `typed`, the result of `value`, and that the policy on
    zero dates made it NULL; None for columns that the policy does not affect."""
    lost = f"{text} IS NOT NULL AND {typed} IS NULL"
    if not may_collide(column, value_format):
        return f"({lost})", None
    is_date = matches(text, _LOOKS_LIKE_A_DATE)
    return f"({lost} AND NOT {is_date})", f"({lost} AND {is_date})"


def text(typed: str, column: ColumnType, value_format: ValueFormat) -> str:
    """Return the expression of a value's text as the source would write it, which `value` reads as the same value."""
    target = value_format.type_of(column)
    if column.name in LABELS and column.elements and not value_format.labels and not value_format.labels_uncertain:
        return cast(enum_index(typed, column), "string") if column.name == "enum" else set_number(typed, column)
    if column.name in BLOBS:
        match value_format.binary:
            case "characters":
                return decode(typed, LATIN1)
            case "base64":
                return f"to_base64({typed})"
            case "hex":
                return f"lower(hex({typed}))"
    match target.partition("(")[0]:
        case "timestamp":
            # A type of a message may lack its digits: none of a value is left out.
            return f"regexp_replace({moment_text(typed, 6)}, '\\.000000$', '')"
        case "timestamptz":
            return text_in_zone(typed, value_format.zone, "26")
        case "decimal":
            return decimal_text(typed, target)
        case _:
            return cast(typed, "string")


def may_collide(column: ColumnType, value_format: ValueFormat) -> bool:
    """Whether values of the type that differ in the source can become the same NULL in the lake."""
    return value_format.zero_dates == "null" and column.name in MOMENTS


def moment_text(local: str, digits: int) -> str:
    """Return the text of a date and time (TIMESTAMP) with `digits` fractional digits of its seconds, truncated."""
    if digits in (0, 3, 6):
        fraction = {0: "", 3: ".%g", 6: ".%f"}[digits]
        return f"strftime({local}, '%Y-%m-%d %H:%M:%S{fraction}')"
    return f"left(strftime({local}, '%Y-%m-%d %H:%M:%S.%f'), {20 + digits})"


def decimal_text(typed: str, iceberg: str) -> str:
    """Return a decimal's digits, with at least one before the point."""
    precision, _, scale = iceberg[len("decimal(") : -1].partition(",")
    digits = cast(typed, "string")
    # DuckDB writes .50 when a DECIMAL has no digits before its point.
    return f"regexp_replace({digits}, '^(-?)\\.', '\\10.')" if precision == scale.strip() else digits


def padded(value: str, column: ColumnType) -> str:
    """Pad the bytes of a BINARY(n) with zero bytes, as MySQL does; those of other types are unchanged."""
    if column.name != "binary" or not column.length:
        return value
    zeros = f"repeat({bytes_literal(bytes(1))}, {column.length} - octet_length({{}}))"
    return let(value, lambda found: f"{found} || {zeros.format(found)}")


def enum_label(index: str, column: ColumnType) -> str:
    """Return the label of a 1-based index, the empty error value for 0, NULL for an index beyond the labels."""
    label = f"{labels_literal(column.elements)}[{index}]"
    return when(f"{index} = 0", "''", when(f"{index} > 0", label))


def set_labels(text: str, column: ColumnType) -> str:
    """Return the labels of the set bits, in the order of the declaration, joined by commas."""
    mask = f"TRY_CAST({number(text, 'decimal(20,0)')} AS UBIGINT)"
    every = (1 << len(column.elements)) - 1

    def members(mask: str) -> str:
        bit = f"(({mask} >> CAST(place - 1 AS UBIGINT)) & 1)"
        chosen = f"list_filter({labels_literal(column.elements)}, lambda label, place: {bit} = 1)"
        return when(f"{mask} <= {every}", f"array_to_string({chosen}, ',')")

    return let(mask, members)


def enum_index(label: str, column: ColumnType) -> str:
    """Return the 1-based index of a label; 0 for the empty error value and for texts that are no label."""
    index = f"coalesce(list_position({labels_literal(column.elements)}, {label}), 0)"
    return when(f"{label} = ''", "0", when(f"{label} IS NOT NULL", index))


def set_number(labels: str, column: ColumnType) -> str:
    """Return the bit mask, as text, of labels that are joined by commas."""

    def total(members: str) -> str:
        bits = [
            when(f"list_contains({members}, {text_literal(label)})", str(1 << place), "0")
            for place, label in enumerate(column.elements)
        ]
        return when(f"{members} IS NOT NULL", f"CAST(list_sum(CAST([{', '.join(bits)}] AS HUGEINT[])) AS VARCHAR)")

    return let(f"string_split({labels}, ',')", total)


def value_text(typed: str, column: ColumnType, iceberg: str, value_format: ValueFormat) -> str:
    """Return the expression of a value's text; for binaries, of its bytes. `column` is the source's type, `iceberg` the
    lake's; `value_format` says how texts that stand for moments are read."""
    match iceberg.partition("(")[0]:
        case "binary" if column.name in BLOBS:
            return typed
        case "float" | "double":
            return _float_text(cast(typed, "double"))
        case "decimal":
            return decimal_text(typed, iceberg)
        case "timestamp":
            return moment_text(typed, 6)
        case "timestamptz":
            return moment_text(in_zone(typed, "UTC"), 6)
        case "string" if column.name == "timestamp":
            # The text is in the source's time zone; a zero date is the same in all zones.
            moment = value(typed, column, replace(value_format, zero_dates="null"))
            return f"coalesce({moment_text(in_zone(moment, 'UTC'), column.fraction)}, {typed})"
        case _:
            return cast(typed, "string")


_IN_ROW: Final[Mapping[Form, str]] = {
    "plain": "{0}", "counted": "strlen({0}) || ':' || {0}", "hex": "hex({0})", "long": "md5({0})",
    "long_bytes": "md5({0})",
}  # fmt: skip


def in_row(text: str, form: Form) -> str:
    """Return the expression of a value's form in a row's text."""
    return f"coalesce({_IN_ROW[form].format(text)}, 'N')"


def row_text(values: Sequence[str]) -> str:
    """Return the expression of a row's text from values that `in_row` returned."""
    return f"concat_ws(',', {', '.join(values)})"


def number_of_digits(digest: str, count: int) -> str:
    """Return the expression of the number (UBIGINT) in the first digits of an MD5."""
    return f"CAST('0x' || left({digest}, {count}) AS UBIGINT)"


def _float_text(value: str) -> str:
    def of_text(text: str) -> str:
        mantissa = f"split_part({text}, 'e', 1)"
        exponent = f"coalesce(TRY_CAST(nullif(split_part({text}, 'e', 2), '') AS INTEGER), 0)"
        fraction = f"length(split_part({mantissa}, '.', 2))"

        def of_digits(digits: str) -> str:
            without_end = f"rtrim({digits}, '0')"
            significant = f"ltrim({without_end}, '0')"
            power = f"({exponent} - {fraction} + length({digits}) - length({without_end}))"
            sign = when(f"starts_with({text}, '-')", "'-'", "''")
            return when(f"{significant} = ''", "'0'", f"{sign} || {significant} || 'e' || {power}")

        return let(f"replace(replace({mantissa}, '-', ''), '.', '')", of_digits)

    return when(f"{value} IS NULL", NULL, let(cast(value, "string"), of_text))


# --- Conversions of column types ---

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
    """Convert a value through each later type of a column. Raises `DdlError` for types without a conversion."""
    for old, new in itertools.pairwise(types):
        value = _convert(value, old, new, value_format)
    return value


def conversions(
    relation: str, types: Sequence[ColumnType], value_format: ValueFormat
) -> tuple[str, str, list[str], list[str]]:
    """Convert the column `v0` of a relation through the types of a column. Return a relation that has also the results,
    the name of the last one, and the conditions that a value was lost, and that it became a zero date, here NULL."""
    lost: list[str] = []
    zeros: list[str] = []
    for place, (old, new) in enumerate(itertools.pairwise(types)):
        value, result = f"v{place}", f"v{place + 1}"
        relation = f"(SELECT *, {_convert(value, old, new, value_format)} AS {result} FROM {relation})"
        if type_change(old, new) == "convert":
            missing, zero = f"{value} IS NOT NULL AND {result} IS NULL", None
            if value_format.zero_dates == "null" and new.name in MOMENTS:
                # Without a moment it is a zero date in the source, or has a part of zero.
                zero = _is_no_date(value) if old.name in TEXTS | LABELS else "true"
            lost.append(f"({missing} AND NOT {zero})" if zero else f"({missing})")
            zeros += [f"({missing} AND {zero})"] if zero else []
    return relation, f"v{max(len(types) - 1, 0)}", lost, zeros


def _is_no_date(text: str) -> str:
    """Return the condition that a server makes a text without a moment a zero date, not the date it begins with."""
    return f"({matches(text, _MARKED)} OR regexp_matches({text}, {text_literal(_NO_DAY)}))"


def _convert(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if type_change(old, new) != "convert":
        return cast(value, value_format.type_of(new))
    conversion = next((each for olds, news, each in _TABLE if old.name in olds and new.name in news), None)
    if conversion is None:
        raise DdlError(
            f"values of type {old.name} cannot be converted to {new.name}",
            advice="load the table again from a dump made after the statement, or create it again in the source",
        )
    return let(value, lambda named: conversion(named, old, new, value_format))


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

    def year(number: str) -> str:
        near = when(f"{number} < 70", f"{number} + 2000", when(f"{number} < 100", f"{number} + 1900", number))
        near = when(f"{number} BETWEEN 1 AND 99 OR {number} BETWEEN 1901 AND 2155", near, "0")
        return cast(when(f"{is_negative} IS NOT NULL", near), target)

    if new.name == "year":
        return let(exact, year)
    if new.name == "decimal":
        whole = "9" * (new.precision - new.fraction) or "0"
        largest = f"{whole}.{'9' * new.fraction}" if new.fraction else whole
        limits = "0" if new.unsigned else f"-{largest}", largest
    else:
        limits = map(str, whole_range(new))
    least, most = (try_cast(text_literal(limit), f"decimal(38,{new.fraction})") for limit in limits)
    below, above = (most if new.name == "bit" else least), most  # The bits of a negative number do not fit.
    beyond = when(is_negative, below, when(f"NOT ({is_negative})", above))
    fitted = let(
        exact, lambda n: when(f"{n} < {least}", below, when(f"{n} > {most}", above, f"coalesce({n}, {beyond})"))
    )
    return cast(fitted, target)


def _real(value: str, old: ColumnType, new: ColumnType) -> str:
    """Return a DOUBLE as a number of a type: FLOAT(M,D) and DOUBLE(M,D) hold D digits after the point."""
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
        fitted = _fitted_number(exact, is_negative, new, target)
        # 0 is a year of two digits, 0000 and abc are no years.
        two_digits = f"{exact} = 0 AND length({value}) <> 4 AND {matches(value, '.*[0-9].*')}"
        return when(two_digits, "2000", fitted) if new.name == "year" and old.name in TEXTS else fitted

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
        filled = f"lpad({units}, CAST(greatest(length({units}), {scale + 1}) AS INTEGER), '0')"
        pointed = let(filled, lambda padded: f"left({padded}, -{scale}) || '.' || right({padded}, {scale})")
        return f"{sign} || {pointed if scale else filled}"

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


def _text_of_moment(value: str, old: ColumnType, value_format: ValueFormat) -> str:
    if value_format.type_of(old) == "string":
        return value
    return cast(value, "string") if old.name == "date" else moment_text(_local(value, old, value_format), old.fraction)


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
    # Five digits lack one of the day.
    whole = when(matches(text, r"\d{5}"), f"left({text}, 4) || '0' || right({text}, 1)", text)
    marked = f"regexp_extract({text}, {text_literal(_MARKED)}, {names})"
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
    text = f"split_part({_text_of_moment(value, old, value_format)}, ' ', 2)"
    if old.name == "date":
        text = when(f"{value} IS NOT NULL", "'00:00:00'")
    return let(text, lambda text: _time(text, old, new, value_format))


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

    def parts(text: str, pattern: str) -> str:
        names = "['sign', 'days', 'hours', 'minutes', 'seconds', 'fraction']"
        return let(f"regexp_extract({text}, {text_literal(pattern)}, {names})", in_units)

    of_date = f"strftime({_read(value)}, '%H:%M:%S.%f')"
    dated = f"({matches(value, _MARKED)} AND contains(trim({value}), ' ')) OR {matches(value, _LONG)}"
    zero = shown("0", "''")
    plain = when(matches(value, _PACKED_CLOCK), parts(value, _PACKED_CLOCK))
    no_time = f"regexp_matches({value}, {text_literal(_NO_TIME)})"
    clock = when(matches(value, _CLOCK), parts(value, _CLOCK), when(no_time, zero, plain))
    if old.name in MOMENTS or old.name == "time":
        return clock
    read = when(f"{_read(value)} IS NOT NULL", parts(of_date, _CLOCK))
    return when(dated, f"coalesce({read}, {zero})", clock)


# --- Texts and bytes ---


def _fitted_text(text: str, old: ColumnType, new: ColumnType) -> str:
    """Return a text as a column of the new type has it. Longer ones are cut; NULL where the server cuts bytes."""
    if narrows_charset(old.charset, new.charset) and new.charset in BASIC_PLANE:
        beyond = "'[\\x{10000}-\\x{10FFFF}]'"
        text = let(text, lambda text: when(f"NOT regexp_matches({text}, {beyond})", text))
    elif narrows_charset(old.charset, new.charset):
        text = let(text, lambda text: when(f"{_encoded(text, new.charset)} IS NOT NULL", text))
    if new.name in MOST_BYTES:
        most = MOST_BYTES[new.name]
        return let(text, lambda text: when(f"octet_length({_encoded(text, new.charset)}) <= {most}", text))
    if new.length is not None:
        text = f"left({text}, {new.length})"
    return f"rtrim({text}, ' ')" if new.name == "char" else text


def _encoded(text: str, charset: str | None) -> str:
    """Return the bytes of a text in a character set, UTF-8 where it is not known; NULL where it lacks a character."""
    codec, corrections = codec_of(charset)
    return encode(_translated(text, {new: old for old, new in corrections.items() if new > 0x7F}), codec)


def _translated(text: str, characters: Mapping[int, int]) -> str:
    if not characters:
        return text
    both = (text_literal("".join(map(chr, each))) for each in (characters.keys(), characters.values()))
    return f"translate({text}, {', '.join(both)})"


def _bytes(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    value = value if old.name in BLOBS else _encoded(value, old.charset)
    most = MOST_BYTES.get(new.name, new.length)
    # A slice of a BLOB ends at its last byte.
    return padded(value if most is None else f"({value})[1:{most}]", new)


def _bytes_to_text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    codec, corrections = codec_of(new.charset)
    text = _translated(decode(value, codec), corrections)
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
        missing = when(f"{is_plain} AND strlen({part}) = length({part})", "0", "-1")
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


def _folded(text: str) -> str:
    return f"rtrim(lower(strip_accents({text})), ' ')"


def _number_to_labels(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if old.name != "bit":
        return let(_number_to_text(value, old, _VARCHAR, value_format), lambda t: _to_labels(t, old, new, value_format))
    if new.name == "enum":
        return when(f"{value} IS NOT NULL", f"coalesce({enum_label(cast(value, 'long'), new)}, '')")
    mask = f"CAST({value} AS UBIGINT) & CAST({2 ** len(new.elements) - 1} AS UBIGINT)"
    return let(cast(mask, "string"), lambda text: set_labels(text, new))


def _labels_to_number(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    if not old.elements:
        raise DdlError(f"{old.name} whose labels are not known cannot become a number")
    number = set_number(value, old) if old.name == "set" else cast(enum_index(value, old), "string")
    return let(number, lambda text: _text_to_number(text, old, new, value_format))


def _by_text(text_of: Callable[[str, ColumnType, ValueFormat], str], convert: Convert) -> Convert:
    """Return the conversion of a value's text."""
    return lambda value, old, new, value_format: let(
        text_of(value, old, value_format), lambda text: convert(text, old, new, value_format)
    )


def _text(value: str, old: ColumnType, new: ColumnType, value_format: ValueFormat) -> str:
    return _fitted_text(_text_of_moment(value, old, value_format) if old.name in MOMENTS else value, old, new)


# The first matching row applies.
_TABLE: Final[tuple[tuple[frozenset[str], frozenset[str], Convert], ...]] = (
    (frozenset(_NUMBERS), frozenset(_NUMBERS), _number),
    (frozenset(_NUMBERS), LABELS, _number_to_labels),
    (frozenset(_NUMBERS), MOMENTS, _by_text(_digits, _text_to_moment)),
    (frozenset(_NUMBERS), frozenset({"time"}), _by_text(_digits, _time)),
    (frozenset(_NUMBERS), frozenset(TEXTS | {"json"}), _number_to_text),
    (LABELS, frozenset(_NUMBERS), _labels_to_number),
    (TEXTS, frozenset(_NUMBERS), _text_to_number),
    (frozenset(TEXTS | LABELS | {"time"}), LABELS, _to_labels),
    (frozenset(TEXTS | LABELS), MOMENTS, _text_to_moment),
    (frozenset(TEXTS | LABELS | {"time"}), frozenset({"time"}), _time),
    (MOMENTS, frozenset(_NUMBERS), _moment_to_number),
    (MOMENTS, MOMENTS, _moment),
    (MOMENTS, frozenset({"time"}), _moment_to_time),
    (MOMENTS, TEXTS, _text),
    (MOMENTS, LABELS, _by_text(_text_of_moment, _to_labels)),
    (frozenset(TEXTS | LABELS | {"time", "json"}), TEXTS, _text),
    (TEXTS, frozenset({"json"}), lambda value, *_: value),
    (frozenset(TEXTS | LABELS | {"time", "json"}), BLOBS, _bytes),
    (BLOBS, frozenset(TEXTS | {"json"}), _bytes_to_text),
    (BLOBS, BLOBS, _bytes),
)
