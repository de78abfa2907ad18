"""Which rows are in a partition of the source, as MySQL's partitioning functions and bounds have it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pytest

from cdc_lakehouse.changelog.ddl.clauses import Partitioning
from cdc_lakehouse.duckdb_sql import identifier, literal
from cdc_lakehouse.errors import DdlError
from cdc_lakehouse.lake.current.partition_filter import partition_condition
from tests.changelog.statements import partitioned_by
from tests.kit.duckdb_sql import connection
from tests.lake import moment, utc

DAY: Final = datetime.date


RANGE: Final = (
    "RANGE (id) (PARTITION lo VALUES LESS THAN (10), PARTITION mid VALUES LESS THAN (20), "
    "PARTITION hi VALUES LESS THAN MAXVALUE)"
)
PAIRS: Final = (
    "RANGE COLUMNS (a, b) (PARTITION p0 VALUES LESS THAN (10, 'm'), PARTITION p1 VALUES LESS THAN (10, MAXVALUE), "
    "PARTITION p2 VALUES LESS THAN (MAXVALUE, MAXVALUE))"
)
LISTS: Final = "LIST (id) (PARTITION a VALUES IN (1, 3), PARTITION n VALUES IN (NULL, 5), PARTITION rest DEFAULT)"
YEARS: Final = "RANGE (YEAR(d)) (PARTITION old VALUES LESS THAN (2024), PARTITION new VALUES LESS THAN MAXVALUE)"


def function_of(call: str, *remainders: int) -> str:
    """A list partition `p` of these values of a call."""
    return f"LIST ({call}) (PARTITION p VALUES IN ({', '.join(map(str, remainders))}))"


# The partitioning, a partition, the Iceberg types of the columns, rows that it has, rows that it has not.
Rows = Sequence[tuple[Any, ...]]
CASES: list[tuple[str, str, Mapping[str, str], Rows, Rows]] = [
    (RANGE, "lo", {"id": "long"}, [(9,), (-5,), (None,)], [(10,), (20,)]),
    (RANGE, "MID", {"id": "int"}, [(10,), (19,)], [(9,), (20,), (None,)]),
    (RANGE, "hi", {"id": "decimal(20,0)"}, [(Decimal(20),), (Decimal(2**64 - 1),)], [(Decimal(19),), (None,)]),
    (PAIRS, "p0", {"a": "int", "b": "string"}, [(9, "z"), (10, "l"), (None, "z")], [(10, "m"), (11, "a")]),
    (PAIRS, "p1", {"a": "int", "b": "string"}, [(10, "m"), (10, "z")], [(10, "l"), (9, "z"), (11, ""), (None, "x")]),
    (PAIRS, "p2", {"a": "int", "b": "string"}, [(11, ""), (99, "z")], [(10, "z"), (None, "x")]),
    (
        "RANGE COLUMNS (d) (PARTITION p0 VALUES LESS THAN ('2024-01-01'), PARTITION p1 VALUES LESS THAN (MAXVALUE))",
        "p0", {"d": "date"}, [(DAY(2023, 12, 31),), (None,)], [(DAY(2024, 1, 1),)],
    ),
    (
        "RANGE COLUMNS (d) (PARTITION p0 VALUES LESS THAN ('2024-01-01'), PARTITION p1 VALUES LESS THAN (MAXVALUE))",
        "p1", {"d": "timestamp"}, [(moment(2024, 1, 1),)], [(moment(2023, 12, 31, 23, 59, 59, 999999),), (None,)],
    ),
    ("RANGE COLUMNS (s) (PARTITION p0 VALUES LESS THAN ('it''s\\\\'))", "p0", {"s": "string"}, [("it's",)], [("iu",)]),
    (LISTS, "a", {"id": "int"}, [(1,), (3,)], [(2,), (5,), (None,)]),
    (LISTS, "n", {"id": "int"}, [(None,), (5,)], [(1,), (0,)]),
    (LISTS, "rest", {"id": "int"}, [(2,), (-1,)], [(1,), (5,), (None,)]),
    (
        "LIST COLUMNS (a, b) (PARTITION p VALUES IN ((1, 'x'), (2, NULL)))",
        "p", {"a": "int", "b": "string"}, [(1, "x"), (2, None)], [(1, None), (2, "x"), (None, "x"), (None, None)],
    ),
    ("LIST COLUMNS (d) (PARTITION p VALUES IN ('2024-02-29'))", "p", {"d": "date"}, [(DAY(2024, 2, 29),)], [(None,)]),
    ("HASH (id) PARTITIONS 4", "p1", {"id": "long"}, [(1,), (5,), (-5,)], [(0,), (4,), (None,)]),
    ("HASH (id) PARTITIONS 4", "p0", {"id": "long"}, [(0,), (-(2**63),), (None,)], [(1,), (2**63 - 1,)]),
    ("HASH (id) PARTITIONS 7", "p1", {"id": "decimal(20,0)"}, [(Decimal(2**64 - 1),)], [(Decimal(2**64 - 2),)]),
    ("HASH (YEAR(d)) PARTITIONS 4", "p0", {"d": "date"}, [(DAY(2024, 5, 1),), (None,)], [(DAY(2025, 1, 1),)]),
    (YEARS, "old", {"d": "date"}, [(DAY(2023, 12, 31),), (None,)], [(DAY(2024, 1, 1),)]),
    (YEARS, "new", {"d": "timestamp"}, [(moment(2024, 1, 1),)], [(moment(2023, 12, 31),), (None,)]),
    # Dates that are kept as text.
    (YEARS, "old", {"d": "string"}, [("2023-12-31 10:00:00",), ("0000-00-00",), (None,)], [("2024-01-01",)]),
    (
        "RANGE (TO_DAYS(`d`)) (PARTITION p0 VALUES LESS THAN (TO_DAYS('2024-01-01')), "
        "PARTITION p1 VALUES LESS THAN (739252))",
        "p1", {"d": "timestamp"}, [(moment(2024, 1, 1, 23, 59),)],
        [(moment(2023, 12, 31, 23, 59),), (moment(2024, 1, 2),)],
    ),
    (
        "RANGE (UNIX_TIMESTAMP(t)) (PARTITION p0 VALUES LESS THAN (UNIX_TIMESTAMP('2024-01-01 00:00:00')), "
        "PARTITION p1 VALUES LESS THAN (1704070800))",
        "p1", {"t": "timestamptz"}, [(utc(2024, 1, 1),), (utc(2024, 1, 1, 0, 59, 59, 999999),)],
        [(utc(2023, 12, 31, 23, 59, 59, 999999),), (utc(2024, 1, 1, 1),), (None,)],
    ),
    # 2024-03-10 is a Sunday.
    (function_of("MONTH(d)", 3), "p", {"d": "date"}, [(DAY(2024, 3, 10),)], [(DAY(2024, 4, 10),)]),
    (function_of("DAY(d)", 10), "p", {"d": "date"}, [(DAY(2024, 3, 10),)], [(DAY(2024, 3, 11),)]),
    (function_of("DAYOFMONTH(d)", 10), "p", {"d": "date"}, [(DAY(2024, 3, 10),)], [(DAY(2024, 3, 11),)]),
    (function_of("DAYOFYEAR(d)", 70), "p", {"d": "date"}, [(DAY(2024, 3, 10),)], [(DAY(2023, 3, 10),)]),
    (
        function_of("DAYOFWEEK(d)", 1, 7), "p", {"d": "date"},
        [(DAY(2024, 3, 10),), (DAY(2024, 3, 9),)], [(DAY(2024, 3, 11),)],
    ),
    (
        function_of("WEEKDAY(d)", 0, 6), "p", {"d": "date"},
        [(DAY(2024, 3, 10),), (DAY(2024, 3, 11),)], [(DAY(2024, 3, 9),)],
    ),
    (function_of("QUARTER(d)", 1), "p", {"d": "date"}, [(DAY(2024, 3, 31),)], [(DAY(2024, 4, 1),)]),
    (function_of("HOUR(d)", 23), "p", {"d": "timestamp"}, [(moment(2024, 3, 10, 23, 1, 2),)], [(moment(2024, 3, 10),)]),
    (
        function_of("MINUTE(d)", 1), "p", {"d": "timestamp"},
        [(moment(2024, 3, 10, 23, 1, 2),)], [(moment(2024, 3, 10),)],
    ),
    (
        function_of("SECOND(d)", 2), "p", {"d": "timestamp"},
        [(moment(2024, 3, 10, 23, 1, 2, 9),)], [(moment(2024, 3, 10),)],
    ),
    (function_of("ABS(i)", 5), "p", {"i": "int"}, [(5,), (-5,)], [(4,), (None,)]),
    (
        function_of("FLOOR(i)", 5, -6), "p", {"i": "decimal(10,2)"},
        [(Decimal("5.99"),), (Decimal("-5.01"),)], [(Decimal("-5.00"),)],
    ),
    (
        function_of("CEILING(i)", 6), "p", {"i": "decimal(10,2)"},
        [(Decimal("5.01"),), (Decimal("6.00"),)], [(Decimal("6.01"),)],
    ),
    (function_of("CEIL(i)", 2**63 - 1), "p", {"i": "long"}, [(2**63 - 1,)], [(2**63 - 2,)]),
    (function_of("FLOOR(i)", 2**64 - 1), "p", {"i": "decimal(20,0)"}, [(Decimal(2**64 - 1),)], [(Decimal(2**64 - 2),)]),
]  # fmt: skip


def found(scheme: Partitioning, name: str, columns: Mapping[str, str], rows: Rows) -> list[Any]:
    condition = partition_condition(scheme, name, identifier)
    listed = ", ".join(
        f"({number}, {', '.join(literal(value, kind) for value, kind in zip(row, columns.values(), strict=True))})"
        for number, row in enumerate(rows)
    )
    names = ", ".join(map(identifier, ("number", *columns)))
    query = f"SELECT coalesce({condition}, false) FROM (VALUES {listed}) AS t({names}) ORDER BY number"
    return [value for (value,) in connection().execute(query).fetchall()]


@pytest.mark.parametrize(("clause", "name", "columns", "inside", "outside"), CASES)
def test_rows_of_a_partition(clause: str, name: str, columns: Mapping[str, str], inside: Rows, outside: Rows) -> None:
    seen = found(partitioned_by(clause), name, columns, [*inside, *outside])
    assert seen == [True] * len(inside) + [False] * len(outside)


@pytest.mark.parametrize(
    "clause",
    [
        "RANGE (id + 1) (PARTITION p VALUES LESS THAN (10))",
        "RANGE (WEEK(d)) (PARTITION p VALUES LESS THAN (10))",
        "RANGE (id) (PARTITION p VALUES LESS THAN (10 + 1))",
        "RANGE (id) (PARTITION p VALUES LESS THAN (WEEK('2024-01-01')))",
        "LIST COLUMNS (id) (PARTITION p VALUES IN (x'41'))",
        "KEY (id) PARTITIONS 4",
    ],
)
def test_what_cannot_be_worked_out_is_refused(clause: str) -> None:
    with pytest.raises(DdlError):
        partition_condition(partitioned_by(clause), "p" if "PARTITION p " in clause else "p0", identifier)
