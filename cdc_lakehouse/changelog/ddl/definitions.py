"""Columns, keys and table options in DDL text: MySQL reference manual, "CREATE TABLE Statement" and "Data Types"; those
of TiDB and MariaDB.

A type is kept as it is written: FLOAT(30) stays a float of length 30. Only a type that the server itself replaces at
once is returned as the replacement (text types with the character set binary).

To add a type, add its name to `_NAMES`. To add an attribute, add its first word to `_ATTRIBUTES`, and a case to
`_read_attribute`. To add an option, which is its words and a value, add its words to `_KINDS` or `_UNLOGGED`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import ColumnDefinition, ForeignKey, OtherClause, SetTableCharset, TableRef
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


def read_literal(cursor: Cursor) -> ddl.Value | None:
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


def read_default(cursor: Cursor) -> ddl.Value:
    """Read the value after DEFAULT: a literal, a function, or an expression in parentheses."""
    literal = read_literal(cursor)
    if literal is not None:
        return literal
    start = cursor.position
    if cursor.accept("("):  # `(1)` is the literal, everything else an expression.
        literal = read_literal(cursor)
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
    return ddl.Expression(read_function(cursor))


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
    word = cursor.accept_any(_BOUNDS)
    value = read_literal(cursor) if word is None else _BOUNDS[word]
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


def read_key_element(cursor: Cursor, table: TableRef) -> ddl.TableClause | None:
    """Read a key or a constraint as the clause that adds it; return None and consume nothing where neither is at the
    cursor."""
    # MariaDB: a period of the system's time is its row_start and row_end, any other one a check; both change no row.
    if cursor.accept("PERIOD", "FOR") or cursor.accept("PERIOD", "IF", "NOT", "EXISTS", "FOR"):
        cursor.name("a period")
        cursor.parenthesized()
        return OtherClause(table, "check_constraint")
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
            return ddl.AddForeignKey(table, ddl.ForeignKey(symbol or name, read_references(cursor)))
        case "CHECK":
            skip_check(cursor)
            return OtherClause(table, "check_constraint")
        case _:
            pass
    word = cursor.token.word
    needs_word = word not in _INDEX_WORDS and word not in _RESERVED_KINDS
    if needs_word and not (word in _INDEX_KINDS and cursor.next_token.word in _INDEX_WORDS):
        return None
    cursor.accept_any(_INDEX_KINDS)
    cursor.accept_any(_INDEX_WORDS)
    _read_key(cursor)
    return OtherClause(table, "add_index")


def read_create_index(cursor: Cursor, *, is_unique: bool = False) -> ddl.Clauses:
    """Read the rest of a statement after CREATE [kind] INDEX: [IF NOT EXISTS] name [USING type] ON table (parts)."""
    cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("an index")
    _skip_index_type(cursor)
    cursor.expect("ON")
    table = cursor.table_name()
    parts = _read_key_parts(cursor) + _read_condition(cursor)
    return (ddl.AddKey(table, "add_index", name, parts) if is_unique else OtherClause(table, "add_index"),)


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
    cursor.parenthesized()
    if not cursor.accept("NOT", "ENFORCED"):
        cursor.accept("ENFORCED")


def read_column(cursor: Cursor) -> ColumnDefinition:
    return read_definition(cursor, cursor.column_name())


def read_definition(cursor: Cursor, name: str) -> ColumnDefinition:
    said: dict[str, Any] = {}
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
    return ColumnDefinition(name, of_bytes(kind) if collation == "binary" else kind, **said)


def read_position(cursor: Cursor) -> str | None:
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
    """Read an attribute after its first word; return the fields of a `ColumnDefinition` that it says."""
    match word:
        case "NOT" if not cursor.accept("SECONDARY"):
            cursor.expect("NULL")
            return {"nullable": False}
        case "NULL":
            return {"nullable": True}
        case "DEFAULT":
            return {"default": read_default(cursor)}
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
            return {"references": ForeignKey(None, read_references(cursor))}
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
            read_function(cursor)
        case "CHECK":
            skip_check(cursor)
        case "CONSTRAINT":
            if not cursor.at("CHECK"):
                cursor.name()
            cursor.expect("CHECK")
            skip_check(cursor)
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
    while name in _OF_BYTES or name in LABELS:
        if word := cursor.accept_any(_CHARSET_WORDS):
            charset = _CHARSET_WORDS[word]
        elif cursor.accept_charset():
            charset = cursor.charset_name() or charset
        elif not cursor.accept("BINARY"):
            break
    words = " ".join((declared, *flags))
    kind = ColumnType.of(words, length=length, scale=scale, elements=labels, charset=charset)
    return of_bytes(kind) if charset == "binary" else kind


def of_bytes(kind: ColumnType) -> ColumnType:
    """Return the binary type that a text type in the character set binary is (MySQL, "String Data Type Syntax")."""
    return replace(kind, name=_OF_BYTES[kind.name], charset=None) if kind.name in _OF_BYTES else kind


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
UNVERSIONED: Final = "table_option", f"up to the end of its system versioning {_HISTORY}", False
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


def read_option(cursor: Cursor, table: TableRef) -> SetTableCharset | OtherClause | None:
    """Read the option at the cursor; return None and consume nothing where there is none."""
    start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    if cursor.accept_charset():
        return SetTableCharset(table, _read_charset(cursor))
    if cursor.accept("COLLATE"):
        return SetTableCharset(table, charset_of(None, cursor.charset_name()))
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return OtherClause(table, *VERSIONED)
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
    return OtherClause(table, kind, unlogged)


def _read_charset(cursor: Cursor) -> str | None:
    charset = cursor.charset_name()
    said = cursor.accept("COLLATE") or cursor.accept("DEFAULT", "COLLATE")
    return charset_of(charset, cursor.charset_name() if said else None)


def read_conversion(cursor: Cursor, table: TableRef) -> tuple[SetTableCharset]:
    cursor.expect("TO")
    if not cursor.accept_charset():
        raise cursor.expected("CHARACTER SET")
    return (SetTableCharset(table, _read_charset(cursor), convert=True),)
