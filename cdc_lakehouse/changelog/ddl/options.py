"""Table options in DDL text: MySQL reference manual, "CREATE TABLE Statement"; TiDB's and MariaDB's own.

An option is its words and a value. To add one, add its words to the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import NoEffect, NoEffectKind, SetTableCharset, TableRef, UnloggedRows
from cdc_lakehouse.changelog.ddl.cursor import Cursor

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
    cursor.clause_start = cursor.position
    cursor.accept_any(("DEFAULT", "FORCE"))
    if cursor.accept_charset():
        return SetTableCharset(table, cursor.charset_name(), _read_collation(cursor))
    if cursor.accept("COLLATE"):
        return SetTableCharset(table, collation=cursor.charset_name())
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return UnloggedRows(table, *VERSIONED)
    option = cursor.accept_longest(_OPTIONS)
    if option is None:
        cursor.position = cursor.clause_start
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
