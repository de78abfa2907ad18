"""What rows that are older than a column hold in it (MySQL manual, "Data Type Default Values", "ALTER TABLE")."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.defaults import default_text, initial_default, of_schema_file
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import InitialDefault, SourceColumn
from tests.changelog.statements import declared


def older(text: str, source: str | None = None, *, explained: bool = True) -> tuple[str | None, str | None]:
    """Value and warning; `source` is the schema file's text of the default."""
    definition = declared(text, backslash_escapes=False)
    column = SourceColumn("c", definition.type, nullable=definition.nullable is not False, default=source)
    initial, warning = initial_default(of_schema_file(column), definition if explained else None)
    return initial.text, warning


@pytest.mark.parametrize("explained", [True, False])
@pytest.mark.parametrize(
    ("text", "source", "value"),
    [
        ("INT", None, None),
        ("INT DEFAULT NULL", None, None),
        ("INT DEFAULT 7", "7", "7"),
        ("INT NOT NULL DEFAULT -7", "-7", "-7"),
        ("DECIMAL(10,2) DEFAULT 1.5", "1.50", "1.50"),
        ("DECIMAL(10,2) DEFAULT 1.5", "1.5", "1.50"),
        ("DECIMAL(65,30) DEFAULT 1.5", "1.5", f"1.5{'0' * 29}"),
        ("INT DEFAULT 1.5", "1.5", "2"),
        ("YEAR DEFAULT 99", "99", "1999"),
        ("YEAR DEFAULT 2024", "2024", "2024"),
        ("BIT(1) DEFAULT 0", "\0", "0"),
        ("BIT(1) DEFAULT TRUE", "\x01", "1"),
        ("BIT(8) DEFAULT 5", "\x05", "5"),
        ("BIT(8) DEFAULT b'101'", "\x05", "5"),
        ("BIT(8) DEFAULT 49", "1", "49"),
        ("BIT(8) DEFAULT '1'", "1", "49"),
        ("BIT(16) DEFAULT 50089", "é", "50089"),
        ("BIT(8) DEFAULT ''", "", "0"),
        ("CHAR(5) DEFAULT 'a  '", "a  ", "a"),
        ("VARCHAR(5) DEFAULT 'a  '", "a  ", "a  "),
        ("VARCHAR(10) DEFAULT ''", "", ""),
        ("VARCHAR(10) DEFAULT 'it''s'", "it's", "it's"),
        ("VARCHAR(20) DEFAULT 'now()'", "now()", "now()"),
        ("VARCHAR(20) DEFAULT 'CURRENT_TIMESTAMP'", "CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"),
        ("VARCHAR(4) DEFAULT 'NULL'", "NULL", "NULL"),
        ("ENUM('a','b') DEFAULT 'b'", "b", "b"),
        ("SET('a','b') DEFAULT 'a,b'", "a,b", "a,b"),
        ("DATETIME DEFAULT '2024-01-01 00:00:00'", "2024-01-01 00:00:00", "2024-01-01 00:00:00"),
        ("DATETIME(3) DEFAULT '2024-01-01 00:00:00'", "2024-01-01 00:00:00.000", "2024-01-01 00:00:00.000"),
        ("DATETIME(3) DEFAULT '2024-01-01 00:00:00'", "2024-01-01 00:00:00", "2024-01-01 00:00:00.000"),
        ("TIMESTAMP NULL DEFAULT '2024-01-01 08:00:00'", "2024-01-01 00:00:00", "2024-01-01 00:00:00+00:00"),
        ("TIMESTAMP(2) DEFAULT '2024-01-01 08:00'", "2024-01-01 00:00:00.00", "2024-01-01 00:00:00.00+00:00"),
        ("TIMESTAMP DEFAULT 0", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        ("DATETIME(3) DEFAULT '2024-05-00'", "2024-05-00 00:00:00.120", "2024-05-00 00:00:00.120"),
        ("DATE DEFAULT '2024-01-01'", "2024-01-01", "2024-01-01"),
        ("BINARY(4) DEFAULT 'ab'", "ab", "ab\0\0"),
        ("VARBINARY(9) DEFAULT 'é'", "é", "\xc3\xa9"),
    ],
)
def test_a_default_is_as_a_row_prints_it(text: str, source: str | None, value: str | None, explained: bool) -> None:
    assert older(text, source, explained=explained) == (value, None)


@pytest.mark.parametrize(
    ("text", "source", "value"),
    [
        ("VARBINARY(9) DEFAULT x'00ff'", "\0\ufffd", "\0\xff"),
        ("BINARY(3) DEFAULT x'00ff'", "\0\ufffd", "\0\xff\0"),
        ("BIT(8) DEFAULT 255", "\ufffd", "255"),
        ("BIT(16) DEFAULT b'0000000111001000'", "\x01\ufffd", "456"),
        ("INT DEFAULT 0x10", "16", "16"),
        ("VARCHAR(9) DEFAULT x'6162'", "ab", "ab"),
        ("VARCHAR(9) DEFAULT x'E697A5'", "日", "日"),
    ],
)
def test_bytes_of_the_statement_go_before_the_sources_text(text: str, source: str, value: str) -> None:
    """The source spoils bytes that are not UTF-8. Bytes of a text are text."""
    assert older(text, source) == (value, None)


@pytest.mark.parametrize("text", ["VARBINARY(9) DEFAULT x'00ff'", "BIT(16) DEFAULT 255"])
def test_bytes_that_are_lost_are_null_with_a_warning(text: str) -> None:
    value, warning = older(text, "\0\ufffd", explained=False)
    assert value is None and warning is not None and "bytes that are not UTF-8" in warning


@pytest.mark.parametrize(
    ("text", "printed", "value"),
    [
        ("BIT(8) DEFAULT 5", "b'101'", "5"),
        ("BIT(8) DEFAULT '1'", "b'110001'", "49"),
        ("BIT(8) DEFAULT b'11111111'", "b'11111111'", "255"),
        ("TIMESTAMP DEFAULT '2024-01-01 08:00'", "2024-01-01 08:00:00", "2024-01-01 08:00:00"),
        ("YEAR DEFAULT 0", "0000", "0000"),
        ("YEAR DEFAULT '0'", "2000", "2000"),
        ("DECIMAL(65,30) DEFAULT 1.5", f"1.5{'0' * 29}", f"1.5{'0' * 29}"),
    ],
)
def test_a_statement_alone_says_a_default_too(text: str, printed: str, value: str) -> None:
    """Where there are no schema files. Its moments are in the zone of the feed's rows."""
    definition = declared(text)
    assert default_text(definition.default, definition.type) == printed
    column = SourceColumn("c", definition.type, default=printed)
    for explained in (definition, None):
        assert initial_default(column, explained) == (InitialDefault(value), None)


@pytest.mark.parametrize(
    ("types", "value"),
    [
        ("TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT UNSIGNED, FLOAT, DOUBLE, BIT(8), YEAR, DECIMAL(10)", "0"),
        ("DECIMAL(10.2)", "0.00"),
        ("CHAR(3), VARCHAR(3), TEXT, LONGTEXT, BLOB, VARBINARY(3), SET('a')", ""),
        ("BINARY", "\0"),
        ("BINARY(3)", "\0\0\0"),
        ("ENUM('b','a')", "b"),
        ("DATE", "0000-00-00"),
        ("DATETIME, TIMESTAMP", "0000-00-00 00:00:00"),
        ("DATETIME(6)", "0000-00-00 00:00:00.000000"),
        ("TIME", "00:00:00"),
        ("TIME(2)", "00:00:00.00"),
        ("JSON", "null"),
    ],
)
def test_a_column_that_must_not_be_null_begins_with_the_types_own_zero(types: str, value: str) -> None:
    for text in types.split(", "):
        assert older(f"{text.replace('.', ',')} NOT NULL") == (value, None)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("DATETIME DEFAULT CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"),
        ("TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)", "CURRENT_TIMESTAMP"),
        ("DATE DEFAULT (CURRENT_DATE)", "CURRENT_DATE"),
        ("VARCHAR(36) DEFAULT (uuid())", None),
        ("INT NOT NULL DEFAULT (floor(rand() * 10))", None),
    ],
)
def test_default_that_only_the_server_can_compute_has_a_reason(text: str, source: str | None) -> None:
    value, reason = older(text, source)
    assert value is None and reason is not None and "in column c, whose value is not in the log" in reason


@pytest.mark.parametrize(("text", "value"), [("(json_object())", "{}"), ("(JSON_ARRAY( ))", "[]")])
def test_default_of_an_empty_json_value_is_known(text: str, value: str) -> None:
    assert older(f"JSON NOT NULL DEFAULT {text}") == (value, None)


def test_a_virtual_column_and_labels_that_nobody_says_give_no_default() -> None:
    assert older("INT AS (a + 1) VIRTUAL NOT NULL") == (None, None)
    initial, warning = initial_default(SourceColumn("c", ColumnType("enum"), nullable=False), None)
    assert (initial.text, warning) == (None, None)
