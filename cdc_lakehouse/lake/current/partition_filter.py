"""Convert a partition of the source to a condition (DuckDB's SQL) on a current-state table's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import (
    BoundValue,
    BytesLiteral,
    DefaultValue,
    Expression,
    MaxValue,
    NullLiteral,
    NumberLiteral,
    Partitioning,
    TextLiteral,
)
from cdc_lakehouse.changelog.partitions import HashRows, ListRows, RangeRows, rows_of
from cdc_lakehouse.duckdb_sql import cast, text_literal, when
from cdc_lakehouse.errors import DdlError

_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*`?([^`()]+?)`?\s*\)\s*", re.DOTALL)
_DAY_ZERO: Final = 719528
"""TO_DAYS('1970-01-01')."""

_TRUE: Final = "true"
_FALSE: Final = "false"


def _of_moment(form: str) -> Callable[[str], str]:
    """Return a function of a date or a moment, which may be stored as text."""
    return lambda value: f"({form.format(f'TRY_CAST({value} AS TIMESTAMP)')})"


def _of_number(function: str) -> Callable[[str], str]:
    # MySQL only accepts exact numbers here, and returns an integer. For a BIGINT DuckDB's functions would return a
    # DOUBLE.
    return lambda value: f"{function}(TRY_CAST({value} AS DECIMAL(38,18)))"


# MySQL's functions that a partitioning expression may use and that have one column as their argument.
_FUNCTIONS: Final[dict[str, Callable[[str], str]]] = {
    "year": _of_moment("year({})"),
    "month": _of_moment("month({})"),
    "day": _of_moment("day({})"),
    "dayofmonth": _of_moment("day({})"),
    "dayofyear": _of_moment("dayofyear({})"),
    # 1 is a Sunday.
    "dayofweek": _of_moment("dayofweek({}) + 1"),
    "quarter": _of_moment("quarter({})"),
    "hour": _of_moment("hour({})"),
    "minute": _of_moment("minute({})"),
    "second": _of_moment("second({})"),
    # 0 is a Monday.
    "weekday": _of_moment("isodow({}) - 1"),
    "to_days": _of_moment(f"CAST({{}} AS DATE) - DATE '1970-01-01' + {_DAY_ZERO}"),
    "unix_timestamp": _of_moment("epoch_us({}) // 1000000"),
    "abs": lambda value: f"abs({value})",
    "floor": _of_number("floor"),
    "ceiling": _of_number("ceil"),
    "ceil": _of_number("ceil"),
}


def partition_condition(scheme: Partitioning, name: str, column: Callable[[str], str]) -> str:
    """Return the condition that a row is in a partition; `column` returns the typed column for a source name, an
    expression that is cheap to repeat.

    Raises `DdlError` when the partitioning expression or a bound is not supported.
    """
    values = _values(scheme, column)
    match rows_of(scheme, name):
        case RangeRows(lower, upper):
            above = _TRUE if lower is None else f"NOT {_below(values, lower)}"
            condition = f"({above} AND {_TRUE if upper is None else _below(values, upper)})"
            # NULL is below every value.
            return when(f"{values[0]} IS NULL", _TRUE if lower is None else _FALSE, condition)
        case ListRows(rows, others):
            if any(isinstance(value, DefaultValue) for row in rows for value in row):
                listed = [row for row in others if not isinstance(row[0], DefaultValue)]
                own = [row for row in rows if not isinstance(row[0], DefaultValue)]
                return f"(NOT {_among(values, listed)} OR {_among(values, own)})"
            return _among(values, rows)
        case HashRows(remainder, count):
            return f"coalesce(abs({values[0]} % {count}) = {remainder}, {_TRUE if remainder == 0 else _FALSE})"


def _values(scheme: Partitioning, column: Callable[[str], str]) -> list[str]:
    if scheme.columns:
        return [column(name) for name in scheme.columns]
    call = _CALL.fullmatch(scheme.expression)
    function = None if call is None else _FUNCTIONS.get(call[1].lower())
    if call is None or function is None:
        raise DdlError(f"the partitioning expression {scheme.expression} is not one that can be worked out")
    return [function(column(call[2]))]


def _below(values: list[str], bound: tuple[BoundValue, ...]) -> str:
    """Compare tuples column by column."""
    condition = _FALSE
    for value, limit in reversed(list(zip(values, bound, strict=True))):
        if isinstance(limit, MaxValue):
            condition = _TRUE
            continue
        literal = _literal(limit)
        condition = f"({value} < {literal} OR ({value} = {literal} AND {condition}))"
    return condition


def _among(values: list[str], rows: Sequence[tuple[BoundValue, ...]]) -> str:
    return f"({' OR '.join(_equal(values, row) for row in rows)})" if rows else _FALSE


def _equal(values: list[str], row: tuple[BoundValue, ...]) -> str:
    parts = [
        f"{value} IS NULL" if isinstance(wanted, NullLiteral) else f"{value} IS NOT DISTINCT FROM {_literal(wanted)}"
        for value, wanted in zip(values, row, strict=True)
    ]
    return f"({' AND '.join(parts)})"


def _literal(value: BoundValue) -> str:
    match value:
        case TextLiteral(text):
            return text_literal(text)
        case NumberLiteral(text):
            return str(int(text)) if re.fullmatch(r"[+-]?\d+", text) else cast(text_literal(text), "double")
        case Expression(text):
            return _evaluated(text)
        case BytesLiteral() | NullLiteral() | MaxValue() | DefaultValue():
            raise DdlError(f"the partition bound {value} is not one that can be worked out")


def _evaluated(text: str) -> str:
    """Evaluate a bound that is a call on a literal, such as TO_DAYS('2024-01-01')."""
    call = re.fullmatch(r"\s*(\w+)\s*\(\s*(?:_\w+)?'([^']*)'\s*\)\s*", text)
    function = None if call is None else _FUNCTIONS.get(call[1].lower())
    if call is None or function is None:
        raise DdlError(f"the partition bound {text} is not one that can be worked out")
    return function(cast(text_literal(call[2]), "timestamp"))
