"""Rows of a source partition as a condition on a current-state table's columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.ddl.definitions import (
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
from cdc_lakehouse.errors import DdlError

_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*`?([^`()]+?)`?\s*\)\s*", re.DOTALL)
_DAY_ZERO: Final = 719528
"""TO_DAYS('1970-01-01')."""

# MySQL's functions that a partitioning expression may hold and that have one column as their argument.
_FUNCTIONS: Final[dict[str, Callable[[Column], Column]]] = {
    "year": F.year,
    "month": F.month,
    "day": F.dayofmonth,
    "dayofmonth": F.dayofmonth,
    "dayofyear": F.dayofyear,
    "dayofweek": F.dayofweek,
    "quarter": F.quarter,
    "hour": F.hour,
    "minute": F.minute,
    "second": F.second,
    "weekday": F.weekday,
    "to_days": lambda value: F.unix_date(F.to_date(value)) + _DAY_ZERO,
    "unix_timestamp": lambda value: F.unix_seconds(value.cast("timestamp")),
    "abs": F.abs,
    "floor": F.floor,
    "ceiling": F.ceil,
    "ceil": F.ceil,
}


def partition_condition(scheme: Partitioning, name: str, column: Callable[[str], Column]) -> Column:
    """Whether a row is in a partition; `column` gives the typed column of a source name.

    Raises `DdlError` where the partitioning expression or a bound is beyond what can be worked out.
    """
    values = _values(scheme, column)
    match rows_of(scheme, name):
        case RangeRows(lower, upper):
            above = F.lit(True) if lower is None else ~_below(values, lower)
            condition = above & (F.lit(True) if upper is None else _below(values, upper))
            # NULL is below every value.
            is_null = values[0].isNull()
            return F.when(is_null, F.lit(lower is None)).otherwise(condition)
        case ListRows(rows, others):
            if any(isinstance(value, DefaultValue) for row in rows for value in row):
                listed = [row for row in others if not isinstance(row[0], DefaultValue)]
                return ~_among(values, listed) | _among(values, [r for r in rows if not isinstance(r[0], DefaultValue)])
            return _among(values, rows)
        case HashRows(remainder, count):
            return F.coalesce(F.abs(values[0] % count) == remainder, F.lit(remainder == 0))


def _values(scheme: Partitioning, column: Callable[[str], Column]) -> list[Column]:
    if scheme.columns:
        return [column(name) for name in scheme.columns]
    call = _CALL.fullmatch(scheme.expression)
    function = None if call is None else _FUNCTIONS.get(call[1].lower())
    if call is None or function is None:
        raise DdlError(f"the partitioning expression {scheme.expression} is not one that can be worked out")
    return [function(column(call[2]))]


def _below(values: list[Column], bound: tuple[BoundValue, ...]) -> Column:
    """Tuple comparison, column by column."""
    condition = F.lit(False)
    for value, limit in reversed(list(zip(values, bound, strict=True))):
        if isinstance(limit, MaxValue):
            condition = F.lit(True)
            continue
        literal = _literal(limit)
        condition = (value < literal) | ((value == literal) & condition)
    return condition


def _among(values: list[Column], rows: Any) -> Column:
    condition = F.lit(False)
    for row in rows:
        equal = F.lit(True)
        for value, wanted in zip(values, row, strict=True):
            equal = equal & value.eqNullSafe(F.lit(None) if isinstance(wanted, NullLiteral) else _literal(wanted))
        condition = condition | equal
    return condition


def _literal(value: BoundValue) -> Any:
    match value:
        case TextLiteral(text):
            return F.lit(text)
        case NumberLiteral(text):
            return F.lit(int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text))
        case Expression(text):
            return _evaluated(text)
        case BytesLiteral() | NullLiteral() | MaxValue() | DefaultValue():
            raise DdlError(f"the partition bound {value} is not one that can be worked out")


def _evaluated(text: str) -> Column:
    """A bound that is a call on a literal, such as TO_DAYS('2024-01-01')."""
    call = re.fullmatch(r"\s*(\w+)\s*\(\s*(?:_\w+)?'([^']*)'\s*\)\s*", text)
    function = None if call is None else _FUNCTIONS.get(call[1].lower())
    if call is None or function is None:
        raise DdlError(f"the partition bound {text} is not one that can be worked out")
    return function(F.lit(call[2]).cast("timestamp"))
