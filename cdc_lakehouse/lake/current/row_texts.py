"""Texts of values and rows as expressions in DuckDB's SQL (see `mysql_types.Form`), over typed values of a
current-state table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdc_lakehouse.changelog.mysql_types import BLOBS, ColumnType, Form
from cdc_lakehouse.duckdb_sql import NULL, cast, in_zone, let, when
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, decimal_text, moment_text


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
