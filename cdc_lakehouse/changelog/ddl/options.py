"""Table options in DDL text: MySQL reference manual, "CREATE TABLE Statement"; TiDB's and MariaDB's own.

An option is its words and a value. To add one, add its words to the table.
"""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import NoEffect, NoEffectKind, SetTableCharset, TableRef
from cdc_lakehouse.changelog.ddl.cursor import Cursor

_KINDS: Final[dict[NoEffectKind, tuple[str, ...]]] = {
    "auto_increment": ("AUTO_INCREMENT",),
    "comment": ("COMMENT",),
    "table_option": (
        "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHECKSUM", "COMPRESSION", "CONNECTION", "DATA DIRECTORY",
        "DELAY_KEY_WRITE", "ENCRYPTION", "ENGINE", "ENGINE_ATTRIBUTE", "INDEX DIRECTORY", "INSERT_METHOD",
        "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "NODEGROUP", "PACK_KEYS", "PASSWORD", "ROW_FORMAT",
        "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
        "STATS_SAMPLE_PAGES", "STORAGE", "STORAGE ENGINE", "TABLESPACE", "TABLE_CHECKSUM", "TYPE", "UNION",
        # TiDB, for its statistics
        "STATS_BUCKETS", "STATS_COL_CHOICE", "STATS_COL_LIST", "STATS_SAMPLE_RATE", "STATS_TOPN",
        # MariaDB
        "ENCRYPTED", "ENCRYPTION_KEY_ID", "IETF_QUOTES", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL",
        "SEQUENCE", "TRANSACTIONAL",
    ),
    # Storage and placement of TiDB's rows
    "placement_tiflash_ttl_etc": (
        "AFFINITY", "ATTRIBUTES", "AUTO_ID_CACHE", "AUTO_RANDOM_BASE", "CONSTRAINTS", "FOLLOWERS",
        "FOLLOWER_CONSTRAINTS", "LEADER_CONSTRAINTS", "LEARNERS", "LEARNER_CONSTRAINTS", "PLACEMENT POLICY",
        "PRE_SPLIT_REGIONS", "PRIMARY_REGION", "REGIONS", "SCHEDULE", "SHARD_ROW_ID_BITS", "SURVIVAL_PREFERENCES",
        "TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL", "VOTERS", "VOTER_CONSTRAINTS",
    ),
}  # fmt: skip
_OPTIONS: Final[dict[tuple[str, ...], NoEffectKind]] = {
    tuple(words.split()): kind for kind, options in _KINDS.items() for words in options
}


def read_option(cursor: Cursor, table: TableRef) -> SetTableCharset | NoEffect | None:
    """Read the option at the cursor; return None and consume nothing where there is none."""
    cursor.clause_start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    if cursor.accept_charset():
        return SetTableCharset(table, cursor.charset_name(), _read_collation(cursor))
    if cursor.accept("COLLATE"):
        return SetTableCharset(table, collation=cursor.charset_name())
    kind = cursor.accept_longest(_OPTIONS)
    if kind is None:
        cursor.position = cursor.clause_start
        return None
    cursor.accept("SET")  # PLACEMENT POLICY SET DEFAULT
    cursor.skip_value()
    if cursor.accept("+"):  # TTL = column + INTERVAL 3 MONTH
        cursor.expect("INTERVAL")
        cursor.word_or_string("a number")
        cursor.name("a unit of time")
    return cursor.no_effect(table, kind)


def _read_collation(cursor: Cursor) -> str | None:
    said = cursor.accept("COLLATE") or cursor.accept("DEFAULT", "COLLATE")
    return cursor.charset_name() if said else None


def read_conversion(cursor: Cursor, table: TableRef) -> SetTableCharset:
    """Read CONVERT TO CHARACTER SET, after CONVERT."""
    cursor.expect("TO")
    if not cursor.accept_charset():
        raise cursor.expected("CHARACTER SET")
    return SetTableCharset(table, cursor.charset_name(), _read_collation(cursor), convert=True)
