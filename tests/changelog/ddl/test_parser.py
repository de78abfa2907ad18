"""Statements and what they say: expected values come from the manuals and TiCDC's format. Most stand in `cases/`."""

from __future__ import annotations

import pickle

import pytest

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import AddColumn, ColumnDefinition, Key, KeyPart, TableRef
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse, parse_type
from cdc_lakehouse.changelog.mysql_types import ColumnType
from tests.changelog.ddl.cases import cases, show

INT = ColumnType("int")


def shown(statement: str, *, backslash_escapes: bool = True) -> str:
    return "; ".join(show(clause) for clause in parse(statement, backslash_escapes=backslash_escapes))


@pytest.mark.parametrize("name", ["columns", "tables", "keys", "partitions", "others", "ticdc"])
def test_what_statements_say(name: str) -> None:
    wrong = [f"{statement} => {found}" for statement, said in cases(name) if (found := shown(statement)) != said]
    assert wrong == []


def test_what_ticdc_prints_has_no_escapes() -> None:
    for statement, said in cases("ticdc"):
        assert shown(statement, backslash_escapes=False) == said


def test_types() -> None:
    assert [(text, show(parse_type(text))) for text, _ in cases("types")] == list(cases("types"))


@pytest.mark.parametrize("text", ["", "string", "int int", "varchar(x)", "int, b int", "int;"])
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(DdlSyntaxError):
        parse_type(text)


def test_partitioning_is_the_same_in_create_table() -> None:
    prefix = "ALTER TABLE t PARTITION BY "
    definitions = [text.removeprefix(prefix) for text, _ in cases("partitions") if text.startswith(prefix)]
    assert len(definitions) == 16
    for definition in definitions:
        (clause,) = parse(f"{prefix}{definition}")
        (table,) = parse(f"CREATE TABLE t (a INT) /*!50100 PARTITION BY {definition} */")
        assert isinstance(clause, ddl.PartitionBy) and isinstance(table, ddl.CreateTable)
        assert table.clauses[-1] == clause


ERRORS = [
    *((statement, *said.split(" ", 1)) for statement, said in cases("errors")),
    ("", "0", "expected a DDL statement, found the end"),
    ("ALTER TABLE t ADD a INT\u00a0NULL", "23", "unexpected text"),
    ("ALTER TABLE t ADD a INT\u3000", "23", "unexpected text"),
    ("ALTER TABLE t ADD a INT \x00", "24", "unexpected text"),
]


@pytest.mark.parametrize(("statement", "offset", "reason"), ERRORS)
def test_what_is_not_understood_is_an_error_with_its_place(statement: str, offset: str, reason: str) -> None:
    error = error_of(statement)
    assert reason in error.message and error.offset == int(offset)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD a INT;",
        " \n\tALTER TABLE t ADD a INT ;;\n",
        "/* first */ ALTER /* in */ TABLE t ADD a INT -- last",
        "ALTER TABLE t # to here\nADD a INT --\n",
        "ALTER TABLE t -- it's open\r\n ADD a INT",
        "ALTER TABLE t /* it's `open */ ADD a INT",
        "ALTER TABLE t /*+ a hint */ ADD a INT",
        "ALTER TABLE t /*M!100100 DROP x */ ADD a INT",
        "ALTER TABLE t /*!99999 DROP x, */ ADD a INT",
        "ALTER TABLE t /*!ADD a INT*/",
        "ALTER TABLE t /*!50100 ADD*/ a/*!080000 INT */",
        "ALTER TABLE t /*!50100 ADD /* inner */ a INT */",
        "/*T! ALTER TABLE t */ ADD a INT",
        "ALTER TABLE t ADD a /*T![auto_rand,x] INT */",
        "ALTER TABLE t ADD a /*!50100 /*T![x] INT */ */",
        "ALTER TABLE `t` ADD `a` INT",
        'ALTER TABLE "t" ADD "a" INT',
        "ALTER IGNORE TABLE t ADD a INT",
        "ALTER ONLINE TABLE IF EXISTS t WAIT 30 ADD a INT",
        "ALTER TABLE t NOWAIT ADD a INT",
    ],
)
def test_one_statement_in_many_wrappings(statement: str) -> None:
    assert parse(statement) == (AddColumn(TableRef(None, "t"), ColumnDefinition("a", INT)),)


def test_a_name_over_lines() -> None:
    assert parse("DROP TABLE `d`\n.\n`t`") == (ddl.DropTable(TableRef("d", "t")),)


def test_ansi_quotes_enclose_names_everywhere() -> None:
    (clause,) = parse(r"""ALTER TABLE "a\" ADD "x""y" INT COMMENT 'it''s "\\"' """, ansi_quotes=True)
    assert clause == AddColumn(TableRef(None, "a\\"), ColumnDefinition('x"y', INT, comment='it\'s "\\"'))
    with pytest.raises(DdlSyntaxError, match="expected a value"):
        parse('ALTER TABLE t ADD a INT DEFAULT "x"', ansi_quotes=True)


@pytest.mark.parametrize("ansi_quotes", [False, True])
def test_backslashes_are_themselves_where_they_do_not_escape(ansi_quotes: bool) -> None:
    # TiCDC re-prints DEFAULT 'C:\\' as this: one backslash, then the closing quote.
    statement = r"ALTER TABLE t ADD a VARCHAR(9) DEFAULT _UTF8MB4'C:\' COMMENT '\n''s'"
    (clause,) = parse(statement, ansi_quotes=ansi_quotes, backslash_escapes=False)
    assert isinstance(clause, AddColumn)
    assert (clause.column.default, clause.column.comment) == (ddl.TextLiteral("C:\\", "utf8mb4"), r"\n's")
    with pytest.raises(DdlSyntaxError):
        parse(statement)


def error_of(statement: str) -> DdlSyntaxError:
    with pytest.raises(DdlSyntaxError) as caught:
        parse(statement)
    return caught.value


def test_an_error_knows_line_and_column_and_shortens_the_statement() -> None:
    error = error_of("ALTER TABLE t\n  ADD a INT,\n  ADD ?")
    assert (error.offset, error.statement_line, error.statement_column, error.line) == (33, 3, 7, None)
    assert error.message.startswith("DDL cannot be understood at line 3, column 7: expected a column, found '?', in: ")
    long = error_of(f"ALTER TABLE t ADD {'x' * 10_000} {'y' * 10_000}")
    assert len(long.statement) < 300 and len(str(long)) < 1_000


def test_an_error_survives_pickle() -> None:
    error = error_of("ALTER TABLE t ADD")
    error.table = "d.t"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is DdlSyntaxError
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert "[table d.t]" in str(copy)


def test_clauses_are_values() -> None:
    statement = "CREATE TABLE t (a INT DEFAULT 'x', PRIMARY KEY (a)) PARTITION BY KEY (a) (PARTITION p)"
    assert parse(statement) == parse(statement)
    assert hash(parse(statement)) == hash(parse(statement))
    assert pickle.loads(pickle.dumps(parse(statement))) == parse(statement)


def test_a_primary_key_can_go_under_another_word() -> None:
    (index,) = parse("DROP INDEX `PRIMARY` ON t")
    (constraint,) = parse("ALTER TABLE t DROP CONSTRAINT `primary`")
    assert isinstance(index, ddl.DropKey) and index.drops_primary_key
    assert isinstance(constraint, ddl.DropKey) and constraint.drops_primary_key


def test_keys_of_a_table_are_those_of_its_columns_too() -> None:
    (table,) = parse("CREATE TABLE t (a INT UNIQUE, b INT PRIMARY KEY, UNIQUE u (b, (a + 1)), KEY (a), UNIQUE (a(3)))")
    primary, unique = table.keys if isinstance(table, ddl.CreateTable) else ([], [])
    assert [key.columns for key in primary] == [("b",)]
    assert unique == [
        Key(None, (KeyPart("a"),)),
        Key("u", (KeyPart("b"), KeyPart(None))),
        Key(None, (KeyPart("a", 3),)),
    ]
    assert [(key.columns, key.has_expression) for key in unique] == [(("a",), False), (("b",), True), (("a",), False)]
