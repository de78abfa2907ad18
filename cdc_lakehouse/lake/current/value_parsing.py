"""Convert texts of the source to values of Iceberg types, as DuckDB expressions. Texts that cannot be read are
reported, never silently set to NULL.

Notation of the texts: numbers plain or with an exponent; BIT as an unsigned number; times as MySQL prints them; VECTOR
as a JSON list. In Canal-JSON an ENUM is its 1-based index, 0 for the empty error value, a SET is a bit mask, and a
binary value has one character for each byte (ISO-8859-1). In TiCDC's CSV, ENUM and SET are their labels, and a binary
value is base64 or hex. In DTS's Avro they are labels too; in its Canal JSON they may be either, and a text that can be
a label is taken as one.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdc_lakehouse.changelog.mysql_types import BLOBS, LABELS, ColumnType, Form, iceberg_type
from cdc_lakehouse.config.section import zone_of
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
from cdc_lakehouse.duckdb_sql import duckdb_type as duckdb_type
from cdc_lakehouse.lake.current import value_parsing

Binary = Literal["characters", "base64", "hex"]

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
    binary: Binary = "characters"
    trailing_zeros_cut: bool = False
    database: Literal["mysql", "tidb"] = "tidb"

    @property
    def zone_info(self) -> datetime.tzinfo:
        return zone_of(self.zone)

    def type_of(self, column: ColumnType) -> str:
        """Return the column's Iceberg type."""
        return "string" if self.zero_dates == "string" and column.name in MOMENTS else iceberg_type(column)


def value(text: str, column: ColumnType, value_format: ValueFormat) -> str:
    """Return the expression of the text's value: NULL for NULL and for texts that cannot be read (see `parse_failed`).
    `text` is a VARCHAR that is cheap to repeat, such as the name of a column."""
    target = value_format.type_of(column)
    if column.name in LABELS and column.elements and not value_format.labels:
        numbered = _enum(text, column) if column.name == "enum" else set_labels(text, column)
        return f"coalesce({_own_labels(text, column)}, {numbered})" if value_format.labels_uncertain else numbered
    if column.name in BLOBS:
        # Canal cuts the zero bytes that pad a BINARY(n).
        return padded(_bytes(text, value_format.binary), column)
    if target == "string":
        whole = value_format.trailing_zeros_cut and column.name == "decimal" and column.fraction > 0
        return _with_all_digits(text, column.fraction) if whole else text
    match column.name:
        case "date":
            return when(f"{matches(text, _DAY)} AND {text} >= '0001'", try_cast(text, target))
        case "datetime":
            known = matches(text, f"{_MOMENT}{_SOME_OFFSET}?")
            return when(f"{known} AND length({text}) >= 19 AND {text} >= '0001'", try_cast(text, target))
        case "timestamp":
            return _timestamp(text, value_format.zone)
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


def parse_failed(text: str, typed: str, column: ColumnType, value_format: ValueFormat) -> str:
    """Return the condition that `text` could not be read to `typed`, the result of `value`."""
    lost = f"{text} IS NOT NULL AND {typed} IS NULL"
    if value_format.zero_dates == "null" and column.name in MOMENTS:
        return f"({lost} AND NOT {matches(text, _LOOKS_LIKE_A_DATE)})"
    return f"({lost})"


def zero_date(text: str, typed: str, column: ColumnType, value_format: ValueFormat) -> str | None:
    """Return the condition that the policy on zero dates made a value NULL; None for columns that it does not
    affect."""
    if value_format.zero_dates != "null" or column.name not in MOMENTS:
        return None
    return f"({text} IS NOT NULL AND {typed} IS NULL AND {matches(text, _LOOKS_LIKE_A_DATE)})"


def text(typed: str, column: ColumnType, value_format: ValueFormat) -> str:
    """Return the expression of a value's text as the source would write it, which `value` reads as the same value."""
    target = value_format.type_of(column)
    if column.name in LABELS and column.elements and not value_format.labels and not value_format.labels_uncertain:
        return _enum_number(typed, column) if column.name == "enum" else set_number(typed, column)
    if column.name in BLOBS:
        return _notation(typed, value_format.binary)
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


def _timestamp(text: str, zone: str) -> str:
    # DTS writes the offset itself, and a dump's text has it where clocks go back (`duckdb_sql.text_in_zone`).
    zoned = when(matches(text, _MOMENT + _SOME_OFFSET), try_cast(text, "timestamptz"))
    read = when(matches(text, _MOMENT), at_zone(try_cast(text, "timestamp"), zone), zoned)
    return when(f"length({text}) >= 19 AND {text} >= '0001'", read)


def _bytes(text: str, notation: Binary) -> str:
    match notation:
        case "characters":
            return encode(text, LATIN1)
        case "base64":
            cleaned = f"regexp_replace({text}, '\\s', '', 'g')"
            wrapped = when(matches(cleaned, _BASE64), f"from_base64({cleaned})")
            return when(matches(text, _BASE64), f"from_base64({text})", wrapped)
        case "hex":
            return when(matches(text, _HEX), f"from_hex({text})")


def _notation(value: str, notation: Binary) -> str:
    match notation:
        case "characters":
            return decode(value, LATIN1)
        case "base64":
            return f"to_base64({value})"
        case "hex":
            return f"lower(hex({value}))"


def _enum(text: str, column: ColumnType) -> str:
    return let(number(text, "int"), lambda index: enum_label(index, column))


def enum_label(index: str, column: ColumnType) -> str:
    """Return the label of a 1-based index, the empty error value for 0, NULL for an index that the ENUM does not
    have."""
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


def _own_labels(text: str, column: ColumnType) -> str:
    """Return the text itself when it is a label of the ENUM, or labels of the SET; otherwise NULL."""
    labels = labels_literal(column.elements)
    own = f"list_contains({labels}, {text})"
    if column.name == "set":
        own = f"list_has_all({labels}, string_split({text}, ','))"
    return when(f"{text} = '' OR {own}", text)


def _with_all_digits(text: str, count: int) -> str:
    """Return a number's text with at least `count` fractional digits."""
    fraction = f"split_part({text}, '.', 2)"
    plain = matches(text, r"-?\d+(\.\d+)?")
    filled = f"split_part({text}, '.', 1) || '.' || rpad({fraction}, {count}, '0')"
    return when(f"{plain} AND length({fraction}) < {count}", filled, text)


def _enum_number(label: str, column: ColumnType) -> str:
    return cast(enum_index(label, column), "string")


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


def value_text(value: str, column: ColumnType, iceberg: str, value_format: ValueFormat) -> str:
    """Return the expression of a value's text; for binaries, of its bytes. `column` is the source's type, `iceberg` the
    lake's; `value_format` says how texts that stand for moments are read."""
    match iceberg.partition("(")[0]:
        case "binary" if column.name in BLOBS:
            return value
        case "float" | "double":
            return _float_text(cast(value, "double"))
        case "decimal":
            return decimal_text(value, iceberg)
        case "timestamp":
            return moment_text(value, 6)
        case "timestamptz":
            return moment_text(in_zone(value, "UTC"), 6)
        case "string" if column.name == "timestamp":
            # The text is in the source's time zone; a zero date is the same in all zones.
            moment = value_parsing.value(value, column, replace(value_format, zero_dates="null"))
            return f"coalesce({moment_text(in_zone(moment, 'UTC'), column.fraction)}, {value})"
        case _:
            return cast(value, "string")


def in_row(text: str, form: Form) -> str:
    """Return the expression of a value's form in a row's text."""
    match form:
        case "plain":
            found = text
        case "counted":
            found = f"strlen({text}) || ':' || {text}"
        case "hex":
            found = f"hex({text})"
        case "long" | "long_bytes":
            found = f"md5({text})"
    return f"coalesce({found}, 'N')"


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
