"""Texts of a source as typed values: what MySQL means by a text of a type, and what is no text of the type."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any, Final

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.duckdb_sql import cast, let
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, may_collide
from tests.kit.duckdb_sql import of, rows_of
from tests.lake import SIXTY_FOUR, decimal_type, moment, utc

FAULT: Final = "<cannot be read>"
ZERO: Final = "<a zero date>"

of_type = ColumnType.of
DEFAULT: Final = ValueFormat()
CSV: Final = ValueFormat(labels=True, binary="base64")
EITHER: Final = ValueFormat(labels_uncertain=True)
ABC: Final = ("a", "b", "it's")


def dates(*texts: str) -> dict[str, Any]:
    return dict.fromkeys(texts, ZERO)


def faults(*texts: str) -> dict[str, Any]:
    return dict.fromkeys(texts, FAULT)


# Column type, format, what each text is.
CASES: list[tuple[ColumnType, ValueFormat, dict[str, Any]]] = [
    (of_type("tinyint"), DEFAULT, {"0": 0, "-128": -128, "127": 127, "+5": 5, "-0": 0, "00012": 12, " 12 ": 12}),
    (of_type("int"), DEFAULT, {"2147483647": 2**31 - 1, "-2147483648": -(2**31), **faults(
        "2147483648", "-2147483649", "1e3", "1.5", "1.0", "0x1F", "1_000", "", "+", "-", "12 3", "abc", "true", "NULL",
    )}),
    (of_type("int unsigned"), DEFAULT, {"4294967295": 2**32 - 1}),
    (of_type("bigint"), DEFAULT, {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "0" * 60 + "5": 5,
        **faults("9223372036854775808", "-9223372036854775809", "9" * 38, "1e3", "0.0")}),
    (of_type("bigint unsigned"), DEFAULT, {"18446744073709551615": Decimal(2**64 - 1), "0": Decimal(0), **faults(
        "100000000000000000000", "1_0", "x")}),
    (of_type("year"), DEFAULT, {"1999": 1999, "0": 0, "2155": 2155}),
    (of_type("bit", length=8), DEFAULT, {"0": 0, "255": 255}),
    (of_type("bit", length=64), DEFAULT, {"18446744073709551615": Decimal(2**64 - 1)}),
    (decimal_type(10, 2), DEFAULT, {
        "1.50": Decimal("1.50"), "-0.01": Decimal("-0.01"), "5": Decimal("5.00"), "5.": Decimal("5.00"),
        ".5": Decimal("0.50"), "1.005": Decimal("1.01"), "-1.005": Decimal("-1.01"), "1.00499999": Decimal("1.00"),
        "99999999.994": Decimal("99999999.99"), "1e3": Decimal("1000.00"), "1E-2": Decimal("0.01"),
        "5e-3": Decimal("0.01"), "4.9e-3": Decimal("0.00"), "12345e-2": Decimal("123.45"), "1e-400": Decimal("0.00"),
        "95995995959599995949999559499994494999e-40": Decimal("0.01"), "0e99": Decimal("0.00"), **faults(
        "99999999.995", "1e8", "1e400", "1e99999999999", "", ".", "-.", "1e", "e5", "1 e3", "1,000", "1_0.5", "--5",
        "0x1p3", "nan", "inf", "1d")}),
    (decimal_type(3, 3), DEFAULT, {"0.123": Decimal("0.123"), "-0.5": Decimal("-0.500"), **faults("1")}),
    (decimal_type(20, 0), DEFAULT, {
        "8.037365479844926678E+19": Decimal("80373654798449266780"), **faults("8.037365479844926678E+30")}),
    (decimal_type(19, 0), DEFAULT, {
        "+9099009900000090.99e+3": Decimal("9099009900000090990"), **faults("+00090990099000000900.99e+3")}),
    (decimal_type(38, 0), DEFAULT, {"9" * 38: Decimal("9" * 38), "9" * 38 + ".4": Decimal("9" * 38),
        "0." + "1" * 39 + "e38": Decimal("1" * 38), **faults("9" * 38 + ".5", "0.1e39", "9" * 39)}),
    (decimal_type(38, 38), DEFAULT, {"0." + "123456789" * 4 + "12": Decimal("0." + "123456789" * 4 + "12")}),
    (decimal_type(65, 3), DEFAULT, {"9" * 62 + ".999": "9" * 62 + ".999", "1.5": "1.5"}),
    (decimal_type(65, 3), ValueFormat(trailing_zeros_cut=True), {
        "9" * 62: "9" * 62 + ".000", "1.5": "1.500", "-0.25": "-0.250", "1.125": "1.125", "1e3": "1e3"}),
    (of_type("double"), DEFAULT, {
        "0": 0.0, "1.5": 1.5, "-2.5e10": -2.5e10, "1e22": 1e22, "0.1": 0.1, "4.9e-324": 5e-324, "1e-400": 0.0,
        "1.7976931348623157e308": 1.7976931348623157e308, ".5": 0.5, "+5": 5.0, **faults("", "1_000", "abc", "1,5")}),
    (of_type("float"), DEFAULT, {
        "0.1": 0.10000000149011612, "16777217": 16777216.0, "3.4028235e38": 3.4028234663852886e38, **faults("", "x")}),
    (of_type("date"), DEFAULT, {
        "2024-02-29": datetime.date(2024, 2, 29), "0001-01-01": datetime.date(1, 1, 1),
        "9999-12-31": datetime.date(9999, 12, 31),
        **dates("0000-00-00", "2024-00-01", "2024-01-00", "0000-01-01", "2023-02-29", "2024-02-30", "2024-13-01"),
        **faults("", "20240101", "2024-1-1", "24-01-01", "2024/01/01", "10000-01-01", "abc", "epoch", "infinity")}),
    (of_type("date"), ValueFormat(zero_dates="string"), {"2024-02-29": "2024-02-29", "0000-00-00": "0000-00-00"}),
    (of_type("date"), ValueFormat(zero_dates="error"), {
        "2024-02-29": datetime.date(2024, 2, 29), **faults("0000-00-00", "0000-01-01")}),
    (of_type("datetime", scale=6), DEFAULT, {
        "2024-01-01 12:34:56": moment(2024, 1, 1, 12, 34, 56),
        "2024-01-01 12:34:56.1": moment(2024, 1, 1, 12, 34, 56, 100000),
        "2024-01-01 12:34:56.123456": moment(2024, 1, 1, 12, 34, 56, 123456),
        "2024-01-01T12:34:56Z": moment(2024, 1, 1, 12, 34, 56),
        "0001-01-01 00:00:00": moment(1, 1, 1), "9999-12-31 23:59:59.999999": moment(9999, 12, 31, 23, 59, 59, 999999),
        # No zone has anything to do with it.
        "2024-03-10 02:30:00": moment(2024, 3, 10, 2, 30),
        **dates("0000-00-00 00:00:00", "0000-00-00 00:00:00.000000", "2024-00-00 00:00:00", "0000-01-01 00:00:00",
                "2024-02-30 00:00:00", "2024-01-01 24:00:00", "2024-01-01 23:59:60", "2024-01-01 23:60:00"),
        **faults("", "2024-01-01 00:00", "2024-01-01 00:00:00x", "10000-01-01 00:00:00", "2024-01-01 (BC) 00:00:00",
                 "2024-01-01 00:00:00 Asia/Shanghai", "infinity")}),
    (of_type("timestamp", scale=6), DEFAULT, {
        "2024-01-01 00:00:00.5": utc(2024, 1, 1, 0, 0, 0, 500000), "2024-03-10 02:30:00": utc(2024, 3, 10, 2, 30),
        "2024-01-01 00:00:00+00:00": utc(2024, 1, 1), "2024-01-01T00:00:00Z": utc(2024, 1, 1),
        "2024-01-01 00:00:00+05:30": utc(2023, 12, 31, 18, 30),
        "1970-01-01 00:00:01": utc(1970, 1, 1, 0, 0, 1),
        "2038-01-19 03:14:07.999999": utc(2038, 1, 19, 3, 14, 7, 999999),
        **dates("0000-00-00 00:00:00", "0000-00-00 00:00:00+00:00", "2024-01-01 24:00:00"), **faults("", "abc")}),
    (of_type("timestamp"), ValueFormat("Asia/Shanghai"), {
        "2024-01-01 00:00:00": utc(2023, 12, 31, 16), "2024-01-01 00:00:00.25+00:00": utc(2024, 1, 1, 0, 0, 0, 250000),
        # Shanghai had summer time until 1991: the first of two, and after the gap what would have been.
        "1991-09-15 01:30:00": utc(1991, 9, 14, 16, 30), "1991-09-15 02:30:00": utc(1991, 9, 14, 18, 30),
        "1991-04-14 02:30:00": utc(1991, 4, 13, 18, 30), **dates("0000-00-00 00:00:00")}),
    (of_type("timestamp"), ValueFormat("America/New_York"), {
        "2024-11-03 00:59:59": utc(2024, 11, 3, 4, 59, 59), "2024-11-03 01:30:00": utc(2024, 11, 3, 5, 30),
        "2024-11-03 02:00:00": utc(2024, 11, 3, 7), "2024-03-10 01:59:59": utc(2024, 3, 10, 6, 59, 59),
        "2024-03-10 02:30:00": utc(2024, 3, 10, 7, 30), "2024-03-10 03:00:00": utc(2024, 3, 10, 7),
        "2037-11-01 01:30:00": utc(2037, 11, 1, 5, 30)}),
    (of_type("timestamp"), ValueFormat("+08:00"), {"2024-01-01 00:00:00.000001": utc(2023, 12, 31, 16, 0, 0, 1)}),
    (of_type("timestamp"), ValueFormat("-05:30"), {"2024-01-01 00:00:00": utc(2024, 1, 1, 5, 30)}),
    (of_type("timestamp"), ValueFormat("Australia/Lord_Howe"), {"2024-04-07 01:45:00": utc(2024, 4, 6, 14, 45)}),
    (of_type("time", scale=6), DEFAULT, {"-838:59:59.000000": "-838:59:59.000000"}),
    (of_type("varchar", length=9), DEFAULT, {"": "", "é😀\0'\\": "é😀\0'\\"}),
    (of_type("point"), DEFAULT, {"POINT(1 2)": "POINT(1 2)"}),
    (of_type("varbinary", length=9), DEFAULT, {
        "": b"", "abc": b"abc", "a\\b'\"%!": b"a\\b'\"%!", "\0\x01\x7f\x80\xff": b"\0\x01\x7f\x80\xff",
        "".join(map(chr, range(256))): bytes(range(256)), "Ã\x95Â%41Ã\x83Ã\x89": b"\xc3\x95\xc2%41\xc3\x83\xc3\x89",
        "%C3%89!C5\\x41": b"%C3%89!C5\\x41", **faults("Ā", "a漢", "😀")}),
    (of_type("blob"), CSV, {
        "": b"", "YQ==": b"a", "YWI=": b"ab", "//8=": b"\xff\xff", "YWJj\nYWJj": b"abcabc", **faults(
        "YQ", "Y", "YQ=", "a-_=", "====", "YWJjYQ==YQ==", "é")}),
    (of_type("blob"), ValueFormat(binary="hex"), {
        "": b"", "6162": b"ab", "DEADbeef00": b"\xde\xad\xbe\xef\0", **faults("616", "6g", "0x61", "61 62")}),
    (of_type("binary", length=4), DEFAULT, {"": b"\0\0\0\0", "ab": b"ab\0\0", "éÿ\0a": b"\xe9\xff\0a"}),
    (of_type("binary", length=4), CSV, {"YQ==": b"a\0\0\0"}),
    (of_type("enum", elements=ABC), DEFAULT, {
        "1": "a", "3": "it's", "0": "", **faults("4", "-1", "a", "", "1.0", "99999999999")}),
    (of_type("enum", elements=ABC), CSV, {"a": "a", "": "", "1": "1"}),
    (of_type("enum", elements=("1", "0", "b")), EITHER, {"1": "1", "0": "0", "2": "0", "3": "b", "b": "b", "": "",
        **faults("4", "x")}),
    (of_type("enum"), DEFAULT, {"1": "1", "a": "a"}),
    (of_type("set", elements=ABC), DEFAULT, {
        "0": "", "1": "a", "5": "a,it's", "7": "a,b,it's", **faults("8", "-1", "a", "", "18446744073709551616")}),
    (of_type("set", elements=SIXTY_FOUR), DEFAULT, {
        "9223372036854775808": "l63", "9223372036854775809": "l0,l63", "18446744073709551615": ",".join(SIXTY_FOUR)}),
    (of_type("set", elements=ABC), EITHER, {"5": "a,it's", "b,a": "b,a", "": "", **faults("8", "a,x", "a,")}),
    (of_type("set", elements=ABC), CSV, {"a,b": "a,b"}),
    (of_type("vector", length=2), DEFAULT, {
        "[1,2.5]": [1.0, 2.5], "[]": [], "[ -1e3 , 0.1 ]": [-1000.0, 0.10000000149011612], **faults(
        "", "1", "[1,]", "[1", "{}", "null", '["a"]', "[1_0]", "[[1]]", "[null]", "[1] x")}),
]  # fmt: skip


NAMES: Final = [f"{column.name}-{number}" for number, (column, _, _) in enumerate(CASES)]


@pytest.mark.parametrize(("column", "value_format", "texts"), CASES, ids=NAMES)
def test_a_text_is_a_value_of_its_type_or_is_reported(
    column: ColumnType, value_format: ValueFormat, texts: dict[str, Any]
) -> None:
    value = value_parsing.value("text", column, value_format)
    failed = value_parsing.parse_failed("text", value, column, value_format)
    zero = value_parsing.zero_date("text", value, column, value_format)
    found = rows_of([*texts, None], "string", value, failed, zero or "false", name="text")
    wanted = [(None if each in (FAULT, ZERO) else each, each == FAULT, each == ZERO) for each in texts.values()]
    assert found == [*wanted, (None, False, False)]


@pytest.mark.parametrize(("column", "value_format", "texts"), CASES, ids=NAMES)
def test_a_value_as_text_is_the_same_value_again(
    column: ColumnType, value_format: ValueFormat, texts: dict[str, Any]
) -> None:
    def again(typed: str) -> str:
        return let(
            value_parsing.text(typed, column, value_format),
            lambda text: value_parsing.value(text, column, value_format),
        )

    value = value_parsing.value("text", column, value_format)
    for read, same in rows_of([*texts, None], "string", value, let(value, again), name="text"):
        assert same == read


@pytest.mark.parametrize(("column", "value_format", "texts"), CASES, ids=NAMES)
def test_a_value_has_the_type_of_its_column(
    column: ColumnType, value_format: ValueFormat, texts: dict[str, Any]
) -> None:
    value = value_parsing.value("text", column, value_format)
    wanted = cast("NULL", value_format.type_of(column))
    assert rows_of([None], "string", f"typeof({value}) = typeof({wanted})", name="text") == [(True,)]


# Column type, format, value, its text.
TEXTS: list[tuple[ColumnType, ValueFormat, Any, str]] = [
    (of_type("bigint unsigned"), DEFAULT, Decimal(2**64 - 1), "18446744073709551615"),
    (decimal_type(10, 2), DEFAULT, Decimal("-0.50"), "-0.50"),
    (decimal_type(3, 3), DEFAULT, Decimal("-0.500"), "-0.500"),
    (decimal_type(38, 38), DEFAULT, Decimal("0.5"), "0.5" + "0" * 37),
    (of_type("double"), DEFAULT, 0.1, "0.1"),
    (of_type("date"), DEFAULT, datetime.date(999, 1, 2), "0999-01-02"),
    (of_type("datetime"), DEFAULT, moment(1, 1, 1, 0, 0, 0, 1), "0001-01-01 00:00:00.000001"),
    (of_type("timestamp"), ValueFormat("America/New_York"), utc(2024, 11, 3, 5, 30), "2024-11-03 01:30:00.000000"),
    # Clocks show it for the second time.
    (of_type("timestamp"), ValueFormat("America/New_York"), utc(2024, 11, 3, 6, 30),
        "2024-11-03 06:30:00.000000+00:00"),
    (of_type("timestamp"), ValueFormat("+08:00"), utc(2023, 12, 31, 16), "2024-01-01 00:00:00.000000"),
    (of_type("varbinary"), DEFAULT, b"\0a%+\\\x7f\x80\xbf\xc0\xc3\xff", "\0a%+\\\x7f\x80\xbf\xc0\xc3\xff"),
    (of_type("varbinary"), CSV, b"\xff" * 60, "/" * 80),
    (of_type("varbinary"), ValueFormat(binary="hex"), b"\xde\xad\0", "DEAD00"),
    (of_type("enum", elements=ABC), DEFAULT, "it's", "3"),
    (of_type("enum", elements=ABC), DEFAULT, "", "0"),
    (of_type("enum", elements=ABC), CSV, "it's", "it's"),
    (of_type("set", elements=ABC), DEFAULT, "a,it's", "5"),
    (of_type("set", elements=SIXTY_FOUR), DEFAULT, ",".join(SIXTY_FOUR), "18446744073709551615"),
    (of_type("set", elements=ABC), EITHER, "a,it's", "a,it's"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value_format", "value", "text"), TEXTS)
def test_a_value_is_written_as_the_source_has_it(
    column: ColumnType, value_format: ValueFormat, value: Any, text: str
) -> None:
    written = value_parsing.text("value", column, value_format)
    assert of([value, None], value_format.type_of(column), written) == [text, None]


def test_only_dates_that_become_null_can_be_the_same() -> None:
    collide = [name for name in ("date", "datetime", "timestamp", "time", "int") if may_collide(of_type(name), DEFAULT)]
    assert collide == ["date", "datetime", "timestamp"]
    assert not may_collide(of_type("date"), ValueFormat(zero_dates="string"))
