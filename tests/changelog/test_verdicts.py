"""One statement has one verdict: with the columns after it, as schema files have them, and from its text alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from cdc_lakehouse.changelog.column_matching import clauses_of
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import server_type_text
from cdc_lakehouse.changelog.observed_schema import Statement, schema_changes
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, TableVersion
from tests.changelog.ddl.cases import cases
from tests.changelog.statements import ADD, CREATE, MODIFY, columns, in_odd_case

TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(9))"
SPEC = "id:bigint:pk a b:varchar"


def from_text(*statements: str) -> list[TableVersion]:
    """As a topic or a Canal server has them."""
    log = [Statement(10 * number, "d", "t", text, f"o{number}") for number, text in enumerate(statements, start=1)]
    return History().apply(schema_changes(log, escapes=True))


def from_file(query: str, after: Sequence[SourceColumn]) -> TableVersion:
    """As a storage sink has it: the columns are the authority, the statement explains them."""
    created = SchemaChange(10, "d", "t", CREATE, TABLE, columns(SPEC), "o1", backslash_escapes=True)
    changed = SchemaChange(20, "d", "t", MODIFY, query, tuple(after), "o2", backslash_escapes=True)
    return History().apply([created, changed])[-1]


Verdict = tuple[str, bool, list[tuple[str, str, bool, bool, str | None]]]


def verdict(version: TableVersion) -> Verdict:
    """Effect, whether the table is held, and of its columns name, type, nullability, key, and what older rows hold."""
    shown = [
        (column.name, server_type_text(column.type), column.nullable, column.id in version.key, column.initial.text)
        for column in version.columns
    ]
    return version.effect, version.hold is not None, shown


OLD = [
    ("id", "bigint(20)", False, True, None),
    ("a", "int(11)", True, False, None),
    ("b", "varchar(9)", True, False, None),
]


# Each is legal where sql_mode lacks NO_ZERO_DATE, in MariaDB, under a collation that tells case, or in a database in
# latin1; none says so itself.
@pytest.mark.parametrize(
    ("definition", "type_text", "nullable", "older"),
    [
        ("DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00'", "datetime", False, "0000-00-00 00:00:00"),
        ("TIMESTAMP NOT NULL DEFAULT 0", "timestamp", False, "0000-00-00 00:00:00"),
        ("DATE NOT NULL DEFAULT '2020-00-00'", "date", False, "2020-00-00"),
        ("TEXT DEFAULT 'x'", "text", True, "x"),
        ("JSON DEFAULT '{}'", "json", True, "{}"),
        ("BLOB NOT NULL DEFAULT ''", "blob", False, ""),
        ("ENUM('a','A')", "enum('a','A')", True, None),
        ("ENUM('a','A') NOT NULL DEFAULT 'A'", "enum('a','A')", False, "A"),
        ("VARCHAR(20000)", "varchar(20000)", True, None),
        ("VARCHAR(65535)", "varchar(65535)", True, None),
        ("INT DEFAULT 'x'", "int(11)", True, "x"),
        ("TINYINT DEFAULT 300", "tinyint(4)", True, "300"),
        ("CHAR(300)", "char(300)", True, None),
        ("VARCHAR(9) CHARACTER SET nope", "varchar(9)", True, None),
    ],
)
def test_what_a_source_accepted_is_carried_out(
    definition: str, type_text: str, nullable: bool, older: str | None
) -> None:
    statement = f"ALTER TABLE t ADD COLUMN c {definition}"
    wanted = ("evolve", False, [*OLD, ("c", type_text, nullable, False, older)])
    made = from_text(TABLE, statement)[-1]
    (clause, *_) = parse(statement)
    assert isinstance(clause, ddl.AddColumn)
    shown = SourceColumn("c", made.columns[-1].type, nullable, default=made.columns[-1].default)
    assert verdict(made) == wanted
    assert verdict(from_file(statement, [*shown_columns(made)[:-1], shown])) == wanted


@pytest.mark.parametrize(
    ("definition", "shown", "default", "older", "in_file"),
    [
        ("BIT(8) DEFAULT 49", "1", "b'110001'", "49", "49"),
        ("BIT(8) DEFAULT 255", "\ufffd", "b'11111111'", "255", "255"),
        (
            "TIMESTAMP DEFAULT '2024-01-01 08:00:00'",
            "2024-01-01 00:00:00",
            "2024-01-01 08:00:00",
            "2024-01-01 08:00:00",
            "2024-01-01 00:00:00+00:00",
        ),
    ],
)
def test_schema_files_have_defaults_in_a_form_of_their_own(
    definition: str, shown: str, default: str, older: str, in_file: str
) -> None:
    statement = f"ALTER TABLE t ADD COLUMN c {definition}"
    made = from_text(TABLE, statement)[-1]
    added = made.columns[-1]
    assert (added.default, added.initial.text) == (default, older)
    after = [*shown_columns(made)[:-1], SourceColumn("c", added.type, default=shown)]
    assert from_file(statement, after).columns[-1].initial.text == in_file


def shown_columns(version: TableVersion) -> tuple[SourceColumn, ...]:
    """The columns as a schema file lists them."""
    return tuple(
        SourceColumn(column.name, column.type, column.nullable, column.id in version.primary_key, column.default)
        for column in version.columns
    )


STATEMENTS = [
    statement for name in ("columns", "keys", "partitions", "others", "tables", "ticdc") for statement, _ in cases(name)
]
# Statements of which topics and schema files cannot say the same, and why.
NOT_COMPARED = {
    **dict.fromkeys(
        (
            "CREATE TEMPORARY TABLE t (a INT)",
            "CREATE GLOBAL TEMPORARY TABLE t (a INT) ON COMMIT DELETE ROWS",
            "CREATE TEMPORARY TABLE IF NOT EXISTS t (LIKE d.t)",
            "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS t",
        ),
        "a temporary table has no schema file",
    ),
    **dict.fromkeys(
        (
            "CREATE TABLE t AS SELECT 1",
            "CREATE TABLE t SELECT a FROM (SELECT 1 AS a) x",
            "CREATE TABLE t (SELECT 1)",
            "CREATE TABLE t (a INT) IGNORE SELECT b FROM x",
            "CREATE TABLE t (UNIQUE (a)) REPLACE AS WITH x AS (SELECT 1) SELECT * FROM x",
        ),
        "the text does not say the columns of the query: the first row does",
    ),
    "CREATE OR REPLACE TABLE t (a INT)": "TiDB has no such statement",
    "ALTER TABLE t DROP a, RENAME u": "TiDB refuses a RENAME beside other changes",
    "DROP TABLE ``": "no table has such a name, and a schema file without one is of a database",
}
NUMBERED = "the server numbers its rows in column {}, and the log does not say how"
COMPUTED = "the server computes column {} for all rows, and its values are not in the log"
REPLACED = "it replaces rows with those of a file, which are not in the log"
IGNORED = "it removes or cuts the rows that do not fit, and the log does not say which"
VERSIONED = "with system versioning the log has a table's earlier rows as further rows with the same key"
GENERATED = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(9), g INT AS (`a` * 2) STORED, v INT AS (a))"
UNLOGGED = {
    "ADD COLUMN n BIGINT AUTO_INCREMENT UNIQUE": NUMBERED.format("n"),
    "ADD COLUMN n SERIAL": NUMBERED.format("n"),
    "DROP PRIMARY KEY, ADD COLUMN n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY FIRST": NUMBERED.format("n"),
    "DROP id, ADD id BIGINT AUTO_INCREMENT PRIMARY KEY": NUMBERED.format("id"),
    "MODIFY a INT NOT NULL AUTO_INCREMENT UNIQUE": NUMBERED.format("a"),
    "ADD COLUMN s INT AS (a + 1) STORED": COMPUTED.format("s"),
    "ADD COLUMN (x INT, s INT GENERATED ALWAYS AS (a) PERSISTENT)": COMPUTED.format("s"),
    "MODIFY b INT AS (a * 2) STORED": COMPUTED.format("b"),
    "MODIFY g INT AS (a * 3) STORED": COMPUTED.format("g"),
    "CHANGE g h BIGINT AS (a * 2) STORED": COMPUTED.format("h"),
    "MODIFY a BIGINT UNSIGNED": COMPUTED.format("g"),
    "MODIFY v INT": COMPUTED.format("v"),
    "ADD COLUMN d DATETIME DEFAULT NOW()": "default CURRENT_TIMESTAMP in column d, whose value is not in the log",
    "ADD COLUMN d CHAR(36) DEFAULT (uuid()), DROP b": "default uuid() in column d, whose value is not in the log",
    "DISCARD TABLESPACE": "it takes rows away",
    "IMPORT TABLESPACE": REPLACED,
    "IMPORT PARTITION p TABLESPACE": REPLACED,
    "ENGINE = BLACKHOLE": "the engine BLACKHOLE need not keep the table's rows",
    "UNION = (u, v)": "it shows the rows of other tables",
    # Of MariaDB 10.11, as SHOW CREATE TABLE and its binlog show them.
    "ADD SYSTEM VERSIONING": VERSIONED,
    "WITH SYSTEM VERSIONING": VERSIONED,
    "ADD s TIMESTAMP(6) GENERATED ALWAYS AS ROW START INVISIBLE, ADD e TIMESTAMP(6) AS ROW END,"
    " ADD PERIOD FOR SYSTEM_TIME (s, e), ADD SYSTEM VERSIONING": VERSIONED,
    "PARTITION BY SYSTEM_TIME INTERVAL 1 MONTH STARTS TIMESTAMP'2020-01-01 00:00:00' AUTO"
    " (PARTITION p HISTORY, PARTITION q CURRENT)": VERSIONED,
    "DROP SYSTEM VERSIONING, DROP b": "up to the end of its system versioning the log has",
}
KEPT = (
    "ADD COLUMN IF NOT EXISTS a INT AUTO_INCREMENT UNIQUE", "MODIFY id BIGINT AUTO_INCREMENT", "AUTO_INCREMENT = 7",
    "ADD COLUMN s INT AS (a + 1)", "MODIFY g INT AS (A*2) STORED COMMENT 'c'", "MODIFY g INT AFTER id", "DROP g",
    "MODIFY b VARCHAR(20)", "ADD COLUMN d DATETIME DEFAULT '2020-01-01'", "ALTER b SET DEFAULT 'x'", "FORCE",
    "ENGINE = 'InnoDB'", "ENGINE = memory", "CONVERT TO CHARACTER SET latin1", "ORDER BY a", "ROW_FORMAT = DYNAMIC",
    "ADD PERIOD FOR p (a, b)", "ADD PERIOD IF NOT EXISTS FOR p(a, b)", "DROP PERIOD FOR p",
    "DROP PERIOD IF EXISTS FOR p",
)  # fmt: skip


@pytest.mark.parametrize("clauses", [*UNLOGGED, *KEPT])
def test_clause_whose_rows_are_not_in_the_log_holds_its_table(clauses: str) -> None:
    """The columns after it are known all the same, for the statements after it."""
    statement = f"ALTER TABLE t {clauses}"
    created, told = from_text(GENERATED, statement)
    files = [(10, CREATE, GENERATED, created), (20, MODIFY, statement, told)]
    changes = [
        SchemaChange(at, "d", "t", action, query, shown_columns(version), "o", backslash_escapes=True)
        for at, action, query, version in files
    ]
    in_file = History().apply(changes)[-1]
    assert verdict(in_file) == verdict(told)
    assert told.hold is None if clauses in KEPT else UNLOGGED[clauses] in (told.hold or "")


@pytest.mark.parametrize(
    "end",
    [
        ") WITH SYSTEM VERSIONING ENGINE = InnoDB",
        " WITH SYSTEM VERSIONING, c INT WITHOUT SYSTEM VERSIONING)",
        ") COMMENT 'x' WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME LIMIT 9 PARTITIONS 3",
        ", s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) GENERATED ALWAYS AS ROW END,"
        " PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING AS SELECT 1 AS a",
    ],
)
def test_table_made_with_system_versioning_is_held(end: str) -> None:
    """So is one that is made like it, also after another change, and not one made like it later without versioning."""
    versions = from_text(
        f"CREATE TABLE t (id INT PRIMARY KEY, a INT{end}", "ALTER TABLE t ADD z INT", "CREATE TABLE u LIKE t",
        "ALTER TABLE t DROP SYSTEM VERSIONING", "CREATE TABLE v LIKE t",
    )  # fmt: skip
    holds = {(each.name.table, each.kind): each.hold or "" for each in versions if each.effect != "none"}
    assert VERSIONED in holds["t", "create_table"] and VERSIONED in holds["u", "create_table"]
    assert holds["v", "create_table"] == "" and versions[-1].effect == "create"


@pytest.mark.parametrize(
    ("clauses", "held"),
    [
        ("ADD UNIQUE (a)", True), ("ADD PRIMARY KEY (a)", True), ("MODIFY b VARCHAR(2)", True),
        ("ADD COLUMN c INT UNIQUE", True), ("ADD COLUMN c INT", False), ("ADD INDEX (a)", False), ("DROP a", False),
    ],
)  # fmt: skip
def test_alter_ignore_holds_where_rows_may_not_fit(clauses: str, held: bool) -> None:
    assert from_text(TABLE, f"ALTER IGNORE TABLE t {clauses}")[-1].hold == (IGNORED if held else None)


# Statements of the cases that hold their tables.
HELD = {
    "ALTER TABLE t MODIFY COLUMN a INT NOT NULL AUTO_INCREMENT PRIMARY KEY": [NUMBERED.format("a")],
    "ALTER TABLE t MODIFY COLUMN a INT SERIAL DEFAULT VALUE": [NUMBERED.format("a")],
    "ALTER TABLE t ADD COLUMN c SERIAL": [NUMBERED.format("c")],
    "ALTER TABLE t MODIFY COLUMN a INT GENERATED ALWAYS AS(`b`+1) STORED": [COMPUTED.format("a")],
    "ALTER TABLE t MODIFY COLUMN a INT AS (b) PERSISTENT": [COMPUTED.format("a")],
    "ALTER TABLE t IMPORT PARTITION p TABLESPACE": [REPLACED],
    "ALTER TABLE t DISCARD TABLESPACE": [
        "it takes rows away, and the log does not have those that come in their place"
    ],
    "ALTER TABLE t ENGINE=x ROW_FORMAT=y, DROP a": ["the engine x need not keep the table's rows"],
}
COLUMNS = "(id BIGINT PRIMARY KEY, a INT, b VARCHAR(9), c INT, x INT, y INT, `b c` INT)"
PARTITIONS = "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN (20))"
SESSION = "s"
"""Its database is not `d`: `t` and `d.t` are two tables."""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_has_one_verdict(statement: str) -> None:
    clauses = parse(statement)
    base = [
        Statement(number, SESSION, "", f"CREATE TABLE {name.quoted} {COLUMNS} {partitions}", f"o{number}")
        for number, (name, partitions) in enumerate(_tables_before(clauses).items(), start=1)
    ]
    changed = [Statement(20, SESSION, "t", statement, "o20")]
    for clause in clauses:
        if isinstance(clause, ddl.RecoverTable | ddl.RecoverDatabase):
            is_table = isinstance(clause, ddl.RecoverTable)
            lost = f"TABLE {clause.table or 't'}" if is_table else f"DATABASE {clause.name}"
            changed.append(Statement(15, SESSION, "", f"DROP {lost}", "o15"))
    told = History().apply(schema_changes([*base, *changed], escapes=True))
    assert [version.effect for version in told[: len(base)]] == ["create"] * len(base)
    shown = History().apply(_files(told))
    if statement in NOT_COMPARED:
        assert _after(shown) != _after(told), "it can be compared"
    else:
        assert _after(shown) == _after(told) != {}
    # Typed in another letter case it is the same; a column that it defines has the name as it is typed then.
    typed = [replace(each, text=in_odd_case(each.text)) for each in changed]
    odd = History().apply(schema_changes([*base, *typed], escapes=True))
    one, other = (repr(_after(each)).lower().replace("'evolve'", "'none'") for each in (told, odd))
    assert one == other
    flashback = any(isinstance(clause, ddl.Flashback) for clause in clauses)
    assert flashback or [version.hold for version in told if version.hold is not None] == HELD.get(statement, [])


def _tables_before(clauses: Sequence[ddl.Clause]) -> dict[TableName, str]:
    """The tables that a statement needs, so that it changes something, with their partitions."""
    found: dict[ddl.TableRef, str] = {}
    made: set[ddl.TableRef] = set()
    own = ddl.TableRef(None, "t")
    for clause in clauses or [ddl.NoEffect(own, "other", "")]:
        match clause:
            case ddl.CreateTable() | ddl.CreateTableAsSelect():
                pass
            case ddl.NoEffect(_, "create_view" | "drop_view"):
                pass
            case ddl.CreateTableLike(_, source):
                found[source] = PARTITIONS
            case ddl.RenameTable(table, new_name):
                found |= {} if table in made else {table: PARTITIONS}
                made.add(new_name)
            case ddl.ExchangePartition(table, _, other):
                found |= {table: PARTITIONS, other: ""}
            case ddl.Flashback(_, None, tables):
                found |= dict.fromkeys(tables or (own,), PARTITIONS)
            case ddl.Flashback(_, database) | ddl.DropDatabase(database) | ddl.RecoverDatabase(database):
                found[ddl.TableRef(database, "t")] = PARTITIONS
            case _:
                found[getattr(clause, "table", None) or own] = PARTITIONS
    return {TableName(name.database or SESSION, name.name): partitions for name, partitions in found.items()}


def _files(told: Sequence[TableVersion]) -> Iterator[SchemaChange]:
    """What a sink writes of the same statements: a file for each table, under the name that it has then, or one of the
    database. The other table of an EXCHANGE has one without a statement."""
    of_database: set[int] = set()
    for version in {(each.commit_ts, each.incarnation, each.name): each for each in told}.values():
        if version.commit_ts in of_database:
            continue
        database, table, shown = version.name.database, version.name.table, shown_columns(version)
        if not version.incarnation:
            table = "" if version.kind.endswith("_database") else "t"
        file = SchemaChange(version.commit_ts, database, table, None, version.query, shown, "f", backslash_escapes=True)
        is_other = version.swap is not None and version.swap.plain == version.incarnation
        yield replace(file, query="", kind="columns") if is_other else file
        if version.kind in ("drop_database", "recover_database"):
            of_database.add(version.commit_ts)


def _after(versions: Sequence[TableVersion]) -> dict[str, tuple[object, ...]]:
    """What the last statement makes of each table. Not `charset`: with it the types of columns are found that a later
    statement defines, and schema files show them."""
    return {
        version.incarnation: (
            verdict(version), version.incarnation and version.name, version.previous_name, version.key,
            version.primary_key, version.unique_keys, version.partitioning, version.emptied, version.swap,
            version.restored,
        )
        for version in versions
        if version.commit_ts == 20
    }  # fmt: skip


def test_the_statement_explains_columns_that_a_file_shows() -> None:
    """Where the two do not agree, a file's columns are right, and the table goes on."""
    query = "ALTER TABLE t ADD COLUMN c INT"
    version = from_file(query, columns(f"{SPEC} c:bigint d"))
    assert (version.effect, version.hold) == ("evolve", None)
    assert [column.name for column in version.columns] == ["id", "a", "b", "c", "d"]
    assert version.note is not None and "column d appears" in version.note


def test_a_statement_is_read_once() -> None:
    change = SchemaChange(10, "d", "t", ADD, TABLE, (), "o")
    assert clauses_of(change)[0] is clauses_of(replace(change, commit_ts=20, origin="p"))[0]


def test_columns_of_a_query_are_spelled_as_the_query_has_them() -> None:
    """As MySQL 8.0.12 does."""
    (made,) = from_text("CREATE TABLE t (a INT PRIMARY KEY, B INT, c INT) AS SELECT 1 AS b, 2 AS A")
    assert [column.name for column in made.columns] == ["c", "b", "A"] and made.key_names == ("A",)


@pytest.mark.parametrize("name", ["v", "V"])
def test_table_that_exists_in_another_case_is_not_made_again(name: str) -> None:
    versions = from_text(
        "CREATE TABLE T (a INT)", "CREATE TABLE V (b INT)", f"CREATE TABLE IF NOT EXISTS {name} LIKE t"
    )
    assert [version.effect for version in versions] == ["create", "create", "none"]
