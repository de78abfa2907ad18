"""Steps 1 to 3 for topics: messages land in `records`, their rows in `events`, their DDL in `schema_history`.

A batch of records is a batch of segments: one for each range of offsets. What a batch says beside rows is in `signals`
before its rows are counted, so that a checkpoint never promises more than is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.column_order import misordered
from cdc_lakehouse.changelog.observed_schema import DdlLog, Sight
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.config import KafkaSource, StorageSinkSource
from cdc_lakehouse.decoders.messages.registry import configured_options, format_of
from cdc_lakehouse.decoders.partition_summary import BadMessage
from cdc_lakehouse.decoders.topic_reader import TopicFormat, changes_in_tasks
from cdc_lakehouse.lake.properties import of_batch
from cdc_lakehouse.lake.tables.event_counts import with_counts
from cdc_lakehouse.lake.tables.landed_offsets import LandedBatch, LandedSegment, landed_offsets, landed_state
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.record_commits import records_frame
from cdc_lakehouse.lake.tables.records import Records
from cdc_lakehouse.lake.tables.segments import COUNTS, DECODED, LANDED, OFFSETS, Segment
from cdc_lakehouse.lake.tables.source_metadata import Position
from cdc_lakehouse.pipeline.decode import Decoded
from cdc_lakehouse.pipeline.evolve import Evolved
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.kafka import choose_ranges, find_pending, read_topics
from cdc_lakehouse.sources.record_log import Partition, parse_segment

BAD_MESSAGE: Final = "BadMessage"


@dataclass(frozen=True)
class LandedTopics:
    """What a run landed. `faults` are sentences for people: topics and partitions that cannot be read on."""

    batch: int
    new: tuple[Segment, ...]
    faults: tuple[str, ...]

    @property
    def dates(self) -> list[str]:
        return sorted({segment.feed_date for segment in self.new if segment.feed_date is not None})


def land_topics(run: FeedRun) -> LandedTopics:
    """Land what is new, up to the limits of a run; dates that are asked for are decoded again from `records`."""
    source = run.feed.kafka
    state = landed_state(run.lake, run.feed.name)
    new = recovered(run, state.last)
    pending = find_pending(source, read_topics(source), state.landed)
    ranges = choose_ranges(pending.offsets, state.landed, source.max_records, source.max_bytes)
    records = Records(run.lake, run.feed, lambda: run.spark)
    appended = records.append(ranges, pending, next_batch(run, state.last))
    new += land_segments(run, appended.batch.number, appended.batch.segments) + decode_again(run)
    faults = tuple(str(fault) for fault in (*pending.faults, *appended.faults))
    return LandedTopics(run.segments.batch, tuple(new), faults)


def recovered(run: FeedRun, last: LandedBatch) -> list[Segment]:
    """Segments of the last batch of `records`, where its run ended between its records and this."""
    known = run.segments.known(each.segment for each in last.segments)
    missing = [each for each in last.segments if each.segment not in known]
    return land_segments(run, last.number, missing)


def next_batch(run: FeedRun, last: LandedBatch) -> int:
    """A number above that of the last batch of `records`, and of all that were decoded."""
    return max(run.segments.batch, last.number) + 1


def land_segments(run: FeedRun, batch: int, landed: Sequence[LandedSegment]) -> list[Segment]:
    rows = [
        Segment(
            segment=each.segment,
            kind=OFFSETS,
            feed_date=each.dates[0] if each.dates else None,
            size=each.bytes,
            record_batch=batch,
            batch=batch,
            state=LANDED,
            landed_at=run.clock(),
        )
        for each in landed
    ]
    if rows:
        run.segments.land(rows, of_batch(batch))
        run.log.info("landed %d segments in batch %d", len(rows), batch)
    return rows


def decode_again(run: FeedRun) -> list[Segment]:
    """The batches that have records of the dates which are to be decoded again: whole, for the order of their events
    goes through them."""
    if not run.dates:
        return []
    records = records_frame(run.spark, run.feed.name)
    dated = records.where(F.col("feed_date").isin(*run.dates)).select("batch").distinct().collect()
    wanted = pc.field("record_batch").isin([row["batch"] for row in dated])
    batch, snapshot = run.segments.batch + 1, run.events_snapshot()
    nothing = dict.fromkeys(COUNTS)
    rows = [
        replace(row, batch=batch, state=LANDED, landed_at=run.clock(), replaces_snapshot=snapshot, **nothing)
        for row in run.segments.select((pc.field("kind") == OFFSETS) & (pc.field("state") == DECODED) & wanted)
    ]
    if rows:
        run.segments.land(rows, of_batch(batch))
    return rows


def decode_topics(run: FeedRun) -> Decoded:
    """Decode every batch that landed and is not decoded yet."""
    done = Decoded()
    for batch, segments in run.segments.undecoded(OFFSETS).items():
        done += _decode_batch(run, batch, segments)
    return done


def _decode_batch(run: FeedRun, batch: int, segments: Sequence[Segment]) -> Decoded:
    run.events.ensure()
    batches = sorted({segment.record_batch for segment in segments if segment.record_batch is not None})
    seeds = {number: run.signals.last_ts(number) for number in batches}
    watermarks = {number: run.signals.watermarks(number) for number in batches}
    records = records_frame(run.spark, run.feed.name).where(F.col("batch").isin(*batches))
    feed = run.feed
    options = {} if isinstance(feed.source, StorageSinkSource) else configured_options(feed.source, run.lake.storage)
    topic_format = TopicFormat(feed.message_format, options, seeds, watermarks, feed.tables.takes)
    events, found = changes_in_tasks(run.spark, records, topic_format, _records_before(run, batches))
    if run.events.snapshot_of(batch) is None:
        again = [segment.segment for segment in segments if segment.replaces_snapshot is not None]
        run.events.replace_segments(events, batch, again)
    else:
        # A run ended between its commit and what follows: look again at what is beside the rows.
        events.write.format("noop").mode("append").save()
    for number in batches:
        run.signals.write(number, {place: finds for place, finds in found.value.items() if place[2] == number})
    bad = [each for finds in found.value.values() for listed in finds.bad.values() for each in listed]
    _quarantine(run, segments, bad)
    counts = run.events.counts(batch)
    decoded = with_counts(segments, counts, bad, run.clock())
    run.segments.mark_decoded(batch, decoded, of_batch(batch))
    replays = sum(finds.replays for finds in found.value.values())
    run.log.info(
        "batch %d: decoded %d segments, %d bad messages, %d that had come before",
        batch,
        len(decoded),
        len(bad),
        replays,
    )
    return Decoded(tuple(decoded), counts)


def _records_before(run: FeedRun, batches: Sequence[int]) -> DataFrame | None:
    """The records that come before each batch in its partitions, with its number; None where the format needs none."""
    message_format = format_of(run.feed.message_format)
    if not message_format.messages_before():
        return None
    landed: dict[Partition, list[tuple[int, int]]] = {}
    ranges = run.segments.rows.filter(pc.field("kind") == OFFSETS)
    for segment, batch in zip(ranges["segment"].to_pylist(), ranges["record_batch"].to_pylist(), strict=True):
        partition, start = parse_segment(segment)
        landed.setdefault(partition, []).append((start, batch))
    partitions = Counter(number for ranges in landed.values() for _, number in ranges)
    wanted: list[tuple[str, int, int, int, int]] = []
    earlier: set[int] = set()
    for partition, ranges in landed.items():
        ranges.sort()
        for place, (start, number) in enumerate(ranges):
            if place and number in batches:
                first = start - message_format.messages_before(partitions[number])
                wanted.append((partition.topic, partition.number, first, start, number))
                # A range goes up to where the next one begins.
                earlier |= {ranges[n][1] for n in range(place) if ranges[n + 1][0] > first}
    if not wanted:
        return None
    spans = run.spark.createDataFrame(wanted, "topic string, partition int, first bigint, before bigint, batch bigint")
    records = records_frame(run.spark, run.feed.name).where(F.col("batch").isin(*earlier)).drop("batch")
    near = (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("before"))
    return records.join(F.broadcast(spans), ["topic", "partition"]).where(near)


def _quarantine(run: FeedRun, segments: Sequence[Segment], bad: Sequence[BadMessage]) -> None:
    """Rows for messages that cannot be used; those of before are done with."""
    names, now = {segment.segment for segment in segments}, run.clock()
    run.quarantine.resolve(lambda row: row.error_class == BAD_MESSAGE and row.segment in names, "replayed", now)
    run.quarantine.add(
        Quarantined(
            each.segment, each.offset, each.database, each.table, BAD_MESSAGE, each.message, each.raw, "open", now,
            count=each.count,
        )
        for each in bad
    )  # fmt: skip


def checkpoint_of_topics(run: FeedRun) -> int:
    """Up to where everything is in: TiCDC's least watermark of all partitions; elsewhere all that has landed, but for
    transactions that are not whole. It never goes below the published one."""
    positions = run.signals.positions()
    published = run.last_cut.checkpoint_ts
    if isinstance(run.feed.source, KafkaSource) and run.feed.source.has_watermarks:
        landed = landed_offsets(run.lake, run.feed.name)
        partitions = [(name, number) for name, topic in landed.topics.items() for number in topic.ends]
        nothing = Position(BEGINNING, BEGINNING, None)
        least = min((positions.get(place, nothing).watermark for place in partitions), default=BEGINNING)
        return max(published, least)
    transactions = format_of(run.feed.message_format).transactions
    if transactions == "all":
        # Its transactions all have an end: before the first one nothing is whole.
        ended = (position.ended_ts or BEGINNING for position in positions.values())
        return max(published, max(ended, default=BEGINNING))
    last = max((position.last_ts for position in positions.values()), default=BEGINNING)
    if transactions == "some":
        ends = [
            each.ended_ts for each in positions.values() if each.ended_ts is not None and each.ended_ts < each.last_ts
        ]
        last = min([last, *ends])
    return max(published, last)


def schema_changes(run: FeedRun) -> list[SchemaChange]:
    """What all that has landed says of tables, in order; then what holds tables whose rows are out of order."""
    log = DdlLog(escapes=format_of(run.feed.message_format).backslash_escapes, types=run.feed.types)
    told = list(run.signals.told())
    changes = list(log.changes(told))
    if format_of(run.feed.message_format).made_by_canal:
        changes += misordered(changes, (each for each in told if isinstance(each, Sight)))
    return changes


def evolve_topics(run: FeedRun, checkpoint_ts: int) -> Evolved:
    """Record what statements and first sights of tables up to the checkpoint make of the tables."""
    known = run.history.changes
    changes = [
        change
        for change in schema_changes(run)
        if change.commit_ts <= checkpoint_ts and known.get(change.origin) != change
    ]
    versions = run.history.record(changes, run.clock())
    if versions:
        run.log.info("recorded %d schema versions", len(versions))
    return Evolved(tuple(versions))
