"""Texts of values and rows in MySQL's SQL (see `changelog.row_texts`). TiDB has the same functions.

Sessions have the time zone UTC and the character set utf8mb4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.changelog.mysql_types import BLOBS, FLOATS, INTEGERS, LABELS, TEXTS, ColumnType
from cdc_lakehouse.changelog.row_texts import Form

_MOMENT: Final = "'%Y-%m-%d %H:%i:%s.%f'"


def value_text(value: str, column: ColumnType, *, zero_dates: str) -> str:
    """Return the expression of a value's text, or of a binary's bytes. `value` is a quoted name. `zero_dates` is the
    policy: with `null` invalid dates are NULL, with `string` they stay as they are."""
    name = column.name
    if name in BLOBS:
        return value
    if name in TEXTS | LABELS:
        return f"CONVERT({value} USING utf8mb4)"
    if name in INTEGERS or name in ("year", "bit"):
        # A number, not its text, which ZEROFILL pads with zeros.
        return _text(f"{value} + 0")
    if name in FLOATS:
        return _float_text(value)
    if name == "decimal" and column.zerofill:
        # It has no sign, so the zeros come first. One stays before the point.
        trimmed = f"TRIM(LEADING '0' FROM {_text(value)})"
        return f"IF(LEFT({trimmed}, 1) IN ('', '.'), CONCAT('0', {trimmed}), {trimmed})"
    if name in ("date", "datetime", "timestamp"):
        exact = zero_dates == "string" or name == "date"
        text = _text(value) if exact else _text(f"DATE_FORMAT({value}, {_MOMENT})")
        return f"IF({_is_date(value)}, {text}, NULL)" if zero_dates == "null" else text
    return _text(value)


def in_row(text: str, form: Form) -> str:
    """Return the expression of a value's form in a row's text."""
    match form:
        case "plain":
            found = text
        case "counted":
            found = f"CONCAT(LENGTH({text}), ':', {text})"
        case "hex":
            found = f"HEX({text})"
        case "long" | "long_bytes":
            found = f"MD5({text})"
    return f"IFNULL({found}, 'N')"


def row_text(values: Sequence[str]) -> str:
    """Return the expression of a row's text, from the expressions that `in_row` returns."""
    return f"CONCAT_WS(',', {', '.join(values)})"


def number_of_digits(digest: str, count: int) -> str:
    """Return the expression of the number in the first `count` digits of an MD5."""
    return f"CAST(CONV(LEFT({digest}, {count}), 16, 10) AS UNSIGNED)"


def _text(value: str) -> str:
    # A cast to CHAR has the session's collation, and a column its own: the two cannot be combined everywhere.
    return f"CONVERT(CAST({value} AS CHAR) USING utf8mb4)"


def _is_date(value: str) -> str:
    """Return the condition that a date exists in the calendar. MySQL can hold 0000-00-00, 2020-01-00 and 2020-02-31."""
    leap = f"(YEAR({value}) % 4 = 0 AND (YEAR({value}) % 100 <> 0 OR YEAR({value}) % 400 = 0))"
    days = f"ELT(MONTH({value}), 31, 28 + {leap}, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)"
    return f"YEAR({value}) > 0 AND DAYOFMONTH({value}) BETWEEN 1 AND {days}"


def _float_text(value: str) -> str:
    # A FLOAT is printed with six digits, a double with all digits that distinguish it from its neighbours.
    text = _text(f"{value} + 0e0")
    mantissa = f"SUBSTRING_INDEX({text}, 'e', 1)"
    exponent = f"IF(LOCATE('e', {text}) = 0, 0, CAST(SUBSTRING_INDEX({text}, 'e', -1) AS SIGNED))"
    digits = f"REPLACE(REPLACE({mantissa}, '-', ''), '.', '')"
    fraction = f"IF(LOCATE('.', {mantissa}) = 0, 0, LENGTH({mantissa}) - LOCATE('.', {mantissa}))"
    without_end = f"TRIM(TRAILING '0' FROM {digits})"
    significant = f"TRIM(LEADING '0' FROM {without_end})"
    power = f"CAST({exponent} - {fraction} + LENGTH({digits}) - LENGTH({without_end}) AS SIGNED)"
    sign = f"IF({text} LIKE '-%', '-', '')"
    return f"IF({significant} = '', '0', CONCAT({sign}, {significant}, 'e', {power}))"
