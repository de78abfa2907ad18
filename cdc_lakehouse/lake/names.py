"""Convert names of the source to names of the lake.

Names from the source go into SQL through `quote` and into paths through `path_part`, nowhere else.

    >>> encode_namespace("Odd-DB.1")
    'Odd-DB%2E1'
    >>> quote("a`b")
    '`a``b`'

Names of the project's table properties and of its entries in snapshots' summaries; docs/tables.md documents them, and
they are stored in every lake.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyiceberg.table.snapshots import Snapshot

CATALOG: Final = "lake"
"""The name of the catalog, the same for Spark and PyIceberg: SQL catalogs store it in their rows."""

_SAFE_IN_PATH: Final = frozenset(string.ascii_letters + string.digits + "-_")
# A percent sign is escaped only where it would read as an escape, so that no two names collide and `100%` is kept.
_TABLE_UNFIT: Final = re.compile(r"[/\x00-\x1f\x7f]|%(?=[0-9A-Fa-f]{2})")
# Namespaces that begin with cdc_ hold a feed's own tables: no database of the source may write there.
_NAMESPACE_UNFIT: Final = re.compile(r"[./\x00-\x1f\x7f]|%(?=[0-9A-Fa-f]{2})|^[cC](?=[dD][cC]_)")


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A table of the lake: names as the catalog has them, already encoded."""

    namespace: str
    name: str

    @property
    def parts(self) -> tuple[str, str]:
        """Namespace and name, for PyIceberg."""
        return self.namespace, self.name

    @property
    def sql(self) -> str:
        """The quoted name, for Spark SQL."""
        return f"{CATALOG}.{quote(self.namespace)}.{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def quote(name: str) -> str:
    """Quote an identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def encode_table(name: str) -> str:
    return _TABLE_UNFIT.sub(_escape, name)


def encode_namespace(name: str) -> str:
    """Return the namespace of a database's current-state tables. Escapes dots, which would make a nested namespace, and
    a leading `cdc_`, which marks a feed's own tables."""
    return _NAMESPACE_UNFIT.sub(_escape, name)


def path_part(name: str) -> str:
    """Convert a name to one safe part of a storage path (readable, not reversible)."""
    return "".join(c if c in _SAFE_IN_PATH else "_" for c in name)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


# --- In summaries of snapshots ---

# The batch of segments that the commit belongs to; as a property of `records` the batch that landed last, of `events`
# the one that was appended last, of `checkpoints` the last one of the newest cut.
BATCH: Final = "cdc.batch"
# The commit-ts up to which a current-state table was applied; as a property of `checkpoints` that of the newest cut.
CHECKPOINT_TS: Final = "cdc.checkpoint-ts"
OFFSETS: Final = "cdc.offsets"  # In `records`: the ranges of the batch, as JSON `{topic: {partition: [from, before]}}`.
ROW_COUNT: Final = "cdc.row-count"  # Live rows of a table that has, or had, format version 2; docs/tables.md says why.

# --- Properties of `checkpoints` and `frontier` ---

SCHEMA_VERSIONS: Final = "cdc.schema-versions"  # How many rows of `schema_history` the newest cut has applied.
SETTINGS: Final = "cdc.settings"  # A digest of the settings that the newest cut, or the frontier, depends on.
HELD: Final = "cdc.held"  # The held tables of the newest cut, as JSON `[[incarnation, reason], …]`.
OLDEST_DATE: Final = "cdc.oldest-date"  # The date before which no files are listed; empty when all are.
WHOLE_AT: Final = "cdc.whole-at"  # When the whole sink was listed, as an ISO time.
UNCLEAR: Final = "cdc.unclear"  # `true` when the sink held files that could not be interpreted.

# --- Properties of `lease` ---

# The run that has the feed, as JSON `{"run", "host", "process", "expires_at", "released", "before"}`.
HOLDER: Final = "cdc.holder"

# --- Properties of `events` ---

# The batches that are in the table and that `segments` did not show as decoded at the last commit, as a JSON list.
UNMARKED: Final = "cdc.unmarked-batches"
# Events removed because later ones of the rows supersede them, as JSON `{"removed", "looked_at", "known_from_ts"}`.
SUPERSEDED: Final = "cdc.superseded"

# --- Properties of `records` ---

# Prefix of a topic's name: what landed of the topic, as JSON `{"id", "ends": {partition: offset}, "bytes"}`.
LANDED: Final = "cdc.landed."
# Segments of the last batch: JSON lists `[segment, topic, partition, start, end, records, bytes, dates, late_before]`.
BATCH_SEGMENTS: Final = "cdc.batch-segments"
FIRST_BATCH: Final = "cdc.first-batch"  # The first batch whose records are all kept; absent when nothing was removed.
REMOVED_UPTO: Final = "cdc.removed-upto"  # The last feed date whose records were removed.
CANAL_POSITION: Final = "cdc.canal-position"  # That of the entry that landed last, in the form of the record's key.
# How often that entry came again after it had landed, and nothing after it; counted up to a few.
CANAL_REPEATS: Final = "cdc.canal-repeats"

# --- Properties of current-state tables ---

FEED: Final = "cdc.feed"
DATABASE: Final = "cdc.database"
TABLE: Final = "cdc.table"
INCARNATION: Final = "cdc.incarnation"
APPLIED_TS: Final = "cdc.applied-ts"
APPLIED_BATCH: Final = "cdc.applied-batch"
LINEAGE: Final = "cdc.lineage"
COLUMNS: Final = "cdc.columns"  # Maps source columns to the table's columns, as JSON `[[id, name], …]`.
DROPPED_TS: Final = "cdc.dropped-ts"
KEY: Final = "cdc.key"
COMPACTED_AT: Final = "cdc.compacted-at"
KEYS_TOUCHED: Final = "cdc.keys-touched"
# In a summary: the keys that have a row after the commit, as the fold of the events counted them, and the rows that
# such a commit replaces or deletes, as they were found by their keys.
ROWS_WRITTEN: Final = "cdc.rows-written"
ROWS_REMOVED: Final = "cdc.rows-removed"


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """Return a snapshot's summary; empty when there is no snapshot."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
