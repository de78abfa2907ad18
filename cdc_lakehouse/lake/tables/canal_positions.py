"""Find a Canal feed's position in the binlog, and the commit-ts that corresponds to a binlog position: everything
before the position has at most that commit-ts.

Decoding assigns the commit-ts of entries (`decoders.topic_reader`), always the same. So the result does not change
either: entries are immutable once they have landed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from cdc_lakehouse.changelog.events import Ddl, MessageError, RowChange
from cdc_lakehouse.decoders.formats.canal_entries import decode_entry
from cdc_lakehouse.decoders.topic_order import PartitionSummary
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import CANAL_POSITION, CANAL_REPEATS
from cdc_lakehouse.lake.tables.landed_offsets import landed_offsets, records_table, state_of
from cdc_lakehouse.lake.tables.small_table import equal
from cdc_lakehouse.sources.canal.positions import BinlogPosition, BinlogSearch, ends_at
from cdc_lakehouse.sources.record_log import LogPartition

_AT_ONCE: Final = 500_000
"""The number of entries whose keys are read at once."""
_VALUES_AT_ONCE: Final = 10_000
STUCK: Final = 3
"""So often the last entry comes again from a server that is stuck behind it. Once it may come after any lost connection
or killed run."""
_SHOWN: Final = 200
"""Characters of a statement."""


@dataclass(frozen=True, slots=True)
class FoundPosition:
    """The place of a binlog position among the entries that have landed.

    reached: whether all entries before the position have landed. commit_ts: the corresponding commit-ts; None while the
    position is not reached, and when no row or statement has landed on either side. first, last: positions of the first
    and the last entry that were read. covered: whether the landed log begins before or at the position. before, beyond:
    the last entry before the position, and the first one after it. server_ids: of the entries up to there."""

    reached: bool
    commit_ts: int | None
    first: BinlogPosition | None
    last: BinlogPosition | None
    covered: bool
    before: bytes | None = None
    beyond: bytes | None = None
    server_ids: frozenset[int] = frozenset()


def landed_position(lake: Lake, feed: str, destination: str) -> tuple[int, str | None]:
    """Return how many entries of a feed have landed, and the binlog position of the last one as text for people."""
    table = lake.load(records_table(feed))
    landed = state_of(table).landed.end(LogPartition(destination, 0)) or 0
    key = None if table is None else table.properties.get(CANAL_POSITION)
    place = [] if key is None else json.loads(key)
    if len(place) < 4:
        return landed, None  # Values that are not entries have no position.
    moment = datetime.datetime.fromtimestamp(place[3] / 1000, datetime.UTC)
    return landed, f"{place[1]}:{place[2]} of {moment:%Y-%m-%d %H:%M:%S} UTC"


def find_stuck(lake: Lake, feed: str, destination: str) -> SourceError | None:
    """Return an error when the server sends the entry that landed last again and again, and nothing after it."""
    table = lake.load(records_table(feed))
    if table is None or int(table.properties.get(CANAL_REPEATS, "0")) < STUCK:
        return None
    landed, position = landed_position(lake, feed, destination)
    return SourceError(
        f"the Canal server is stuck after {position}: it sends the entry there again and again, and nothing after it"
        f" ({_described(_value(table, landed - 1))})",
        feed=feed,
        advice="its log says what it cannot read, such as `fetch failed by table meta` for a table that was renamed or "
        "dropped: give it a store of table histories (tsdb), or set it behind that place and load the tables again",
    )


def _described(value: bytes | None) -> str:
    try:
        parts = () if value is None else decode_entry(value).parts
    except MessageError:
        parts = ()
    for part in parts:
        if isinstance(part, Ddl):
            return part.sql[:_SHOWN]
        if isinstance(part, RowChange):
            return f"a change of {part.database}.{part.table}"
    return "the end of a transaction"


def find_binlog_position(
    lake: Lake, feed: str, destination: str, sought: BinlogPosition, seed: Callable[[int], int]
) -> FoundPosition:
    """Look for a place among the entries of a feed, all of which have been decoded. `seed` is the greatest commit-ts of
    the batches before one.

    Raises `SourceError` when the log is not the one of the position."""
    table = lake.load(records_table(feed))
    end = landed_offsets(lake, feed).end(LogPartition(destination, 0)) or 0
    search = BinlogSearch(sought)
    if table is not None:
        for start in range(0, end, _AT_ONCE):
            search.add(_pairs(_read(table, start, min(start + _AT_ONCE, end), "key"), "key"))
            if search.beyond is not None:
                break
    before, beyond = _value(table, search.before), _value(table, search.beyond)
    reached = beyond is not None or (before is not None and ends_at(before, sought))
    covered = search.first is not None and (search.before is not None or search.first[:3] == sought[:3])
    commit_ts = _commit_ts(table, search, end, seed) if table is not None and reached else None
    ids = frozenset(search.server_ids)
    return FoundPosition(reached, commit_ts, search.first, search.last, covered, before, beyond, ids)


def _value(table: Table | None, offset: int | None) -> bytes | None:
    if table is None or offset is None:
        return None
    # None where maintenance has removed it.
    return next((value for _, value in _pairs(_read(table, offset, offset + 1, "value"), "value")), None)


def _commit_ts(table: Table, search: BinlogSearch, end: int, seed: Callable[[int], int]) -> int | None:
    if search.before is not None:
        found = last_commit_ts(*_values_of_batch(table, search.before, seed))
        if found:
            return found
    first = 0 if search.before is None else search.before + 1
    for start in range(first, end, _VALUES_AT_ONCE):
        values = _pairs(_read(table, start, min(start + _VALUES_AT_ONCE, end), "value"), "value")
        found = next(commit_ts_of((value for _, value in values), 0), None)
        if found is not None:
            return found - 1
    return None


def _values_of_batch(table: Table, upto: int, seed: Callable[[int], int]) -> tuple[Iterable[bytes], int]:
    """Return the entries of the batch of the entry at offset `upto`, up to it, and the commit-ts before the batch."""
    batch = _read(table, upto, upto + 1, "batch").column("batch")[0].as_py()
    rows = table.scan(And(_between(0, upto + 1), equal("batch", batch)), selected_fields=("offset", "value")).to_arrow()
    return [value for _, value in _pairs(rows.sort_by("offset"), "value")], seed(batch)


def last_commit_ts(values: Iterable[bytes], seed: int) -> int:
    """Return the commit-ts of the last row or statement of entries; `seed` when there is none."""
    last = seed
    for commit_ts in commit_ts_of(values, seed):
        last = commit_ts
    return last


def commit_ts_of(values: Iterable[bytes], seed: int) -> Iterator[int]:
    """Yield the commit-ts of the rows and statements of entries, as decoding assigns them after `seed`."""
    summary = PartitionSummary(seed, seed)
    for value in values:
        try:
            message = decode_entry(value)
        except MessageError:
            continue
        for part in message.parts:
            if isinstance(part, RowChange | Ddl):
                commit_ts = summary.commit_ts(message.origin, None)
                assert commit_ts is not None, "entries have none of their own"
                yield commit_ts


def _read(table: Table, start: int, end: int, column: str) -> pa.Table:
    """Read a column of the records with offsets in [start, end), sorted by offset."""
    return table.scan(_between(start, end), selected_fields=("offset", column)).to_arrow().sort_by("offset")


def _pairs(rows: pa.Table, column: str) -> Iterator[tuple[int, Any]]:
    yield from zip(rows.column("offset").to_pylist(), rows.column(column).to_pylist(), strict=True)


def _between(start: int, end: int) -> BooleanExpression:
    # Type checkers do not see the arguments of PyIceberg's models.
    at_least: Any = GreaterThanOrEqual
    below: Any = LessThan
    return And(at_least("offset", start), below("offset", end))
