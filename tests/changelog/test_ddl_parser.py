"""Statements and what they say, as tables: expected values come from the manuals and TiCDC's format."""

from __future__ import annotations

import pickle

import pytest

from cdc_lakehouse.changelog.ddl.clauses import (
    AddColumn,
    AddIndex,
    AddPartitions,
    AddPrimaryKey,
    AddUniqueKey,
    After,
    AlterDatabase,
    AlterIndex,
    BytesLiteral,
    ChangeColumn,
    Clause,
    CoalescePartitions,
    ColumnDefinition,
    ConstraintChange,
    CreateDatabase,
    CreateTable,
    CreateTableAsSelect,
    CreateTableLike,
    CreateView,
    DdlSyntaxError,
    DefaultValue,
    DropColumn,
    DropColumnDefault,
    DropDatabase,
    DropIndex,
    DropPartitions,
    DropPrimaryKey,
    DropTable,
    DropView,
    ExchangePartition,
    Expression,
    First,
    Flashback,
    ForeignKeyChange,
    IndexKey,
    InValues,
    KeyPart,
    LessThan,
    MaintainPartitions,
    MaxValue,
    ModifyColumn,
    NullLiteral,
    NumberLiteral,
    OtherStatement,
    Partition,
    PartitionBy,
    Partitioning,
    Placement,
    PrimaryKey,
    RecoverTable,
    RemovePartitioning,
    RenameColumn,
    RenameIndex,
    RenameTable,
    ReorganizePartitions,
    Sequence,
    SetAutoIncrement,
    SetColumnDefault,
    SetColumnVisibility,
    SetTableCharset,
    SetTableComment,
    TableName,
    TableOption,
    TextLiteral,
    TruncatePartitions,
    TruncateTable,
    UniqueKey,
    UseDatabase,
    Value,
)
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.mysql_types import ColumnType

T = TableName(None, "t")
DT = TableName("d", "t")
INT = ColumnType("int")
A = ColumnDefinition("a", INT)
B = ColumnDefinition("b", INT)


def key(*columns: str) -> tuple[KeyPart, ...]:
    return tuple(KeyPart(column) for column in columns)


def index(name: str | None, *columns: str) -> IndexKey:
    return IndexKey(name, key(*columns))


def number(text: str) -> NumberLiteral:
    return NumberLiteral(text)


def column_of(declaration: str) -> ColumnDefinition:
    (clause,) = parse(f"ALTER TABLE t ADD COLUMN c {declaration}")
    assert isinstance(clause, AddColumn)
    return clause.column


def created(statement: str) -> CreateTable:
    (clause,) = parse(statement)
    assert isinstance(clause, CreateTable)
    return clause


def check(statement: str, *expected: Clause) -> None:
    assert parse(statement) == expected


# --- Columns ---


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t ADD a INT", [AddColumn(T, A)]),
        ("alter table t add column a int", [AddColumn(T, A)]),
        ("ALTER TABLE `d`.`t` ADD COLUMN `a` INT FIRST", [AddColumn(DT, A, First())]),
        ("ALTER TABLE t ADD a INT AFTER `b c`", [AddColumn(T, A, After("b c"))]),
        ("ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT", [AddColumn(T, A, None, if_not_exists=True)]),
        ("ALTER TABLE t ADD COLUMN (a INT, b INT)", [AddColumn(T, A), AddColumn(T, B)]),
        ("ALTER TABLE t ADD (a INT)", [AddColumn(T, A)]),
        (
            "ALTER TABLE t ADD (a INT, PRIMARY KEY (a), b INT, KEY (b))",
            [AddColumn(T, A), AddPrimaryKey(T, PrimaryKey(key("a"))), AddColumn(T, B), AddIndex(T, index(None, "b"))],
        ),
        (
            "ALTER TABLE t ADD a INT AFTER x, ADD b INT FIRST",
            [AddColumn(T, A, After("x")), AddColumn(T, B, First())],
        ),
        ("ALTER TABLE t ADD COLUMN t.a INT", [AddColumn(T, A)]),
        ("ALTER TABLE d . t ADD COLUMN d . t . a INT", [AddColumn(DT, A)]),
        ("ALTER TABLE t DROP a", [DropColumn(T, "a")]),
        ("ALTER TABLE t DROP COLUMN `a`, DROP b CASCADE", [DropColumn(T, "a"), DropColumn(T, "b")]),
        ("ALTER TABLE t DROP COLUMN IF EXISTS a RESTRICT", [DropColumn(T, "a", if_exists=True)]),
        ("ALTER TABLE t RENAME COLUMN a TO b", [RenameColumn(T, "a", "b")]),
        (
            "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
            [RenameColumn(T, "a", "b"), RenameColumn(T, "b", "a")],
        ),
        ("ALTER TABLE t CHANGE x a INT", [ChangeColumn(T, "x", A)]),
        ("ALTER TABLE t CHANGE COLUMN `x` `a` INT AFTER `y`", [ChangeColumn(T, "x", A, After("y"))]),
        ("ALTER TABLE t CHANGE IF EXISTS x a INT", [ChangeColumn(T, "x", A, None, if_exists=True)]),
        ("ALTER TABLE t MODIFY a INT", [ModifyColumn(T, A)]),
        ("ALTER TABLE t MODIFY COLUMN a INT FIRST", [ModifyColumn(T, A, First())]),
        ("ALTER TABLE t MODIFY COLUMN IF EXISTS a INT", [ModifyColumn(T, A, None, if_exists=True)]),
        (
            "ALTER TABLE t MODIFY a LONG AFTER b",
            [ModifyColumn(T, ColumnDefinition("a", ColumnType("mediumtext")), After("b"))],
        ),
        ("ALTER TABLE t ALTER a SET DEFAULT 5", [SetColumnDefault(T, "a", number("5"))]),
        ("ALTER TABLE t ALTER COLUMN a SET DEFAULT NULL", [SetColumnDefault(T, "a", NullLiteral())]),
        ("ALTER TABLE t ALTER COLUMN a SET DEFAULT (1 + 1)", [SetColumnDefault(T, "a", Expression("1 + 1"))]),
        ("ALTER TABLE t ALTER COLUMN a DROP DEFAULT", [DropColumnDefault(T, "a")]),
        ("ALTER TABLE t ALTER COLUMN a SET INVISIBLE", [SetColumnVisibility(T, "a", visible=False)]),
    ],
)
def test_columns_of_a_table_change(statement: str, expected: list[Clause]) -> None:
    check(statement, *expected)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INT", ColumnType("int")),
        ("integer(10) unsigned", ColumnType("int", unsigned=True, length=10)),
        ("INT UNSIGNED ZEROFILL", ColumnType("int", unsigned=True, zerofill=True)),
        ("TINYINT(1)", ColumnType("tinyint", length=1)),
        ("BOOL", ColumnType("tinyint", length=1)),
        ("BIGINT SIGNED", ColumnType("bigint")),
        ("INT8", ColumnType("bigint")),
        ("DECIMAL", ColumnType("decimal")),
        ("DECIMAL(10)", ColumnType("decimal", length=10)),
        ("NUMERIC(20, 4) UNSIGNED", ColumnType("decimal", unsigned=True, length=20, scale=4)),
        ("FLOAT(30)", ColumnType("float", length=30)),
        ("FLOAT(7,2)", ColumnType("float", length=7, scale=2)),
        ("DOUBLE PRECISION", ColumnType("double")),
        ("REAL", ColumnType("double")),
        ("BIT", ColumnType("bit")),
        ("BIT(64)", ColumnType("bit", length=64)),
        ("YEAR(4)", ColumnType("year", length=4)),
        ("DATE", ColumnType("date")),
        ("DATETIME(6)", ColumnType("datetime", scale=6)),
        ("TIMESTAMP", ColumnType("timestamp")),
        ("TIME(3)", ColumnType("time", scale=3)),
        ("CHAR", ColumnType("char")),
        ("CHARACTER VARYING(20)", ColumnType("varchar", length=20)),
        ("VARCHAR(20) CHARACTER SET UTF8MB4", ColumnType("varchar", length=20, charset="utf8mb4")),
        ("VARCHAR(20) CHARSET 'latin1' BINARY", ColumnType("varchar", length=20, charset="latin1")),
        ("CHAR(4) ASCII", ColumnType("char", length=4, charset="latin1")),
        ("CHAR(4) BYTE", ColumnType("binary", length=4)),
        ("TEXT CHAR SET binary", ColumnType("blob")),
        ("VARCHAR(9) COLLATE binary", ColumnType("varbinary", length=9)),
        ("NATIONAL CHAR(4)", ColumnType("char", length=4, charset="utf8")),
        ("NATIONAL CHARACTER VARYING(4)", ColumnType("varchar", length=4, charset="utf8")),
        ("NCHAR VARCHAR(4)", ColumnType("varchar", length=4, charset="utf8")),
        ("NVARCHAR(4)", ColumnType("varchar", length=4, charset="utf8")),
        ("LONG", ColumnType("mediumtext")),
        ("LONG CHARACTER VARYING CHARSET utf8", ColumnType("mediumtext", charset="utf8")),
        ("LONG VARBINARY", ColumnType("mediumblob")),
        ("TEXT(50)", ColumnType("text", length=50)),
        ("VARBINARY(16)", ColumnType("varbinary", length=16)),
        ("LONGBLOB", ColumnType("longblob")),
        ("ENUM('a','b,c','d''e','(')", ColumnType("enum", elements=("a", "b,c", "d'e", "("))),
        ("ENUM('trailing  ','\\'\\\\')", ColumnType("enum", elements=("trailing", "'\\"))),
        ("SET('x', 'y') CHARACTER SET gbk", ColumnType("set", elements=("x", "y"), charset="gbk")),
        ("JSON", ColumnType("json")),
        ("POINT SRID 4326", ColumnType("point")),
        ("VECTOR", ColumnType("vector")),
        ("VECTOR(3)", ColumnType("vector", length=3)),
        ("VECTOR<FLOAT>(3)", ColumnType("vector", length=3)),
        ("UUID", ColumnType("uuid")),
    ],
)
def test_types(declared: str, expected: ColumnType) -> None:
    assert column_of(declared).type == expected


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("''", TextLiteral("")),
        ("'it''s'", TextLiteral("it's")),
        (r"'a\'b\n\0\Z\\\q\%'", TextLiteral("a'b\n\0\x1a\\q\\%")),
        ("'say \"\"'", TextLiteral('say ""')),
        ('"say ""it"" \'\'"', TextLiteral("say \"it\" ''")),
        ("'one' 'two'", TextLiteral("onetwo")),
        ("_UTF8MB4'dflt'", TextLiteral("dflt", "utf8mb4")),
        ("_binary 'x'", TextLiteral("x", "binary")),
        ("N'x'", TextLiteral("x", "utf8")),
        ("'-- no comment # /* */ /*! */'", TextLiteral("-- no comment # /* */ /*! */")),
        ("DATE '2024-02-29'", TextLiteral("2024-02-29")),
        ("0", number("0")),
        ("-1", number("-1")),
        ("- 1", number("-1")),
        ("+1.50", number("1.50")),
        (".5", number(".5")),
        ("-.5", number("-.5")),
        ("1.", number("1.")),
        ("1e3", number("1e3")),
        ("1.5E-10", number("1.5E-10")),
        ("TRUE", number("1")),
        ("false", number("0")),
        ("NULL", NullLiteral()),
        ("x'00ff'", BytesLiteral(b"\x00\xff")),
        ("X''", BytesLiteral(b"")),
        ("0xABC", BytesLiteral(b"\x0a\xbc")),
        ("b'100000001'", BytesLiteral(b"\x01\x01")),
        ("0b1", BytesLiteral(b"\x01")),
        ("b''", BytesLiteral(b"")),
        ("_utf8mb4 x'41'", BytesLiteral(b"A", "utf8mb4")),
        ("(7)", number("7")),
        ("('x')", TextLiteral("x")),
        ("(1 + 1)", Expression("1 + 1")),
        ("((1))", Expression("(1)")),
        ("(uuid())", Expression("uuid()")),
        ("(concat('(', ')'))", Expression("concat('(', ')')")),
        ("CURRENT_TIMESTAMP", Expression("CURRENT_TIMESTAMP")),
        ("current_timestamp(3)", Expression("current_timestamp(3)")),
        ("NOW(6)", Expression("NOW(6)")),
        ("NEXT VALUE FOR `d`.`s`", Expression("NEXT VALUE FOR `d`.`s`")),
        ("NEXTVAL(s)", Expression("NEXTVAL(s)")),
    ],
)
def test_defaults(default: str, expected: Value) -> None:
    assert column_of(f"VARCHAR(20) DEFAULT {default} NOT NULL COMMENT 'x'") == ColumnDefinition(
        "c", ColumnType("varchar", length=20), nullable=False, default=expected, comment="x"
    )


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("", A),
        ("NULL", ColumnDefinition("a", INT, nullable=True)),
        ("NOT NULL", ColumnDefinition("a", INT, nullable=False)),
        ("PRIMARY KEY", ColumnDefinition("a", INT, primary_key=True)),
        ("KEY", ColumnDefinition("a", INT, primary_key=True)),
        ("UNIQUE", ColumnDefinition("a", INT, unique=True)),
        ("UNIQUE KEY COMMENT 'it''s'", ColumnDefinition("a", INT, unique=True, comment="it's")),
        (
            "NOT NULL AUTO_INCREMENT PRIMARY KEY",
            ColumnDefinition("a", INT, nullable=False, auto_increment=True, primary_key=True),
        ),
        (
            "SERIAL DEFAULT VALUE",
            ColumnDefinition("a", INT, nullable=False, auto_increment=True, unique=True),
        ),
        ("AS (b + (1)) NULL", ColumnDefinition("a", INT, True, generated="virtual", expression="b + (1)")),
        ("GENERATED ALWAYS AS (b) VIRTUAL", ColumnDefinition("a", INT, generated="virtual", expression="b")),
        (
            "GENERATED ALWAYS AS(`b`+1) STORED",
            ColumnDefinition("a", INT, generated="stored", expression="`b`+1"),
        ),
        ("AS (b) PERSISTENT", ColumnDefinition("a", INT, generated="stored", expression="b")),
        ("DEFAULT 1 ON UPDATE NOW(3)", ColumnDefinition("a", INT, default=number("1"), on_update="NOW(3)")),
        ("COLLATE 'UTF8_bin'", ColumnDefinition("a", INT, collation="utf8_bin")),
        ("/*T![auto_rand] AUTO_RANDOM(5) */", A),
        ("AUTO_RANDOM(5, 64) VISIBLE COLUMN_FORMAT FIXED STORAGE DISK", A),
        ("CHECK (a > 0) NOT ENFORCED", A),
        ("CONSTRAINT x CHECK (a > ')') NOT NULL", ColumnDefinition("a", INT, nullable=False)),
        ("REFERENCES p (id) MATCH FULL ON DELETE SET NULL ON UPDATE NO ACTION", A),
        ("PRIMARY KEY /*T![clustered_index] NONCLUSTERED */", ColumnDefinition("a", INT, primary_key=True)),
        ("ENGINE_ATTRIBUTE '{}' NOT SECONDARY", A),
        ("COMPRESSED = zlib INVISIBLE", A),
        ("COMPRESSED AUTO_RANDOM", A),
    ],
)
def test_attributes(attributes: str, expected: ColumnDefinition) -> None:
    check(f"ALTER TABLE t MODIFY COLUMN a INT {attributes}", ModifyColumn(T, expected))


def test_serial_is_a_type_of_many_attributes() -> None:
    assert column_of("SERIAL") == ColumnDefinition(
        "c", ColumnType("bigint", unsigned=True), nullable=False, unique=True, auto_increment=True
    )


# --- Tables ---


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE TABLE t (a INT)", CreateTable(T, (A,))),
        ("CREATE TABLE IF NOT EXISTS d.t (a INT)", CreateTable(DT, (A,), if_not_exists=True)),
        ("CREATE TEMPORARY TABLE t (a INT)", CreateTable(T, (A,), temporary=True)),
        (
            "CREATE GLOBAL TEMPORARY TABLE t (a INT) ON COMMIT DELETE ROWS",
            CreateTable(T, (A,), temporary=True),
        ),
        (
            "CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b DESC) USING BTREE)",
            CreateTable(T, (A, B), PrimaryKey(key("a", "b")), keys=(PrimaryKey(key("a", "b")),)),
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY, b INT UNIQUE)",
            CreateTable(
                T,
                (ColumnDefinition("a", INT, primary_key=True), ColumnDefinition("b", INT, unique=True)),
                PrimaryKey(key("a")),
                (UniqueKey(None, key("b")),),
                keys=(PrimaryKey(key("a")), UniqueKey(None, key("b"))),
            ),
        ),
        (
            "CREATE TABLE t (a INT, CONSTRAINT c UNIQUE (a), UNIQUE KEY u (a(3), (b + 1)), KEY k (a),"
            " CHECK (a > 1),"
            " CONSTRAINT f FOREIGN KEY (a) REFERENCES p (a), FULLTEXT INDEX ft (a) WITH PARSER ngram)",
            CreateTable(
                T,
                (A,),
                None,
                (UniqueKey("c", key("a")), UniqueKey("u", (KeyPart("a", 3), KeyPart(None, None, "b + 1")))),
                keys=(
                    UniqueKey("c", key("a")),
                    UniqueKey("u", (KeyPart("a", 3), KeyPart(None, None, "b + 1"))),
                    index("k", "a"),
                    IndexKey("ft", key("a"), "fulltext"),
                ),
            ),
        ),
        (
            "CREATE TABLE t (a INT) ENGINE=InnoDB, AUTO_INCREMENT = 5 DEFAULT CHARSET=UTF8MB4 COLLATE"
            " utf8mb4_bin"
            " COMMENT='c' ROW_FORMAT=DYNAMIC UNION=(x, y) STATS_PERSISTENT=0;",
            CreateTable(T, (A,), charset="utf8mb4", comment="c", collation="utf8mb4_bin"),
        ),
        ("CREATE TABLE t (a INT) START TRANSACTION", CreateTable(T, (A,))),
        (
            "CREATE TABLE t (vector INT, columnar INT)",
            CreateTable(T, (ColumnDefinition("vector", INT), ColumnDefinition("columnar", INT))),
        ),
        (
            "CREATE TABLE t (a INT, VECTOR INDEX v ((VEC_L2_DISTANCE(a))) USING HNSW)",
            CreateTable(T, (A,), keys=(IndexKey("v", (KeyPart(None, expression="VEC_L2_DISTANCE(a)"),)),)),
        ),
        ("CREATE TABLE t LIKE d.t", CreateTableLike(T, DT)),
        ("CREATE TEMPORARY TABLE IF NOT EXISTS t (LIKE d.t)", CreateTableLike(T, DT, True, True)),
        ("CREATE TABLE t AS SELECT 1", CreateTableAsSelect(CreateTable(T, ()))),
        ("CREATE TABLE t SELECT a FROM (SELECT 1 AS a) x", CreateTableAsSelect(CreateTable(T, ()), ("a",))),
        ("CREATE TABLE t (SELECT 1)", CreateTableAsSelect(CreateTable(T, ()))),
        ("CREATE TABLE t (a INT) IGNORE SELECT b FROM x", CreateTableAsSelect(CreateTable(T, (A,)), ("b",))),
        (
            "CREATE TABLE t (UNIQUE (a)) REPLACE AS WITH x AS (SELECT 1) SELECT * FROM x",
            CreateTableAsSelect(
                CreateTable(T, (), None, (UniqueKey(None, key("a")),), keys=(UniqueKey(None, key("a")),))
            ),
        ),
    ],
)
def test_create_table(statement: str, expected: Clause) -> None:
    check(statement, expected)


def test_or_replace_drops_first() -> None:
    check("CREATE OR REPLACE TABLE t (a INT)", DropTable(T, if_exists=True), CreateTable(T, (A,)))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DROP TABLE t", [DropTable(T)]),
        ("DROP TABLE IF EXISTS `t`, `d`.`t` CASCADE", [DropTable(T, True), DropTable(DT, True)]),
        ("DROP TABLES t /* generated by server */", [DropTable(T)]),
        ("DROP /*!40005 TEMPORARY */ TABLE IF EXISTS t", [DropTable(T, True, True)]),
        ("TRUNCATE TABLE d.t", [TruncateTable(DT)]),
        ("truncate t", [TruncateTable(T)]),
        ("RENAME TABLE t TO d.t", [RenameTable(T, DT)]),
        (
            "RENAME TABLE a TO c, b TO a, c TO b",
            [
                RenameTable(TableName(None, "a"), TableName(None, "c")),
                RenameTable(TableName(None, "b"), TableName(None, "a")),
                RenameTable(TableName(None, "c"), TableName(None, "b")),
            ],
        ),
        ("ALTER TABLE t RENAME TO d.t", [RenameTable(T, DT, altering=True)]),
        ("ALTER TABLE t RENAME AS `d`.`t`", [RenameTable(T, DT, altering=True)]),
        ("ALTER TABLE t RENAME = d.t", [RenameTable(T, DT, altering=True)]),
        ("ALTER TABLE t RENAME d.t", [RenameTable(T, DT, altering=True)]),
        ("ALTER TABLE t DROP a, RENAME u", [DropColumn(T, "a"), RenameTable(T, TableName(None, "u"), altering=True)]),
        ("RECOVER TABLE t", [RecoverTable(T)]),
        ("RECOVER TABLE t 2", [RecoverTable(T)]),
        ("RECOVER TABLE BY JOB 53", [RecoverTable(None)]),
        ("FLASHBACK TABLE d.t TO u", [RecoverTable(DT, "u")]),
        ("FLASHBACK TABLE t, d.t TO TIMESTAMP '2024-01-01'", [Flashback("table", tables=(T, DT))]),
        ("FLASHBACK DATABASE d TO e", [Flashback("database", "d")]),
        ("FLASHBACK CLUSTER TO TSO 400036290571534337", [Flashback("cluster")]),
    ],
)
def test_whole_tables(statement: str, expected: list[Clause]) -> None:
    check(statement, *expected)


# --- Keys, indexes, constraints ---


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "ALTER TABLE t ADD PRIMARY KEY (a, b(10))",
            AddPrimaryKey(T, PrimaryKey((KeyPart("a"), KeyPart("b", 10)))),
        ),
        (
            "ALTER TABLE t ADD CONSTRAINT pk PRIMARY KEY USING BTREE (a)",
            AddPrimaryKey(T, PrimaryKey(key("a"))),
        ),
        (
            "ALTER TABLE t ADD PRIMARY KEY(`a`) /*T![clustered_index] NONCLUSTERED */",
            AddPrimaryKey(T, PrimaryKey(key("a"))),
        ),
        ("ALTER TABLE t DROP PRIMARY KEY", DropPrimaryKey(T)),
        ("ALTER TABLE t ADD UNIQUE (a)", AddUniqueKey(T, UniqueKey(None, key("a")))),
        ("ALTER TABLE t ADD UNIQUE `u`(`a`, `b`)", AddUniqueKey(T, UniqueKey("u", key("a", "b")))),
        ("ALTER TABLE t ADD CONSTRAINT c UNIQUE INDEX u (a)", AddUniqueKey(T, UniqueKey("u", key("a")))),
        ("ALTER TABLE t ADD UNIQUE KEY IF NOT EXISTS u (a)", AddUniqueKey(T, UniqueKey("u", key("a")))),
        ("ALTER TABLE t ADD INDEX i (a) USING BTREE COMMENT 'x' INVISIBLE", AddIndex(T, index("i", "a"))),
        ("ALTER TABLE t ADD INDEX(a)", AddIndex(T, index(None, "a"))),
        ("ALTER TABLE t ADD KEY i USING HASH (a DESC)", AddIndex(T, index("i", "a"))),
        ("ALTER TABLE t ADD FULLTEXT f (a)", AddIndex(T, IndexKey("f", key("a"), "fulltext"))),
        ("ALTER TABLE t ADD SPATIAL KEY s (a)", AddIndex(T, IndexKey("s", key("a"), "spatial"))),
        (
            "ALTER TABLE t ADD INDEX i ((lower(a))) PRE_SPLIT_REGIONS = (BETWEEN (1) AND (9) REGIONS 4)",
            AddIndex(T, IndexKey("i", (KeyPart(None, expression="lower(a)"),))),
        ),
        ("ALTER TABLE t ADD INDEX i (a) NOT IGNORED PRE_SPLIT_REGIONS 4", AddIndex(T, index("i", "a"))),
        ("ALTER TABLE t ADD INDEX i (a) WHERE b IN (1, 2)", AddIndex(T, index("i", "a"))),
        ("CREATE INDEX i ON d.t (a) LOCK = NONE", AddIndex(DT, index("i", "a"))),
        (
            "CREATE UNIQUE INDEX IF NOT EXISTS u USING BTREE ON t (a)",
            AddUniqueKey(T, UniqueKey("u", key("a"))),
        ),
        ("CREATE FULLTEXT INDEX f ON t (a)", AddIndex(T, IndexKey("f", key("a"), "fulltext"))),
        ("DROP INDEX i ON t ALGORITHM INPLACE", DropIndex(T, "i")),
        ("DROP INDEX IF EXISTS i ON `d`.`t`", DropIndex(DT, "i", if_exists=True)),
        ("ALTER TABLE t DROP KEY i", DropIndex(T, "i")),
        ("ALTER TABLE t RENAME INDEX i TO j", RenameIndex(T, "i", "j")),
        ("ALTER TABLE t ALTER INDEX i INVISIBLE", AlterIndex(T, "i")),
        (
            "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES d.p (x) ON DELETE CASCADE",
            ForeignKeyChange(T, "add", None),
        ),
        (
            "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY g (a) REFERENCES p (x)",
            ForeignKeyChange(T, "add", "f"),
        ),
        ("ALTER TABLE t DROP FOREIGN KEY IF EXISTS f", ForeignKeyChange(T, "drop", "f")),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)", ConstraintChange(T, "add", "c")),
        ("ALTER TABLE t ADD CHECK (a > 0) ENFORCED", ConstraintChange(T, "add", None)),
        ("ALTER TABLE t DROP CHECK c", ConstraintChange(T, "drop", "c")),
        ("ALTER TABLE t DROP CONSTRAINT c", ConstraintChange(T, "drop", "c")),
        ("ALTER TABLE t ALTER CHECK c NOT ENFORCED", ConstraintChange(T, "alter", "c")),
    ],
)
def test_keys(statement: str, expected: Clause) -> None:
    check(statement, expected)


def test_a_primary_key_can_go_under_another_word() -> None:
    (index,) = parse("DROP INDEX `PRIMARY` ON t")
    (constraint,) = parse("ALTER TABLE t DROP CONSTRAINT `primary`")
    assert isinstance(index, DropIndex) and index.drops_primary_key
    assert isinstance(constraint, ConstraintChange) and constraint.drops_primary_key
    assert not ConstraintChange(T, "add", "primary").drops_primary_key


def test_key_columns() -> None:
    unique = UniqueKey("u", (KeyPart("a", 3), KeyPart(None, None, "b + 1")))
    assert unique.columns == ("a",) and unique.has_expression
    assert PrimaryKey(key("a", "b")).columns == ("a", "b")


def test_a_table_prints_as_its_name() -> None:
    assert (str(T), str(DT)) == ("t", "d.t")


def test_a_table_from_a_query_is_a_table() -> None:
    (clause,) = parse("CREATE TEMPORARY TABLE d.t AS SELECT 1")
    assert isinstance(clause, CreateTableAsSelect)
    assert (clause.table, clause.temporary) == (DT, True)


# --- Partitions ---

RANGE = Partitioning(
    "range", "`a`", ("a",), None,
    (Partition("p0", LessThan((number("10"),))), Partition("pm", LessThan((MaxValue(),)))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (
            "RANGE (`a`) (PARTITION `p0` VALUES LESS THAN (10),PARTITION `pm` VALUES LESS THAN (MAXVALUE))",
            RANGE,
        ),
        (
            "RANGE (`a`) (PARTITION p0 VALUES LESS THAN (10) ENGINE = InnoDB, PARTITION pm VALUES LESS THAN MAXVALUE)",
            RANGE,
        ),
        (
            "RANGE (TO_DAYS(a)) (PARTITION p VALUES LESS THAN (TO_DAYS('2024-01-01')) COMMENT 'x')",
            Partitioning(
                "range",
                "TO_DAYS(a)",
                (),
                None,
                (Partition("p", LessThan((Expression("TO_DAYS('2024-01-01')"),))),),
            ),
        ),
        (
            "RANGE COLUMNS(a, `b c`) (PARTITION p VALUES LESS THAN (-5, 'x'), PARTITION q VALUES LESS THAN"
            " (1, MAXVALUE))",
            Partitioning(
                "range columns",
                "a, `b c`",
                ("a", "b c"),
                None,
                (
                    Partition("p", LessThan((number("-5"), TextLiteral("x")))),
                    Partition("q", LessThan((number("1"), MaxValue()))),
                ),
            ),
        ),
        (
            "LIST (a) (PARTITION p VALUES IN (1, NULL, 1 + 1), PARTITION q DEFAULT, PARTITION r VALUES IN"
            " (5, DEFAULT))",
            Partitioning(
                "list",
                "a",
                ("a",),
                None,
                (
                    Partition("p", InValues(((number("1"),), (NullLiteral(),), (Expression("1 + 1"),)))),
                    Partition("q", InValues(((DefaultValue(),),))),
                    Partition("r", InValues(((number("5"),), (DefaultValue(),)))),
                ),
            ),
        ),
        (
            "LIST COLUMNS (a, b) (PARTITION p VALUES IN ((1, 'x'), (2, NULL)))",
            Partitioning(
                "list columns",
                "a, b",
                ("a", "b"),
                None,
                (Partition("p", InValues(((number("1"), TextLiteral("x")), (number("2"), NullLiteral())))),),
            ),
        ),
        (
            "LIST (a) (PARTITION p VALUES IN ((1 + 1) * 2))",
            Partitioning("list", "a", ("a",), None, (Partition("p", InValues(((Expression("(1 + 1) * 2"),),))),)),
        ),
        ("HASH (`id`) PARTITIONS 4", Partitioning("hash", "`id`", ("id",), 4)),
        ("LINEAR HASH (YEAR(d))", Partitioning("linear hash", "YEAR(d)")),
        ("LIST (IF(a, b, 1))", Partitioning("list", "IF(a, b, 1)")),
        (
            "RANGE (a) INTERVAL (1 MONTH) NULL PARTITION UPDATE INDEXES (i GLOBAL)",
            Partitioning("range", "a", ("a",), interval="INTERVAL (1 MONTH) NULL PARTITION"),
        ),
        ("KEY () PARTITIONS 2", Partitioning("key", "", (), 2)),
        ("LINEAR KEY ALGORITHM=2 (a, b)", Partitioning("linear key", "a, b", ("a", "b"))),
        (
            "HASH (a) (PARTITION x, PARTITION y)",
            Partitioning("hash", "a", ("a",), None, (Partition("x"), Partition("y"))),
        ),
        (
            "RANGE (a) SUBPARTITION BY HASH (b) SUBPARTITIONS 2"
            " (PARTITION p VALUES LESS THAN (1) (SUBPARTITION s0, SUBPARTITION s1 ENGINE = InnoDB))",
            Partitioning("range", "a", ("a",), None, (Partition("p", LessThan((number("1"),)), 2),), 2),
        ),
        (
            "RANGE (a) INTERVAL (100) FIRST PARTITION LESS THAN (100) LAST PARTITION LESS THAN (900)",
            Partitioning(
                "range",
                "a",
                ("a",),
                interval="INTERVAL (100) FIRST PARTITION LESS THAN (100) LAST PARTITION LESS THAN (900)",
            ),
        ),
    ],
)
def test_partition_by(definition: str, expected: Partitioning) -> None:
    check(f"ALTER TABLE t PARTITION BY {definition}", PartitionBy(T, expected))
    assert created(f"CREATE TABLE t (a INT) /*!50100 PARTITION BY {definition} */").partitioning == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN (9))",
            AddPartitions(T, (Partition("p", LessThan((number("9"),))),)),
        ),
        (
            "ALTER TABLE t ADD PARTITION IF NOT EXISTS (PARTITION p VALUES IN ((1,'a')))",
            AddPartitions(T, (Partition("p", InValues(((number("1"), TextLiteral("a")),))),), None, True),
        ),
        ("ALTER TABLE t ADD PARTITION PARTITIONS 6", AddPartitions(T, count=6)),
        ("ALTER TABLE t ADD PARTITION NO_WRITE_TO_BINLOG PARTITIONS 6", AddPartitions(T, count=6)),
        ("ALTER TABLE t DROP PARTITION p, `q`", DropPartitions(T, ("p", "q"))),
        ("ALTER TABLE t DROP PARTITION IF EXISTS p", DropPartitions(T, ("p",), if_exists=True)),
        ("ALTER TABLE t TRUNCATE PARTITION p, q", TruncatePartitions(T, ("p", "q"))),
        ("ALTER TABLE t TRUNCATE PARTITION ALL", TruncatePartitions(T, None)),
        (
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE d.t WITHOUT VALIDATION",
            ExchangePartition(T, "p", DT),
        ),
        (
            "ALTER TABLE t REORGANIZE PARTITION p, q INTO (PARTITION r VALUES LESS THAN (9))",
            ReorganizePartitions(T, ("p", "q"), (Partition("r", LessThan((number("9"),))),)),
        ),
        ("ALTER TABLE t REORGANIZE PARTITION", ReorganizePartitions(T)),
        ("ALTER TABLE t COALESCE PARTITION 3", CoalescePartitions(T, 3)),
        ("ALTER TABLE t REMOVE PARTITIONING", RemovePartitioning(T)),
        ("ALTER TABLE t REBUILD PARTITION ALL", MaintainPartitions(T, "rebuild")),
        ("ALTER TABLE t ANALYZE PARTITION LOCAL p, q", MaintainPartitions(T, "analyze")),
        ("ALTER TABLE t REPAIR PARTITION LOCAL p QUICK", MaintainPartitions(T, "repair")),
        ("ALTER TABLE t ANALYZE PARTITION p INDEX i WITH 4 BUCKETS", MaintainPartitions(T, "analyze")),
        ("ALTER TABLE t IMPORT PARTITION p TABLESPACE", MaintainPartitions(T, "import")),
        ("ALTER TABLE t DISCARD TABLESPACE", MaintainPartitions(T, "discard")),
    ],
)
def test_partitions_of_a_table_change(statement: str, expected: Clause) -> None:
    check(statement, expected)


def test_partition_clauses_need_no_comma() -> None:
    check("ALTER TABLE t MODIFY a INT REMOVE PARTITIONING", ModifyColumn(T, A), RemovePartitioning(T))
    check(
        "ALTER TABLE t ADD a INT PARTITION BY HASH (a)",
        AddColumn(T, A),
        PartitionBy(T, Partitioning("hash", "a", ("a",))),
    )


# --- Options and the rest ---


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t COMMENT = 'it''s'", [SetTableComment(T, "it's")]),
        ("ALTER TABLE t COMMENT ''", [SetTableComment(T, "")]),
        (
            "ALTER TABLE t DEFAULT CHARACTER SET = UTF8 COLLATE = utf8_bin",
            [SetTableCharset(T, "utf8", "utf8_bin")],
        ),
        ("ALTER TABLE t COLLATE utf8mb4_bin", [SetTableCharset(T, None, "utf8mb4_bin")]),
        ("ALTER TABLE t CONVERT TO CHARSET binary", [SetTableCharset(T, "binary", None, convert=True)]),
        ("ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT", [SetTableCharset(T, convert=True)]),
        ("ALTER TABLE t FORCE AUTO_INCREMENT = 12", [SetAutoIncrement(T)]),
        ("ALTER TABLE t ENGINE = InnoDB", [TableOption(T, "engine")]),
        ("ALTER TABLE t FORCE", [TableOption(T, "force")]),
        ("ALTER TABLE t DISABLE KEYS", [TableOption(T, "keys")]),
        ("ALTER TABLE t ORDER BY a, b DESC", [TableOption(T, "order by")]),
        ("ALTER TABLE t READ ONLY", [TableOption(T, "read")]),
        ("ALTER TABLE t ADD STATS_EXTENDED s CORRELATION (a, b)", [TableOption(T, "stats_extended")]),
        (
            "ALTER TABLE t ENGINE=x ROW_FORMAT=y, DROP a",
            [TableOption(T, "engine"), TableOption(T, "row_format"), DropColumn(T, "a")],
        ),
        ("ALTER TABLE t SET TIFLASH REPLICA 2 LOCATION LABELS 'a', 'b'", [Placement(T, "tiflash replica")]),
        (
            "ALTER TABLE t TTL = `ts` + INTERVAL 1 DAY TTL_ENABLE = 'OFF'",
            [Placement(T, "ttl"), Placement(T, "ttl_enable")],
        ),
        ("ALTER TABLE t REMOVE TTL", [Placement(T, "ttl")]),
        ("ALTER TABLE t CACHE", [Placement(T, "cache")]),
        ("ALTER TABLE t ATTRIBUTES = DEFAULT", [Placement(T, "attributes")]),
        ("ALTER TABLE t /*T![placement] PLACEMENT POLICY = `p` */", [Placement(T, "placement policy")]),
        ("ALTER TABLE t PARTITION p ATTRIBUTES 'x'", [Placement(T, "partition")]),
        (
            "ALTER TABLE t ADD a INT PARTITION p PLACEMENT POLICY x",
            [AddColumn(T, A), Placement(T, "partition")],
        ),
        ("ALTER TABLE t COMPACT PARTITION p TIFLASH REPLICA", [Placement(T, "compact")]),
        (
            "ALTER TABLE t ALTER PARTITION p ADD PLACEMENT POLICY CONSTRAINTS='x' REPLICAS=1, DROP a",
            [Placement(T, "placement policy"), DropColumn(T, "a")],
        ),
        ("ALTER TABLE t ADD PLACEMENT POLICY ROLE=voter", [Placement(T, "placement policy")]),
        ("ALTER TABLE t DROP PLACEMENT POLICY ROLE=voter", [Placement(T, "placement policy")]),
        (
            "ALTER TABLE t SET TIFLASH REPLICA 1 LOCATION LABELS 'x', DROP a",
            [Placement(T, "tiflash replica"), DropColumn(T, "a")],
        ),
        ("ALTER TABLE t SET HYPO TIFLASH REPLICA 1", [Placement(T, "tiflash replica")]),
        ("ALTER TABLE t COMPACT", [Placement(T, "compact")]),
        ("ALTER TABLE t DROP STATS_EXTENDED IF EXISTS s", [TableOption(T, "stats_extended")]),
        ("CREATE OR REPLACE SEQUENCE s CACHE 5", [Sequence("create")]),
        ("CREATE DEFINER = u@h SQL SECURITY INVOKER VIEW t AS SELECT 1", [CreateView(T)]),
        ("CREATE PLACEMENT POLICY p FOLLOWERS = 4", [Placement(None, "placement policy")]),
        ("CREATE DATABASE `d`", [CreateDatabase("d")]),
        ("USE `d e`;", [UseDatabase("d e")]),
        (
            "CREATE SCHEMA IF NOT EXISTS d DEFAULT CHARACTER SET = utf8",
            [CreateDatabase("d", if_not_exists=True, charset="utf8")],
        ),
        ("DROP DATABASE IF EXISTS d", [DropDatabase("d", if_exists=True)]),
        ("ALTER DATABASE d COLLATE utf8_bin", [AlterDatabase("d", collation="utf8_bin")]),
        ("ALTER SCHEMA CHARACTER SET utf8", [AlterDatabase(None, charset="utf8")]),
        ("CREATE VIEW d.t AS SELECT 1", [CreateView(DT)]),
        (
            "CREATE OR REPLACE ALGORITHM = MERGE DEFINER = `u`@`%` SQL SECURITY INVOKER VIEW t (a, b) AS (SELECT 1, 2)",
            [CreateView(T, or_replace=True)],
        ),
        ("ALTER DEFINER = CURRENT_USER() VIEW t AS SELECT ';'", [CreateView(T, or_replace=True)]),
        ("DROP VIEW IF EXISTS t, d.t", [DropView(T, True), DropView(DT, True)]),
        ("CREATE SEQUENCE s START WITH 1", [Sequence("create")]),
        ("DROP SEQUENCE s, r", [Sequence("drop")]),
        ("CREATE USER 'u'@'%' IDENTIFIED BY 'x'", [OtherStatement("create user")]),
        ("GRANT ALL ON *.* TO u", [OtherStatement("grant")]),
        ("DROP TRIGGER IF EXISTS x", [OtherStatement("drop trigger")]),
        (
            "CREATE DEFINER=`u`@`h` PROCEDURE p() BEGIN DROP TABLE t; ALTER TABLE t DROP a; END",
            [OtherStatement("create procedure")],
        ),
    ],
)
def test_options_and_other_statements(statement: str, expected: list[Clause]) -> None:
    check(statement, *expected)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "ALGORITHM = INSTANT",
        "LOCK NONE, ALGORITHM=COPY",
        "WITH VALIDATION",
        "WITHOUT VALIDATION, LOCK = NONE",
    ],
)
def test_how_a_statement_runs_is_no_clause(options: str) -> None:
    check(f"ALTER TABLE t {options}")
    if options:
        check(f"ALTER TABLE t {options}, DROP a", DropColumn(T, "a"))
        check(f"ALTER TABLE t DROP a, {options}", DropColumn(T, "a"))


# --- Comments, quotes, names ---


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
    check(statement, AddColumn(T, A))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("`a b`", TableName(None, "a b")),
        ("`a``b`", TableName(None, "a`b")),
        ('`a"b`', TableName(None, 'a"b')),
        (r"`a\`", TableName(None, "a\\")),
        ("`/* x */`", TableName(None, "/* x */")),
        ("`--`.`#`", TableName("--", "#")),
        ("`dot.ted`", TableName(None, "dot.ted")),
        ("``", TableName(None, "")),
        ("d.t", DT),
        ("d . t", DT),
        ("`d`\n.\n`t`", DT),
        ('"d"."t"', DT),
        ('"a""b"', TableName(None, 'a"b')),
        ("1a", TableName(None, "1a")),
        ("1a.2b", TableName("1a", "2b")),
        ("d.123", TableName("d", "123")),
        ("d.1e5", TableName("d", "1e5")),
        ("d.table", TableName("d", "table")),
        ("0xyz", TableName(None, "0xyz")),
        ("$a_b$", TableName(None, "$a_b$")),
        ("_utf8", TableName(None, "_utf8")),
        ("x", TableName(None, "x")),
        ("表.naïve", TableName("表", "naïve")),
        ("`😀`", TableName(None, "😀")),
        ("`select`.`table`", TableName("select", "table")),
        ("comment", TableName(None, "comment")),
        ("\u017felect", TableName(None, "\u017felect")),
    ],
)
def test_names(written: str, name: TableName) -> None:
    check(f"DROP TABLE {written}", DropTable(name))


def test_ansi_quotes_enclose_names_everywhere() -> None:
    statement = r"""ALTER TABLE "a\" ADD "x""y" INT COMMENT 'it''s "\\"' """
    (clause,) = parse(statement, ansi_quotes=True)
    assert clause == AddColumn(
        TableName(None, "a\\"), ColumnDefinition('x"y', INT, comment='it\'s "\\"')
    )  # fmt: skip
    with pytest.raises(DdlSyntaxError, match="expected a value"):
        parse('ALTER TABLE t ADD a INT DEFAULT "x"', ansi_quotes=True)


@pytest.mark.parametrize("ansi_quotes", [False, True])
def test_backslashes_are_themselves_where_they_do_not_escape(ansi_quotes: bool) -> None:
    # TiCDC re-prints DEFAULT 'C:\\' as this: one backslash, then the closing quote.
    statement = r"ALTER TABLE t ADD a VARCHAR(9) DEFAULT _UTF8MB4'C:\' COMMENT '\n''s'"
    (clause,) = parse(statement, ansi_quotes=ansi_quotes, backslash_escapes=False)
    assert isinstance(clause, AddColumn)
    assert (clause.column.default, clause.column.comment) == (TextLiteral("C:\\", "utf8mb4"), r"\n's")
    with pytest.raises(DdlSyntaxError):
        parse(statement)


# --- What TiCDC prints ---


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("RENAME TABLE `d`.`a` TO `d`.`t`;", [RenameTable(TableName("d", "a"), DT)]),
        ("ALTER TABLE `a` RENAME AS `t`", [RenameTable(TableName(None, "a"), T, altering=True)]),
        ("DROP TABLE `d`.`t`", [DropTable(DT)]),
        ("TRUNCATE TABLE `t`", [TruncateTable(T)]),
        (
            "CREATE DATABASE `d` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin",
            [CreateDatabase("d", False, "utf8mb4", "utf8mb4_bin")],
        ),
        ("CREATE TABLE `t` LIKE `d`.`t`", [CreateTableLike(T, DT)]),
        ("ALTER TABLE `t` ADD COLUMN `a` INT, DROP COLUMN `b`", [AddColumn(T, A), DropColumn(T, "b")]),
        ("ALTER TABLE `t` ADD COLUMN (`a` INT, `b` INT)", [AddColumn(T, A), AddColumn(T, B)]),
        (
            "ALTER TABLE `t` ALTER COLUMN `a` SET DEFAULT _UTF8MB4'x'",
            [SetColumnDefault(T, "a", TextLiteral("x", "utf8mb4"))],
        ),
        (
            "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4 COLLATE UTF8MB4_BIN",
            [SetTableCharset(T, "utf8mb4", "utf8mb4_bin", True)],
        ),
        (
            "ALTER TABLE `t` ADD CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `p`(`id`) ON DELETE CASCADE",
            [ForeignKeyChange(T, "add", "f")],
        ),
        (
            "CREATE UNIQUE INDEX `u` ON `d`.`t` (`a`, `b`(3))",
            [AddUniqueKey(DT, UniqueKey("u", (KeyPart("a"), KeyPart("b", 3))))],
        ),
        (
            "ALTER TABLE `d`.`t` EXCHANGE PARTITION `p` WITH TABLE `t` WITHOUT VALIDATION",
            [ExchangePartition(DT, "p", T)],
        ),
        ("ALTER TABLE `t` /*T![ttl] REMOVE TTL */", [Placement(T, "ttl")]),
        ("ALTER TABLE `t` /*T![auto_id_cache] AUTO_ID_CACHE = 1 */", [Placement(T, "auto_id_cache")]),
        (
            "CREATE ALGORITHM = UNDEFINED DEFINER = `root`@`%` SQL SECURITY DEFINER VIEW `d`.`t` AS SELECT"
            " `a` FROM `x`",
            [CreateView(DT)],
        ),
        (
            "CREATE TABLE `d`.`t` (`a` BIGINT NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */,`e`"
            " ENUM('x','y''z') DEFAULT"
            " _UTF8MB4'x',`s` DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),`g`"
            " INT GENERATED"
            " ALWAYS AS(`a`+1) VIRTUAL,PRIMARY KEY(`a`) /*T![clustered_index] CLUSTERED */,UNIQUE"
            " `u`(`e`)) DEFAULT"
            " CHARACTER SET = UTF8MB4 /*T![ttl] TTL = `s` + INTERVAL 3 MONTH */ /*T![ttl] TTL_ENABLE ="
            " 'OFF' */",
            [
                CreateTable(
                    DT,
                    (
                        ColumnDefinition("a", ColumnType("bigint"), nullable=False),
                        ColumnDefinition(
                            "e",
                            ColumnType("enum", elements=("x", "y'z")),
                            default=TextLiteral("x", "utf8mb4"),
                        ),
                        ColumnDefinition(
                            "s",
                            ColumnType("datetime", scale=3),
                            default=Expression("CURRENT_TIMESTAMP(3)"),
                            on_update="CURRENT_TIMESTAMP(3)",
                        ),
                        ColumnDefinition("g", INT, generated="virtual", expression="`a`+1"),
                    ),
                    PrimaryKey(key("a")),
                    (UniqueKey("u", key("e")),),
                    charset="utf8mb4",
                    keys=(PrimaryKey(key("a")), UniqueKey("u", key("e"))),
                )
            ],
        ),
    ],
)
def test_what_ticdc_prints(query: str, expected: list[Clause]) -> None:
    check(query, *expected)
    assert parse(query, backslash_escapes=False) == tuple(expected)


# --- Errors ---


@pytest.mark.parametrize(
    ("statement", "offset", "reason"),
    [
        ("", 0, "expected a DDL statement, found the end"),
        (";", 0, "expected a DDL statement"),
        ("INSERT INTO t VALUES (1)", 0, "expected a DDL statement"),
        ("ALTER", 5, "expected what is altered, found the end"),
        ("ALTER TABLE", 11, "expected a table, found the end"),
        ("`ALTER` TABLE t", 0, "expected a DDL statement"),
        ("ALTER TABLE 't' ADD a INT", 12, "expected a table, found \"'t'\""),
        ("ALTER TABLE 123 ADD a INT", 12, "expected a table"),
        ("ALTER TABLE t ADD", 17, "expected a column"),
        ("ALTER TABLE t ADD a", 19, "expected a column type, found the end"),
        ("ALTER TABLE t ADD a STRING", 20, "expected a column type, found 'STRING'"),
        ("ALTER TABLE t DROP PRIMARY", 19, "expected a column, found 'PRIMARY'"),
        ("ALTER TABLE t ADD table INT", 18, "expected a column, found 'table'"),
        ("DROP TABLE IF", 11, "expected a table, found 'IF'"),
        ("ALTER TABLE t ADD a INT b INT", 24, "expected a comma or the end, found 'b'"),
        ("ALTER TABLE t ADD a INT,", 24, "expected an ALTER TABLE clause"),
        ("ALTER TABLE t ADD a INT, , DROP b", 25, "expected an ALTER TABLE clause"),
        ("ALTER TABLE t ADD a INT; DROP TABLE t", 25, "expected the end, found 'DROP'"),
        ("ALTER TABLE t ADD a VARCHAR(x)", 28, "expected a number"),
        ("ALTER TABLE t ADD a VARCHAR(999999999999999999999)", 28, "expected a number"),
        ("ALTER TABLE t ADD a INT DEFAULT", 31, "expected a value"),
        ("ALTER TABLE t ADD a INT DEFAULT ()", 34, "an expression is missing"),
        ("ALTER TABLE t ADD a INT DEFAULT b", 32, "expected a value"),
        ("ALTER TABLE t ADD a INT DEFAULT (1", 34, "expected more, found the end"),
        ("ALTER TABLE t ADD a INT DEFAULT 'x", 32, "this quote is not closed"),
        ("ALTER TABLE t ADD a INT DEFAULT x'123'", 32, "this is not a hexadecimal or bit literal"),
        ("ALTER TABLE t ADD a INT DEFAULT b'12'", 32, "this is not a hexadecimal or bit literal"),
        ("ALTER TABLE t ADD a INT /* x", 24, "this comment is not closed"),
        ("ALTER TABLE t /*!50100 ADD a INT", 14, "this comment is not closed"),
        ("ALTER TABLE t ADD a INT */", 24, "no comment is open here"),
        ("ALTER TABLE t ADD a INT\u00a0NULL", 23, "unexpected text"),
        ("ALTER TABLE t ADD a INT\u3000", 23, "unexpected text"),
        ("ALTER TABLE t ADD a INT \x00", 24, "unexpected text"),
        ("ALTER TABLE t ADD a INT DEFAULT _utf8mb4", 32, "expected a value"),
        ("ALTER TABLE t ADD a INT COMMENT x", 32, "expected a string"),
        ("ALTER TABLE t ADD INDEX i (a) WHERE", 35, "expected a condition"),
        ("ALTER TABLE t CONVERT TO utf8", 25, "expected CHARACTER SET"),
        ("ALTER TABLE t ANALYZE PARTITION p, DROP a", 35, "expected a partition, found 'DROP'"),
        ("ALTER TABLE t ADD a INT {{ x }}", 24, "expected a comma or the end, found '{'"),
        ("ALTER TABLE t FIRST PARTITION LESS THAN (5)", 14, "expected an ALTER TABLE clause"),
        ("ALTER TABLE t PARTITION BY MAGIC (a)", 27, "expected RANGE, LIST, HASH or KEY"),
        (
            "ALTER TABLE t PARTITION BY RANGE () (PARTITION p VALUES LESS THAN (1))",
            36,
            "an expression is missing",
        ),
        ("ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN ())", 59, "expected a value"),
        ("ALTER TABLE t ADD CONSTRAINT c (a)", 31, "expected PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK"),
        ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p ON DELETE MAYBE", 57, "expected RESTRICT"),
        ("ALTER TABLE t ENGINE =", 22, "expected a value"),
        ("CREATE TABLE t ()", 16, "expected a column"),
        ("CREATE TABLE t (a INT", 21, "expected ), found the end"),
        ("CREATE TABLE t (a INT),", 23, "expected a table option"),
        ("CREATE TABLE t (a INT) AS", 25, "expected a query"),
        ("CREATE TABLE t (a INT) MAGIC = 1", 23, "expected the end"),
        ("CREATE VIEW t", 13, "expected AS"),
        ("CREATE VIEW t AS", 16, "expected more"),
        ("CREATE VIEW t AS SELECT 1)", 25, "expected no closing parenthesis"),
        ("CREATE MAGIC t", 7, "expected what is created"),
        ("DROP INDEX i", 12, "expected ON"),
        ("DROP MAGIC t", 5, "expected what is dropped"),
        ("RENAME TABLE a b", 15, "expected TO"),
        ("FLASHBACK TABLE a, b TO c", 21, "expected TO TIMESTAMP"),
        ("FLASHBACK CLUSTER", 17, "expected TO TIMESTAMP or TO TSO"),
    ],
)
def test_what_is_not_understood_is_an_error_with_its_place(statement: str, offset: int, reason: str) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse(statement)
    assert reason in caught.value.message
    assert caught.value.offset == offset


def test_an_error_knows_line_and_column() -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse("ALTER TABLE t\n  ADD a INT,\n  ADD ?")
    error = caught.value
    assert (error.offset, error.statement_line, error.statement_column, error.line) == (33, 3, 7, None)
    assert error.message.startswith("DDL cannot be understood at line 3, column 7: expected a column, found '?', in: ")


def test_an_error_shortens_the_statement() -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse(f"ALTER TABLE t ADD {'x' * 10_000} {'y' * 10_000}")
    assert len(caught.value.statement) < 300
    assert len(str(caught.value)) < 1_000


def test_an_error_survives_pickle() -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse("ALTER TABLE t ADD")
    error = caught.value
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
