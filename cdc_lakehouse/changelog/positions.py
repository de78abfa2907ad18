"""The order of a feed, and the arithmetic of TiDB's timestamps (TSO).

A TSO is 46 bits of milliseconds since 1970 (UTC) and 18 bits of a counter within the millisecond; a signed 64-bit
integer has bits to spare, so that a commit-ts and an operation can be packed into one number.

The position of an event is `(commit_ts, delete first then upsert, segment, line)`: TiCDC splits an update of a key into
DELETE and INSERT with one commit-ts, and a row that moves between partitions has the halves in different files, so
neither the timestamp nor the position in a file alone gives an order.

A DDL comes after the row changes of its commit-ts. Rows that it moves are synthetic events of that same commit-ts,
which come after it. A *stage* puts both in one number: twice the commit-ts, and one more for a synthetic event.
Synthetic events of one commit-ts are first in the order of their segments, whose names encode it: rows that a DDL
moved, those of a dump, then repairs in the order in which they were made.
"""

from __future__ import annotations

import datetime
from typing import Final

LOGICAL_BITS: Final = 18
BEGINNING: Final = 0
"""Below every commit-ts: nothing has been applied."""
END_MS: Final = 4_102_444_800_000
"""The year 2100 in milliseconds since 1970. A source's time at or above it, or below 1970, is damaged or in another
unit; taken as the feed's clock it would stay there for good. MySQL's binlog has times up to 2106, and near 1970 where a
session sets its own."""
END_TS: Final = END_MS << LOGICAL_BITS
"""The same as a TSO."""
AHEAD_MS: Final = 24 * 60 * 60 * 1000
"""How far a source's time may be ahead of the time of reading, in milliseconds: a day, because clocks differ."""


def is_time_ms(time_ms: int) -> bool:
    """Whether a source's time, in milliseconds since 1970, is in the valid range."""
    return 0 <= time_ms < END_MS


def is_commit_ts(commit_ts: int, end_ts: int = END_TS) -> bool:
    """Whether a source's TSO is in the valid range, below `end_ts`."""
    return BEGINNING < commit_ts < end_ts


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def end_ts_at(read_at: datetime.datetime) -> int:
    """Return the lowest TSO that is invalid for data read at a moment (with a time zone), because it is too far ahead
    of it."""
    return min(END_TS, (physical_ms(tso(read_at)) + AHEAD_MS + 1) << LOGICAL_BITS)


def row_stage(commit_ts: int) -> int:
    """Return the stage of row changes at a commit-ts, before the DDL of that commit-ts."""
    return 2 * commit_ts


def synthetic_stage(commit_ts: int) -> int:
    """Return the stage of the synthetic events of a DDL at a commit-ts: the last one of that commit-ts."""
    return 2 * commit_ts + 1


def physical_ms(commit_ts: int) -> int:
    """Return the milliseconds since 1970 of a TSO."""
    return commit_ts >> LOGICAL_BITS


def commit_time(commit_ts: int) -> datetime.datetime:
    """Return the wall-clock time of a TSO, in UTC, to the millisecond."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(milliseconds=physical_ms(commit_ts))


def tso(moment: datetime.datetime, logical: int = 0) -> int:
    """Return the TSO of a moment (with a time zone) and a counter within its millisecond."""
    return (round(moment.timestamp() * 1000) << LOGICAL_BITS) | logical


def lag_seconds(commit_ts: int, now: datetime.datetime) -> float:
    """Return how far a TSO is behind `now`, in seconds, never below zero (clocks differ)."""
    return max(0.0, (now - commit_time(commit_ts)).total_seconds())
