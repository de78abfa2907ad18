"""Parse DDL text of MySQL (5.7 to 8.4), MariaDB and TiDB into clauses. An unknown statement is an error.

    >>> [clause.kind for clause in parse("ALTER TABLE t DROP a, ADD INDEX (b)")]
    ['drop_column', 'add_index']

MySQL reference manual, "Data Definition Statements" and "Data Types"; those of TiDB and MariaDB. A type is kept as it
is written: FLOAT(30) stays a float of length 30. Only a type that the server itself replaces at once is returned as the
replacement (text types with the character set binary).

To add a type, add its name to `_NAMES`. To add an attribute of a column, add its first word to `_ATTRIBUTES`, and a
case to `_read_attribute`. To add an option, which is its words and a value, add its words to `_KINDS` or `_UNLOGGED`.
To add a clause that changes no row, add its first words to `_NO_EFFECT`, with the reason; one that changes rows as
neither the log nor the statement says, with `_skipped`. Else write a function that takes the cursor (after the words)
and the table, and add it to `_CLAUSES`; a clause that changes rows gets a class in `clauses`, and the type checker then
shows where it must be applied. Add both to `tests/changelog/cases/ddl/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import Cursor, bytes_value
from cdc_lakehouse.changelog.mysql_types import (
    BLOBS,
    GEOMETRIES,
    INTEGERS,
    LABELS,
    SYNONYMS,
    TEMPORALS,
    TEXTS,
    ColumnType,
    charset_of,
    of_bytes,
)

Clause = Callable[[Cursor, ddl.TableRef], ddl.Clauses]
"""Reads the rest of a clause of ALTER TABLE, after its first words."""
Statement = Callable[[Cursor], ddl.Clauses]
"""Reads the rest of a statement, after its first words."""

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


_CONSTRAINTS: Final = ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK")
_INDEX_WORDS: Final = ("INDEX", "KEY")
# Words that give the kind of an index. INDEX or KEY must follow, except after the reserved ones.
_RESERVED_KINDS: Final = frozenset({"FULLTEXT", "SPATIAL"})
_INDEX_KINDS: Final = _RESERVED_KINDS | {"VECTOR", "COLUMNAR"}


def _read_element(cursor: Cursor, table: ddl.TableRef, *, if_not_exists: bool = False) -> ddl.TableClause:
    key = _read_key_element(cursor, table)
    return ddl.AddColumn(table, _read_column(cursor), None, if_not_exists) if key is None else key


def _read_key_element(cursor: Cursor, table: ddl.TableRef) -> ddl.TableClause | None:
    """Read a key or a constraint as the clause that adds it; return None and consume nothing where neither is at the
    cursor."""
    # MariaDB: a period of the system's time is its row_start and row_end, any other one a check; both change no row.
    if cursor.accept("PERIOD", "FOR") or cursor.accept("PERIOD", "IF", "NOT", "EXISTS", "FOR"):
        cursor.name("a period")
        cursor.parenthesized()
        return ddl.OtherClause(table, "check_constraint")
    symbol = None
    if cursor.accept("CONSTRAINT"):
        cursor.accept("IF", "NOT", "EXISTS")
        symbol = None if cursor.token.word in _CONSTRAINTS else cursor.name("a constraint")
        if cursor.token.word not in _CONSTRAINTS:
            raise cursor.expected("PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK")
    match cursor.accept_any(_CONSTRAINTS):
        case "PRIMARY":
            cursor.expect("KEY")
            return ddl.AddKey(table, "add_primary_key", *_read_key(cursor))
        case "UNIQUE":
            cursor.accept_any(_INDEX_WORDS)
            name, parts = _read_key(cursor)
            return ddl.AddKey(table, "add_index", symbol if name is None else name, parts)
        case "FOREIGN":
            cursor.expect("KEY")
            name = _read_key_name(cursor)
            _read_key_parts(cursor)
            cursor.expect("REFERENCES")
            return ddl.AddForeignKey(table, ddl.ForeignKey(symbol or name, _read_references(cursor)))
        case "CHECK":
            _skip_check(cursor)
            return ddl.OtherClause(table, "check_constraint")
        case _:
            pass
    word = cursor.token.word
    needs_word = word not in _INDEX_WORDS and word not in _RESERVED_KINDS
    if needs_word and not (word in _INDEX_KINDS and cursor.next_token.word in _INDEX_WORDS):
        return None
    cursor.accept_any(_INDEX_KINDS)
    cursor.accept_any(_INDEX_WORDS)
    _read_key(cursor)
    return ddl.OtherClause(table, "add_index")


def _read_create_index(cursor: Cursor, *, is_unique: bool = False) -> ddl.Clauses:
    """Read the rest of a statement after CREATE [kind] INDEX: [IF NOT EXISTS] name [USING type] ON table (parts)."""
    cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("an index")
    _skip_index_type(cursor)
    cursor.expect("ON")
    table = cursor.table_name()
    parts = _read_key_parts(cursor) + _read_condition(cursor)
    return (ddl.AddKey(table, "add_index", name, parts) if is_unique else ddl.OtherClause(table, "add_index"),)


def _read_key(cursor: Cursor) -> tuple[str | None, tuple[ddl.KeyPart, ...]]:
    """Read [IF NOT EXISTS] [name] [USING type] (parts) and options."""
    return _read_key_name(cursor), _read_key_parts(cursor) + _read_condition(cursor)


def _read_key_name(cursor: Cursor) -> str | None:
    cursor.accept("IF", "NOT", "EXISTS")
    unnamed = cursor.at("(") or cursor.at("USING") or (cursor.at("TYPE") and cursor.next_token.kind == "word")
    name = None if unnamed else cursor.name("an index")
    _skip_index_type(cursor)
    return name


def _skip_index_type(cursor: Cursor) -> None:
    if cursor.accept_any(("USING", "TYPE")):
        cursor.name("an index type")


def _read_key_parts(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    def read() -> ddl.KeyPart:
        if cursor.at("("):
            cursor.parenthesized()
            part = ddl.KeyPart(None)
        else:
            name, length = cursor.column_name(), None
            if cursor.accept("("):
                length = cursor.integer()
                cursor.expect(")")
            part = ddl.KeyPart(name, length)
        cursor.accept_any(("ASC", "DESC"))
        return part

    return cursor.enclosed(read)


def _read_condition(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    """Skip the options of a key. TiDB's WHERE becomes a part that is an expression: the key holds only some rows and
    identifies none."""
    cursor.skip_clause("WHERE")
    if not cursor.accept("WHERE"):
        return ()
    if not cursor.skip_clause():
        raise cursor.expected("a condition")
    return (ddl.KeyPart(None),)


_CHANGING_ACTIONS: Final = (("CASCADE",), ("SET", "NULL"), ("SET", "DEFAULT"))
_REFERENCE_ACTIONS: Final = (*_CHANGING_ACTIONS, ("RESTRICT",), ("NO", "ACTION"))


def _read_references(cursor: Cursor) -> str | None:
    """Read the rest of a foreign key, after REFERENCES; return its actions as `ddl.ForeignKey` has them."""
    cursor.table_name()
    if cursor.at("("):
        _read_key_parts(cursor)
    if cursor.accept("MATCH"):
        cursor.expect_any(("FULL", "PARTIAL", "SIMPLE"), "FULL, PARTIAL or SIMPLE")
    actions: list[str] = []
    while cursor.accept("ON"):
        event = cursor.expect_any(("DELETE", "UPDATE"), "DELETE or UPDATE")
        action = next((action for action in _REFERENCE_ACTIONS if cursor.accept(*action)), None)
        if action in _CHANGING_ACTIONS:
            actions.append(" ".join(("ON", event, *action)))
        if action is None:
            raise cursor.expected("RESTRICT, CASCADE, SET NULL, SET DEFAULT or NO ACTION")
    return " ".join(actions) or None


def _skip_check(cursor: Cursor) -> None:
    cursor.parenthesized()
    if not cursor.accept("NOT", "ENFORCED"):
        cursor.accept("ENFORCED")


def _read_column(cursor: Cursor, name: str | None = None) -> ddl.ColumnDefinition:
    name, said = cursor.column_name() if name is None else name, dict[str, Any]()
    if cursor.accept("SERIAL"):
        kind = ColumnType.of("bigint unsigned")
        said |= _SERIAL
    else:
        kind = _read_type(cursor)
    while word := cursor.accept_any(_ATTRIBUTES):
        said |= _read_attribute(cursor, word)
    collation = said.pop("collation", None)
    if kind.name in TEXTS | LABELS:
        kind = replace(kind, charset=charset_of(kind.charset, collation))
    return ddl.ColumnDefinition(name, of_bytes(kind) if collation == "binary" else kind, **said)


def _read_position(cursor: Cursor) -> str | None:
    if cursor.accept("FIRST"):
        return ddl.FIRST
    return cursor.column_name() if cursor.accept("AFTER") else None


# SERIAL is BIGINT UNSIGNED with these attributes (MySQL reference manual, "Numeric Data Type Syntax").
_SERIAL: Final = {"nullable": False, "auto_increment": True, "unique": True}
_VALUED: Final = ("COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID")
_ATTRIBUTES: Final = frozenset({
    "NOT", "NULL", "DEFAULT", "AUTO_INCREMENT", "PRIMARY", "KEY", "UNIQUE", "COMMENT", "AS", "COLLATE", "ON", "SERIAL",
    "GENERATED", "REFERENCES", "WITH", "CHECK", "CONSTRAINT", "WITHOUT", "COMPRESSED", "AUTO_RANDOM", *_VALUED,
    # Visibility; and of TiDB the storage of a key of the column.
    "VISIBLE", "INVISIBLE", "CLUSTERED", "NONCLUSTERED", "GLOBAL", "LOCAL",
})  # fmt: skip


def _read_attribute(cursor: Cursor, word: str) -> dict[str, Any]:
    """Read an attribute after its first word; return the fields of a `ddl.ColumnDefinition` that it says."""
    match word:
        case "NOT" if not cursor.accept("SECONDARY"):
            cursor.expect("NULL")
            return {"nullable": False}
        case "NULL":
            return {"nullable": True}
        case "DEFAULT":
            return {"default": _read_default(cursor)}
        case "AUTO_INCREMENT":
            return {"auto_increment": True}
        case "PRIMARY" | "KEY" | "UNIQUE":
            cursor.accept("KEY")
            return {"unique" if word == "UNIQUE" else "primary_key": True}
        case "COMMENT":
            return {"comment": cursor.string()}
        case "COLLATE":
            return {"collation": cursor.charset_name()}
        case "REFERENCES":
            return {"references": ddl.ForeignKey(None, _read_references(cursor))}
        case "SERIAL":
            cursor.expect("DEFAULT", "VALUE")
            return _SERIAL
        case "WITH" | "WITHOUT":
            cursor.expect("SYSTEM", "VERSIONING")
            return {"versioned": True} if word == "WITH" else {}
        case "AS" | "GENERATED":
            if word == "GENERATED":
                cursor.expect("ALWAYS", "AS")
            if cursor.accept("ROW", "START") or cursor.accept("ROW", "END"):  # MariaDB: rows have it
                return {}
            expression = cursor.parenthesized()
            stored = cursor.accept_any(("STORED", "PERSISTENT", "VIRTUAL")) not in (None, "VIRTUAL")
            return {"stored_as": expression} if stored else {"virtual": True}
        # Others do not affect rows.
        case "ON":
            cursor.expect("UPDATE")
            _read_function(cursor)
        case "CHECK":
            _skip_check(cursor)
        case "CONSTRAINT":
            if not cursor.at("CHECK"):
                cursor.name()
            cursor.expect("CHECK")
            _skip_check(cursor)
        case "AUTO_RANDOM" if cursor.at("("):
            cursor.parenthesized()
        case _ if word in _VALUED or (word == "COMPRESSED" and cursor.at("=")):
            cursor.skip_value()
        case _:
            pass
    return {}


# --- Types ---

_REALS: Final = frozenset({"decimal", "float", "double"})
_PLAIN: Final = frozenset({"json", "uuid", "inet4", "inet6"}) | GEOMETRIES

# The words of a type -> the name that `ColumnType.of` takes.
_NAMES: Final[dict[tuple[str, ...], str]] = {
    tuple(name.upper().split()): name
    for name in (
        *INTEGERS, *TEXTS, *BLOBS, *LABELS, *TEMPORALS, *_REALS, *_PLAIN, *SYNONYMS, "bit", "year", "vector",
    )
}  # fmt: skip
_NATIONAL: Final = ("nchar", "nvarchar", "national")

_NUMBER_FLAGS: Final = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_NUMBERS: Final = INTEGERS | _REALS | {"bit", "year"}
_CHARSET_WORDS: Final = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}


def _read_type(cursor: Cursor) -> ColumnType:
    """Read a column's type with its length, signs, labels and character set."""
    declared = cursor.expect_longest(_NAMES, "a column type")
    name = ColumnType.of(declared).name
    if name == "vector" and cursor.accept("<"):
        cursor.expect("FLOAT", ">")
    length = scale = None
    if name not in LABELS and name not in _PLAIN and cursor.accept("("):
        length = cursor.integer()
        scale = cursor.integer() if name in _REALS and cursor.accept(",") else None
        cursor.expect(")")
    if name in TEMPORALS:  # The number after it is the digits of the second's fraction.
        length, scale = None, length
    # The server removes trailing spaces from labels (MySQL, "The ENUM Type"): values never have them.
    labels = cursor.enclosed(lambda: cursor.string("a label").rstrip(" ")) if name in LABELS else ()
    flags: list[str] = []
    while name in _NUMBERS and (flag := cursor.accept_any(_NUMBER_FLAGS)):
        flags.append(flag.lower())
    charset = "utf8" if declared.startswith(_NATIONAL) else None
    while name in TEXTS | LABELS:
        if word := cursor.accept_any(_CHARSET_WORDS):
            charset = _CHARSET_WORDS[word]
        elif cursor.accept_charset():
            charset = cursor.charset_name() or charset
        elif not cursor.accept("BINARY"):
            break
    words = " ".join((declared, *flags))
    kind = ColumnType.of(words, length=length, scale=scale, elements=labels, charset=charset)
    return of_bytes(kind) if charset == "binary" else kind


# Options that change no row.
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    # The next number; rows that are there keep theirs.
    "auto_increment": ("AUTO_INCREMENT",),
    "comment": ("COMMENT",),
    "table_option": (
        # How and where the same rows are stored, by MySQL and by MariaDB.
        "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "COMPRESSION", "DATA DIRECTORY", "ENCRYPTION", "ENGINE_ATTRIBUTE",
        "INDEX DIRECTORY", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "NODEGROUP", "PACK_KEYS", "ROW_FORMAT", "STORAGE",
        "TABLESPACE",
        "ENCRYPTED", "ENCRYPTION_KEY_ID", "IETF_QUOTES", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL",
        # Checksums, when indexes are written, and whether rows survive a crash of the server.
        "CHECKSUM", "DELAY_KEY_WRITE", "TABLE_CHECKSUM", "TRANSACTIONAL",
        # Into which table of a MERGE later rows go.
        "INSERT_METHOD",
        # Kept, and not used.
        "PASSWORD",
        # A copy in another engine, which answers queries.
        "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE",
        # Statistics, by MySQL and by TiDB.
        "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES",
        "STATS_BUCKETS", "STATS_COL_CHOICE", "STATS_COL_LIST", "STATS_SAMPLE_RATE", "STATS_TOPN",
    ),
    "placement_tiflash_ttl_etc": (
        # Where TiDB stores rows, and copies of them.
        "AFFINITY", "ATTRIBUTES", "CONSTRAINTS", "FOLLOWERS", "FOLLOWER_CONSTRAINTS", "LEADER_CONSTRAINTS", "LEARNERS",
        "LEARNER_CONSTRAINTS", "PLACEMENT POLICY", "PRE_SPLIT_REGIONS", "PRIMARY_REGION", "REGIONS", "SCHEDULE",
        "SHARD_ROW_ID_BITS", "SURVIVAL_PREFERENCES", "VOTERS", "VOTER_CONSTRAINTS",
        # The next numbers; rows that are there keep theirs.
        "AUTO_ID_CACHE", "AUTO_RANDOM_BASE",
        # Rows that expire are deleted by statements, which are in the log.
        "TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL",
    ),
}  # fmt: skip
# Options that change which rows an existing table shows.
_UNLOGGED: Final = {
    "CONNECTION": "it shows the rows of another server's table, which are not in the log",
    "SEQUENCE": "it makes the table a sequence",
    "UNION": "it shows the rows of other tables, which are not in the log under its name",
}
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


_ENGINE: Final = "the engine {} need not keep the table's rows"
_OPTIONS: Final[dict[tuple[str, ...], tuple[str, str | None]]] = {
    **{tuple(words.split()): (kind, None) for kind, options in _KINDS.items() for words in options},
    **{(word,): ("table_option", reason) for word, reason in _UNLOGGED.items()},
    **{tuple(words.split()): ("table_option", _ENGINE) for words in ("ENGINE", "STORAGE ENGINE", "TYPE")},
}
"""The kind of each option, and the reason why its effect on rows is not known."""
_OPTIONS_OF_PARTITIONS: Final = {words: kind for words, (kind, why) in _OPTIONS.items() if why in (None, _ENGINE)}
"""Others may say which rows a partition shows: nothing accepts them there, so their statements are not understood."""


def _read_option(cursor: Cursor, table: ddl.TableRef) -> ddl.SetTableCharset | ddl.OtherClause | None:
    """Read the option at the cursor; return None and consume nothing where there is none."""
    start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    if cursor.accept_charset():
        return ddl.SetTableCharset(table, _read_charset(cursor))
    if cursor.accept("COLLATE"):
        return ddl.SetTableCharset(table, charset_of(None, cursor.charset_name()))
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return ddl.OtherClause(table, *VERSIONED)
    option = cursor.accept_longest(_OPTIONS)
    if option is None:
        cursor.position = start
        return None
    kind, unlogged = option
    cursor.accept("SET")  # PLACEMENT POLICY SET DEFAULT
    value = cursor.skip_value()
    if unlogged == _ENGINE:
        unlogged = None if value.lower() in _KEEPING else _ENGINE.format(value)
    if unlogged is None and cursor.accept("+"):  # TTL = column + INTERVAL 3 MONTH
        cursor.expect("INTERVAL")
        cursor.word_or_string("a number")
        cursor.name("a unit of time")
    return ddl.OtherClause(table, kind, unlogged)


def _read_charset(cursor: Cursor) -> str | None:
    charset = cursor.charset_name()
    said = cursor.accept("COLLATE") or cursor.accept("DEFAULT", "COLLATE")
    return charset_of(charset, cursor.charset_name() if said else None)


def _read_conversion(cursor: Cursor, table: ddl.TableRef) -> tuple[ddl.SetTableCharset]:
    cursor.expect("TO")
    if not cursor.accept_charset():
        raise cursor.expected("CHARACTER SET")
    return (ddl.SetTableCharset(table, _read_charset(cursor), convert=True),)


_METHODS: Final[dict[tuple[str, ...], ddl.PartitionMethod]] = {
    ("RANGE", "COLUMNS"): "range columns", ("RANGE", "FIELDS"): "range columns", ("RANGE",): "range",
    ("LIST", "COLUMNS"): "list columns", ("LIST", "FIELDS"): "list columns", ("LIST",): "list",
    ("LINEAR", "HASH"): "linear hash", ("HASH",): "hash", ("LINEAR", "KEY"): "linear key", ("KEY",): "key",
}  # fmt: skip


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
    end, cursor.position = cursor.position, start + 1
    names: list[str] = []
    while cursor.at_name:
        names.append(cursor.name())
        if not cursor.accept(","):
            break
    is_plain, cursor.position = cursor.position == end - 1, end
    return method, expression, tuple(names) if is_plain else ()


def _read_partitions(cursor: Cursor) -> tuple[ddl.Partition, ...]:
    def skip_options() -> None:
        while cursor.accept_longest(_OPTIONS_OF_PARTITIONS):
            cursor.skip_value()

    def skip_subpartition() -> None:
        cursor.expect("SUBPARTITION")
        cursor.name("a subpartition")
        skip_options()

    def read_row() -> tuple[ddl.BoundValue, ...]:
        # `(1 + 1) * 2` begins like several values in parentheses and is one value.
        start = cursor.position
        if cursor.at("("):
            row = cursor.enclosed(lambda: _read_bound(cursor))
            if cursor.at(",") or cursor.at(")"):
                return row
            cursor.position = start
        return (_read_bound(cursor),)

    def read() -> ddl.Partition:
        cursor.expect("PARTITION")
        name = cursor.name("a partition")
        cursor.accept_any(("HISTORY", "CURRENT"))  # MariaDB's, by SYSTEM_TIME
        bound: ddl.LessThan | ddl.InValues | None = None
        if cursor.accept("DEFAULT"):
            bound = ddl.InValues(((ddl.DefaultValue(),),))
        elif cursor.accept("VALUES", "IN"):
            bound = ddl.InValues(cursor.enclosed(read_row))
        elif cursor.accept("VALUES"):
            cursor.expect("LESS", "THAN")
            is_most = cursor.accept("MAXVALUE")
            bound = ddl.LessThan((ddl.MaxValue(),) if is_most else cursor.enclosed(lambda: _read_bound(cursor)))
        skip_options()
        if cursor.at("("):
            cursor.enclosed(skip_subpartition)
        return ddl.Partition(name, bound)

    return cursor.enclosed(read)


# Clauses that take files away or put others in their place, by their first word, and why their rows are not known.
_UNLOGGED_FILES: Final = {
    "DISCARD": "it takes rows away, and the log does not have those that come in their place",
    "IMPORT": "it replaces rows with those of a file, which are not in the log",
}
# The same rows are read, or written again; REPAIR finds those of damaged files.
_MAINTENANCE: Final = ("ANALYZE", "CHECK", "COMPACT", "OPTIMIZE", "REBUILD", "REPAIR", *_UNLOGGED_FILES)
_NOT_REPLICATED: Final = ("LOCAL", "NO_WRITE_TO_BINLOG")


def _read_partition_by(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("SYSTEM_TIME"):  # MariaDB's, which distributes the past of rows
        cursor.skip_until(())
        return (ddl.OtherClause(table, *VERSIONED),)
    method, expression, columns = _read_method(cursor)
    start = cursor.position
    if cursor.accept("INTERVAL"):  # TiDB's: (...) [FIRST|LAST PARTITION LESS THAN (...)] [NULL|MAXVALUE PARTITION]
        cursor.parenthesized()
        while word := cursor.accept_any(("FIRST", "LAST", "NULL", "MAXVALUE")):
            cursor.expect("PARTITION")
            if word in ("FIRST", "LAST"):
                cursor.expect("LESS", "THAN")
                cursor.parenthesized()
    interval = cursor.text_between(start, cursor.position) or None
    count = cursor.integer() if cursor.accept("PARTITIONS") else None
    if cursor.accept("SUBPARTITION", "BY"):
        _read_method(cursor)
        if cursor.accept("SUBPARTITIONS"):
            cursor.integer()
    partitions = _read_partitions(cursor) if cursor.at("(") else ()
    if cursor.accept("UPDATE", "INDEXES"):
        cursor.parenthesized()
    return (ddl.PartitionBy(table, ddl.Partitioning(method, expression, columns, count, partitions, interval)),)


def _read_partition_clause(verb: str, cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    def names() -> tuple[str, ...] | None:
        """Read the names of partitions; None for ALL."""
        return None if cursor.accept("ALL") else cursor.listed(lambda: cursor.name("a partition"))

    if verb == "ADD":
        cursor.accept("IF", "NOT", "EXISTS")
    elif verb in ("DROP", "TRUNCATE"):
        cursor.accept("IF", "EXISTS")
        kind = "drop_partition" if verb == "DROP" else "truncate_partition"
        return (ddl.ChangePartitions(table, kind, names()),)
    elif verb == "EXCHANGE":
        name = cursor.name("a partition")
        cursor.expect("WITH", "TABLE")
        other = cursor.table_name()
        if cursor.accept_any(("WITH", "WITHOUT")):
            cursor.expect("VALIDATION")
        return (ddl.ExchangePartition(table, name, other),)
    cursor.accept_any(_NOT_REPLICATED)
    match verb:
        case "ADD" if cursor.accept("PARTITIONS"):
            return (ddl.ChangePartitions(table, "add_partition", count=cursor.integer()),)
        case "ADD":
            added = _read_partitions(cursor) if cursor.at("(") else ()
            return (ddl.ChangePartitions(table, "add_partition", added=added),)
        case "REORGANIZE" if not cursor.at_name:  # The rows of all partitions (hash, key) are distributed again.
            return (ddl.ChangePartitions(table, "reorganize_partition"),)
        case "REORGANIZE":
            gone = names()
            cursor.expect("INTO")
            return (ddl.ChangePartitions(table, "reorganize_partition", gone, _read_partitions(cursor)),)
        case "COALESCE":
            return (ddl.ChangePartitions(table, "reorganize_partition", count=-cursor.integer()),)
        case _:  # It works on the files of partitions, and is alone in its statement.
            names()
            cursor.skip_until(())
            kind = "placement_tiflash_ttl_etc" if verb == "COMPACT" else "partition_maintenance"
            return (ddl.OtherClause(table, kind, _UNLOGGED_FILES.get(verb)),)


def _read_partition_option(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.name("a partition")
    if not (cursor.accept("PLACEMENT", "POLICY") or cursor.accept("ATTRIBUTES")):
        raise cursor.expected("PLACEMENT POLICY or ATTRIBUTES")
    cursor.skip_clause()
    return (ddl.OtherClause(table, "placement_tiflash_ttl_etc"),)


_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})


def _create_table(cursor: Cursor, *, temporary: bool = False) -> tuple[ddl.CreateTable]:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    table = cursor.table_name()
    in_parentheses = cursor.accept("(", "LIKE")
    if in_parentheses or cursor.accept("LIKE"):
        like = cursor.table_name()
        if in_parentheses:
            cursor.expect(")")
        return (ddl.CreateTable(table, like=like, if_not_exists=if_not_exists, temporary=temporary),)
    clauses: list[ddl.Clause] = []
    if cursor.at("(") and cursor.next_token.word not in _QUERY_WORDS:
        clauses += cursor.enclosed(lambda: _read_element(cursor, table))
    if any(isinstance(clause, ddl.AddColumn) and clause.column.versioned for clause in clauses):
        clauses.append(ddl.OtherClause(table, *VERSIONED))
    while True:
        if cursor.accept("PARTITION", "BY"):
            clauses += _read_partition_by(cursor, table)
        elif cursor.accept("ON", "COMMIT"):
            cursor.expect_any(("DELETE", "PRESERVE"), "DELETE or PRESERVE")
            cursor.expect("ROWS")
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
    return (ddl.CreateTable(table, tuple(clauses), None, has_query, if_not_exists, temporary),)


def _alter_table(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER TABLE; empty where it changes nothing (only ALGORITHM, LOCK ...)."""
    cursor.accept("IF", "EXISTS")
    table = cursor.table_name()
    if cursor.accept("WAIT"):  # MariaDB
        cursor.integer()
    else:
        cursor.accept("NOWAIT")
    clauses: list[ddl.Clause] = []
    start = cursor.position
    while not cursor.at_statement_end:
        # Partition clauses and placement of a partition need no comma before them.
        needs_comma = cursor.position > start and not (cursor.at("PARTITION") or cursor.at("REMOVE", "PARTITIONING"))
        if needs_comma and not cursor.accept(","):
            raise cursor.expected("a comma or the end")
        options = tuple(iter(lambda: _read_option(cursor, table), None))
        clauses += options or cursor.expect_longest(_CLAUSES, "an ALTER TABLE clause")(cursor, table)
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


def _add(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if element := _read_key_element(cursor, table):
        return (element,)
    if cursor.accept("STATS_EXTENDED"):  # TiDB
        cursor.accept("IF", "NOT", "EXISTS")
        cursor.name("extended statistics")
        cursor.expect_any(("CARDINALITY", "DEPENDENCY", "CORRELATION"), "a kind of statistics")
        cursor.skip_clause()
        return (ddl.OtherClause(table, "table_option"),)
    cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if cursor.at("("):
        return cursor.enclosed(lambda: _read_element(cursor, table, if_not_exists=if_not_exists))
    column = _read_column(cursor)
    return (ddl.AddColumn(table, column, _read_position(cursor), if_not_exists),)


_DroppedKind = Literal["drop_index", "foreign_key", "check_constraint"]
_DROPPED: Final[dict[tuple[str, ...], tuple[_DroppedKind, str]]] = {
    ("CONSTRAINT",): ("check_constraint", "a constraint"), ("FOREIGN", "KEY"): ("foreign_key", "a foreign key"),
    ("INDEX",): ("drop_index", "an index"), ("KEY",): ("drop_index", "an index"),
}  # fmt: skip


def _drop(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("PRIMARY", "KEY"):
        return (ddl.DropKey(table, "drop_primary_key", "PRIMARY"),)
    if dropped := cursor.accept_longest(_DROPPED):
        kind, what = dropped
        cursor.accept("IF", "EXISTS")
        return (ddl.DropKey(table, kind, cursor.name(what)),)
    if cursor.accept("STATS_EXTENDED"):  # TiDB. Without a name after it, it would be a column.
        cursor.accept("IF", "EXISTS")
        cursor.name("extended statistics")
        return (ddl.OtherClause(table, "table_option"),)
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return (ddl.DropColumn(table, name, if_exists),)


def _modify(cursor: Cursor, table: ddl.TableRef, *, changes: bool) -> ddl.Clauses:
    """Read MODIFY or, where the name is one that `changes`, CHANGE."""
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    column = _read_column(cursor, None if changes else name)
    return (ddl.ModifyColumn(table, name, column, _read_position(cursor), if_exists),)


def _alter(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("PARTITION"):  # of TiDB 5.0, which later versions no longer have
        cursor.name("a partition")
        cursor.expect_any(("ADD", "ALTER", "DROP"), "ADD, ALTER or DROP")
        cursor.expect("PLACEMENT", "POLICY")
        cursor.skip_clause()
        return (ddl.OtherClause(table, "placement_tiflash_ttl_etc"),)
    cursor.accept("COLUMN")
    cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    if cursor.accept("DROP", "DEFAULT"):
        return (ddl.SetColumnDefault(table, name, None),)
    cursor.expect("SET")
    if cursor.accept_any(("VISIBLE", "INVISIBLE")):
        return (ddl.OtherClause(table, "alter_default"),)
    cursor.expect("DEFAULT")
    return (ddl.SetColumnDefault(table, name, _read_default(cursor)),)


def _rename(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("COLUMN"):
        if_exists = cursor.accept("IF", "EXISTS")
        name = cursor.column_name()
        cursor.expect("TO")
        return (ddl.RenameColumn(table, name, cursor.column_name(), if_exists),)
    if cursor.accept_any(("INDEX", "KEY")):
        cursor.accept("IF", "EXISTS")
        name = cursor.name("an index")
        cursor.expect("TO")
        return (ddl.RenameIndex(table, name, cursor.name("an index")),)
    cursor.accept_any(("TO", "AS", "="))
    return (ddl.RenameTable(table, cursor.table_name()),)


def _order_by(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.listed(lambda: (cursor.column_name(), cursor.accept_any(("ASC", "DESC"))))
    return (ddl.OtherClause(table, "table_option"),)


def _skipped(kind: str | None, unlogged: str | None = None) -> Clause:
    """Return the reader of a clause of that kind, and with the reason if it changes rows as the log does not say. What
    has no kind says how the statement runs, and is no clause."""

    def read(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
        cursor.skip_clause()
        return () if kind is None else (ddl.OtherClause(table, kind, unlogged),)

    return read


_NO_EFFECT: Final[dict[str | None, tuple[str, ...]]] = {
    # Whether the optimizer uses an index.
    "alter_index": ("ALTER INDEX", "ALTER KEY"),
    # A check refuses later rows; the server has tested those that are there, and changes none.
    "check_constraint": ("ALTER CHECK", "ALTER CONSTRAINT", "DROP CHECK", "DROP PERIOD FOR", "DROP PERIOD IF"),
    "placement_tiflash_ttl_etc": (
        # Where TiDB stores rows, and copies of them.
        "ADD PLACEMENT POLICY", "ALTER PLACEMENT POLICY", "CACHE", "COMPACT", "DROP PLACEMENT POLICY", "NOCACHE",
        "SET HYPO TIFLASH", "SET TIFLASH REPLICA",
        # Rows that expire are deleted by statements, which are in the log.
        "REMOVE TTL",
    ),
    "table_option": (
        # Indexes that are not unique are brought up to date later.
        "DISABLE KEYS", "ENABLE KEYS",
        # The same rows are written again.
        "FORCE",
        # Whether later statements may change rows.
        "READ ONLY", "READ WRITE",
        # A copy in another engine, which answers queries.
        "SECONDARY_LOAD", "SECONDARY_UNLOAD",
    ),
    None: ("ALGORITHM", "LOCK", "WITH VALIDATION", "WITHOUT VALIDATION"),
}  # fmt: skip
_CLAUSES: Final[dict[tuple[str, ...], Clause]] = {
    **{tuple(words.split()): _skipped(kind) for kind, rows in _NO_EFFECT.items() for words in rows},
    **{(verb, "TABLESPACE"): _skipped("partition_maintenance", reason) for verb, reason in _UNLOGGED_FILES.items()},
    **{
        (verb, "PARTITION"): partial(_read_partition_clause, verb)
        for verb in ("ADD", "DROP", "TRUNCATE", "EXCHANGE", "REORGANIZE", "COALESCE", *_MAINTENANCE)
    },
    ("REMOVE", "PARTITIONING"): lambda _, table: (ddl.PartitionBy(table, None),),
    ("PARTITION", "BY"): _read_partition_by,
    ("PARTITION",): _read_partition_option,
    ("ADD",): _add,
    ("ADD", "SYSTEM", "VERSIONING"): lambda _, table: (ddl.OtherClause(table, *VERSIONED),),
    ("DROP", "SYSTEM", "VERSIONING"): lambda _, table: (ddl.OtherClause(table, *_UNVERSIONED),),
    ("ALTER",): _alter,
    ("CHANGE",): partial(_modify, changes=True),
    ("CONVERT",): _read_conversion,
    ("DROP",): _drop,
    ("MODIFY",): partial(_modify, changes=False),
    ("ORDER", "BY"): _order_by,
    ("RENAME",): _rename,
}


def parse(statement: str, *, backslash_escapes: bool = True) -> ddl.Clauses:
    """Parse one statement into its clauses, in order; none where it changes nothing (`ALTER TABLE t LOCK = NONE`, or a
    comment alone).

    Double quotes enclose a name where only a name is possible (sql_mode ANSI_QUOTES), else a string. Without
    `backslash_escapes` a backslash in a string is one: with sql_mode NO_BACKSLASH_ESCAPES, and in statements that TiCDC
    prints anew. Raises DdlSyntaxError, and nothing else, for anything but exactly one known statement.
    """
    cursor = Cursor(statement, backslash_escapes=backslash_escapes)
    clauses = () if statement and cursor.at_end else cursor.expect_longest(_STATEMENTS, "a DDL statement")(cursor)
    while cursor.accept(";"):
        pass
    if not cursor.at_end:
        raise cursor.expected("the end")
    return clauses


def parse_type(text: str) -> ColumnType:
    """Return the type of a column that is declared as `text`: `int unsigned`, `enum('a','b')`; attributes may follow
    it. Raises DdlSyntaxError."""
    cursor = Cursor(text)
    column = _read_column(cursor, "")
    if not cursor.at_end:
        raise cursor.expected("the end")
    return column.type


def _drop_tables(cursor: Cursor, *, temporary: bool = False) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")
    names = cursor.listed(cursor.table_name)
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return tuple(ddl.DropTable(name, temporary) for name in names)


def _rename_tables(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")

    def read_pair() -> ddl.RenameTable:
        name = cursor.table_name()
        cursor.expect("TO")
        return ddl.RenameTable(name, cursor.table_name())

    return cursor.listed(read_pair)


def _recover_table(cursor: Cursor) -> ddl.Clauses:
    """Read TiDB's RECOVER TABLE name [number], or BY JOB number."""
    if cursor.accept("BY", "JOB"):
        cursor.integer()
        return (ddl.RecoverTable(None),)
    table = cursor.table_name()
    if not cursor.at_statement_end:
        cursor.integer()
    return (ddl.RecoverTable(table),)


def _flashback(scope: Literal["cluster", "database", "table"], cursor: Cursor) -> ddl.Clauses:
    """Read TiDB's FLASHBACK of tables, a database or the cluster to a time, or of a table or a database [TO new
    name]."""
    tables: list[ddl.TableRef] = [*cursor.listed(cursor.table_name)] if scope == "table" else []
    database = cursor.name("a database") if scope == "database" else None
    to_time = cursor.accept("TO", "TIMESTAMP")
    if to_time:
        cursor.string()
    elif cursor.accept("TO", "TSO"):
        cursor.integer()
        to_time = True
    elif scope == "cluster" or len(tables) > 1:
        raise cursor.expected("TO TIMESTAMP or TO TSO")
    if to_time:
        return (ddl.Flashback(scope, database, tuple(tables)),)
    new_name = cursor.name() if cursor.accept("TO") else None
    if database is None:
        return (ddl.RecoverTable(tables[0], new_name),)
    return (ddl.OfDatabase("recover_database", database, new_name),)


def _drop_index(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")
    name = cursor.name("an index")
    cursor.expect("ON")
    table = cursor.table_name()
    cursor.skip_clause()
    return (ddl.DropKey(table, "drop_index", name),)


def _create_database(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("a database")
    cursor.skip_until(())
    return (ddl.OfDatabase("create_database", name),)


def _drop_database(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")
    return (ddl.OfDatabase("drop_database", cursor.name("a database")),)


def _create(cursor: Cursor) -> ddl.Clauses:
    replaces = cursor.accept("OR", "REPLACE")
    _skip_definer(cursor)
    match clauses := cursor.expect_longest(_CREATE, "what is created")(cursor):
        case (ddl.CreateTable() as created,) if replaces:
            # MariaDB's OR REPLACE drops the existing table.
            return ddl.DropTable(created.table, created.temporary), created
        case _:
            return clauses


def _alter_object(cursor: Cursor) -> ddl.Clauses:
    _skip_definer(cursor)
    return cursor.expect_longest(_ALTER, "what is altered")(cursor)


_DEFINED: Final = ("VIEW", "PROCEDURE", "FUNCTION", "AGGREGATE", "TRIGGER", "EVENT")


def _skip_definer(cursor: Cursor) -> None:
    """Skip ALGORITHM = ..., DEFINER = user, SQL SECURITY ..., which stand before views and programs alone."""
    if cursor.token.word in ("ALGORITHM", "DEFINER", "SQL"):
        cursor.skip_until(_DEFINED)


def _no_effect(kind: str, *, alone: bool = False) -> Statement:
    """Return the reader of a statement that affects no table's rows; `alone`: its first words can be all of it."""

    def read(cursor: Cursor) -> ddl.Clauses:
        cursor.skip_until(()) if alone else cursor.skip_rest()
        return (ddl.OtherClause(None, kind),)

    return read


def _routine(cursor: Cursor) -> ddl.Clauses:
    # The body is a program that contains semicolons.
    while not cursor.at_end:
        cursor.take()
    return (ddl.OtherClause(None, "other"),)


def _rows(read: Statement, words: Iterable[str]) -> dict[tuple[str, ...], Statement]:
    return {tuple(each.split()): read for each in words}


_ROUTINES: Final = ("PROCEDURE", "FUNCTION", "AGGREGATE FUNCTION", "TRIGGER", "EVENT", "LIBRARY")
_OBJECTS: Final = (
    "USER", "ROLE", "SERVER", "TABLESPACE", "UNDO TABLESPACE", "LOGFILE GROUP", "RESOURCE GROUP",
    "SPATIAL REFERENCE SYSTEM", "BINDING", "GLOBAL BINDING", "SESSION BINDING", "STATISTICS",
)  # fmt: skip
_VERBS: Final = (
    # Users, plugins, settings, locks, statistics and storage.
    "ADMIN", "ANALYZE", "FLUSH", "GRANT", "INSTALL", "KILL", "LOAD STATS", "LOCK", "OPTIMIZE", "RENAME USER",
    "REPAIR", "REVOKE", "SET", "SPLIT", "UNINSTALL", "UNLOCK",
    # They read, or run statements that are in the log by themselves.
    "CALL", "CHECK TABLE", "CHECKSUM", "DO",
    # Parts of transactions, whose rows are in the log by themselves.
    "RELEASE SAVEPOINT", "SAVEPOINT", "XA",
)  # fmt: skip

_other: Final = _no_effect("other")
_sequence: Final = _no_effect("sequence")
_policy: Final = _no_effect("placement_tiflash_ttl_etc")
_create_temporary: Final = partial(_create_table, temporary=True)
_drop_temporary: Final = partial(_drop_tables, temporary=True)

_CREATE: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): _create_table, ("TEMPORARY", "TABLE"): _create_temporary,
    ("GLOBAL", "TEMPORARY", "TABLE"): _create_temporary, ("DATABASE",): _create_database,
    ("SCHEMA",): _create_database, ("VIEW",): _no_effect("create_view"), ("SEQUENCE",): _sequence,
    ("PLACEMENT", "POLICY"): _policy, **_rows(_other, _OBJECTS), **_rows(_routine, _ROUTINES),
    ("UNIQUE", "INDEX"): partial(_read_create_index, is_unique=True),
    **_rows(_read_create_index, ("INDEX", "FULLTEXT INDEX", "SPATIAL INDEX", "VECTOR INDEX", "COLUMNAR INDEX")),
}  # fmt: skip

_ALTER: Final[dict[tuple[str, ...], Statement]] = {
    **_rows(_alter_table, ("TABLE", "ONLINE TABLE", "OFFLINE TABLE")),
    **_rows(_alter_ignore, ("IGNORE TABLE", "ONLINE IGNORE TABLE")),
    **_rows(_no_effect("alter_database"), ("DATABASE", "SCHEMA")), ("VIEW",): _no_effect("create_view"),
    ("SEQUENCE",): _sequence, ("PLACEMENT", "POLICY"): _policy, ("RANGE",): _policy,
    **_rows(_other, (*_OBJECTS, "INSTANCE")), **_rows(_routine, _ROUTINES),
}  # fmt: skip

_DROP: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): _drop_tables, ("TABLES",): _drop_tables,
    **_rows(_drop_temporary, ("TEMPORARY TABLE", "TEMPORARY TABLES", "GLOBAL TEMPORARY TABLE")),
    ("DATABASE",): _drop_database, ("SCHEMA",): _drop_database, ("VIEW",): _no_effect("drop_view"),
    ("INDEX",): _drop_index, ("SEQUENCE",): _sequence, ("PLACEMENT", "POLICY"): _policy,
    **_rows(_other, (*_OBJECTS, *_ROUTINES, "STATS")),
}  # fmt: skip

_STATEMENTS: Final[dict[tuple[str, ...], Statement]] = {
    ("CREATE",): _create, ("ALTER",): _alter_object,
    ("DROP",): lambda cursor: cursor.expect_longest(_DROP, "what is dropped")(cursor),
    **_rows(lambda cursor: (ddl.TruncateTable(cursor.table_name()),), ("TRUNCATE", "TRUNCATE TABLE")),
    ("RENAME", "TABLE"): _rename_tables, ("RENAME", "TABLES"): _rename_tables,
    ("RECOVER", "TABLE"): _recover_table, ("FLASHBACK", "TABLE"): partial(_flashback, "table"),
    **_rows(partial(_flashback, "database"), ("FLASHBACK DATABASE", "FLASHBACK SCHEMA")),
    ("FLASHBACK", "CLUSTER"): partial(_flashback, "cluster"), **_rows(_other, _VERBS),
    ("USE",): lambda cursor: (ddl.OfDatabase("use_database", cursor.name("a database")),),
    **_rows(_no_effect("other", alone=True), ("BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION")),
}  # fmt: skip
