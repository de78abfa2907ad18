"""Names of what the project keeps in table properties and in snapshots' summaries; docs/tables.md documents them.

They are in every lake: a name that changes here needs code that reads the earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyiceberg.table.snapshots import Snapshot

# --- In summaries of snapshots ---

BATCH: Final = "cdc.batch"
"""The batch of segments that the commit is of; of `records` also a table property, the batch that landed last."""
CHECKPOINT_TS: Final = "cdc.checkpoint-ts"
"""Up to which commit-ts a current-state table was applied, or what a cut shows."""
SCHEMA_VERSIONS: Final = "cdc.schema-versions"
"""Of a cut: how many rows of `schema_history` were applied."""
SETTINGS: Final = "cdc.settings"
"""A digest of the settings that a cut, or the frontier, depends on."""
HELD: Final = "cdc.held"
"""Of a cut: the held tables, as JSON `[[incarnation, reason], …]`."""
OFFSETS: Final = "cdc.offsets"
"""Of `records`: the ranges of the batch, as JSON `{topic: {partition: [from, before]}}`."""
OLDEST_DATE: Final = "cdc.oldest-date"
"""Of the frontier: the date before which nothing is looked for."""
WHOLE_AT: Final = "cdc.whole-at"
"""Of the frontier: when the whole sink was listed, as an ISO time."""
UNCLEAR: Final = "cdc.unclear"
"""Of the frontier: `true` when the sink held files of which nothing could be made."""

ROW_COUNT: Final = "cdc.row-count"
"""Live rows of a current-state table that has, or had, format version 2; docs/tables.md says why."""

LEASE_RUN: Final = "cdc.lease-run"
"""Of the lease: the run that has the feed."""
LEASE_HOST: Final = "cdc.lease-host"
LEASE_PROCESS: Final = "cdc.lease-process"
"""Which process it is: the kernel's boot, the container, the number and the time of its start."""
LEASE_EXPIRES_AT: Final = "cdc.lease-expires-at"
"""Until when, as an ISO time."""
LEASE_RELEASED: Final = "cdc.lease-released"
"""`true` where the run has given it back."""
LEASE_BEFORE: Final = "cdc.lease-before"
"""Where maintenance has the feed: the run that had it last."""

# --- Properties of `events` ---

SUPERSEDED: Final = "cdc.superseded"
"""What was removed because later events of the rows say it all, as JSON `{"format", "removed", "looked_at",
"known_from_ts"}`."""

# --- Properties of `records` ---

LANDED: Final = "cdc.landed."
"""Before a topic's name: what landed of it, as JSON `{"id", "ends": {partition: offset}, "bytes"}`."""
BATCH_SEGMENTS: Final = "cdc.batch-segments"
"""The segments of the batch that landed last, as JSON lists `[segment, topic, partition, start, end, records, bytes,
dates]`."""
FIRST_BATCH: Final = "cdc.first-batch"
"""The first batch of which all records are kept; there is none where nothing was removed."""
REMOVED_UPTO: Final = "cdc.removed-upto"
"""The last feed date of which records were removed."""
CANAL_POSITION: Final = "cdc.canal-position"
"""The place of the Canal entry that landed last, as in its key."""

# --- Properties of current-state tables ---

FEED: Final = "cdc.feed"
DATABASE: Final = "cdc.database"
"""The database's name in the source."""
TABLE: Final = "cdc.table"
"""The table's name in the source."""
INCARNATION: Final = "cdc.incarnation"
APPLIED_TS: Final = "cdc.applied-ts"
"""Events up to this commit-ts are in the table."""
APPLIED_BATCH: Final = "cdc.applied-batch"
"""Segments up to this batch were looked at."""
LINEAGE: Final = "cdc.lineage"
"""A digest of what the rows depend on beside the events: versions, and how values are read."""
COLUMNS: Final = "cdc.columns"
"""Which source column is which column of the table, as JSON `[[id, name], …]`."""
STAGED: Final = "cdc.staged"
"""Columns that a run of an earlier build has added and not published, as a JSON list of names: they go."""
DROPPED_TS: Final = "cdc.dropped-ts"
"""The commit-ts of the table's DROP."""
KEY: Final = "cdc.key"
"""The columns that identify a row, as a JSON list of names."""
COMPACTED_AT: Final = "cdc.compacted-at"
"""When maintenance has rewritten files of the table last, as an ISO time; also of `events` and `records`."""
KEYS_TOUCHED: Final = "cdc.keys-touched"
"""Keys that the last published batch could delete rows of; empty where that is any row (a TRUNCATE, a partition)."""
ROWS_WRITTEN: Final = "cdc.rows-written"
"""In a summary: the keys that a commit leaves a row of, as the fold of the events had it."""
ROWS_REMOVED: Final = "cdc.rows-removed"
"""In a summary: the rows that such a commit takes the place of or deletes, as they were found by their keys."""


def of_batch(batch: int) -> dict[str, str]:
    """The summary of a commit of a batch."""
    return {BATCH: str(batch)}


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """What a snapshot says of itself; nothing where there is none."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
