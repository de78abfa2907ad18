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
from cdc_lakehouse.lake.current.typed_rows import partition_condition
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.changelog.statements import declared, partitioned_by
from tests.kit.duckdb_sql import connection
from tests.lake import moment, utc

DAY: Final = datetime.date
_FORMAT: Final = ValueFormat()


RANGE: Final = (
    "RANGE (id) (PARTITION lo VALUES LESS THAN (10), PARTITION mid VALUES LESS THAN (20), "
    "PARTITION hi VALUES LESS THAN MAXVALUE)"
)
PAIRS: Final = (
    "RANGE COLUMNS (a, b) (PARTITION p0 VALUES LESS THAN (10, 'm'), PARTITION p1 VALUES LESS THAN (10, MAXVALUE), "
    "PARTITION p2 VALUES LESS THAN (MAXVALUE, MAXVALUE))"
)
LISTS: Final = "LIST (id) (PARTITION a VALUES IN (1, 3), PARTITION n VALUES IN (NULL, 5), PARTITION rest DEFAULT)"
WORDS: Final = "LIST COLUMNS (s) (PARTITION e VALUES IN ('east', '\u6771'), PARTITION w VALUES IN ('west', NULL))"
LETTERS: Final = "RANGE COLUMNS (s) (PARTITION lo VALUES LESS THAN ('m'), PARTITION hi VALUES LESS THAN (MAXVALUE))"
YEARS: Final = "RANGE (YEAR(d)) (PARTITION old VALUES LESS THAN (2024), PARTITION new VALUES LESS THAN MAXVALUE)"


def function_of(call: str, *remainders: int) -> str:
    """A list partition `p` of these values of a call."""
    return f"LIST ({call}) (PARTITION p VALUES IN ({', '.join(map(str, remainders))}), PARTITION rest DEFAULT)"


# The partitioning, a partition, the types of the columns, rows that it has, rows that it has not.
Rows = Sequence[tuple[Any, ...]]
CASES: list[tuple[str, str, Mapping[str, str], Rows, Rows]] = [
    (RANGE, "lo", {"id": "bigint"}, [(9,), (-5,), (None,)], [(10,), (20,)]),
    (RANGE, "MID", {"id": "int"}, [(10,), (19,)], [(9,), (20,), (None,)]),
    (RANGE, "hi", {"id": "bigint unsigned"}, [(Decimal(20),), (Decimal(2**64 - 1),)], [(Decimal(19),), (None,)]),
    (PAIRS, "p0", {"a": "int", "b": "varchar"}, [(9, "z"), (10, "l"), (None, "z")], [(10, "m"), (11, "a")]),
    (PAIRS, "p1", {"a": "int", "b": "varchar"}, [(10, "m"), (10, "z")], [(10, "l"), (9, "z"), (11, ""), (None, "x")]),
    (PAIRS, "p2", {"a": "int", "b": "varchar"}, [(11, ""), (99, "z")], [(10, "z"), (None, "x")]),
    (
        "RANGE COLUMNS (d) (PARTITION p0 VALUES LESS THAN ('2024-01-01'), PARTITION p1 VALUES LESS THAN (MAXVALUE))",
        "p0", {"d": "date"}, [(DAY(2023, 12, 31),), (None,)], [(DAY(2024, 1, 1),)],
    ),
    (
        "RANGE COLUMNS (d) (PARTITION p0 VALUES LESS THAN ('2024-01-01'), PARTITION p1 VALUES LESS THAN (MAXVALUE))",
        "p1", {"d": "datetime"}, [(moment(2024, 1, 1),)], [(moment(2023, 12, 31, 23, 59, 59, 999999),), (None,)],
    ),
    ("RANGE COLUMNS (s) (PARTITION p0 VALUES LESS THAN ('it''s\\\\'))", "p0", {"s": "varchar"}, [("it's",)], [("iu",)]),
    (LISTS, "a", {"id": "int"}, [(1,), (3,)], [(2,), (5,), (None,)]),
    (LISTS, "n", {"id": "int"}, [(None,), (5,)], [(1,), (0,)]),
    (LISTS, "rest", {"id": "int"}, [(2,), (-1,)], [(1,), (5,), (None,)]),
    (
        "LIST COLUMNS (a, b) (PARTITION p VALUES IN ((1, 'x'), (2, NULL)), PARTITION rest DEFAULT)",
        "p", {"a": "int", "b": "varchar"}, [(1, "x"), (2, None)], [(1, None), (2, "x"), (None, "x"), (None, None)],
    ),
    (
        "LIST COLUMNS (d) (PARTITION p VALUES IN ('2024-02-29'), PARTITION q VALUES IN (NULL))", "p",
        {"d": "date"}, [(DAY(2024, 2, 29),)], [(None,)],
    ),
    ("HASH (id) PARTITIONS 4", "p1", {"id": "bigint"}, [(1,), (5,), (-5,)], [(0,), (4,), (None,)]),
    ("HASH (id) PARTITIONS 4", "p0", {"id": "bigint"}, [(0,), (-(2**63),), (None,)], [(1,), (2**63 - 1,)]),
    # The remainder of a BIGINT UNSIGNED is that of the signed number.
    ("HASH (id) PARTITIONS 4", "p1", {"id": "bigint unsigned"}, [(Decimal(2**64 - 1),)], [(Decimal(2**64 - 2),)]),
    ("HASH (ABS(id)) PARTITIONS 4", "p1", {"id": "bigint unsigned"}, [(Decimal(2**64 - 1),)], [(Decimal(2**64 - 3),)]),
    ("HASH (id) PARTITIONS 4", "p3", {"id": "bit(64)"}, [(Decimal(2**63 - 1),), (Decimal(2**64 - 3),)], [(None,)]),
    ("HASH (YEAR(d)) PARTITIONS 4", "p0", {"d": "date"}, [(DAY(2024, 5, 1),), (None,)], [(DAY(2025, 1, 1),)]),
    (YEARS, "old", {"d": "date"}, [(DAY(2023, 12, 31),), (None,)], [(DAY(2024, 1, 1),)]),
    (YEARS, "new", {"d": "datetime"}, [(moment(2024, 1, 1),)], [(moment(2023, 12, 31),), (None,)]),
    (
        "RANGE (TO_DAYS(`d`)) (PARTITION p0 VALUES LESS THAN (TO_DAYS('2024-01-01')), "
        "PARTITION p1 VALUES LESS THAN (739252))",
        "p1", {"d": "datetime"}, [(moment(2024, 1, 1, 23, 59),)],
        [(moment(2023, 12, 31, 23, 59),), (moment(2024, 1, 2),)],
    ),
    (
        "RANGE (UNIX_TIMESTAMP(t)) (PARTITION p0 VALUES LESS THAN (UNIX_TIMESTAMP('2024-01-01 00:00:00')), "
        "PARTITION p1 VALUES LESS THAN (1704070800))",
        "p1", {"t": "timestamp"}, [(utc(2024, 1, 1),), (utc(2024, 1, 1, 0, 59, 59, 999999),)],
        [(utc(2023, 12, 31, 23, 59, 59, 999999),), (utc(2024, 1, 1, 1),), (None,)],
    ),
    (
        "LIST COLUMNS (s) (PARTITION p VALUES IN ('a'), PARTITION rest DEFAULT)", "p", {"s": "binary(3)"},
        [(b"a\0\0",)], [(b"A\0\0",), (None,)],
    ),
    # A row that the server accepted is in one of the lists: what is equal in some collation is in the nearest.
    (WORDS, "e", {"s": "varchar"}, [("east",), ("East",), ("EAST ",), ("\u6771",)], [("west",), ("West",), (None,)]),
    (WORDS, "w", {"s": "varchar"}, [("west",), ("West ",), (None,)], [("east",), ("East",)]),
    (LETTERS, "lo", {"s": "varchar"}, [("a",), ("LZ",), ("", ), (None,), ("5",)], [("m",), ("n",), ("m1",)]),
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
    (function_of("HOUR(d)", 23), "p", {"d": "datetime"}, [(moment(2024, 3, 10, 23, 1, 2),)], [(moment(2024, 3, 10),)]),
    (
        function_of("MINUTE(d)", 1), "p", {"d": "datetime"},
        [(moment(2024, 3, 10, 23, 1, 2),)], [(moment(2024, 3, 10),)],
    ),
    (
        function_of("SECOND(d)", 2), "p", {"d": "datetime"},
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
    (function_of("CEIL(i)", 2**63 - 1), "p", {"i": "bigint"}, [(2**63 - 1,)], [(2**63 - 2,)]),
    (
        function_of("FLOOR(i)", 2**64 - 1), "p", {"i": "bigint unsigned"},
        [(Decimal(2**64 - 1),)], [(Decimal(2**64 - 2),)],
    ),
]  # fmt: skip


def found(
    scheme: Partitioning, name: str, columns: Mapping[str, str], rows: Rows, value_format: ValueFormat = _FORMAT
) -> list[Any]:
    types = {column: declared(text).type for column, text in columns.items()}
    condition = partition_condition(scheme, name, lambda name: (identifier(name), types[name]), value_format)
    kinds = [value_format.type_of(each) for each in types.values()]
    listed = ", ".join(
        f"({number}, {', '.join(literal(value, kind) for value, kind in zip(row, kinds, strict=True))})"
        for number, row in enumerate(rows)
    )
    names = ", ".join(map(identifier, ("number", *columns)))
    query = f"SELECT {condition} FROM (VALUES {listed}) AS t({names}) ORDER BY number"
    return [value for (value,) in connection().execute(query).fetchall()]


@pytest.mark.parametrize(("clause", "name", "columns", "inside", "outside"), CASES)
def test_rows_of_a_partition(clause: str, name: str, columns: Mapping[str, str], inside: Rows, outside: Rows) -> None:
    seen = found(partitioned_by(clause), name, columns, [*inside, *outside])
    assert seen == [True] * len(inside) + [False] * len(outside)


def test_dates_kept_as_text_are_compared_as_dates() -> None:
    texts = ValueFormat(zero_dates="string")
    rows = [("2023-12-31 10:00:00",), ("0000-00-00 00:00:00",), (None,), ("2024-01-01 00:00:00",)]
    assert found(partitioned_by(YEARS), "old", {"d": "datetime"}, rows, texts) == [True, True, True, False]
    shanghai = ValueFormat("Asia/Shanghai", "string")
    moments = [("2023-12-31 23:59:59",), ("2024-01-01 00:00:00",)]
    assert found(stamps("2024-01-01 00:00:00"), "p0", {"t": "timestamp"}, moments, shanghai) == [True, False]


def stamps(bound: str) -> Partitioning:
    return partitioned_by(
        f"RANGE (UNIX_TIMESTAMP(t)) (PARTITION p0 VALUES LESS THAN (UNIX_TIMESTAMP('{bound}')), "
        "PARTITION p1 VALUES LESS THAN MAXVALUE)"
    )


def test_hash_of_null_is_the_least_number_in_mysql_and_none_in_tidb() -> None:
    scheme = partitioned_by("HASH (id) PARTITIONS 3")
    for database, wanted in (("mysql", [False, False, True]), ("tidb", [True, False, False])):
        read = ValueFormat(database=database)
        assert [found(scheme, f"p{n}", {"id": "int"}, [(None,)], read)[0] for n in range(3)] == wanted


@pytest.mark.parametrize(
    ("zone", "bound", "moment"),
    [
        ("Asia/Shanghai", "2024-01-01 00:00:00", utc(2023, 12, 31, 16)),
        ("-08:00", "2024-01-01", utc(2024, 1, 1, 8)),
        # As MySQL 8.0 does: a time that clocks skip is the end of the skip, and one that they show twice the first.
        ("Europe/Berlin", "2024-03-31 02:30:00", utc(2024, 3, 31, 1)),
        ("Europe/Berlin", "2024-10-27 02:30:00", utc(2024, 10, 27, 0, 30)),
        ("America/New_York", "2024-07-01 00:00:00", utc(2024, 7, 1, 4)),
    ],
)
def test_bound_of_unix_timestamp_is_in_the_zone_of_the_feed(zone: str, bound: str, moment: datetime.datetime) -> None:
    rows = [(moment - datetime.timedelta(seconds=1),), (moment,)]
    assert found(stamps(bound), "p0", {"t": "timestamp"}, rows, ValueFormat(zone)) == [True, False]


@pytest.mark.parametrize(
    ("clause", "name", "values"),
    [
        (LETTERS, "lo", ["Z", "M", "\u00e9", "\u6771"]),
        (LETTERS, "hi", ["Z", "m ", "M", "\u00e9", "\u6771"]),
        # `West` may be either, and `vest` is `west` in some collations.
        ("LIST COLUMNS (s) (PARTITION p VALUES IN ('west'), PARTITION q VALUES IN ('WEST'))", "p", ["West", "vest"]),
        # No list has it: the server sees something that is not seen here.
        ("LIST COLUMNS (s) (PARTITION p VALUES IN ('west'), PARTITION q VALUES IN (NULL))", "p", ["east"]),
        ("LIST COLUMNS (s) (PARTITION p VALUES IN ('west'), PARTITION q DEFAULT)", "p", ["West", "w\u00e9st"]),
        ("LIST COLUMNS (s) (PARTITION p VALUES IN ('west'), PARTITION q DEFAULT)", "q", ["West", "w\u00e9st"]),
    ],
)
def test_rows_that_only_the_collation_places_are_uncertain(clause: str, name: str, values: Sequence[str]) -> None:
    rows = [(value,) for value in values]
    assert found(partitioned_by(clause), name, {"s": "varchar"}, rows) == [None] * len(values)


@pytest.mark.parametrize(
    ("clause", "kind"),
    [
        ("RANGE (c + 1) (PARTITION p VALUES LESS THAN (10))", "int"),
        ("RANGE (WEEK(c)) (PARTITION p VALUES LESS THAN (10))", "date"),
        ("RANGE (c) (PARTITION p VALUES LESS THAN (10 + 1))", "int"),
        ("RANGE (c) (PARTITION p VALUES LESS THAN (WEEK('2024-01-01')))", "int"),
        ("LIST COLUMNS (c) (PARTITION p VALUES IN (x'41'))", "varchar"),
        ("RANGE COLUMNS (c) (PARTITION p VALUES LESS THAN ('2024-1-1'))", "date"),
        # Not as text: -1:00 is before 0:00.
        ("RANGE COLUMNS (c) (PARTITION p VALUES LESS THAN ('10:00:00'))", "time"),
        ("HASH (HOUR(c)) PARTITIONS 4", "time"),
        ("HASH (YEAR(c)) PARTITIONS 4", "timestamp"),
        ("KEY (c) PARTITIONS 4", "int"),
    ],
)
def test_partition_that_cannot_be_evaluated_is_refused(clause: str, kind: str) -> None:
    with pytest.raises(DdlError):
        found(partitioned_by(clause), "p" if "PARTITION p " in clause else "p0", {"c": kind}, [(None,)])
