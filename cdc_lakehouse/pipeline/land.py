"""Step 1, raw: what the source holds. New and changed segments are listed in `segments`; nothing is copied."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow.compute as pc

from cdc_lakehouse.errors import CheckpointError, SourceError
from cdc_lakehouse.lake.archive import Archive
from cdc_lakehouse.lake.properties import of_batch
from cdc_lakehouse.lake.tables.segments import COUNTS, DECODED, FILE, LANDED, Segment
from cdc_lakehouse.pipeline.missing_files import note_unseen
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.schema_files import SchemaFiles
from cdc_lakehouse.pipeline.sink_listing import remember, see
from cdc_lakehouse.sources.sink.paths import DataFile, Listing, read_checkpoint


@dataclass(frozen=True)
class Landed:
    """What a listing found.

    `shown_ts` is the source's checkpoint-ts, None when it cannot be read; `checkpoint_ts` the one to apply up to, which
    never goes below the published one. `faults` are sentences for people.
    """

    checkpoint_ts: int
    shown_ts: int | None
    batch: int
    new: tuple[Segment, ...]
    listing: Listing
    schema_files: SchemaFiles
    faults: tuple[str, ...] = field(default=())

    @property
    def dates(self) -> list[str]:
        return sorted({segment.feed_date for segment in self.new if segment.feed_date is not None})


def land(run: FeedRun) -> Landed:
    """Read the checkpoint, then list, then record: in this order the listing holds all that the checkpoint promises."""
    shown, faults = _shown_checkpoint(run)
    checkpoint = max(shown or 0, run.last_cut.checkpoint_ts)
    sight = see(run, checkpoint)
    listing = sight.listing
    schema_files = SchemaFiles(run.feed, run.store, run.history, listing.schemas)
    if listing.unknown:
        examples = ", ".join(listing.unknown[:5])
        faults.append(f"{len(listing.unknown)} files are not what a TiCDC sink holds and were not read: {examples}")
    files, nameless = _named(listing.data, schema_files)
    if nameless:
        faults.append(f"{len(nameless)} files wait for the schema file that says their table: {nameless[0]}")
    wanted = [file for file in files if run.feed.tables.takes(file.database, file.table)]
    batch = run.segments.batch + 1
    new = tuple(_new_segments(run, wanted, batch))
    if new:
        run.segments.land(new, of_batch(batch))
        run.log.info("landed %d segments in batch %d", len(new), batch)
    note_unseen(run, listing, sight.missing, schema_files)
    # Last: a run that dies before lists from an older frontier, and so sees all of this again.
    remember(run, sight, checkpoint, unclear=bool(listing.unknown or nameless or listing.unreadable))
    return Landed(checkpoint, shown, run.segments.batch, new, listing, schema_files, tuple(faults))


def _named(files: Sequence[DataFile], schema_files: SchemaFiles) -> tuple[list[DataFile], list[str]]:
    """Files with the names of their tables, and the paths of those of which no schema file says it."""
    named: list[DataFile] = []
    nameless: list[str] = []
    for file in files:
        if file.table:
            named.append(file)
        elif (change := schema_files.of(file.directory, file.version)) is not None:
            named.append(replace(file, database=change.database, table=change.table))
        else:
            nameless.append(file.path)
    return named, nameless


def _shown_checkpoint(run: FeedRun) -> tuple[int | None, list[str]]:
    try:
        shown = read_checkpoint(run.store)
    except CheckpointError as error:
        return None, [str(error)]
    published = run.last_cut.checkpoint_ts
    if shown < published:
        fault = f"the source's checkpoint-ts went backwards, from {published} (published) to {shown}"
        return shown, [f"{fault}: nothing new is applied"]
    return shown, []


def _new_segments(run: FeedRun, files: Iterable[DataFile], batch: int) -> Iterable[Segment]:
    files = list(files)
    present = {file.path for file in files}
    _refuse_partial_backfill(run, present)
    events = functools.cache(run.events_snapshot)
    known = run.segments.etags(file.path for file in files)
    new = [file for file, etag in zip(files, known, strict=True) if etag != file.etag or file.feed_date in run.dates]
    before = run.segments.find(file.path for file in new)
    for file in new:
        old = before.get(file.path)
        yield Segment(
            segment=file.path,
            kind=FILE,
            database=file.database,
            table=file.table,
            table_version=file.version,
            physical_partition=file.physical_partition,
            feed_date=file.feed_date,
            dispatcher=file.dispatcher,
            file_index=file.index,
            size=file.size,
            etag=file.etag,
            modified_at=file.modified,
            batch=batch,
            state=LANDED,
            landed_at=run.clock(),
            replaces_snapshot=None if old is None else _replaced(old, events),
        )
    for row in _expired(run, present):
        again = {**dict.fromkeys(COUNTS), "state": LANDED, "landed_at": run.clock()}
        yield replace(row, batch=batch, replaces_snapshot=_replaced(row, events), **again)


def _expired(run: FeedRun, present: set[str]) -> list[Segment]:
    """Segments of the dates that are to be decoded again which the source no longer has."""
    if not run.dates:
        return []
    dated = run.segments.select((pc.field("kind") == FILE) & pc.field("feed_date").isin(sorted(run.dates)))
    takes = run.feed.tables.takes
    return [row for row in dated if row.segment not in present and takes(row.database or "", row.table or "")]


def _refuse_partial_backfill(run: FeedRun, present: set[str]) -> None:
    """A date is decoded again whole or not at all: its events are replaced."""
    archive = run.raw if isinstance(run.raw, Archive) else None
    for date in sorted(run.dates):
        gone = [
            row.segment
            for row in _expired(run, present)
            if row.feed_date == date and not (archive is not None and archive.has(row))
        ]
        if gone:
            raise SourceError(
                f"{date} cannot be decoded again: {len(gone)} of its segments are no longer in the source",
                feed=run.feed.name,
                segment=gone[0],
                advice="restore them; the events that were decoded before are still there and were not touched",
            )


def _replaced(old: Segment, events: Callable[[], int | None]) -> int | None:
    """The snapshot of `events` that still has a segment's earlier events: their keys must be worked out again too."""
    return events() if old.state == DECODED else old.replaces_snapshot
