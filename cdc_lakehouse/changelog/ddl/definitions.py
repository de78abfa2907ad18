"""Columns in DDL text: MySQL reference manual, "CREATE TABLE Statement" and "Data Types"; TiDB's and MariaDB's own.

A type is kept as it is written: FLOAT(30) stays a float of length 30. Only a type that the server itself replaces at
once is returned as the replacement (text types with the character set binary).

To add a type, add its name to `_NAMES`. To add an attribute, add its first word to `_ATTRIBUTES`, or to `_SKIPPED`
where it does not affect rows.

Table options in DDL text: MySQL reference manual, "CREATE TABLE Statement"; TiDB's and MariaDB's own.

An option is its words and a value. To add one, add its words to the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import (
    ColumnDefinition,
    ForeignKey,
    NoEffect,
    NoEffectKind,
    SetTableCharset,
    TableRef,
    UnloggedRows,
)
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
)

# Literals, defaults and partition bounds in DDL.

_WORDS: Final[dict[str, ddl.Value]] = {
    "NULL": ddl.NullLiteral(),
    "TRUE": ddl.NumberLiteral("1"),
    "FALSE": ddl.NumberLiteral("0"),
}
_TEMPORAL: Final = frozenset({"DATE", "TIME", "TIMESTAMP"})
# Functions that can be called without parentheses.
_BARE_FUNCTIONS: Final = frozenset({
    "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_USER",
    "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP",
})  # fmt: skip
_NATIONAL_CHARSET: Final = "utf8"


def read_literal(cursor: Cursor) -> ddl.Value | None:
    """Read the literal at the cursor; return None and consume nothing where there is none."""
    token = cursor.token
    if token.word in _WORDS:
        cursor.take()
        return _WORDS[token.word]
    if token.word in _TEMPORAL and cursor.next_token.kind == "string":
        cursor.take()
        return ddl.TextLiteral(cursor.string())
    if token.kind == "word" and token.text.startswith("_"):
        return _introduced(cursor)
    match token.kind:
        case "string":
            return ddl.TextLiteral(_strings(cursor), _NATIONAL_CHARSET if token.text[0] in "nN" else None)
        case "hex" | "bit":
            return ddl.BytesLiteral(bytes_value(cursor.take()))
        case "number" | "symbol":
            return _number(cursor)
        case "word" | "name" | "end":
            return None


def _introduced(cursor: Cursor) -> ddl.Value | None:
    """Read a literal after a character set introducer: `_utf8mb4'x'`, `_binary 0x00`."""
    charset = cursor.token.text[1:].lower()
    match cursor.next_token.kind:
        case "string":
            cursor.take()
            return ddl.TextLiteral(_strings(cursor), charset)
        case "hex" | "bit":
            cursor.take()
            return ddl.BytesLiteral(bytes_value(cursor.take()), charset)
        case _:
            return None


def _strings(cursor: Cursor) -> str:
    """Read adjacent strings as one string."""
    pieces = [cursor.string()]
    while cursor.token.kind == "string":
        pieces.append(cursor.string())
    return "".join(pieces)


def _number(cursor: Cursor) -> ddl.NumberLiteral | None:
    start = cursor.position
    sign = cursor.accept_any(("+", "-"))
    adjacent = cursor.token.end == cursor.next_token.start
    point = "." if adjacent and cursor.accept(".") else ""
    if cursor.token.kind != "number" or (point and not cursor.token.text[:1].isdigit()):
        cursor.position = start
        return None
    return ddl.NumberLiteral(("-" if sign == "-" else "") + point + cursor.take().text)


def read_default(cursor: Cursor) -> ddl.Value:
    """Read the value after DEFAULT: a literal, a function, or an expression in parentheses."""
    literal = read_literal(cursor)
    if literal is not None:
        return literal
    if cursor.at("("):
        return _enclosed(cursor)
    start = cursor.position
    if cursor.accept("NEXT", "VALUE", "FOR"):
        cursor.table_name()
        return ddl.Expression(cursor.text_between(start, cursor.position))
    return ddl.Expression(read_function(cursor))


def _enclosed(cursor: Cursor) -> ddl.Value:
    """Read a value in parentheses: `(1)` is the literal, everything else an expression."""
    start = cursor.position
    cursor.expect("(")
    literal = read_literal(cursor)
    if literal is not None and cursor.accept(")"):
        return literal
    cursor.position = start
    text = cursor.parenthesized()
    if not text:
        raise cursor.error("an expression is missing")
    return ddl.Expression(text)


def read_function(cursor: Cursor) -> str:
    """Read a function call; return its text."""
    start = cursor.position
    word = cursor.token.word
    if cursor.token.kind != "word" or not (word in _BARE_FUNCTIONS or cursor.next_token.word == "("):
        raise cursor.expected("a value")
    cursor.take()
    if cursor.at("("):
        cursor.parenthesized()
    return cursor.text_between(start, cursor.position)


def read_bound(cursor: Cursor) -> ddl.BoundValue:
    """Read one value of a partition's bound, up to the next comma or closing parenthesis."""
    start = cursor.position
    value: ddl.BoundValue | None
    if cursor.accept("MAXVALUE"):
        value = ddl.MaxValue()
    elif cursor.accept("DEFAULT"):
        value = ddl.DefaultValue()
    else:
        value = read_literal(cursor)
    if value is not None and (cursor.at(",") or cursor.at(")")):
        return value
    cursor.position = start
    text = cursor.skip_until((",", ")"))
    if not text:
        raise cursor.expected("a value")
    return ddl.Expression(text)


# Keys, indexes and constraints in DDL text, as elements of CREATE TABLE and after ADD of ALTER TABLE.

_CONSTRAINTS: Final = ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK")
_INDEX_WORDS: Final = ("INDEX", "KEY")
# Words that give the kind of an index. INDEX or KEY must follow, except after the reserved ones.
_RESERVED_KINDS: Final = frozenset({"FULLTEXT", "SPATIAL"})
_INDEX_KINDS: Final = _RESERVED_KINDS | {"VECTOR", "COLUMNAR"}
_CREATED_KINDS: Final = _INDEX_KINDS | {"UNIQUE"}


def read_key_element(cursor: Cursor, table: TableRef) -> ddl.TableClause | None:
    """Read a key or a constraint as the clause that adds it; return None and consume nothing where neither is at the
    cursor."""
    # MariaDB: a period of the system's time is its row_start and row_end, any other one a check; both change no row.
    if cursor.accept("PERIOD", "FOR") or cursor.accept("PERIOD", "IF", "NOT", "EXISTS", "FOR"):
        cursor.name("a period")
        cursor.parenthesized()
        return NoEffect(table, "check_constraint")
    symbol = None
    if cursor.accept("CONSTRAINT"):
        cursor.if_not_exists()
        symbol = None if cursor.token.word in _CONSTRAINTS else cursor.name("a constraint")
        if cursor.token.word not in _CONSTRAINTS:
            raise cursor.expected("PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK")
    match cursor.accept_any(_CONSTRAINTS):
        case "PRIMARY":
            cursor.expect("KEY")
            return ddl.AddPrimaryKey(table, _read_key(cursor))
        case "UNIQUE":
            cursor.accept_any(_INDEX_WORDS)
            key = _read_key(cursor)
            return ddl.AddUniqueKey(table, ddl.Key(symbol if key.name is None else key.name, key.parts))
        case "FOREIGN":
            cursor.expect("KEY")
            name = _read_key_name(cursor)
            _read_key_parts(cursor)
            cursor.expect("REFERENCES")
            return ddl.AddForeignKey(table, ddl.ForeignKey(symbol or name, read_references(cursor)))
        case "CHECK":
            skip_check(cursor)
            return NoEffect(table, "check_constraint")
        case _:
            pass
    word = cursor.token.word
    needs_word = word not in _INDEX_WORDS and word not in _RESERVED_KINDS
    if needs_word and not (word in _INDEX_KINDS and cursor.next_token.word in _INDEX_WORDS):
        return None
    cursor.accept_any(_INDEX_KINDS)
    cursor.accept_any(_INDEX_WORDS)
    _read_key(cursor)
    return NoEffect(table, "add_index")


def read_create_index(cursor: Cursor) -> ddl.Clause | None:
    """Read the rest of a statement after CREATE: [kind] INDEX [IF NOT EXISTS] name [USING type] ON table (parts).

    Returns None and consumes nothing where it is not an index.
    """
    start = cursor.position
    kind = cursor.accept_any(_CREATED_KINDS)
    if not cursor.accept("INDEX"):
        cursor.position = start
        return None
    cursor.if_not_exists()
    name = cursor.name("an index")
    _skip_index_type(cursor)
    cursor.expect("ON")
    table = cursor.table_name()
    parts = _read_key_parts(cursor) + _read_condition(cursor)
    return ddl.AddUniqueKey(table, ddl.Key(name, parts)) if kind == "UNIQUE" else NoEffect(table, "add_index")


def _read_key(cursor: Cursor) -> ddl.Key:
    """Read [IF NOT EXISTS] [name] [USING type] (parts) and options."""
    return ddl.Key(_read_key_name(cursor), _read_key_parts(cursor) + _read_condition(cursor))


def _read_key_name(cursor: Cursor) -> str | None:
    cursor.if_not_exists()
    unnamed = cursor.at("(") or cursor.at("USING") or (cursor.at("TYPE") and cursor.next_token.kind == "word")
    name = None if unnamed else cursor.name("an index")
    _skip_index_type(cursor)
    return name


def _skip_index_type(cursor: Cursor) -> None:
    if cursor.accept_any(("USING", "TYPE")):
        cursor.name("an index type")


def _read_key_parts(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    """Read columns, column prefixes or expressions, in parentheses."""
    return cursor.enclosed(lambda: _key_part(cursor))


def _key_part(cursor: Cursor) -> ddl.KeyPart:
    if cursor.at("("):
        cursor.parenthesized()
        part = ddl.KeyPart(None)
    else:
        name = cursor.column_name()
        length = None
        if cursor.accept("("):
            length = cursor.integer()
            cursor.expect(")")
        part = ddl.KeyPart(name, length)
    cursor.accept_any(("ASC", "DESC"))
    return part


def _read_condition(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    """Skip the options of a key. TiDB's WHERE becomes a part that is an expression: the key holds only some rows and
    identifies none."""
    cursor.skip_clause("WHERE")
    if not cursor.accept("WHERE"):
        return ()
    if not cursor.skip_clause():
        raise cursor.expected("a condition")
    return (ddl.KeyPart(None),)


# --- Constraints, at a column too ---

_CHANGING_ACTIONS: Final = (("CASCADE",), ("SET", "NULL"), ("SET", "DEFAULT"))
_REFERENCE_ACTIONS: Final = (*_CHANGING_ACTIONS, ("RESTRICT",), ("NO", "ACTION"))


def read_references(cursor: Cursor) -> str | None:
    """Read the rest of a foreign key, after REFERENCES; return its actions as `ForeignKey` has them."""
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


def skip_check(cursor: Cursor) -> None:
    """Skip the rest of a check, after CHECK."""
    cursor.parenthesized()
    if not cursor.accept("NOT", "ENFORCED"):
        cursor.accept("ENFORCED")


def read_column(cursor: Cursor) -> ColumnDefinition:
    """Read a column's name, type and attributes."""
    return read_definition(cursor, cursor.column_name())


def read_definition(cursor: Cursor, name: str) -> ColumnDefinition:
    """Read a column's type and attributes."""
    said: dict[str, Any] = {}
    if cursor.accept("SERIAL"):
        kind = ColumnType.of("bigint unsigned")
        said |= _SERIAL
    else:
        kind = _read_type(cursor)
    while True:
        if word := cursor.accept_any(_ATTRIBUTES):
            said |= _ATTRIBUTES[word](cursor)
        elif word := cursor.accept_any(_SKIPPED):
            _SKIPPED[word](cursor)
        else:
            break
    collation = said.pop("collation", None)
    if kind.name in TEXTS | LABELS:
        kind = replace(kind, charset=charset_of(kind.charset, collation))
    return ColumnDefinition(name, of_bytes(kind) if collation == "binary" else kind, **said)


def read_position(cursor: Cursor) -> str | None:
    if cursor.accept("FIRST"):
        return ddl.FIRST
    return cursor.column_name() if cursor.accept("AFTER") else None


# --- Attributes: each function is called after the first word, and returns fields of a ColumnDefinition ---

# SERIAL is BIGINT UNSIGNED with these attributes (MySQL reference manual, "Numeric Data Type Syntax").
_SERIAL: Final = {"nullable": False, "auto_increment": True, "unique": True}


def _not(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("SECONDARY"):
        return {}
    cursor.expect("NULL")
    return {"nullable": False}


def _flag(name: str) -> Callable[[Cursor], dict[str, Any]]:
    def read(cursor: Cursor) -> dict[str, Any]:
        cursor.accept("KEY")
        return {name: True}

    return read


def _after(words: tuple[str, ...], read: Callable[[Cursor], dict[str, Any]]) -> Callable[[Cursor], dict[str, Any]]:
    def read_after(cursor: Cursor) -> dict[str, Any]:
        cursor.expect(*words)
        return read(cursor)

    return read_after


def _now(cursor: Cursor) -> dict[str, Any]:
    read_function(cursor)
    return {}


def _as(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("ROW", "START") or cursor.accept("ROW", "END"):  # MariaDB: rows have it
        return {}
    expression = cursor.parenthesized()
    stored = cursor.accept_any(("STORED", "PERSISTENT", "VIRTUAL")) not in (None, "VIRTUAL")
    return {"stored_as": expression} if stored else {"virtual": True}


_ATTRIBUTES: Final[dict[str, Callable[[Cursor], dict[str, Any]]]] = {
    "NOT": _not, "NULL": lambda _: {"nullable": True}, "DEFAULT": lambda cursor: {"default": read_default(cursor)},
    "AUTO_INCREMENT": lambda _: {"auto_increment": True}, "PRIMARY": _flag("primary_key"), "KEY": _flag("primary_key"),
    "UNIQUE": _flag("unique"), "COMMENT": lambda cursor: {"comment": cursor.string()}, "AS": _as,
    "COLLATE": lambda cursor: {"collation": cursor.charset_name()}, "ON": _after(("UPDATE",), _now),
    "SERIAL": _after(("DEFAULT", "VALUE"), lambda _: _SERIAL), "GENERATED": _after(("ALWAYS", "AS"), _as),
    "REFERENCES": lambda cursor: {"references": ForeignKey(None, read_references(cursor))},
    "WITH": _after(("SYSTEM", "VERSIONING"), lambda _: {"versioned": True}),
}  # fmt: skip


def _constraint(cursor: Cursor) -> None:
    if not cursor.at("CHECK"):
        cursor.name()
    cursor.expect("CHECK")
    skip_check(cursor)


_SKIPPED: Final[dict[str, Callable[[Cursor], object]]] = {
    "CHECK": skip_check, "CONSTRAINT": _constraint, "WITHOUT": lambda cursor: cursor.expect("SYSTEM", "VERSIONING"),
    **dict.fromkeys(
        ("COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID"), Cursor.skip_value
    ),
    "COMPRESSED": lambda cursor: cursor.accept("=") and cursor.name(),
    # Visibility; and of TiDB the storage of a key of the column.
    **dict.fromkeys(("VISIBLE", "INVISIBLE", "CLUSTERED", "NONCLUSTERED", "GLOBAL", "LOCAL"), lambda _: None),
    "AUTO_RANDOM": lambda cursor: cursor.at("(") and cursor.parenthesized(),
}  # fmt: skip


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
_OF_BYTES: Final = {
    "char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob",
    "mediumtext": "mediumblob", "longtext": "longblob",
}  # fmt: skip
_CHARSET_WORDS: Final = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}


def _read_type(cursor: Cursor) -> ColumnType:
    """Read a column's type with its length, signs, labels and character set."""
    declared = cursor.accept_longest(_NAMES)
    if declared is None:
        raise cursor.expected("a column type")
    base = ColumnType.of(declared)
    length, scale = _read_length(cursor, base.name)
    labels = cursor.enclosed(lambda: cursor.string("a label")) if base.name in LABELS else ()
    # The server removes trailing spaces from labels (MySQL, "The ENUM Type"): values never have them.
    elements = tuple(label.rstrip(" ") for label in labels)
    flags: list[str] = []
    while base.name in _NUMBERS and (flag := cursor.accept_any(_NUMBER_FLAGS)):
        flags.append(flag.lower())
    charset = "utf8" if declared.startswith(_NATIONAL) else None
    if base.name in _OF_BYTES or base.name in LABELS:
        charset = _read_charset_attributes(cursor) or charset
    words = " ".join((declared, *flags))
    kind = ColumnType.of(words, length=length, scale=scale, elements=elements, charset=charset)
    return of_bytes(kind) if charset == "binary" else kind


def of_bytes(kind: ColumnType) -> ColumnType:
    """Return the binary type that a text type in the character set binary is (MySQL, "String Data Type Syntax")."""
    return replace(kind, name=_OF_BYTES[kind.name], charset=None) if kind.name in _OF_BYTES else kind


def _read_length(cursor: Cursor, name: str) -> tuple[int | None, int | None]:
    """Read length and scale. The number after a temporal type is its scale: the digits of the second's fraction."""
    if name == "vector" and cursor.accept("<"):
        cursor.expect("FLOAT", ">")
    if name in LABELS or name in _PLAIN or not cursor.accept("("):
        return None, None
    first = cursor.integer()
    second = cursor.integer() if name in _REALS and cursor.accept(",") else None
    cursor.expect(")")
    return (None, first) if name in TEMPORALS else (first, second)


def _read_charset_attributes(cursor: Cursor) -> str | None:
    charset = None
    while True:
        if word := cursor.accept_any(_CHARSET_WORDS):
            charset = _CHARSET_WORDS[word]
        elif cursor.accept("BINARY"):
            continue
        elif cursor.accept_charset():
            charset = cursor.charset_name()
        else:
            return charset


# Options that change no row.
_KINDS: Final[dict[NoEffectKind, tuple[str, ...]]] = {
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
UNVERSIONED: Final = "table_option", f"up to the end of its system versioning {_HISTORY}", False
# Engines into which a table takes its rows with it, and that keep them.
_KEEPING: Final = frozenset({
    "archive", "aria", "columnstore", "csv", "heap", "innobase", "innodb", "isam", "maria", "memory", "mroonga",
    "myisam", "ndb", "ndbcluster", "rocksdb", "s3", "tokudb", "xtradb",
})  # fmt: skip


def _of_engine(name: str) -> str | None:
    return None if name.lower() in _KEEPING else f"the engine {name} need not keep the table's rows"


_OPTIONS: Final[dict[tuple[str, ...], tuple[NoEffectKind, Callable[[str], str | None]]]] = {
    **{tuple(words.split()): (kind, lambda _: None) for kind, options in _KINDS.items() for words in options},
    **{(word,): ("table_option", lambda _, reason=reason: reason) for word, reason in _UNLOGGED.items()},
    **{tuple(words.split()): ("table_option", _of_engine) for words in ("ENGINE", "STORAGE ENGINE", "TYPE")},
}
"""The kind of each option, and a function from its value to the reason why its effect on rows is not known."""


def read_option(cursor: Cursor, table: TableRef) -> SetTableCharset | NoEffect | UnloggedRows | None:
    """Read the option at the cursor; return None and consume nothing where there is none."""
    start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    if cursor.accept_charset():
        return SetTableCharset(table, _read_charset(cursor))
    if cursor.accept("COLLATE"):
        return SetTableCharset(table, charset_of(None, cursor.charset_name()))
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return UnloggedRows(table, *VERSIONED)
    option = cursor.accept_longest(_OPTIONS)
    if option is None:
        cursor.position = start
        return None
    kind, unlogged = option
    cursor.accept("SET")  # PLACEMENT POLICY SET DEFAULT
    value = cursor.skip_value()
    if reason := unlogged(value):
        return UnloggedRows(table, kind, reason)
    if cursor.accept("+"):  # TTL = column + INTERVAL 3 MONTH
        cursor.expect("INTERVAL")
        cursor.word_or_string("a number")
        cursor.name("a unit of time")
    return NoEffect(table, kind)


def _read_charset(cursor: Cursor) -> str | None:
    charset = cursor.charset_name()
    said = cursor.accept("COLLATE") or cursor.accept("DEFAULT", "COLLATE")
    return charset_of(charset, cursor.charset_name() if said else None)


def read_conversion(cursor: Cursor, table: TableRef) -> SetTableCharset:
    """Read CONVERT TO CHARACTER SET, after CONVERT."""
    cursor.expect("TO")
    if not cursor.accept_charset():
        raise cursor.expected("CHARACTER SET")
    return SetTableCharset(table, _read_charset(cursor), convert=True)
