"""Defaults as the server prints them; tests/servers/test_ddl.py has many more, against one."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.ddl.clauses import AddColumn
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl_column_types import server_type
from cdc_lakehouse.changelog.ddl_default import default_text
from cdc_lakehouse.changelog.ddl_default_numbers import double_text
from cdc_lakehouse.errors import DdlError


def default(declaration: str) -> str | None:
    (clause,) = parse(f"ALTER TABLE t ADD c {declaration}")
    assert isinstance(clause, AddColumn)
    return default_text(clause.column.default, server_type(clause.column, "utf8mb4"), "c")


@pytest.mark.parametrize(
    ("declaration", "printed"),
    [
        ("INT", None),
        ("INT DEFAULT NULL", None),
        ("INT DEFAULT ' 7 '", "7"),
        ("INT DEFAULT 2.5", "3"),
        ("INT DEFAULT 25e-1", "2"),
        ("INT DEFAULT 0x41", "65"),
        ("INT(5) ZEROFILL DEFAULT 7", "00007"),
        ("DECIMAL(10,3) DEFAULT 1.2345", "1.235"),
        ("FLOAT DEFAULT 123456789", "123457000"),
        ("FLOAT(7,3) DEFAULT 1", "1.000"),
        ("DOUBLE DEFAULT 1e15", "1e15"),
        ("DOUBLE DEFAULT 1e14", "100000000000000"),
        ("BIT(9) DEFAULT 5", "b'101'"),
        ("BIT(9) DEFAULT '7'", "b'110111'"),
        ("YEAR DEFAULT 70", "1970"),
        ("YEAR DEFAULT '0'", "2000"),
        ("CHAR(3) DEFAULT 'a   '", "a"),
        ("VARCHAR(9) DEFAULT .5", "0.5"),
        ("VARBINARY(4) DEFAULT 'ab'", "0x6162"),
        ("ENUM('a','b') DEFAULT 'B'", "b"),
        ("SET('x','y','z') DEFAULT 'z,X'", "x,z"),
        ("DATE DEFAULT '20-1-2'", "2020-01-02"),
        ("DATETIME(3) DEFAULT '2020-01-02 23:59:59.9999'", "2020-01-03 00:00:00.000"),
        ("TIME(2) DEFAULT '-10:11:12.5678'", "-10:11:12.57"),
        ("TIMESTAMP DEFAULT NOW()", "CURRENT_TIMESTAMP"),
        ("DATETIME(3) DEFAULT LOCALTIME(3)", "CURRENT_TIMESTAMP(3)"),
        ("VARCHAR(36) DEFAULT (uuid())", "uuid()"),
    ],
)
def test_what_is_printed(declaration: str, printed: str | None) -> None:
    assert default(declaration) == printed


@pytest.mark.parametrize(
    "declaration",
    [
        "INT DEFAULT 'x'", "TINYINT DEFAULT 300", "INT UNSIGNED DEFAULT -1", "DECIMAL(4,4) DEFAULT 1",
        "FLOAT DEFAULT 1e39",
        "BIT(4) DEFAULT 16", "YEAR DEFAULT 1900", "CHAR(3) DEFAULT 'abcd'", "BINARY(1) DEFAULT 'é'",
        "ENUM('a') DEFAULT 'c'",
        "SET('x') DEFAULT 'x,y'", "DATE DEFAULT '2020-02-30'", "DATETIME DEFAULT '0000-00-00'",
        "TIME DEFAULT '839:00:00'",
        "TIMESTAMP DEFAULT '2039-01-01'", "DATETIME(3) DEFAULT NOW()", "TEXT DEFAULT 'a'", "JSON DEFAULT '[]'",
        "VARCHAR(9) CHARACTER SET latin1 DEFAULT '表'", "INT DEFAULT CURRENT_TIMESTAMP",
    ],
)  # fmt: skip
def test_what_does_not_fit(declaration: str) -> None:
    with pytest.raises(DdlError, match="default"):
        default(declaration)


@pytest.mark.parametrize(
    ("real", "digits", "text"),
    [(0.1, 17, "0.1"), (1e-7, 17, "0.0000001"), (1e-50, 17, "1e-50"), (-0.0, 17, "-0"), (16777217.0, 6, "16777200")],
)
def test_numbers_as_mysql_prints_them(real: float, digits: int, text: str) -> None:
    assert double_text(real, digits=digits) == text
