"""Parse DDL text of MySQL (5.7 to 8.4), MariaDB and TiDB into clauses. An unknown statement is an error.

    >>> [clause.kind for clause in parse("ALTER TABLE t DROP a, ADD INDEX (b)")]
    ['drop_column', 'add_index']

MySQL reference manual, "Data Definition Statements" and "Data Types"; those of TiDB and MariaDB. A type is kept as it
is written: FLOAT(30) stays a float of length 30. Only a type that the server itself replaces at once is returned as the
replacement (text types with the character set binary).

Most of the grammar is tables of patterns (see `form`). To add a type, add its name to `_NAMES`; an attribute of a
column, a row to `_ATTRIBUTES`; an option, which is its words and a value, its words to `_OPTIONS_OF_PARTITIONS`, or to
`_OPTIONS` where partitions have none; a statement about an object without rows, its words to `_OBJECTS`. Other clauses
and statements are rows of `_CLAUSES` and `_STATEMENTS`: one that changes no row has the reason beside it; one that
changes rows gets a class in `clauses`, and the type checker then shows where it must be applied. Add each to
`tests/changelog/cases/ddl/`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from cdc_lakehouse.changelog import mysql_types as mysql
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import Cursor, DdlSyntaxError, bytes_value

_T = TypeVar("_T")


def _by_words(rows: Mapping[str, _T]) -> dict[tuple[str, ...], _T]:
    """Return the values by their words: `A|B C, D` are `A C`, `B C` and `D`."""
    return {
        words: value
        for texts, value in rows.items()
        for text in texts.split(",")
        for words in itertools.product(*(word.split("|") for word in text.split()))
    }


# --- Values ---

_WORDS: Final[dict[str, ddl.Value]] = {
    "NULL": ddl.NullLiteral(),
    "TRUE": ddl.NumberLiteral("1"),
    "FALSE": ddl.NumberLiteral("0"),
}
_BOUNDS: Final[dict[str, ddl.BoundValue]] = {"MAXVALUE": ddl.MaxValue(), "DEFAULT": ddl.DefaultValue()}
_TEMPORAL: Final = frozenset({"DATE", "TIME", "TIMESTAMP"})
# Functions that can be called without parentheses.
_BARE_FUNCTIONS: Final = frozenset({
    "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_USER",
    "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP",
})  # fmt: skip


def _read_literal(cursor: Cursor) -> ddl.Value | None:
    """Read the literal at the cursor; return None and consume nothing where there is none."""
    token, charset = cursor.token, None
    if token.word in _WORDS:
        cursor.take()
        return _WORDS[token.word]
    if token.word in _TEMPORAL and cursor.next_token.kind == "string":
        cursor.take()
        return ddl.TextLiteral(cursor.string())
    if token.kind == "word" and token.text.startswith("_") and cursor.next_token.kind in ("string", "hex", "bit"):
        charset = cursor.take().text[1:].lower()  # an introducer: `_utf8mb4'x'`, `_binary 0x00`
        token = cursor.token
    elif token.kind == "string" and token.text[0] in "nN":
        charset = "utf8"
    match token.kind:
        case "string":
            pieces = [cursor.string()]
            while cursor.token.kind == "string":  # Adjacent strings are one.
                pieces.append(cursor.string())
            return ddl.TextLiteral("".join(pieces), charset)
        case "hex" | "bit":
            return ddl.BytesLiteral(bytes_value(cursor.take()), charset)
        case "word" | "name" | "end":
            return None
        case "number" | "symbol":
            start = cursor.position
            sign = cursor.accept_any(("+", "-"))
            adjacent = cursor.token.end == cursor.next_token.start
            point = "." if adjacent and cursor.accept(".") else ""
            if cursor.token.kind != "number" or (point and not cursor.token.text[:1].isdigit()):
                cursor.position = start
                return None
            return ddl.NumberLiteral(("-" if sign == "-" else "") + point + cursor.take().text)


def _read_default(cursor: Cursor) -> ddl.Value:
    """Read the value after DEFAULT: a literal, a function, or an expression in parentheses."""
    literal = _read_literal(cursor)
    if literal is not None:
        return literal
    start = cursor.position
    if cursor.accept("("):  # `(1)` is the literal, everything else an expression.
        literal = _read_literal(cursor)
        if literal is not None and cursor.accept(")"):
            return literal
        cursor.position = start
        text = cursor.parenthesized()
        if not text:
            raise cursor.error("an expression is missing")
        return ddl.Expression(text)
    if cursor.accept("NEXT", "VALUE", "FOR"):
        cursor.table_name()
        return ddl.Expression(cursor.text_between(start, cursor.position))
    return ddl.Expression(_read_function(cursor))


def _read_function(cursor: Cursor) -> str:
    start = cursor.position
    word = cursor.token.word
    if cursor.token.kind != "word" or not (word in _BARE_FUNCTIONS or cursor.next_token.word == "("):
        raise cursor.expected("a value")
    cursor.take()
    if cursor.at("("):
        cursor.parenthesized()
    return cursor.text_between(start, cursor.position)


def _read_bound(cursor: Cursor) -> ddl.BoundValue:
    """Read one value of a partition's bound, up to the next comma or closing parenthesis."""
    start = cursor.position
    word = cursor.accept_any(_BOUNDS)
    value = _read_literal(cursor) if word is None else _BOUNDS[word]
    if value is not None and (cursor.at(",") or cursor.at(")")):
        return value
    cursor.position = start
    text = cursor.skip_until((",", ")"))
    if not text:
        raise cursor.expected("a value")
    return ddl.Expression(text)


# --- Columns and keys ---

_REALS: Final = frozenset({"decimal", "float", "double"})
_PLAIN: Final = frozenset({"json", "uuid", "inet4", "inet6"}) | mysql.GEOMETRIES

# The words of a type -> the name that `ColumnType.of` takes.
_NAMES: Final = _by_words({
    name.upper(): name
    for name in (
        *mysql.INTEGERS, *mysql.TEXTS, *mysql.BLOBS, *mysql.LABELS, *mysql.TEMPORALS, *_REALS, *_PLAIN, "bit", "year",
        "vector", *mysql.SYNONYMS,
    )
})  # fmt: skip
_NATIONAL: Final = ("nchar", "nvarchar", "national")

_NUMBER_FLAGS: Final = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_NUMBERS: Final = mysql.INTEGERS | _REALS | {"bit", "year"}
_CHARSETS: Final[dict[tuple[str, ...], Callable[[Cursor], str | None]]] = _by_words({
    "ASCII": lambda _: "latin1", "UNICODE": lambda _: "ucs2", "BYTE": lambda _: "binary", "BINARY": lambda _: None,
    "CHARACTER|CHAR SET, CHARSET": Cursor.charset_name,
})  # fmt: skip


def _read_type(cursor: Cursor) -> mysql.ColumnType:
    """Read a column's type with its length, signs, labels and character set."""
    declared = cursor.expect_longest(_NAMES, "a column type")
    name = mysql.ColumnType.of(declared).name
    if name == "vector" and cursor.accept("<"):
        cursor.expect("FLOAT", ">")
    length = scale = None
    if name not in mysql.LABELS and name not in _PLAIN and cursor.accept("("):
        length = cursor.integer()
        scale = cursor.integer() if name in _REALS and cursor.accept(",") else None
        cursor.expect(")")
    if name in mysql.TEMPORALS:  # The number after it is the digits of the second's fraction.
        length, scale = None, length
    # The server removes trailing spaces from labels (MySQL, "The ENUM Type"): values never have them.
    labels = cursor.enclosed(lambda: cursor.string("a label").rstrip(" ")) if name in mysql.LABELS else ()
    flags: list[str] = []
    while name in _NUMBERS and (flag := cursor.accept_any(_NUMBER_FLAGS)):
        flags.append(flag.lower())
    charset = "utf8" if declared.startswith(_NATIONAL) else None
    while name in mysql.TEXTS | mysql.LABELS and (read := cursor.accept_longest(_CHARSETS)):
        charset = read(cursor) or charset
    words = " ".join((declared, *flags))
    kind = mysql.ColumnType.of(words, length=length, scale=scale, elements=labels, charset=charset)
    return mysql.of_bytes(kind) if charset == "binary" else kind


def _read_column(cursor: Cursor, name: str | None = None) -> ddl.ColumnDefinition:
    name, said = cursor.column_name() if name is None else name, dict[str, Any]()
    if cursor.accept("SERIAL"):
        kind = mysql.ColumnType.of("bigint unsigned")
        said |= _SERIAL
    else:
        kind = _read_type(cursor)
    while read := cursor.accept_longest(_ATTRIBUTES):
        said |= read(cursor)
    collation = said.pop("collation", None)
    if kind.name in mysql.TEXTS | mysql.LABELS:
        kind = replace(kind, charset=mysql.charset_of(kind.charset, collation))
    return ddl.ColumnDefinition(name, mysql.of_bytes(kind) if collation == "binary" else kind, **said)


def _read_position(cursor: Cursor) -> str | None:
    if cursor.accept("FIRST"):
        return ddl.FIRST
    return cursor.column_name() if cursor.accept("AFTER") else None


# The events of a foreign key, and its actions; the text of those that change rows of its table.
_EVENTS: Final = _by_words({"DELETE": "DELETE", "UPDATE": "UPDATE"})
_ACTIONS: Final = _by_words({
    "CASCADE": "CASCADE", "SET NULL": "SET NULL", "SET DEFAULT": "SET DEFAULT", "RESTRICT, NO ACTION": "",
})  # fmt: skip


def _read_references(cursor: Cursor) -> ddl.ForeignKey:
    """Read the rest of a foreign key, after REFERENCES."""
    cursor.table_name()
    if cursor.at("("):
        _read_key_parts(cursor)
    _MATCH(cursor)
    actions: list[str] = []
    while cursor.accept("ON"):
        event = cursor.expect_longest(_EVENTS, "DELETE or UPDATE")
        if action := cursor.expect_longest(_ACTIONS, "RESTRICT, CASCADE, SET NULL, SET DEFAULT or NO ACTION"):
            actions.append(f"ON {event} {action}")
    return ddl.ForeignKey(None, " ".join(actions) or None)


def _read_element(cursor: Cursor, table: ddl.TableRef, *, if_not_exists: bool = False) -> ddl.TableClause:
    key = _read_key(cursor, table)
    return ddl.AddColumn(table, _read_column(cursor), None, if_not_exists) if key is None else key


def _read_key(cursor: Cursor, table: ddl.TableRef) -> ddl.TableClause | None:
    """Read a key or a constraint as the clause that adds it; return None and consume nothing where neither is at the
    cursor."""
    if not cursor.accept("CONSTRAINT"):
        read = cursor.accept_longest(_KEYS)
        return None if read is None else read(cursor, table)
    cursor.accept("IF", "NOT", "EXISTS")
    symbol = None if cursor.token.word in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK") else cursor.name("a constraint")
    match cursor.expect_longest(_CONSTRAINTS, "PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK")(cursor, table):
        case ddl.AddKey(_, "add_index", None) as key:
            return replace(key, name=symbol)
        case ddl.AddForeignKey(_, key) if symbol is not None:
            return ddl.AddForeignKey(table, replace(key, name=symbol))
        case constraint:
            return constraint


def _read_key_name(cursor: Cursor) -> str | None:
    cursor.accept("IF", "NOT", "EXISTS")
    after = cursor.next_token
    is_type = cursor.at("TYPE") and after.kind == "word" and after.text.upper() not in ("ON", "TYPE", "USING")
    unnamed = cursor.at("(") or cursor.at("USING") or is_type
    name = None if unnamed else cursor.name("an index")
    if cursor.accept_any(("USING", "TYPE")):
        cursor.name("an index type")
    return name


def _read_key_parts(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    return cursor.enclosed(lambda: (_KEY_EXPRESSION if cursor.at("(") else _KEY_COLUMN)(cursor))


def _read_parts_and_options(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    """Read the parts of a key and skip its options. TiDB's WHERE becomes a part that is an expression: the key holds
    only some rows and identifies none."""
    parts = _read_key_parts(cursor)
    cursor.skip_clause("WHERE")
    if not cursor.accept("WHERE"):
        return parts
    if not cursor.skip_clause():
        raise cursor.expected("a condition")
    return (*parts, ddl.KeyPart(None))


# --- Partitions ---

_METHODS: Final[dict[tuple[str, ...], ddl.PartitionMethod]] = _by_words({
    "RANGE COLUMNS|FIELDS": "range columns", "RANGE": "range", "LIST COLUMNS|FIELDS": "list columns", "LIST": "list",
    "LINEAR HASH": "linear hash", "HASH": "hash", "LINEAR KEY": "linear key", "KEY": "key",
})  # fmt: skip


def _read_method(cursor: Cursor) -> tuple[ddl.PartitionMethod, str, tuple[str, ...]]:
    """Read the method, its expression, and the names where the expression is a plain list of columns."""
    method = cursor.expect_longest(_METHODS, "RANGE, LIST, HASH or KEY")
    by_key = method in ("key", "linear key")
    if by_key and cursor.accept("ALGORITHM"):
        cursor.accept("=")
        cursor.integer()
    start = cursor.position
    expression = cursor.parenthesized()
    if not (expression or by_key):
        raise cursor.error("an expression is missing")
    end, cursor.position, names = cursor.position, start, tuple[str, ...]()
    with contextlib.suppress(DdlSyntaxError):
        names = cursor.enclosed(cursor.name)
    cursor.position = end
    return method, expression, names


def _read_row(cursor: Cursor) -> tuple[ddl.BoundValue, ...]:
    # `(1 + 1) * 2` begins like several values in parentheses and is one value.
    start = cursor.position
    if cursor.at("("):
        row = cursor.enclosed(lambda: _read_bound(cursor))
        if cursor.at(",") or cursor.at(")"):
            return row
        cursor.position = start
    return (_read_bound(cursor),)


def _skip_options(cursor: Cursor) -> None:
    while read := cursor.accept_longest(_OPTIONS_OF_PARTITIONS):
        read(cursor)


def _read_interval(cursor: Cursor) -> str | None:
    start = cursor.position
    if cursor.accept("INTERVAL"):  # TiDB's: (...) [FIRST|LAST PARTITION LESS THAN (...)] [NULL|MAXVALUE PARTITION]
        cursor.parenthesized()
        while word := cursor.accept_any(("FIRST", "LAST", "NULL", "MAXVALUE")):
            cursor.expect("PARTITION")
            if word in ("FIRST", "LAST"):
                cursor.expect("LESS", "THAN")
                cursor.parenthesized()
    return cursor.text_between(start, cursor.position) or None


def _read_partition_names(cursor: Cursor) -> tuple[str, ...] | None:
    """Read the names of partitions; None for ALL."""
    return None if cursor.accept("ALL") else cursor.listed(lambda: cursor.name("a partition"))


def _reorganize(cursor: Cursor, table: ddl.TableRef) -> ddl.ChangePartitions:
    cursor.accept_any(("LOCAL", "NO_WRITE_TO_BINLOG"))
    if not cursor.at_name:  # The rows of all partitions (hash, key) are distributed again.
        return ddl.ChangePartitions(table, "reorganize_partition")
    names = _read_partition_names(cursor)
    cursor.expect("INTO")
    return ddl.ChangePartitions(table, "reorganize_partition", names, cursor.enclosed(lambda: _PARTITION(cursor)))


def _skip_program(cursor: Cursor) -> None:
    while not cursor.at_end:  # It contains semicolons.
        cursor.take()


# --- Patterns ---

Fields = dict[str, Any]
_Table = dict[tuple[str, ...], Callable[..., Any]]
"""The readers of what begins with some words. They are given the cursor, after the words; those of clauses also the
table."""

_READERS: Final[dict[str, Callable[[Cursor], Any]]] = {
    "table": Cursor.table_name,
    "tables": lambda cursor: cursor.listed(cursor.table_name),
    "dropped": lambda cursor: cursor.listed(lambda: ddl.DropTable(cursor.table_name())),
    "column": Cursor.column_name,
    "number": Cursor.integer,
    "fewer": lambda cursor: -cursor.integer(),
    "string": Cursor.string,
    "value": Cursor.skip_value,
    "token": Cursor.take,
    "()": Cursor.parenthesized,
    "charset": Cursor.charset_name,
    "default": _read_default,
    "function": _read_function,
    "definition": _read_column,
    "position": _read_position,
    "(...)": lambda cursor: cursor.at("(") and cursor.parenthesized(),
    "= value": lambda cursor: cursor.at("=") and cursor.skip_value(),
    "references": _read_references,
    "key name": _read_key_name,
    "columns": _read_key_parts,
    "key": _read_parts_and_options,
    "partitions": _read_partition_names,
    "method": _read_method,
    "interval": _read_interval,
    "partition definitions": lambda cursor: cursor.enclosed(lambda: _PARTITION(cursor)) if cursor.at("(") else (),
    "subpartitions": lambda cursor: cursor.enclosed(lambda: _SUBPARTITION(cursor)) if cursor.at("(") else (),
    "bound": lambda cursor: None if (read := cursor.accept_longest(_BOUNDS_BY_WORDS)) is None else read(cursor),
    "bounds": lambda cursor: cursor.enclosed(lambda: _read_bound(cursor)),
    "rows": lambda cursor: cursor.enclosed(lambda: _read_row(cursor)),
    "options": _skip_options,
    "order": lambda cursor: cursor.listed(lambda: (cursor.column_name(), cursor.accept_any(("ASC", "DESC")))),
    "renames": lambda cursor: cursor.listed(lambda: _RENAMED(cursor)),
    "job": lambda cursor: cursor.at_statement_end or cursor.integer(),
    "program": _skip_program,
    # The rest of a clause; of a statement; and of a statement that cannot end here.
    "...": Cursor.skip_clause,
    "rest": lambda cursor: cursor.skip_until(()),
    "more": Cursor.skip_rest,
}


def form(pattern: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reader of what a pattern describes: it returns what `make` makes of the fields and, where the reader
    is given one, of a table.

    `A B` and `{A B|C}` must stand in the statement, `[A B|C]` may, and what follows them in `[A B <reader>]` must stand
    after them; `<reader>` is a value that one of `_READERS` reads, or a name, such as `<an index>`. A field keeps the
    value, or whether the words are there: `<name:column>`, `[if_exists:IF EXISTS]`."""
    steps: list[tuple[str, Callable[[Cursor], Any], Callable[[Cursor], Fields] | None]] = []
    for group, mark, content in re.findall(r"\[([^\]]+)\]|([{<]?)([^\[{<>}]*[^\[{<>} ])", pattern):
        words, *rest = re.split(r" (?=[{<])", group or content, maxsplit=1)
        field, _, what = words.strip().rpartition(":")
        read_name = partial(Cursor.name, what=what)
        choices = [choice.split() for choice in what.split("|")]
        read_words = partial(_read_words, choices, is_optional=bool(group))
        read_rest = form(rest[0], Fields) if rest else None
        steps.append((field, _READERS.get(what, read_name) if mark == "<" else read_words, read_rest))

    def read(cursor: Cursor, table: ddl.TableRef | None = None) -> Any:
        fields: Fields = {}
        for field, step, read_rest in steps:
            fields[field] = value = step(cursor)
            if value and read_rest is not None:
                fields |= read_rest(cursor)
        fields.pop("", None)
        return make(**fields) if table is None else make(table=table, **fields)

    return read


def _read_words(choices: Sequence[Sequence[str]], cursor: Cursor, *, is_optional: bool) -> bool:
    is_there = any(cursor.accept(*words) for words in choices)
    if not (is_there or is_optional):
        *others, last = map(" ".join, choices)
        raise cursor.expected(f"{', '.join(others)} or {last}" if others else last)
    return is_there


def forms(rows: Mapping[str, Callable[..., Any]]) -> _Table:
    """Return the readers of patterns by the words that they begin with, as `_by_words` has them."""
    found: _Table = {}
    for pattern, make in rows.items():
        first, *rest = re.split(r"(?=[\[{<])", pattern, maxsplit=1)
        found |= _by_words({first: form("".join(rest), make)})
    return found


def _other(kind: str, unlogged: str | None = None, versioned: bool | None = None) -> Callable[..., ddl.OtherClause]:
    return partial(ddl.OtherClause, table=None, kind=kind, unlogged=unlogged, versioned=versioned)


def _same(made: Any = (), table: ddl.TableRef | None = None) -> Any:
    return made


def _generated(stored_as: str, *, is_stored: bool) -> Fields:
    return {"stored_as": stored_as} if is_stored else {"virtual": True}


# SERIAL is BIGINT UNSIGNED with these attributes (MySQL reference manual, "Numeric Data Type Syntax").
_SERIAL: Final[Fields] = {"nullable": False, "auto_increment": True, "unique": True}
_ATTRIBUTES: Final = forms({
    "NOT {NULL}": partial(Fields, nullable=False),
    "NULL": partial(Fields, nullable=True),
    "DEFAULT <default:default>": Fields,
    "AUTO_INCREMENT": partial(Fields, auto_increment=True),
    "PRIMARY|KEY [KEY]": partial(Fields, primary_key=True),
    "UNIQUE [KEY]": partial(Fields, unique=True),
    "COMMENT <comment:string>": Fields,
    "COLLATE <collation:charset>": Fields,
    "REFERENCES <references:references>": Fields,
    "SERIAL {DEFAULT VALUE}": partial(Fields, **_SERIAL),
    "WITH {SYSTEM VERSIONING}": partial(Fields, versioned=True),
    "AS, GENERATED ALWAYS AS <stored_as:()> [is_stored:STORED|PERSISTENT] [VIRTUAL]": _generated,
    "AS ROW START|END, GENERATED ALWAYS AS ROW START|END": Fields,  # MariaDB: rows have it
    # Others do not affect rows.
    "NOT SECONDARY": Fields,
    "WITHOUT {SYSTEM VERSIONING}": Fields,
    "ON {UPDATE} <function>": Fields,
    "CHECK, CONSTRAINT CHECK <()> [NOT ENFORCED|ENFORCED]": Fields,
    "CONSTRAINT <a constraint> CHECK <()> [NOT ENFORCED|ENFORCED]": Fields,
    "COLUMN_FORMAT|STORAGE|ENGINE_ATTRIBUTE|SECONDARY_ENGINE_ATTRIBUTE|SRID <value>": Fields,
    "AUTO_RANDOM <(...)>": Fields,
    "COMPRESSED <= value>": Fields,
    # Visibility; and of TiDB the storage of a key of the column.
    "VISIBLE|INVISIBLE|CLUSTERED|NONCLUSTERED|GLOBAL|LOCAL": Fields,
})  # fmt: skip


def _foreign_key(table: ddl.TableRef, name: str | None, key: ddl.ForeignKey) -> ddl.AddForeignKey:
    return ddl.AddForeignKey(table, replace(key, name=name))


_KEY_COLUMN: Final = form("<column:column> [( <length:number> )] [ASC|DESC]", ddl.KeyPart)
_MATCH: Final = form("[MATCH {FULL|PARTIAL|SIMPLE}]", Fields)
_KEY_EXPRESSION: Final = form("<()> [ASC|DESC]", partial(ddl.KeyPart, None))
_CONSTRAINTS: Final = forms({
    "PRIMARY {KEY} <name:key name> <parts:key>": partial(ddl.AddKey, kind="add_primary_key"),
    "UNIQUE [INDEX|KEY] <name:key name> <parts:key>": partial(ddl.AddKey, kind="add_index"),
    "FOREIGN {KEY} <name:key name> <columns> REFERENCES <key:references>": _foreign_key,
    "CHECK <()> [NOT ENFORCED|ENFORCED]": _other("check_constraint"),
})  # fmt: skip
_KEYS: Final = _CONSTRAINTS | forms({
    "INDEX|KEY, FULLTEXT|SPATIAL, VECTOR|COLUMNAR INDEX|KEY [INDEX|KEY] <key name> <key>": _other("add_index"),
    # MariaDB: the system's period is row_start and row_end, any other one a check.
    "PERIOD FOR, PERIOD IF NOT EXISTS FOR <a period> <()>": _other("check_constraint"),
})  # fmt: skip

# --- Options ---

# MariaDB 10.11, binlog_format=ROW: the log has an INSERT of the earlier row beside each UPDATE, a DELETE as an UPDATE,
# and DELETE HISTORY as a DELETE of rows whose keys live on. Only row_start and row_end tell them from other rows. Where
# no column is declared for these, Canal 1.1.7 stops at the first row: "column size is not match for table".
_HISTORY: Final = "the log has a table's earlier rows as further rows with the same key"
VERSIONED: Final = (
    "table_option", f"with system versioning {_HISTORY}: drop the versioning, then load the table again", True,
)  # fmt: skip
_UNVERSIONED: Final = "table_option", f"up to the end of its system versioning {_HISTORY}", False
# Engines into which a table takes its rows with it, and that keep them.
_KEEPING: Final = frozenset({
    "archive", "aria", "columnstore", "csv", "heap", "innobase", "innodb", "isam", "maria", "memory", "mroonga",
    "myisam", "ndb", "ndbcluster", "rocksdb", "s3", "tokudb", "xtradb",
})  # fmt: skip


def _set_charset(
    table: ddl.TableRef, charset: str | None = None, collation: str | None = None, *, convert: bool = False
) -> ddl.SetTableCharset:
    return ddl.SetTableCharset(table, mysql.charset_of(charset, collation), convert)


def _engine(engine: str, table: ddl.TableRef | None = None) -> ddl.OtherClause:
    unlogged = None if engine.lower() in _KEEPING else f"the engine {engine} need not keep the table's rows"
    return ddl.OtherClause(table, "table_option", unlogged)


_PLACED: Final = _other("placement_tiflash_ttl_etc")
_STORED: Final = _other("table_option")
_OPTIONS_OF_PARTITIONS: Final[_Table] = forms({
    "ENGINE, STORAGE ENGINE, TYPE <engine:value>": _engine,
    # The next number; rows that are there keep theirs.
    "AUTO_INCREMENT <value>": _other("auto_increment"),
    "AUTO_ID_CACHE, AUTO_RANDOM_BASE <value>": _PLACED,
    "COMMENT <value>": _other("comment"),
    # How and where the same rows are stored, by MySQL and by MariaDB.
    "AUTOEXTEND_SIZE, AVG_ROW_LENGTH, COMPRESSION, DATA|INDEX DIRECTORY, ENCRYPTION, ENGINE_ATTRIBUTE, KEY_BLOCK_SIZE, "
    "MAX_ROWS, MIN_ROWS, NODEGROUP, PACK_KEYS, ROW_FORMAT, STORAGE, TABLESPACE <value>": _STORED,
    "ENCRYPTED, ENCRYPTION_KEY_ID, IETF_QUOTES, PAGE_CHECKSUM, PAGE_COMPRESSED, "
    "PAGE_COMPRESSION_LEVEL <value>": _STORED,
    # Checksums, when indexes are written, and whether rows survive a crash of the server.
    "CHECKSUM, DELAY_KEY_WRITE, TABLE_CHECKSUM, TRANSACTIONAL <value>": _STORED,
    # Into which table of a MERGE later rows go.
    "INSERT_METHOD <value>": _STORED,
    # Kept, and not used.
    "PASSWORD <value>": _STORED,
    # A copy in another engine, which answers queries.
    "SECONDARY_ENGINE, SECONDARY_ENGINE_ATTRIBUTE <value>": _STORED,
    # Statistics, by MySQL and by TiDB.
    "STATS_AUTO_RECALC, STATS_PERSISTENT, STATS_SAMPLE_PAGES, STATS_BUCKETS, STATS_COL_CHOICE, STATS_COL_LIST, "
    "STATS_SAMPLE_RATE, STATS_TOPN <value>": _STORED,
    # Where TiDB stores rows, and copies of them.
    "AFFINITY, ATTRIBUTES, CONSTRAINTS, FOLLOWERS, FOLLOWER_CONSTRAINTS, LEADER_CONSTRAINTS, LEARNERS, "
    "LEARNER_CONSTRAINTS, PRE_SPLIT_REGIONS, PRIMARY_REGION, REGIONS, SCHEDULE, SHARD_ROW_ID_BITS, "
    "SURVIVAL_PREFERENCES, VOTERS, VOTER_CONSTRAINTS <value>": _PLACED,
    "PLACEMENT POLICY [SET] <value>": _PLACED,
    # Rows that expire are deleted by statements, which are in the log.
    "TTL <value> [+ {INTERVAL} <value> <a unit of time>]": _PLACED,  # TTL = column + INTERVAL 3 MONTH
    "TTL_ENABLE, TTL_JOB_INTERVAL <value>": _PLACED,
})  # fmt: skip
_OPTIONS: Final[_Table] = _OPTIONS_OF_PARTITIONS | forms({
    "CHARACTER|CHAR SET, CHARSET <charset:charset> [COLLATE|DEFAULT COLLATE <collation:charset>]": _set_charset,
    "COLLATE <collation:charset>": _set_charset,
    "WITH SYSTEM VERSIONING": _other(*VERSIONED),
    # Which change rows that are there, or which of them the table shows. Nothing accepts them at a partition.
    "CONNECTION <value>":
        _other("table_option", "it shows the rows of another server's table, which are not in the log"),
    "SEQUENCE <value>": _other("table_option", "it makes the table a sequence"),
    "UNION <value>":
        _other("table_option", "it shows the rows of other tables, which are not in the log under its name"),
})  # fmt: skip


def _read_option(cursor: Cursor, table: ddl.TableRef) -> ddl.SetTableCharset | ddl.OtherClause | None:
    """Read the option at the cursor; return None and consume nothing where there is none."""
    start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    if read := cursor.accept_longest(_OPTIONS):
        return read(cursor, table)
    cursor.position = start
    return None


# --- Definitions of partitions ---

_BOUNDS_BY_WORDS: Final[_Table] = forms({
    "DEFAULT": partial(ddl.InValues, ((ddl.DefaultValue(),),)),
    "VALUES IN <rows:rows>": ddl.InValues,
    "VALUES LESS THAN MAXVALUE": partial(ddl.LessThan, (ddl.MaxValue(),)),
    "VALUES {LESS THAN} <values:bounds>": ddl.LessThan,
})  # fmt: skip
# HISTORY and CURRENT are MariaDB's, by SYSTEM_TIME.
_PARTITION: Final = form(
    "PARTITION <name:a partition> [HISTORY|CURRENT] <bound:bound> <options> <subpartitions>", ddl.Partition
)
_SUBPARTITION: Final = form("SUBPARTITION <a subpartition> <options>", _same)


def _partition_by(
    table: ddl.TableRef, method: tuple[ddl.PartitionMethod, str, tuple[str, ...]], **others: Any
) -> ddl.PartitionBy:
    return ddl.PartitionBy(table, ddl.Partitioning(*method, **others))


_PARTITIONING: Final[_Table] = forms({
    "PARTITION BY SYSTEM_TIME <rest>": _other(*VERSIONED),  # MariaDB's, which distributes the past of rows
    "PARTITION BY <method:method> <interval:interval> [PARTITIONS <count:number>] [SUBPARTITION BY <method>] "
    "[SUBPARTITIONS <number>] <partitions:partition definitions> [UPDATE INDEXES <()>]": _partition_by,
})  # fmt: skip


# --- Clauses of ALTER TABLE ---

_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})


def _create_table(cursor: Cursor) -> ddl.CreateTable:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    table = cursor.table_name()
    in_parentheses = cursor.accept("(", "LIKE")
    if in_parentheses or cursor.accept("LIKE"):
        like = cursor.table_name()
        if in_parentheses:
            cursor.expect(")")
        return ddl.CreateTable(table, like=like, if_not_exists=if_not_exists)
    clauses: list[ddl.Clause] = []
    if cursor.at("(") and cursor.next_token.word not in _QUERY_WORDS:
        clauses += cursor.enclosed(lambda: _read_element(cursor, table))
    if any(isinstance(clause, ddl.AddColumn) and clause.column.versioned for clause in clauses):
        clauses.append(ddl.OtherClause(table, *VERSIONED))
    while True:
        if read := cursor.accept_longest(_PARTITIONING):
            clauses.append(read(cursor, table))
        # MySQL 8.0.21 logs CREATE TABLE ... SELECT with this option, and the rows as separate events.
        elif not cursor.accept("START", "TRANSACTION"):
            separated = cursor.accept(",")
            option = _read_option(cursor, table)
            if option is None and separated:
                raise cursor.expected("a table option")
            if option is None:
                break
            clauses.append(option)
    handles_duplicates = cursor.accept_any(("IGNORE", "REPLACE")) is not None
    announced = cursor.accept("AS") or handles_duplicates
    has_query = cursor.token.word in _QUERY_WORDS
    if has_query:
        cursor.skip_rest()
    elif announced:
        raise cursor.expected("a query")
    return ddl.CreateTable(table, tuple(clauses), None, has_query, if_not_exists)


_ALTERED: Final = form("[IF EXISTS] <made:table> [WAIT <number>] [NOWAIT]", _same)  # WAIT is MariaDB's


def _alter_table(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER TABLE; empty where it changes nothing (only ALGORITHM, LOCK ...)."""
    table: ddl.TableRef = _ALTERED(cursor)
    clauses: list[ddl.Clause] = []
    start = cursor.position
    while not cursor.at_statement_end:
        # Partition clauses and placement of a partition need no comma before them.
        needs_comma = cursor.position > start and not (cursor.at("PARTITION") or cursor.at("REMOVE", "PARTITIONING"))
        if needs_comma and not cursor.accept(","):
            raise cursor.expected("a comma or the end")
        options = tuple(iter(lambda: _read_option(cursor, table), None))
        clauses += options or _read_clauses(cursor, _CLAUSES, "an ALTER TABLE clause", table)
    return tuple(clauses)


_IGNORED: Final = "it removes or cuts the rows that do not fit, and the log does not say which"


def _alter_ignore(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER IGNORE TABLE (MariaDB, and MySQL before 5.7.4), which leaves out the
    rows that a new key or partition does not take, and cuts values that a new type does not hold."""
    clauses = _alter_table(cursor)
    unlogged: list[ddl.Clause] = []
    for clause in clauses:
        match clause:
            case ddl.AddColumn(_, column) if not (column.unique or column.primary_key):
                pass
            case ddl.PartitionBy(_, None) | ddl.ChangePartitions(_, "drop_partition" | "truncate_partition"):
                pass
            case (
                ddl.AddColumn() | ddl.AddKey() | ddl.ChangePartitions() | ddl.ExchangePartition() | ddl.ModifyColumn()
                | ddl.PartitionBy() | ddl.SetTableCharset()
            ):  # fmt: skip
                unlogged.append(ddl.OtherClause(clause.table, clause.kind, _IGNORED))
            case _:
                pass
    return (*clauses, *unlogged)


def _add(cursor: Cursor, table: ddl.TableRef) -> ddl.Clause | ddl.Clauses:
    if key := _read_key(cursor, table):
        return key
    cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if cursor.at("("):
        return cursor.enclosed(lambda: _read_element(cursor, table, if_not_exists=if_not_exists))
    return ddl.AddColumn(table, _read_column(cursor), _read_position(cursor), if_not_exists)


def _alter(cursor: Cursor, table: ddl.TableRef) -> ddl.TableClause:
    cursor.accept("COLUMN")
    cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    if cursor.accept("DROP", "DEFAULT"):
        return ddl.SetColumnDefault(table, name, None)
    cursor.expect("SET")
    if cursor.accept_any(("VISIBLE", "INVISIBLE")):
        return ddl.OtherClause(table, "alter_default")
    cursor.expect("DEFAULT")
    return ddl.SetColumnDefault(table, name, _read_default(cursor))


def _modify(table: ddl.TableRef, column: ddl.ColumnDefinition, **others: Any) -> ddl.ModifyColumn:
    return ddl.ModifyColumn(table, column.name, column, **others)


# They take files away or put others in their place.
_DISCARDED: Final = _other(
    "partition_maintenance", "it takes rows away, and the log does not have those that come in their place"
)
_IMPORTED: Final = _other("partition_maintenance", "it replaces rows with those of a file, which are not in the log")
_CLAUSES: Final[_Table] = forms({
    "DROP [COLUMN] [if_exists:IF EXISTS] <name:column> [RESTRICT|CASCADE]": ddl.DropColumn,
    "RENAME COLUMN [if_exists:IF EXISTS] <name:column> TO <new_name:column>": ddl.RenameColumn,
    "CHANGE [COLUMN] [if_exists:IF EXISTS] <name:column> <column:definition> <position:position>": ddl.ModifyColumn,
    "MODIFY [COLUMN] [if_exists:IF EXISTS] <column:definition> <position:position>": _modify,
    "DROP PRIMARY KEY": partial(ddl.DropKey, kind="drop_primary_key", name="PRIMARY"),
    "DROP INDEX|KEY [IF EXISTS] <name:an index>": partial(ddl.DropKey, kind="drop_index"),
    "DROP FOREIGN KEY [IF EXISTS] <name:a foreign key>": partial(ddl.DropKey, kind="foreign_key"),
    "DROP CONSTRAINT [IF EXISTS] <name:a constraint>": partial(ddl.DropKey, kind="check_constraint"),
    "RENAME INDEX|KEY [IF EXISTS] <name:an index> TO <new_name:an index>": ddl.RenameIndex,
    "RENAME [TO|AS|=] <new_name:table>": ddl.RenameTable,
    "CONVERT TO {CHARACTER SET|CHAR SET|CHARSET} <charset:charset> [COLLATE|DEFAULT COLLATE <collation:charset>]":
        partial(_set_charset, convert=True),
    "ADD SYSTEM VERSIONING": _other(*VERSIONED),
    "DROP SYSTEM VERSIONING": _other(*_UNVERSIONED),
    # Partitions. Work on their files is alone in its statement.
    "REMOVE PARTITIONING": partial(ddl.PartitionBy, partitioning=None),
    "ADD PARTITION [IF NOT EXISTS] [LOCAL|NO_WRITE_TO_BINLOG] [PARTITIONS <count:number>] "
    "<added:partition definitions>": partial(ddl.ChangePartitions, kind="add_partition"),
    "DROP PARTITION [IF EXISTS] <names:partitions>": partial(ddl.ChangePartitions, kind="drop_partition"),
    "TRUNCATE PARTITION [IF EXISTS] <names:partitions>": partial(ddl.ChangePartitions, kind="truncate_partition"),
    "COALESCE PARTITION [LOCAL|NO_WRITE_TO_BINLOG] <count:fewer>":
        partial(ddl.ChangePartitions, kind="reorganize_partition"),
    "EXCHANGE PARTITION <partition:a partition> WITH TABLE <other:table> [WITH VALIDATION|WITHOUT VALIDATION]":
        ddl.ExchangePartition,
    "DISCARD TABLESPACE <...>": _DISCARDED,
    "DISCARD PARTITION <partitions> <rest>": _DISCARDED,
    "IMPORT TABLESPACE <...>": _IMPORTED,
    "IMPORT PARTITION <partitions> <rest>": _IMPORTED,
    # The others change no row.
    # How the statement runs.
    "ALGORITHM, LOCK, WITH|WITHOUT VALIDATION <...>": _same,
    # Whether the optimizer uses an index.
    "ALTER INDEX|KEY <...>": _other("alter_index"),
    # A check refuses later rows; the server has tested those that are there, and changes none.
    "ALTER CHECK|CONSTRAINT, DROP CHECK, DROP PERIOD FOR|IF <...>": _other("check_constraint"),
    # Where TiDB stores rows, and copies of them.
    "ADD|ALTER|DROP PLACEMENT POLICY, CACHE|COMPACT|NOCACHE, SET TIFLASH REPLICA, SET HYPO TIFLASH <...>": _PLACED,
    "ALTER PARTITION <a partition> {ADD|ALTER|DROP} PLACEMENT POLICY <...>": _PLACED,  # of TiDB 5.0 alone
    "PARTITION <a partition> {PLACEMENT POLICY|ATTRIBUTES} <...>": _PLACED,
    "COMPACT PARTITION <partitions> <rest>": _PLACED,
    # Rows that expire are deleted by statements, which are in the log.
    "REMOVE TTL <...>": _PLACED,
    # Statistics of TiDB. Without a name after it, what is dropped would be a column.
    "ADD STATS_EXTENDED [IF NOT EXISTS] <extended statistics> {CARDINALITY|DEPENDENCY|CORRELATION} <...>": _STORED,
    "DROP STATS_EXTENDED [IF EXISTS] <extended statistics>": _STORED,
    # The same rows are read, or written again; REPAIR finds those of damaged files.
    "ANALYZE|CHECK|OPTIMIZE|REBUILD|REPAIR PARTITION [LOCAL|NO_WRITE_TO_BINLOG] <partitions> <rest>":
        _other("partition_maintenance"),
    "FORCE <...>": _STORED,
    "ORDER BY <order>": _STORED,
    # Indexes that are not unique are brought up to date later.
    "DISABLE|ENABLE KEYS <...>": _STORED,
    # Whether later statements may change rows.
    "READ ONLY|WRITE <...>": _STORED,
    # A copy in another engine, which answers queries.
    "SECONDARY_LOAD|SECONDARY_UNLOAD <...>": _STORED,
}) | _PARTITIONING | _by_words({"ADD": _add, "ALTER": _alter, "REORGANIZE PARTITION": _reorganize})  # fmt: skip


# --- Statements ---


def parse(statement: str, *, backslash_escapes: bool = True) -> ddl.Clauses:
    """Parse one statement into its clauses, in order; none where it changes nothing (`ALTER TABLE t LOCK = NONE`, or a
    comment alone).

    Double quotes enclose a name where only a name is possible (sql_mode ANSI_QUOTES), else a string. Without
    `backslash_escapes` a backslash in a string is one: with sql_mode NO_BACKSLASH_ESCAPES, and in statements that TiCDC
    prints anew. Raises DdlSyntaxError, and nothing else, for anything but exactly one known statement.
    """
    cursor = Cursor(statement, backslash_escapes=backslash_escapes)
    clauses = () if statement and cursor.at_end else _read_clauses(cursor, _STATEMENTS, "a DDL statement")
    while cursor.accept(";"):
        pass
    if not cursor.at_end:
        raise cursor.expected("the end")
    return clauses


def parse_type(text: str) -> mysql.ColumnType:
    """Return the type of a column that is declared as `text`: `int unsigned`, `enum('a','b')`; attributes may follow
    it. Raises DdlSyntaxError."""
    cursor = Cursor(text)
    column = _read_column(cursor, "")
    if not cursor.at_end:
        raise cursor.expected("the end")
    return column.type


def _read_clauses(cursor: Cursor, readers: _Table, what: str, *table: ddl.TableRef) -> ddl.Clauses:
    made: ddl.Clause | ddl.Clauses = cursor.expect_longest(readers, what)(cursor, *table)
    return made if isinstance(made, tuple) else (made,)


def _flashback_tables(
    table: ddl.TableRef, others: Sequence[ddl.TableRef] = (), *, to_time: bool, new_name: str | None = None
) -> ddl.Clause:
    return ddl.Flashback("table", None, (table, *others)) if to_time or others else ddl.RecoverTable(table, new_name)


def _flashback_database(database: str, *, to_time: bool, new_name: str | None = None) -> ddl.Clause:
    return ddl.Flashback("database", database) if to_time else ddl.OfDatabase("recover_database", database, new_name)


def _read_object(readers: _Table, what: str, cursor: Cursor) -> ddl.Clauses:
    replaces = cursor.accept("OR", "REPLACE")
    # ALGORITHM = ..., DEFINER = user, SQL SECURITY ... stand before views and programs alone.
    if cursor.token.word in ("ALGORITHM", "DEFINER", "SQL"):
        cursor.skip_until(("VIEW", "PROCEDURE", "FUNCTION", "AGGREGATE", "TRIGGER", "EVENT"))
    clauses = _read_clauses(cursor, readers, what)
    # MariaDB's OR REPLACE drops the existing table.
    dropped = [ddl.DropTable(each.table) for each in clauses if replaces and isinstance(each, ddl.CreateTable)]
    return (*dropped, *clauses)


_OTHER: Final = _other("other")
_OBJECTS: Final = (
    "USER, ROLE, SERVER, TABLESPACE, UNDO TABLESPACE, LOGFILE GROUP, RESOURCE GROUP, SPATIAL REFERENCE SYSTEM, "
    "BINDING, GLOBAL BINDING, SESSION BINDING, STATISTICS"
)
_ROUTINES: Final = "PROCEDURE, FUNCTION, AGGREGATE FUNCTION, TRIGGER, EVENT, LIBRARY"
_POLICY: Final = {"PLACEMENT POLICY <more>": _PLACED, "SEQUENCE <more>": _other("sequence")}
_CREATE: Final[_Table] = forms({
    **_POLICY,
    f"{_OBJECTS} <more>": _OTHER,
    f"{_ROUTINES} <program>": _OTHER,
    "VIEW <more>": _other("create_view"),
    "DATABASE|SCHEMA [IF NOT EXISTS] <name:a database> <rest>": partial(ddl.OfDatabase, "create_database"),
    "UNIQUE INDEX <name:key name> ON <table:table> <parts:key>": partial(ddl.AddKey, kind="add_index"),
    "INDEX, FULLTEXT|SPATIAL|VECTOR|COLUMNAR INDEX <key name> ON <table:table> <key>": _other("add_index"),
    "TEMPORARY TABLE, GLOBAL TEMPORARY TABLE <more>": _other("create_table"),  # No log has its rows.
}) | {("TABLE",): _create_table}  # fmt: skip

_ALTER: Final[_Table] = _by_words({
    "TABLE, ONLINE|OFFLINE TABLE": _alter_table, "IGNORE TABLE, ONLINE IGNORE TABLE": _alter_ignore,
}) | forms({
    **_POLICY,
    f"{_OBJECTS}, INSTANCE <more>": _OTHER,
    f"{_ROUTINES} <program>": _OTHER,
    "VIEW <more>": _other("create_view"),
    "DATABASE|SCHEMA <more>": _other("alter_database"),
    "RANGE <more>": _PLACED,
})  # fmt: skip

_DROP: Final[_Table] = forms({
    **_POLICY,
    f"{_OBJECTS}, {_ROUTINES}, STATS <more>": _OTHER,
    "VIEW <more>": _other("drop_view"),
    "DATABASE|SCHEMA [IF EXISTS] <name:a database>": partial(ddl.OfDatabase, "drop_database"),
    "TABLE|TABLES [IF EXISTS] <made:dropped> [RESTRICT|CASCADE]": _same,
    "TEMPORARY TABLE|TABLES, GLOBAL TEMPORARY TABLE <more>": _other("drop_table"),
    "INDEX [IF EXISTS] <name:an index> ON <table:table> <...>": partial(ddl.DropKey, kind="drop_index"),
})  # fmt: skip

_RENAMED: Final = form("<table:table> TO <new_name:table>", ddl.RenameTable)
_STATEMENTS: Final[_Table] = forms({
    "TRUNCATE [TABLE] <table:table>": ddl.TruncateTable,
    "RENAME TABLE|TABLES [IF EXISTS] <made:renames>": _same,
    "RECOVER TABLE <table:table> <job>": ddl.RecoverTable,
    "RECOVER TABLE BY JOB <number>": partial(ddl.RecoverTable, None),
    "USE <name:a database>": partial(ddl.OfDatabase, "use_database"),
    # Of TiDB: to a time, which several tables can have; or of one table or database that was dropped.
    "FLASHBACK CLUSTER {TO TIMESTAMP|TO TSO} <value>": partial(ddl.Flashback, "cluster"),
    "FLASHBACK TABLE <table:table> [, <others:tables> {TO TIMESTAMP|TO TSO} <value>] "
    "[to_time:TO TIMESTAMP|TO TSO <value>] [TO <new_name:a name>]": _flashback_tables,
    "FLASHBACK DATABASE|SCHEMA <database:a database> [to_time:TO TIMESTAMP|TO TSO <value>] [TO <new_name:a name>]":
        _flashback_database,
    # Users, plugins, settings, locks, statistics and storage.
    "ADMIN, ANALYZE, FLUSH, GRANT, INSTALL, KILL, LOAD STATS, LOCK, OPTIMIZE, RENAME USER, REPAIR, REVOKE, SET, SPLIT, "
    "UNINSTALL, UNLOCK <more>": _OTHER,
    # They read, or run statements that are in the log by themselves.
    "CALL, CHECK TABLE, CHECKSUM, DO <more>": _OTHER,
    # Parts of transactions, whose rows are in the log by themselves.
    "RELEASE SAVEPOINT, SAVEPOINT, XA <more>": _OTHER,
    "BEGIN, COMMIT, ROLLBACK, START TRANSACTION <rest>": _OTHER,
}) | _by_words({
    "CREATE": partial(_read_object, _CREATE, "what is created"),
    "ALTER": partial(_read_object, _ALTER, "what is altered"),
    "DROP": partial(_read_object, _DROP, "what is dropped"),
})  # fmt: skip
