"""Table options in DDL text: MySQL reference manual, "CREATE TABLE Statement"; TiDB's and MariaDB's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import (
    Clause,
    Placement,
    SetAutoIncrement,
    SetTableCharset,
    SetTableComment,
    TableName,
    TableOption,
)
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.types import accept_charset, read_charset

_MOST_WORDS: Final = 2

# Options of one value that is a word, a number or a string.
_PLAIN: Final = frozenset({
    ("AUTOEXTEND_SIZE",), ("AVG_ROW_LENGTH",), ("CHECKSUM",), ("COMPRESSION",), ("CONNECTION",),
    ("DATA", "DIRECTORY"), ("DELAY_KEY_WRITE",), ("ENCRYPTION",), ("ENGINE",), ("ENGINE_ATTRIBUTE",),
    ("INDEX", "DIRECTORY"), ("INSERT_METHOD",), ("KEY_BLOCK_SIZE",), ("MAX_ROWS",), ("MIN_ROWS",),
    ("NODEGROUP",), ("PACK_KEYS",), ("PASSWORD",), ("ROW_FORMAT",), ("SECONDARY_ENGINE",),
    ("SECONDARY_ENGINE_ATTRIBUTE",), ("STATS_AUTO_RECALC",), ("STATS_PERSISTENT",), ("STATS_SAMPLE_PAGES",),
    ("STORAGE",), ("STORAGE", "ENGINE"), ("TABLESPACE",), ("TABLE_CHECKSUM",), ("TYPE",),
    # TiDB, for its statistics
    ("STATS_BUCKETS",), ("STATS_COL_CHOICE",), ("STATS_COL_LIST",), ("STATS_SAMPLE_RATE",), ("STATS_TOPN",),
    # MariaDB
    ("ENCRYPTED",), ("ENCRYPTION_KEY_ID",), ("IETF_QUOTES",), ("PAGE_CHECKSUM",), ("PAGE_COMPRESSED",),
    ("PAGE_COMPRESSION_LEVEL",), ("SEQUENCE",), ("TRANSACTIONAL",),
})  # fmt: skip

# The same, of what TiDB adds about where and how rows are kept.
_PLACED: Final = frozenset({
    ("AFFINITY",), ("ATTRIBUTES",), ("AUTO_ID_CACHE",), ("AUTO_RANDOM_BASE",), ("PRE_SPLIT_REGIONS",),
    ("SHARD_ROW_ID_BITS",), ("TTL_ENABLE",), ("TTL_JOB_INTERVAL",), ("PRIMARY_REGION",), ("REGIONS",),
    ("FOLLOWERS",), ("VOTERS",), ("LEARNERS",), ("SCHEDULE",), ("CONSTRAINTS",), ("LEADER_CONSTRAINTS",),
    ("FOLLOWER_CONSTRAINTS",), ("VOTER_CONSTRAINTS",), ("LEARNER_CONSTRAINTS",), ("SURVIVAL_PREFERENCES",),
})  # fmt: skip

_CHARSETS: Final = frozenset({("CHARACTER", "SET"), ("CHAR", "SET"), ("CHARSET",)})


def read_options(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    """Options one after the other, without commas; empty, with nothing consumed, where there is none."""
    clauses: list[Clause] = []
    while (clause := _read_option(cursor, table)) is not None:
        clauses.append(clause)
    return tuple(clauses)


def _read_option(cursor: Cursor, table: TableName) -> Clause | None:
    start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    for count in range(_MOST_WORDS, 0, -1):
        words = cursor.words(count)
        if words in _OPTIONS:
            cursor.expect(*words)
            return _OPTIONS[words](cursor, table, words)
    cursor.position = start
    return None


# --- Options: each is called after its words ---


def _plain(cursor: Cursor, table: TableName, words: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    cursor.word_or_string("a value")
    return TableOption(table, " ".join(words).lower())


def _placed(cursor: Cursor, table: TableName, words: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    cursor.word_or_string("a value")
    return Placement(table, " ".join(words).lower())


def _policy(cursor: Cursor, table: TableName, words: tuple[str, ...]) -> Clause:
    cursor.accept("SET")
    return _placed(cursor, table, words)


def _ttl(cursor: Cursor, table: TableName, words: tuple[str, ...]) -> Clause:
    """TTL = column + INTERVAL number unit."""
    cursor.accept("=")
    cursor.column_name()
    cursor.expect("+", "INTERVAL")
    cursor.word_or_string("a number")
    cursor.name("a unit of time")
    return Placement(table, " ".join(words).lower())


def _auto_increment(cursor: Cursor, table: TableName, _: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    cursor.integer()
    return SetAutoIncrement(table)


def _comment(cursor: Cursor, table: TableName, _: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    return SetTableComment(table, cursor.string())


def _charset(cursor: Cursor, table: TableName, _: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    charset = read_charset(cursor)
    return SetTableCharset(table, charset, _collation_after(cursor))


def _collation_after(cursor: Cursor) -> str | None:
    if not (cursor.accept("COLLATE") or cursor.accept("DEFAULT", "COLLATE")):
        return None
    cursor.accept("=")
    return read_charset(cursor)


def _collate(cursor: Cursor, table: TableName, _: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    return SetTableCharset(table, collation=read_charset(cursor))


def _union(cursor: Cursor, table: TableName, _: tuple[str, ...]) -> Clause:
    cursor.accept("=")
    cursor.parenthesized()
    return TableOption(table, "union")


_OPTIONS: Final[dict[tuple[str, ...], Callable[[Cursor, TableName, tuple[str, ...]], Clause]]] = {
    **dict.fromkeys(_PLAIN, _plain), **dict.fromkeys(_PLACED, _placed), **dict.fromkeys(_CHARSETS, _charset),
    ("AUTO_INCREMENT",): _auto_increment, ("COLLATE",): _collate, ("COMMENT",): _comment,
    ("PLACEMENT", "POLICY"): _policy, ("TTL",): _ttl, ("UNION",): _union,
}  # fmt: skip


def read_conversion(cursor: Cursor, table: TableName) -> SetTableCharset:
    """CONVERT TO CHARACTER SET, after CONVERT."""
    cursor.expect("TO")
    if not accept_charset(cursor):
        raise cursor.expected("CHARACTER SET")
    charset = read_charset(cursor)
    return SetTableCharset(table, charset, _collation_after(cursor), convert=True)
