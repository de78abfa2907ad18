"""The progress of long work: lines in the log, and how far the reading of a database is, from the files that exist."""

from __future__ import annotations

import datetime
import logging
import time
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.lake.catalog import Lake, system_namespace
from cdc_lakehouse.sources.object_store import open_store

_EVERY_SECONDS: Final = 5.0
"""Each line is a row of Dagster's event log."""


class Progress:
    """Counts what is done of `total`; logs a line every few seconds, and a last one. `what` is a plural."""

    def __init__(self, log: logging.Logger, what: str, total: int) -> None:
        self._log, self._what, self._total = log, what, total
        self._done = 0
        self._told_at = time.monotonic()

    def add(self, number: int = 1) -> None:
        self._done += number
        if self._done >= self._total or time.monotonic() - self._told_at > _EVERY_SECONDS:
            self._told_at = time.monotonic()
            self._log.info("%d of %d %s", self._done, self._total, self._what)


def time_span(seconds: float) -> str:
    """Format a time span for people."""
    minutes, days = seconds / 60, seconds / 86_400
    if days >= 2:
        return f"{days:.1f} days"
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


_WINDOW: Final = datetime.timedelta(minutes=10)
"""The period from which the speed is computed: a run may have ended before it."""


@dataclass(frozen=True, slots=True)
class ReadingProgress:
    """The progress of a dump. `rows` and `bytes` (compressed) are of ranges that were completely read, `estimated_rows`
    of all tables, from statistics and ranges. `seconds_left` is None when it cannot be estimated."""

    tables: int
    tables_read: int
    ranges: int
    ranges_read: int
    rows: int
    estimated_rows: int
    bytes: int
    seconds_left: int | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f"; about {time_span(self.seconds_left)} left"
        tables, ranges = plural(self.tables, "table"), plural(self.ranges, "range")
        read = f"{self.rows:,} of about {plural(self.estimated_rows, 'row')} are read ({self.bytes:,} bytes)"
        return f"{read}, {self.tables_read} of {tables}, {self.ranges_read} of {ranges}{left}"


def location_of(lake: Lake, feed: str) -> str:
    """Return the URI of the directory with the dumps that were read from a feed's database."""
    return lake.location(system_namespace(feed), "initial")


def reading_of(lake: Lake, feed: FeedConfig) -> ReadingProgress | None:
    """Return the reading progress of a feed that begins with its database; None when nothing is being read. Raises as
    stores do."""
    if feed.initial is None or feed.initial.database is None:
        return None
    from cdc_lakehouse.sources.dump import database as dumped  # noqa: PLC0415 - It loads the client of MySQL.

    store = open_store(location_of(lake, feed.name), lake.storage)
    number = dumped.last_number(store)
    if not number or dumped.has_document(store, number, dumped.DUMP):
        return None
    objects, tables = dumped.list_dump(store, number), dumped.read_document(store, number, dumped.Plan).tables.values()
    ranges, tables_read, estimated, read = sum(len(each.ranges) for each in tables), 0, 0, list[dumped.CompletedRange]()
    for table in tables:
        found = objects.get(dumped.directory_of(number, table.directory), ())
        of_table, count = dumped.read_ranges(found).values(), len(table.ranges)
        rows, is_read = sum(each.rows for each in of_table), len(of_table) == count
        tables_read += is_read
        of_ranges = (count - 1) * feed.initial.chunk_rows
        estimated += rows if is_read else max(rows, table.definition.estimated_rows, of_ranges)
        read += of_table
    rows, size = sum(each.rows for each in read), sum(file.size for each in read for file in each.files)
    # The remaining time, from the speed of the last ranges.
    read.sort(key=lambda each: each.mark.modified)
    recent = [each for each in read if each.mark.modified > read[-1].mark.modified - _WINDOW]
    left = None
    if len(read) < ranges and len(recent) > 1:
        seconds = (recent[-1].mark.modified - recent[0].mark.modified).total_seconds()
        lately = sum(each.rows for each in recent[1:])
        left = round((estimated - rows) * seconds / lately) if lately and seconds else None
    return ReadingProgress(len(tables), tables_read, ranges, len(read), rows, estimated, size, left)
