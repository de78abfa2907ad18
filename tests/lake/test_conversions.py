"""Values of one type as values of another, as a MySQL server has them after ALTER TABLE … MODIFY COLUMN."""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType, type_change
from cdc_lakehouse.duckdb_sql import cast, let, literal
from cdc_lakehouse.errors import DdlError
from cdc_lakehouse.lake.current.conversions import conversions, convert_through
from cdc_lakehouse.lake.current.typed_rows import any_of
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.kit.duckdb_sql import connection, rows_of
from tests.lake import SIXTY_FOUR, decimal_type, moment, utc

of_type = ColumnType.of
DEFAULT: Final = ValueFormat()
MYSQL: Final = ValueFormat(database="mysql")
NEW_YORK: Final = ValueFormat("America/New_York")
TEXT_DATES: Final = ValueFormat(zero_dates="string")

INT, BIGINT, UNSIGNED = of_type("int"), of_type("bigint"), of_type("bigint unsigned")
FLOAT, DOUBLE, YEAR = of_type("float"), of_type("double"), of_type("year")
VARCHAR, TEXT, JSON = of_type("varchar", length=60), of_type("text"), of_type("json")
DATE, TIME = of_type("date"), of_type("time")


def fractional(name: str, digits: int) -> ColumnType:
    return of_type(name, scale=digits)


def labelled(name: str, *labels: str) -> ColumnType:
    return of_type(name, elements=labels)


def day(*parts: int) -> datetime.date:
    return datetime.date(*parts)  # type: ignore[arg-type]


DATETIME, DATETIME3, DATETIME6 = of_type("datetime"), fractional("datetime", 3), fractional("datetime", 6)
TIMESTAMP = of_type("timestamp")

# The types that a column had, the format, and values of the first type with what they are in the end.
CASES: list[tuple[tuple[ColumnType, ...], ValueFormat, Sequence[tuple[Any, Any]]]] = [
    # Whole numbers.
    ((INT, BIGINT), DEFAULT, [(-(2**31), -(2**31)), (7, 7)]),
    ((BIGINT, INT), DEFAULT, [(-3, -3), (2**31, 2**31 - 1)]),
    ((BIGINT, of_type("tinyint")), DEFAULT, [(-3, -3)]),
    ((UNSIGNED, BIGINT), DEFAULT, [(Decimal(12), 12), (Decimal(2**64 - 1), 2**63 - 1)]),
    ((INT, UNSIGNED), DEFAULT, [(1, Decimal(1))]),
    ((BIGINT, decimal_type(30, 2)), DEFAULT, [(-(2**63), Decimal("-9223372036854775808.00")), (5, Decimal("5.00"))]),
    ((UNSIGNED, decimal_type(50, 2)), DEFAULT, [(Decimal(2**64 - 1), "18446744073709551615.00")]),
    ((INT, DOUBLE), DEFAULT, [(1, 1.0), (-3, -3.0)]),
    ((BIGINT, DOUBLE), DEFAULT, [(2**53 + 1, float(2**53))]),
    ((INT, YEAR), DEFAULT, [(1999, 1999)]),
    ((INT, VARCHAR), DEFAULT, [(0, "0"), (-7, "-7"), (2**31 - 1, "2147483647")]),
    ((UNSIGNED, VARCHAR), DEFAULT, [(Decimal(2**64 - 1), "18446744073709551615")]),
    ((YEAR, VARCHAR), DEFAULT, [(1999, "1999"), (0, "0000")]),
    ((of_type("bit", length=64), BIGINT), DEFAULT, [(Decimal(5), 5)]),
    ((INT, of_type("bit", length=8)), DEFAULT, [(255, 255)]),
    # Numbers with a fraction.
    ((decimal_type(12, 4), decimal_type(12, 2)), DEFAULT, [
        (Decimal("1.2550"), Decimal("1.26")), (Decimal("-1.2450"), Decimal("-1.25")),
        (Decimal("1.9999"), Decimal("2.00")),
    ]),
    ((decimal_type(10, 2), decimal_type(20, 6)), DEFAULT, [(Decimal("-99999999.99"), Decimal("-99999999.990000"))]),
    ((decimal_type(10, 2), INT), DEFAULT, [
        (Decimal("1.50"), 2), (Decimal("2.50"), 3), (Decimal("-1.50"), -2), (Decimal("0.49"), 0),
    ]),
    ((decimal_type(20, 1), UNSIGNED), DEFAULT, [(Decimal("9223372036854775808.5"), Decimal(9223372036854775809))]),
    ((decimal_type(10, 2), VARCHAR), DEFAULT, [(Decimal("1.50"), "1.50"), (Decimal("-0.01"), "-0.01")]),
    ((decimal_type(3, 3), VARCHAR), DEFAULT, [(Decimal("-0.500"), "-0.500")]),
    ((decimal_type(38, 20), DOUBLE), DEFAULT, [
        (Decimal("0.1"), 0.1), (Decimal("123456789.12345678901"), 123456789.12345678901),
    ]),
    ((decimal_type(10, 2), FLOAT), DEFAULT, [(Decimal("0.10"), 0.10000000149011612)]),
    ((decimal_type(40, 5), decimal_type(50, 7)), DEFAULT, [
        ("12345678901234567890.12345", "12345678901234567890.1234500"),
    ]),
    ((decimal_type(40, 5), decimal_type(40, 2)), DEFAULT, [
        ("1.00499", "1.00"), ("1.00500", "1.01"), ("-1.99500", "-2.00"), ("-0.00499", "0.00"),
        ("9" * 35 + ".99999", "1" + "0" * 35 + ".00"),
    ]),
    ((decimal_type(40, 5), decimal_type(40, 0)), DEFAULT, [("1.49999", "1"), ("-2.50000", "-3")]),
    ((decimal_type(40, 5), decimal_type(20, 2)), DEFAULT, [
        ("-1.99500", Decimal("-2.00")), ("9" * 20 + ".00000", Decimal("9" * 18 + ".99")),
    ]),
    ((decimal_type(40, 5), BIGINT), DEFAULT, [("9223372036854775806.50000", 2**63 - 1), ("-1.49999", -1)]),
    ((decimal_type(40, 5), DOUBLE), DEFAULT, [("0.10000", 0.1)]),
    ((decimal_type(20, 2), decimal_type(60, 4)), DEFAULT, [
        (Decimal("12345.12"), "12345.1200"), (Decimal("-1.00"), "-1.0000"),
    ]),
    ((decimal_type(65, 0), VARCHAR), DEFAULT, [("9" * 65, "9" * 60)]),
    ((FLOAT, DOUBLE), DEFAULT, [(1.5, 1.5), (-0.25, -0.25)]),
    ((DOUBLE, FLOAT), DEFAULT, [(1.5, 1.5), (0.1, 0.10000000149011612)]),
    ((DOUBLE, INT), DEFAULT, [(1.5, 2), (2.5, 2), (-1.4, -1), (1e10, 2**31 - 1)]),
    ((DOUBLE, UNSIGNED), DEFAULT, [(2.5, Decimal(2)), (1e19, Decimal(10**19))]),
    ((DOUBLE, decimal_type(10, 2)), DEFAULT, [
        (1.005, Decimal("1.01")), (-2.0625, Decimal("-2.06")), (1e-7, Decimal("0.00")), (1e9, Decimal("99999999.99")),
    ]),
    ((DOUBLE, decimal_type(60, 30)), DEFAULT, [
        (1e-18, "0.000000000000000001000000000000"), (1e25, "1" + "0" * 25 + "." + "0" * 30),
        (-1.5, "-1.5" + "0" * 29),
    ]),
    ((DOUBLE, VARCHAR), DEFAULT, [
        (1.5, "1.5"), (100.0, "100"), (-0.25, "-0.25"), (1e10, "10000000000"), (1e22, "1" + "0" * 22),
        (1.5e-7, "0.00000015"), (-1.25e17, "-125000000000000000"),
    ]),
    ((FLOAT, VARCHAR), DEFAULT, [(0.1, "0.1"), (16777216.0, "16777216")]),
    ((DOUBLE, VARCHAR), MYSQL, [
        (1.5, "1.5"), (100.0, "100"), (0.0, "0"), (1e14, "100000000000000"), (999999999999999.0, "999999999999999"),
        (1e15, "1e15"), (-1e15, "-1e15"), (1234567890123456.0, "1.234567890123456e15"),
        (1234567890123456.5, "1234567890123456.5"), (1e16, "1e16"), (-1.25e17, "-1.25e17"), (1e22, "1e22"),
        (1.5e300, "1.5e300"), (1e-5, "0.00001"), (-1.5e-7, "-0.00000015"), (1e-15, "0.000000000000001"),
        (9e-16, "9e-16"), (-1.25e-16, "-1.25e-16"), (5e-324, "5e-324"),
    ]),
    ((FLOAT, VARCHAR), MYSQL, [
        (0.1, "0.1"), (-1.5, "-1.5"), (123456.0, "123456"), (16777216.0, "16777200"), (1.23456789, "1.23457"),
        (3.4e38, "3.4e38"), (1e15, "1e15"), (0.0, "0"),
    ]),
    ((DOUBLE, decimal_type(60, 30)), MYSQL, [(1e25, "1" + "0" * 25 + "." + "0" * 30)]),
    # Texts as numbers.
    ((VARCHAR, INT), DEFAULT, [
        ("12", 12), ("-7", -7), (" 15", 15), ("15 ", 15), ("1.5", 2), ("2.4", 2), ("-1.5", -2), ("1e3", 1000),
        ("0.4999999999999", 0), ("abc", 0), ("7x", 7),
    ]),
    ((VARCHAR, UNSIGNED), DEFAULT, [("18446744073709551615", Decimal(2**64 - 1))]),
    ((VARCHAR, decimal_type(12, 3)), DEFAULT, [
        ("1.5", Decimal("1.500")), ("-2.25", Decimal("-2.250")), ("1e3", Decimal("1000.000")),
    ]),
    ((VARCHAR, decimal_type(50, 3)), DEFAULT, [
        ("1.5", "1.500"), ("1e3", "1000.000"), ("-0.0004", "0.000"), (".5", "0.500"), ("x", "0.000"),
    ]),
    ((VARCHAR, DOUBLE), DEFAULT, [("1.5", 1.5), ("-2.5e10", -2.5e10)]),
    # Dates and times.
    ((INT, DATETIME), DEFAULT, [
        (20260102, moment(2026, 1, 2)), (260102, moment(2026, 1, 2)), (700101, moment(1970, 1, 1)),
        (691231, moment(2069, 12, 31)), (0, None), (5, None), (-20260102, None), (20261302, None),
    ]),
    ((BIGINT, DATETIME), DEFAULT, [
        (20260102030405, moment(2026, 1, 2, 3, 4, 5)), (260102030405, moment(2026, 1, 2, 3, 4, 5)),
        (20260102240000, None),
    ]),
    ((decimal_type(20, 3), DATETIME3), DEFAULT, [(Decimal("20260102030405.678"), moment(2026, 1, 2, 3, 4, 5, 678000))]),
    ((decimal_type(20, 3), DATETIME), DEFAULT, [(Decimal("20260102030459.500"), moment(2026, 1, 2, 3, 5))]),
    ((BIGINT, DATE), DEFAULT, [(20260102, day(2026, 1, 2)), (20260102235959, day(2026, 1, 2))]),
    ((BIGINT, TIMESTAMP), NEW_YORK, [(20260102030405, utc(2026, 1, 2, 8, 4, 5))]),
    ((INT, DATE), TEXT_DATES, [(20260102, "2026-01-02"), (0, "0000-00-00"), (5, "0000-00-00")]),
    ((INT, DATETIME3), TEXT_DATES, [(20260102, "2026-01-02 00:00:00.000"), (0, "0000-00-00 00:00:00.000")]),
    ((VARCHAR, DATETIME3), DEFAULT, [
        ("2026-01-02 03:04:05.678", moment(2026, 1, 2, 3, 4, 5, 678000)), ("2026-01-02", moment(2026, 1, 2)),
        ("2026-1-2 3:4:5", moment(2026, 1, 2, 3, 4, 5)), ("2026/01/02T03:04", moment(2026, 1, 2, 3, 4)),
        ("20260102", moment(2026, 1, 2)), ("20260102030405.5", moment(2026, 1, 2, 3, 4, 5, 500000)),
        ("260102", moment(2026, 1, 2)), ("99-12-31", moment(1999, 12, 31)),
        ("2026-01-02 23:59:59.9996", moment(2026, 1, 3)), ("2026-02-30", None), ("0000-00-00", None),
        ("2026-01-02 24:00:00", None), ("abc", None), ("", None),
    ]),
    ((VARCHAR, DATETIME6), DEFAULT, [
        ("2026-01-02 23:59:59.9999996", moment(2026, 1, 3)), ("2026-01-02 00:00:00.0000004", moment(2026, 1, 2)),
    ]),
    ((VARCHAR, DATE), DEFAULT, [("2026-01-02", day(2026, 1, 2)), ("1999-12-31 23:59:59", day(1999, 12, 31))]),
    ((VARCHAR, TIMESTAMP), NEW_YORK, [
        ("2026-01-02 03:04:05", utc(2026, 1, 2, 8, 4, 5)), ("2024-11-03 01:30:00", utc(2024, 11, 3, 5, 30)),
    ]),
    ((DATETIME, DATE), DEFAULT, [(moment(2026, 1, 2, 23, 59, 59), day(2026, 1, 2))]),
    ((DATETIME6, DATETIME), DEFAULT, [
        (moment(2026, 1, 2, 3, 4, 5, 499999), moment(2026, 1, 2, 3, 4, 5)),
        (moment(2026, 1, 2, 3, 4, 5, 500000), moment(2026, 1, 2, 3, 4, 6)),
        (moment(1969, 12, 31, 23, 59, 59, 499999), moment(1969, 12, 31, 23, 59, 59)),
        (moment(1, 1, 1, 0, 0, 0, 499999), moment(1, 1, 1)),
        (moment(9999, 12, 31, 23, 59, 59, 499999), moment(9999, 12, 31, 23, 59, 59)),
    ]),
    ((DATETIME6, DATETIME3), DEFAULT, [
        (moment(2026, 1, 2, 3, 4, 5, 123499), moment(2026, 1, 2, 3, 4, 5, 123000)),
        (moment(2026, 1, 2, 23, 59, 59, 999600), moment(2026, 1, 3)),
    ]),
    ((DATETIME, TIMESTAMP), NEW_YORK, [
        (moment(2026, 1, 2, 3, 4, 5), utc(2026, 1, 2, 8, 4, 5)),
        (moment(2024, 11, 3, 1, 30), utc(2024, 11, 3, 5, 30)),
    ]),
    ((TIMESTAMP, DATETIME), NEW_YORK, [
        (utc(2026, 1, 2, 8, 4, 5), moment(2026, 1, 2, 3, 4, 5)),
        (utc(2024, 11, 3, 6, 30), moment(2024, 11, 3, 1, 30)),
    ]),
    ((TIMESTAMP, DATE), NEW_YORK, [(utc(2026, 1, 2, 3, 4, 5), day(2026, 1, 1))]),
    ((TIMESTAMP, DATETIME), ValueFormat("+08:00"), [(utc(2026, 1, 2, 20), moment(2026, 1, 3, 4))]),
    ((DATE, DATETIME), DEFAULT, [(day(1000, 1, 1), moment(1000, 1, 1))]),
    ((DATE, TIMESTAMP), NEW_YORK, [(day(2026, 1, 2), utc(2026, 1, 2, 5))]),
    ((DATETIME3, VARCHAR), DEFAULT, [
        (moment(2026, 1, 2, 3, 4, 5, 120000), "2026-01-02 03:04:05.120"),
        (moment(1, 1, 1), "0001-01-01 00:00:00.000"),
    ]),
    ((fractional("datetime", 1), VARCHAR), DEFAULT, [(moment(2026, 1, 2, 3, 4, 5, 100000), "2026-01-02 03:04:05.1")]),
    ((TIMESTAMP, VARCHAR), NEW_YORK, [(utc(2026, 1, 2, 8, 4, 5), "2026-01-02 03:04:05")]),
    ((DATE, VARCHAR), DEFAULT, [(day(1000, 1, 1), "1000-01-01")]),
    ((DATETIME, VARCHAR), TEXT_DATES, [("0000-00-00 00:00:00", "0000-00-00 00:00:00")]),
    ((DATETIME, BIGINT), DEFAULT, [(moment(2026, 1, 2, 3, 4, 5), 20260102030405)]),
    ((DATETIME3, BIGINT), DEFAULT, [(moment(2026, 1, 2, 3, 4, 59, 600000), 20260102030500)]),
    ((DATETIME3, decimal_type(20, 3)), DEFAULT, [
        (moment(2026, 1, 2, 3, 4, 59, 600000), Decimal("20260102030459.600")),
    ]),
    ((DATETIME3, decimal_type(50, 3)), DEFAULT, [(moment(2026, 1, 2, 3, 4, 59, 600000), "20260102030459.600")]),
    ((DATE, INT), DEFAULT, [(day(2026, 1, 2), 20260102)]),
    ((DATE, INT), TEXT_DATES, [("2026-01-02", 20260102), ("0000-00-00", 0)]),
    ((DATETIME, TIME), DEFAULT, [(moment(2026, 1, 2, 3, 4, 5), "03:04:05")]),
    ((DATETIME6, fractional("time", 2)), DEFAULT, [(moment(2026, 1, 2, 3, 4, 5, 129999), "03:04:05.13")]),
    ((DATE, fractional("time", 1)), DEFAULT, [(day(2026, 1, 2), "00:00:00.0")]),
    ((fractional("time", 3), TIME), DEFAULT, [
        ("10:11:12.499", "10:11:12"), ("10:11:12.500", "10:11:13"), ("-00:00:01.500", "-00:00:02"),
        ("-00:00:00.400", "00:00:00"),
    ]),
    ((TIME, fractional("time", 3)), DEFAULT, [("10:11:12", "10:11:12.000"), ("-838:59:59", "-838:59:59.000")]),
    ((VARCHAR, fractional("time", 2)), DEFAULT, [
        ("10:11:12.35", "10:11:12.35"), ("-100:00:00", "-100:00:00.00"), ("59:59.999", "59:59:01.00"),
        ("5", "00:00:05.00"), ("1:", None),
    ]),
    ((TIME, VARCHAR), DEFAULT, [("-838:59:59", "-838:59:59")]),
    # Texts, bytes and labels.
    ((TEXT, VARCHAR), DEFAULT, [("abc", "abc"), ("", "")]),
    ((JSON, TEXT), DEFAULT, [('{"a": [1, 2]}', '{"a": [1, 2]}')]),
    ((VARCHAR, of_type("varbinary", length=30)), DEFAULT, [("é😀", "é😀".encode()), ("", b"")]),
    ((VARCHAR, of_type("binary", length=5)), DEFAULT, [("ab", b"ab\0\0\0"), ("abcde", b"abcde")]),
    ((of_type("varbinary", length=9), of_type("binary", length=3)), DEFAULT, [
        (b"", b"\0\0\0"), (b"\xff\0", b"\xff\0\0"),
    ]),
    ((of_type("binary", length=1), of_type("binary", length=2)), DEFAULT, [(b"a", b"a\0")]),
    ((of_type("blob"), of_type("varbinary", length=9)), DEFAULT, [(b"\xff", b"\xff")]),
    ((of_type("varbinary", length=9), VARCHAR), DEFAULT, [("é😀".encode(), "é😀"), (b"", "")]),
    ((labelled("enum", "a", "b"), labelled("enum", "b", "a", "c")), DEFAULT, [("a", "a")]),
    ((labelled("enum", "a", "b"), VARCHAR), DEFAULT, [("b", "b"), ("", "")]),
    ((VARCHAR, labelled("enum", "a", "b")), DEFAULT, [("b", "b")]),
    ((labelled("enum", "a", "b"), INT), DEFAULT, [("a", 1), ("b", 2), ("", 0)]),
    ((labelled("enum", "a", "b"), decimal_type(50, 1)), DEFAULT, [("b", "2.0")]),
    ((INT, labelled("enum", "a", "b")), DEFAULT, [(1, "a"), (2, "b"), (3, ""), (-1, "")]),
    ((labelled("set", "x", "y"), labelled("set", "y", "x", "z")), DEFAULT, [("x", "x"), ("x,y", "y,x"), ("", "")]),
    ((labelled("set", "x", "y"), INT), DEFAULT, [("x", 1), ("x,y", 3), ("", 0)]),
    ((of_type("set", elements=SIXTY_FOUR), UNSIGNED), DEFAULT, [
        ("l63", Decimal(2**63)), (",".join(SIXTY_FOUR), Decimal(2**64 - 1)),
    ]),
    ((INT, labelled("set", "x", "y")), DEFAULT, [(0, ""), (3, "x,y"), (4, "")]),
    ((DOUBLE, labelled("set", "x", "y")), DEFAULT, [(3.0, "x,y")]),
    # Chains.
    ((INT, VARCHAR, decimal_type(10, 2), BIGINT, VARCHAR, of_type("varbinary", length=9)), DEFAULT, [(7, b"7")]),
    ((BIGINT, DATETIME6, TIMESTAMP, VARCHAR, DATE, INT), NEW_YORK, [(20241103013000, 20241103)]),
    ((labelled("set", "x", "y"), labelled("set", "y", "x"), INT, VARCHAR), DEFAULT, [("x", "2")]),
    ((INT,), DEFAULT, [(7, 7)]),
]  # fmt: skip

NAMES: Final = [f"{' to '.join(column.name for column in types)}-{n}" for n, (types, _, _) in enumerate(CASES)]


@pytest.mark.parametrize(("types", "value_format", "values"), CASES, ids=NAMES)
def test_values_are_converted_as_mysql_does(
    types: Sequence[ColumnType], value_format: ValueFormat, values: Sequence[tuple[Any, Any]]
) -> None:
    converted = convert_through("value", types, value_format)
    first, last = value_format.type_of(types[0]), value_format.type_of(types[-1])
    found = rows_of(
        [value for value, _ in values], first, converted, f"typeof({converted}) = typeof({cast('NULL', last)})"
    )
    assert found == [(value, True) for _, value in values]


ALL_TYPES: Final = [
    of_type("tinyint"), BIGINT, UNSIGNED, of_type("bit", length=64), YEAR, FLOAT, DOUBLE, decimal_type(10, 2),
    decimal_type(3, 3), decimal_type(60, 4), VARCHAR, JSON, of_type("blob"), of_type("binary", length=4), DATE, TIME,
    fractional("time", 3), DATETIME, DATETIME6, TIMESTAMP, labelled("enum", "a", "b"), labelled("set", "a", "b"),
    labelled("set", "b", "a"),
]  # fmt: skip


def _is_null_of(iceberg: str, value: str) -> str:
    return f"{value} IS NULL AND typeof({value}) = typeof({cast('NULL', iceberg)})"


@pytest.mark.parametrize("value_format", [DEFAULT, MYSQL, NEW_YORK, TEXT_DATES], ids=["tidb", "mysql", "zone", "text"])
def test_null_stays_null_and_has_the_new_type(value_format: ValueFormat) -> None:
    """Of every pair that there is a conversion for."""
    expressions: list[str] = []
    for old, new in itertools.permutations(ALL_TYPES, 2):
        try:
            converted = convert_through(cast("NULL", value_format.type_of(old)), [old, new], value_format)
        except DdlError:
            continue
        expressions.append(let(converted, functools.partial(_is_null_of, value_format.type_of(new))))
    assert len(expressions) > 300
    for start in range(0, len(expressions), 100):
        assert set(rows_of([None], "int", *expressions[start : start + 100])[0]) == {True}


def test_the_text_of_a_chain_grows_with_its_length_only() -> None:
    there_and_back = [DATETIME6, fractional("timestamp", 3), VARCHAR, DATETIME6]
    once = len(convert_through("value", there_and_back, NEW_YORK))
    assert len(convert_through("value", there_and_back * 5, NEW_YORK)) < 12 * once


@pytest.mark.parametrize(
    ("old", "new", "value_format"),
    [
        (of_type("point"), INT, DEFAULT),
        (of_type("blob"), INT, DEFAULT),
        (of_type("vector"), VARCHAR, DEFAULT),
        (of_type("enum"), INT, DEFAULT),
        (of_type("set"), INT, DEFAULT),
        (DATE, DATETIME, TEXT_DATES),
    ],
)
def test_a_pair_that_has_no_conversion_is_refused(old: ColumnType, new: ColumnType, value_format: ValueFormat) -> None:
    assert type_change(old, new) == "convert"
    with pytest.raises(DdlError):
        convert_through("value", [old, new], value_format)


LOST: Final[list[tuple[ColumnType, ColumnType, ValueFormat, Any, bool, bool]]] = [
    (of_type("blob"), TEXT, DEFAULT, b"\xff", True, False),
    (of_type("text"), of_type("tinytext"), DEFAULT, "é" * 128, True, False),
    (VARCHAR, of_type("varchar", length=60, charset="utf8"), DEFAULT, "😀", True, False),
    (VARCHAR, of_type("varchar", length=60, charset="latin1"), DEFAULT, "中", True, False),
    (VARCHAR, TIME, DEFAULT, "1:", True, False),
    (VARCHAR, DATE, DEFAULT, "2026-01-02x", True, False),
    (VARCHAR, DATE, TEXT_DATES, "2026-01-02x", True, False),
    (VARCHAR, DATE, ValueFormat(zero_dates="error"), "abc", True, False),
    (VARCHAR, DATE, DEFAULT, "abc", False, True),
    (VARCHAR, DATE, DEFAULT, "2026-02-30", False, True),
    (INT, DATE, DEFAULT, 5, False, True),
    (DATETIME, TIMESTAMP, DEFAULT, moment(1960, 1, 1), False, True),
    (FLOAT, BIGINT, DEFAULT, 1e20, True, False),
    # TiDB's usual collation tells case, a table's own may not. No collation is known here.
    (VARCHAR, labelled("enum", "a", "b"), DEFAULT, "A", True, False),
    (VARCHAR, labelled("enum", "a", "b"), MYSQL, "Ａ", True, False),
    (VARCHAR, labelled("set", "a", "b"), DEFAULT, "b,A", True, False),
    (VARCHAR, INT, DEFAULT, "abc", False, False),
]


@pytest.mark.parametrize(("old", "new", "value_format", "value", "is_lost", "is_zero"), LOST)
def test_value_that_cannot_be_converted_is_lost_not_null(
    old: ColumnType, new: ColumnType, value_format: ValueFormat, value: Any, is_lost: bool, is_zero: bool
) -> None:
    relation, result, lost, zeros = conversions("(SELECT value AS v0 FROM t)", [old, new], value_format)
    shown = ", ".join(f"coalesce({each}, false)" for each in (f"{result} IS NULL", any_of(lost), any_of(zeros)))
    for given, wanted in ((value, (is_lost or is_zero, is_lost, is_zero)), (None, (True, False, False))):
        rows = f"(SELECT {literal(given, value_format.type_of(old))} AS value)"
        query = f"WITH t AS {rows} SELECT {shown} FROM {relation}"
        assert connection().execute(query).fetchall() == [wanted]
