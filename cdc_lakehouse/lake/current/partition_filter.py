"""Which rows are in a partition of the source, as a condition (DuckDB's SQL) on the values that rows had at the time.

A partition is evaluated on the version of its table that a DDL removed or exchanged its rows under: a column that it
was made by can be dropped or retyped later. A condition is NULL where the log does not say enough: texts are compared
by a collation of the source, and only what all usual collations agree on is certain."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
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
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType
from cdc_lakehouse.changelog.partitions import HashRows, ListRows, RangeRows, rows_of
from cdc_lakehouse.changelog.schema import Column
from cdc_lakehouse.decoders.arrow import pc, where
from cdc_lakehouse.duckdb_sql import cast, text_literal, when
from cdc_lakehouse.errors import DdlError, TableHeldError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.partial_rows import TypedRows, events_of_keys
from cdc_lakehouse.lake.current.typed_rows import Target
from cdc_lakehouse.lake.current.value_parsing import ValueFormat

_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*(?:`([^`]+)`|([^`()'\s]+)|(?:_\w+)?'([^']*)')\s*\)\s*")
_DAY_ZERO: Final = 719528
"""TO_DAYS('1970-01-01')."""

_NUMBERS: Final = INTEGERS | {"year", "bit"}
_DATES: Final = frozenset({"date", "datetime", "timestamp"})
_TRUE: Final = "true"
_FALSE: Final = "false"

# MySQL's functions that a partitioning expression may use and that have one column as their argument: of a date, and of
# an exact number, for which MySQL returns an integer. For a BIGINT DuckDB's functions would return a DOUBLE.
_OF_DATES: Final = {
    "year": "year({})",
    "month": "month({})",
    "day": "day({})",
    "dayofmonth": "day({})",
    "dayofyear": "dayofyear({})",
    # 1 is a Sunday.
    "dayofweek": "dayofweek({}) + 1",
    "quarter": "quarter({})",
    "hour": "hour({})",
    "minute": "minute({})",
    "second": "second({})",
    # 0 is a Monday.
    "weekday": "isodow({}) - 1",
    "to_days": f"CAST({{}} AS DATE) - DATE '1970-01-01' + {_DAY_ZERO}",
}
_OF_NUMBERS: Final = {
    "abs": "abs(CAST({} AS DECIMAL(38,18)))",
    "floor": "floor(TRY_CAST({} AS DECIMAL(38,18)))",
    "ceiling": "ceil(TRY_CAST({} AS DECIMAL(38,18)))",
    "ceil": "ceil(TRY_CAST({} AS DECIMAL(38,18)))",
}

# All usual collations compare ideographs by themselves. Other characters may be equal to further ones.
_COMPARABLE: Final = r"[ -~\x{4E00}-\x{9FA5}]*"
_ORDERED: Final = "[ -~]*"
# UCA has punctuation in this order, all of it before digits and letters.
_PUNCTUATION: Final = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
_RANKS: Final = "".join(map(chr, range(1, len(_PUNCTUATION) + 1)))


def _orders(text: str) -> list[str]:
    """Return what the orders of binary, *_bin, *_general_ci, *_unicode_ci and *_0900_* compare."""
    marks = f"{text_literal(_PUNCTUATION)}, {text_literal(_RANKS)}"
    padded = f"rtrim({text}, ' ')"
    return [
        text,
        padded,
        f"upper({padded})",
        f"translate(lower({padded}), {marks})",
        f"translate(lower({text}), {marks})",
    ]


# What some collation takes for the same text: roman and Baltic ones do not tell i, j and y apart, or u, v and w.
_FOLDED: Final = "rtrim(translate(lower({}), 'jyvw', 'iiuu'), ' ')"


@dataclass(frozen=True)
class PartitionRows:
    """The rows of partitions that a DDL removed or exchanged. `target` has the table's columns and versions until then;
    its next version, by number, is the one that the DDL made."""

    scheme: Partitioning
    names: tuple[str, ...]
    target: Target

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that decide. Raises `DdlError` when the partitioning expression is not supported."""
        return tuple(self._named(name) for name in self.scheme.columns or (_argument(self.scheme),))

    def _named(self, name: str) -> Column:
        found = next((column for column in self.target.columns if column.name.lower() == name.lower()), None)
        if found is None:
            raise DdlError(f"rows do not have column {name}, which the table is partitioned by")
        return found

    def condition(self, column: Callable[[Column], str], value_format: ValueFormat) -> str:
        """Return the condition that a row is in one of the partitions; `column` returns the value of a column. It is
        NULL where that is uncertain."""

        def typed(name: str) -> tuple[str, ColumnType]:
            found = self._named(name)
            return column(found), found.type

        found = [partition_condition(self.scheme, name, typed, value_format) for name in self.names]
        return f"({' OR '.join(found)})"

    def known(self, found: pa.ChunkedArray) -> np.ndarray[Any, Any]:
        """Return the results of `condition`. Raises `TableHeldError` where one is uncertain."""
        if found.null_count:
            raise TableHeldError(self.doubt, advice="load it again from a dump that was made after the statement")
        return found.to_numpy()

    @property
    def doubt(self) -> str:
        names, columns = ", ".join(self.names), ", ".join(column.name for column in self.columns)
        return (
            f"whether a row is in partition {names} depends on the collation of {columns}, which the log does not say"
        )


def without_emptied(
    connection: Any,
    upserts: pa.Table,
    emptied: Iterable[PartitionRows],
    value_format: ValueFormat,
    typed: Callable[[pa.Table, Target], TypedRows],
    read_later: Collection[int] = (),
) -> pa.Table:
    """Return the latest events of keys without those whose rows were removed with a partition later; `typed` returns
    the rows that some of them leave. An event whose value cannot be read stays where the columns that decide are read
    afterwards (`read_later`, by id), and is rejected then. Raises `TableHeldError` where it is uncertain which rows
    were removed, and `DdlError` where that cannot be evaluated."""
    for each in emptied:
        earlier = where(upserts, upserts.column("version_no").to_numpy() < len(each.target.versions))
        if not earlier.num_rows:
            continue
        rows = typed(earlier, replace(each.target, columns=each.columns))
        is_read_later = {column.id for column in each.columns}.issubset(read_later)
        if not is_read_later and pc.any(rows.values.column("fault")).as_py():
            columns, names = ", ".join(column.name for column in each.columns), ", ".join(each.names)
            raise TableHeldError(
                f"a value of {columns} cannot be read, which says whether a row was in partition {names}",
                advice="load it again from a dump that was made after the statement",
            )
        condition = each.condition(lambda column: f"c{column.id}", value_format)
        query = f"SELECT {when('fault', 'false', condition)} AS gone FROM typed"
        gone = each.known(sql.query(connection, query, typed=rows.values).column("gone"))
        if gone.any():
            upserts = events_of_keys(connection, upserts, where(rows.of_events(["key"]), gone), "ANTI")
    return upserts


@dataclass(frozen=True)
class _Value:
    """A value that a table is partitioned by: its expression, and its type where it is a column."""

    value: str
    type: ColumnType | None = None

    def equals(self, bound: BoundValue, zone: datetime.tzinfo) -> str:
        """Return the condition that the value is the bound's; it is never NULL for a value that is NULL."""
        if isinstance(bound, NullLiteral):
            return f"{self.value} IS NULL"
        literal = _literal(bound, self.type, zone)
        if self.type is None or self.type.name not in TEXTS:
            return f"coalesce({self.value} = {literal}, false)"
        comparable = f"{sql.matches(self.value, _COMPARABLE)} AND {sql.matches(literal, _COMPARABLE)}"
        other = when(f"{comparable} AND {_FOLDED.format(self.value)} <> {_FOLDED.format(literal)}", _FALSE)
        return when(f"{self.value} IS NULL", _FALSE, when(f"{self.value} = {literal}", _TRUE, other))

    def is_below(self, bound: BoundValue, zone: datetime.tzinfo) -> str:
        """Return the condition that the value is less than the bound; NULL is less than every value."""
        literal = _literal(bound, self.type, zone)
        if self.type is None or self.type.name not in TEXTS:
            return f"coalesce({self.value} < {literal}, true)"
        below = [f"{own} < {other}" for own, other in zip(_orders(self.value), _orders(literal), strict=True)]
        certain = when(" AND ".join(below), _TRUE, when(f"NOT ({' OR '.join(below)})", _FALSE))
        # Texts that differ only in case, or in spaces at the end, have another order in each kind of collation.
        same = f"lower(rtrim({self.value}, ' ')) = lower(rtrim({literal}, ' ')) AND {self.value} <> {literal}"
        ordered = f"{sql.matches(self.value, _ORDERED)} AND {sql.matches(literal, _ORDERED)} AND NOT ({same})"
        return when(f"{self.value} IS NULL", _TRUE, when(ordered, certain))


def partition_condition(
    scheme: Partitioning, name: str, column: Callable[[str], tuple[str, ColumnType]], value_format: ValueFormat
) -> str:
    """Return the condition that a row is in a partition, NULL where it is uncertain; `column` returns the typed column
    for a source name, an expression that is cheap to repeat, and its type.

    Raises `DdlError` when the partitioning expression or a bound is not supported.
    """
    values, zone = _values(scheme, column, value_format), value_format.zone_info
    match rows_of(scheme, name):
        case RangeRows(lower, upper):
            above = _TRUE if lower is None else f"NOT {_below(values, lower, zone)}"
            return f"({above} AND {_TRUE if upper is None else _below(values, upper, zone)})"
        case ListRows(rows, others):
            own, other = _among(values, rows, zone), _among(values, others, zone)
            if any(isinstance(row[0], DefaultValue) for row in rows):
                return f"(NOT {other} OR {own})"
            if any(isinstance(row[0], DefaultValue) for row in others):
                return when(other, _FALSE, own)
            # The server accepted each row: it is in this list where it can be in no other, and must be in one of them.
            alone = when(f"{own} IS NULL AND NOT {other}", _TRUE, when(f"{other} IS NULL AND NOT {own}", _FALSE))
            return when(own, _TRUE, when(other, _FALSE, alone))
        case HashRows(remainder, count):
            # MySQL and TiDB take the remainder of a signed number, also of a BIGINT UNSIGNED.
            number = cast(values[0].value, "decimal(38,0)")
            signed = when(f"{number} >= {2**63}", f"{number} - {2**64}", number)
            # For NULL, MySQL (sql/sql_partition.cc, `part_val_int`) takes the least number, TiDB (pkg/table/tables/
            # partition.go, `locateHashPartition`) partition 0.
            of_null = 2**63 % count if value_format.database == "mysql" else 0
            return f"coalesce(abs({signed} % {count}) = {remainder}, {str(remainder == of_null).lower()})"


def _argument(scheme: Partitioning) -> str:
    """Return the column that the partitioning function is called with."""
    call = _CALL.fullmatch(scheme.expression)
    if call is None or call[4] is not None or call[1].lower() not in {*_OF_DATES, *_OF_NUMBERS, "unix_timestamp"}:
        raise DdlError(f"the partitioning expression {scheme.expression} is not one that can be evaluated")
    return call[2] or call[3]


def _values(
    scheme: Partitioning, column: Callable[[str], tuple[str, ColumnType]], value_format: ValueFormat
) -> list[_Value]:
    if scheme.columns:
        return [_column_value(*column(name), value_format) for name in scheme.columns]
    value, kind = column(_argument(scheme))
    call = _CALL.fullmatch(scheme.expression)
    assert call is not None, scheme.expression
    function, value = call[1].lower(), _column_value(value, kind, value_format).value
    if function in _OF_NUMBERS and kind.name in INTEGERS | {"decimal"}:
        return [_Value(f"({_OF_NUMBERS[function].format(value)})")]
    if function == "unix_timestamp" and kind.name == "timestamp":
        return [_Value(f"(epoch_us({value}) // 1000000)")]
    if function in _OF_DATES and kind.name in ("date", "datetime"):
        return [_Value(f"({_OF_DATES[function].format(value)})")]
    raise DdlError(f"the partitioning expression {scheme.expression} of a {kind.name} is not one that can be evaluated")


def _column_value(value: str, kind: ColumnType, value_format: ValueFormat) -> _Value:
    if kind.name in _DATES and value_format.type_of(kind) == "string":
        value = value_parsing.value(value, kind, replace(value_format, zero_dates="null"))
    elif kind.name not in _NUMBERS | TEXTS | BLOBS | _DATES | {"decimal"}:
        raise DdlError(f"the order of the values of a {kind.name} is not known, which the table is partitioned by")
    return _Value(value, kind)


def _below(values: Sequence[_Value], bound: tuple[BoundValue, ...], zone: datetime.tzinfo) -> str:
    """Compare tuples column by column."""
    condition = _FALSE
    for value, limit in reversed(list(zip(values, bound, strict=True))):
        if isinstance(limit, MaxValue):
            condition = _TRUE
            continue
        condition = f"({value.is_below(limit, zone)} OR ({value.equals(limit, zone)} AND {condition}))"
    return condition


def _among(values: Sequence[_Value], rows: Sequence[tuple[BoundValue, ...]], zone: datetime.tzinfo) -> str:
    """Return the condition that the values are one of the rows, without DEFAULT."""
    found = [
        f"({' AND '.join(value.equals(wanted, zone) for value, wanted in zip(values, row, strict=True))})"
        for row in rows
        if not isinstance(row[0], DefaultValue)
    ]
    return f"({' OR '.join(found)})" if found else _FALSE


def _literal(bound: BoundValue, kind: ColumnType | None, zone: datetime.tzinfo) -> str:
    """Return a bound as a literal of the column's type, or a number for a function's result."""
    name = "" if kind is None else kind.name
    try:
        match bound:
            case TextLiteral(text) if name in TEXTS:
                return text_literal(text)
            case TextLiteral(text) if kind is not None and name in BLOBS:
                return value_parsing.padded(sql.bytes_literal(text.encode()), kind)
            case BytesLiteral(content) if kind is not None and name in BLOBS:
                return value_parsing.padded(sql.bytes_literal(content), kind)
            case TextLiteral(text) | NumberLiteral(text) if name in ("date", "datetime"):
                # Fails for a form that MySQL takes and Python does not.
                return cast(text_literal(datetime.datetime.fromisoformat(text).isoformat(" ")), "timestamp")
            case TextLiteral(text) | NumberLiteral(text) if not name or name in _NUMBERS:
                return str(int(text))
            case Expression(text) if not name or name in _NUMBERS:
                return _evaluated(text, zone)
            case _:
                pass
    except ValueError:
        pass
    raise DdlError(f"the partition bound {bound} is not one that can be evaluated")


def _evaluated(text: str, zone: datetime.tzinfo) -> str:
    """Evaluate a bound that is a call on a literal, such as TO_DAYS('2024-01-01').

    MySQL ("UNIX_TIMESTAMP") and TiDB (pkg/ddl/partition.go, `getRangeValue`) evaluate UNIX_TIMESTAMP in the session's
    time zone when the partition is made. The log does not say that zone: it is taken to be the feed's."""
    call = _CALL.fullmatch(text)
    function = None if call is None or call[4] is None else call[1].lower()
    if call is None or (function not in _OF_DATES and function != "unix_timestamp"):
        raise DdlError(f"the partition bound {text} is not one that can be evaluated")
    moment = datetime.datetime.fromisoformat(call[4])
    if function == "unix_timestamp":
        return str(_unix_timestamp(moment, zone))
    return f"({_OF_DATES[function].format(cast(text_literal(moment.isoformat(' ')), 'timestamp'))})"


def _unix_timestamp(local: datetime.datetime, zone: datetime.tzinfo) -> int:
    """Return the seconds of the time that clocks of a zone show, of the first where they show it twice. A time that
    they skip is the end of the skip."""
    first, second = (int(local.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if first <= second:
        return first
    # The clocks are put forward between the two.
    offset = datetime.datetime.fromtimestamp(first, zone).utcoffset()
    while first - second > 1:
        middle = (first + second) // 2
        if datetime.datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            first = middle
        else:
            second = middle
    return first
