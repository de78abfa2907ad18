"""Topics as a source: messages land in `records`, their rows in `events`.

A batch of records is a batch of segments: one for each range of offsets. What a batch contains other than rows is
written to `signals` before its rows are counted, so that a checkpoint never promises more than is there."""

from __future__ import annotations

import abc
import datetime
import functools
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from cdc_lakehouse.changelog.events import Message, MessageError, Watermark
from cdc_lakehouse.changelog.history import History, LogEntry, schema_changes
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.config.reporting import plural, some
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.format import Decode, Format, Options
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.registry import format_of, plain_values
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.decoders.topic_reader import PartitionBatch, Summaries, TopicReader
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.faults import described
from cdc_lakehouse.lake.tables import records
from cdc_lakehouse.lake.tables.events import fits_driver
from cdc_lakehouse.lake.tables.segments import DECODED, LANDED, OFFSETS, Segment, replayed_segment
from cdc_lakehouse.lake.tables.source_metadata import Position
from cdc_lakehouse.pipeline.feed_tables import TakenNames
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import Landed, LogSource, SourceKind, SourceState, SourceStatus
from cdc_lakehouse.sources import kafka
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.record_log import Beginning, LogPartition, OffsetRange, Pending, parse_segment

_LOOKED_AT: Final = 500
"""Messages of a partition to read to find where the log begins. TiCDC sends a watermark every second."""
_BYTES: Final = 1 << 20
_NOTHING: Final = Position(BEGINNING, BEGINNING, None)


def beginning_of(partition: LogPartition, offset: int, values: Iterable[bytes | None], decode: Decode) -> Beginning:
    """Determine the beginning of a partition from its first offset, and from the values after it."""
    watermark, known = None, list[int | None]()
    for value in values:
        try:
            message = decode(value)
        except MessageError:
            continue  # It is reported when it is decoded.
        if isinstance(message, Message):
            watermark = next((part.commit_ts for part in message.parts if isinstance(part, Watermark)), None)
            known.append(message.origin.commit_ts if watermark is None else watermark)
        if watermark is not None:
            break
    began_at = min((at for at in known if at is not None), default=None)
    return Beginning(partition, offset, began_at, watermark if offset else None)


class RecordSource(LogSource):
    """The `Source` of messages in `records`, but for how they are received. What has landed says their schema."""

    kind = OFFSETS
    _has_record_times: ClassVar = True
    """As in `TopicReader`."""

    def __init__(self, run: FeedRun) -> None:
        self._run = run
        self._format = form = format_of(run.feed.message_format)
        self.database, self.has_labels = form.database, form.labels == "labels"
        self.has_options, self.has_lossy_text = form.can_contradict_options, form.lossy_columns is not None
        self.shows_time = form.watermarks(self._options)
        self._log: tuple[tuple[list[LogEntry], list[SchemaChange]], Sequence[SchemaChange], History, History] | None
        self._log = None
        self._decoded = dict[int, Sequence[tuple[list[str], Summaries]] | None]()

    @property
    def _stored(self) -> records.LandedState:
        return records.landed_state(self._run.lake, self._run.feed.name)

    @property
    def _options(self) -> Options:
        return Options()

    @abc.abstractmethod
    def _receive(self, batch: int) -> tuple[Sequence[records.LandedSegment], Sequence[CdcError]]:
        """Append messages to `records` as the batch with this number, up to the limits of a run; return its segments,
        and the errors of what could not be received."""

    def land(self) -> Landed:
        run, last = self._run, self._stored
        # Left-out segments come first: redelivered messages are recognized by what was decoded before them.
        new = [*self.land_left_out(), *self._land_passed()]
        # The last run may have ended between its records and their segments.
        known = run.segments.known(landed.segment for landed in last.segments)
        new += self._land(last.batch, [landed for landed in last.segments if landed.segment not in known])
        batch = max(run.segments.batch, last.batch) + 1
        segments, faults = self._receive(batch)
        new += self._land(batch, segments)
        if run.dates:
            # Whole batches, because the order of events spans a batch.
            upto = self._stored.removed_upto
            if gone := [date for date in sorted(run.dates) if date <= upto]:
                raise self._gone(f"{gone[0]} cannot be decoded again: its messages are no longer all in `records`")
            rows = run.spark.read.format("iceberg").load(system_table(run.feed.name, "records").sql)
            dated = rows.where(rows["feed_date"].isin(*run.dates)).select("batch").distinct().collect()
            new += self._replay(pc.field("record_batch").isin([row["batch"] for row in dated]))
        return Landed(tuple(new), tuple(map(str, faults)))

    def _land(self, record_batch: int, landed: Sequence[records.LandedSegment]) -> list[Segment]:
        run = self._run
        batch = max(record_batch, run.segments.batch + 1)
        rows = [
            Segment(
                segment=each.segment, kind=OFFSETS, feed_date=each.dates[0] if each.dates else None,
                file_index=each.late_before or None, size=each.bytes, record_batch=record_batch, batch=batch,
                state=LANDED, landed_at=run.landed_at, lines=each.records,
            )
            for each in landed
        ]  # fmt: skip
        if rows:
            run.segments.land(rows)
            run.log.info("landed %s in batch %d", plural(len(rows), "segment"), batch)
        return rows

    def land_left_out(self) -> Sequence[Segment]:
        run = self._run
        left_out = run.signals.left_out()
        if not left_out:
            return ()
        taken, gone = self._taken(), self._stored.first_batch
        # The others are held.
        batches = [batch for name, batch in left_out.items() if taken.takes_name(name) and batch >= gone]
        if not batches:
            return ()
        run.log.info("decoding again from batch %d: it has rows of tables that are taken now", min(batches))
        undecoded = run.segments.undecoded(OFFSETS)
        return [*self._replay(pc.field("record_batch") >= min(batches)), *self._land_behind(undecoded.values())]

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        # Whole batches, for the order of events goes through them.
        batches = {segment.record_batch for segment in segments if segment.record_batch is not None}
        # The person who asks for it may have set the clock right.
        return self._replay(pc.field("record_batch").isin(sorted(batches)), self._run.landed_at)

    def _taken(self) -> TakenNames:
        return TakenNames.of(self._run.feed.tables, self._read_log()[2], self._run.last_cut.checkpoint_ts)

    def _replay(self, wanted: Any, landed_at: datetime.datetime | None = None) -> list[Segment]:
        """Land decoded segments again, with their times checked against `landed_at`, or else as before."""
        rows = self._run.segments.select((pc.field("kind") == OFFSETS) & (pc.field("state") == DECODED) & wanted)
        first, before = self._stored.first_batch, self._format.messages_before()
        landed = _landed_ranges(self._run) if rows and first else {}
        for row in rows if first else ():
            partition, start = parse_segment(row.segment)
            # The messages that others are compared with must exist too.
            known = [n for n, (offset, _) in landed[partition].items() if offset <= start - before]
            if (row.record_batch or 0) < first or max(known, default=0) < first:
                raise self._gone("messages cannot be decoded again: they are no longer in `records`", row.segment)
        return self._land_behind([[replace(row, landed_at=landed_at or row.landed_at) for row in rows]])

    def _land_passed(self) -> list[Segment]:
        """Land batches again that the run before has appended and not marked as decoded, and those that another batch
        has passed, as one of a dump can: the numbers of batches rise from commit to commit."""
        run, undecoded = self._run, self._run.segments.undecoded(OFFSETS)
        if not undecoded or min(undecoded) > run.appended().newest:
            return []
        run.log.info("decoding again from batch %d: it, or a later one, was committed", min(undecoded))
        return self._land_behind(undecoded.values())

    def _land_behind(self, batches: Iterable[Sequence[Segment]]) -> list[Segment]:
        """Land batches again, to replace the events that they have, each in a new batch: what they redeliver is
        recognized by the rows of those that are decoded before them."""
        run, landed = self._run, list[Segment]()
        for segments in filter(None, batches):
            batch, appended = run.segments.batch + 1, run.appended()
            rows = [replayed_segment(each, batch, appended, each.landed_at) for each in segments]
            run.segments.land(rows)
            landed += rows
        return landed

    def _gone(self, message: str, segment: str | None = None) -> SourceError:
        advice = "they were removed by maintenance.keep_records_days; their events are there and were not touched"
        return SourceError(message, feed=self._run.feed.name, segment=segment, advice=advice)

    def decode(self, segments: Sequence[Segment]) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        landed = {each.record_batch: each.landed_at for each in segments if each.record_batch is not None}
        run, batches = self._run, sorted(landed)
        done = self._decoded.pop(batches[0], None) if len(batches) == 1 else None
        if done is None:
            wanted = wanted_records(run, self._format, batches)
            late = {(each.partition, each.batch): 0 for each in wanted}
            late |= {(parse_segment(s.segment)[0], s.record_batch or 0): s.file_index or 0 for s in segments}
            spark = None if fits_driver([segment.size for segment in segments]) else run.spark
            parallel = 1 if spark is None else spark.sparkContext.defaultParallelism
            shares = records.record_shares(run.lake, run.feed.name, wanted, parallel)
            decode = self._decoder(late, landed)
            done = run_tasks(spark, shares, lambda share: [decode(share.read())])
        run.events.commit([file for files, _ in done for file in files], segments)
        found = dict(itertools.chain.from_iterable(summaries.items() for _, summaries in done))
        for number in batches:
            run.signals.write(number, {place: finds for place, finds in found.items() if place[2] == number})
        replays = sum(finds.replays for finds in found.values())
        if replays:
            run.log.info("batch %d: %s had come before", segments[0].batch, plural(replays, "message"))
        bad = [rejected for finds in found.values() for listed in finds.bad.values() for rejected in listed]
        # Changes at or below a watermark that had not arrived before: rows, the first of each change, and statements.
        sent = [rows for each in found.values() for rows in each.sent_before.items()]
        unknown = run.events.without({change for (change, _), _ in sent}) if sent else set()
        stated = [*itertools.chain.from_iterable(each.stated_before.items() for each in found.values())]
        known = run.signals.statements() if stated else set()
        not_sent_before = [
            *(row for (change, _), row in sent if change in unknown),
            *(said for change, said in stated if change not in known),
        ]
        counts = {name: Counter[str]() for name in ("others", "tombstones", "strict")}
        for finds in found.values():
            for name, counter in counts.items():
                counter.update(getattr(finds, name))
        for each in not_sent_before:
            counts["others"][each.segment] -= each.count
        counted = [replace(s, **{name: counter[s.segment] for name, counter in counts.items()}) for s in segments]
        return counted, [*bad, *not_sent_before]

    def _decoder(
        self, late: Mapping[tuple[LogPartition, int], int], landed: Mapping[int, datetime.datetime]
    ) -> Callable[[Iterator[Any]], tuple[list[str], Summaries]]:
        """Return a decoder of partitions and batches. `late` has their `late_before`, `landed` when batches landed."""
        run, starts = self._run, dict[PartitionBatch, tuple[int, int, int | None, int]]()
        before = {number: (run.signals.last_ts(number), run.signals.positions_before(number)) for number in landed}
        for (partition, number), late_before in late.items():
            seed, positions = before[number]
            last_ts, watermark = positions.get(partition, (0, 0))
            # Of a server's log there is one: what is read after something else comes after it.
            last_ts = seed if self._format.transactions == "all" else last_ts
            starts[*partition, number] = seed, last_ts, watermark or None, late_before
        new_reader = functools.partial(
            TopicReader, run.feed.message_format, self._options, starts, self._taken().takes,
            {number: round(at.timestamp() * 1000) for number, at in landed.items()},
            has_record_times=self._has_record_times, ignores_tombstones=run.feed.policy.tombstones == "ignore",
        )  # fmt: skip
        return functools.partial(run.events.writer().decode, new_reader)

    def checkpoint_ts(self) -> int:
        """Return TiCDC's least watermark of all partitions; for other formats the last landed commit-ts, without
        incomplete transactions."""
        published, positions = self._run.last_cut.checkpoint_ts, self._run.signals.positions()
        if self._format.watermarks(self._options):
            return max(published, self._least_watermark(positions))
        ended = [place.ended_ts for place in positions.values() if place.ended_ts is not None]
        if self._format.transactions == "all":
            # Before the end of the first transaction none is complete.
            return max([published, *ended])
        last = max((place.last_ts for place in positions.values()), default=BEGINNING)
        # Other partitions are read beyond what one that was not read up has next.
        behind = [positions.get(each, _NOTHING).last_ts for each in self._waited_for()]
        if self._format.transactions == "some":
            behind += [p.ended_ts for p in positions.values() if p.ended_ts is not None and p.ended_ts < p.last_ts]
        return max(published, min([last, *behind]))

    def _waited_for(self) -> list[LogPartition]:
        """Return the partitions beyond which no cut goes, until they are read up. One that a fault keeps from going on
        is not waited for."""
        if self._format.watermarks(self._options) or self._format.transactions == "all":
            return []
        return self._stored.not_read_up()

    def _least_watermark(self, positions: Mapping[tuple[str, int], Position]) -> int:
        """Return the least watermark of all partitions, without topics that receive nothing more: TiCDC sends
        watermarks to topics of active tables only.

        A feed continues without a topic when all tables that it delivered are dropped or renamed away at the least
        watermark of the others, and the topic has landed up to its current end: TiCDC sends a watermark when all rows
        up to it are in their topics. It also continues without a topic that the configuration leaves out."""
        topics, source = self._stored.landed.topics, self._run.feed.kafka
        # Of a topic that is named and has not been there yet nothing is known: it may hold rows of any time.
        marks = {name: BEGINNING for name in source.topics or () if name not in topics}
        for name, topic in topics.items():
            if topic.ends and source.takes(name):
                marks[name] = min(positions.get((name, number), _NOTHING).watermark for number in topic.ends)
        found, lives = min(marks.values(), default=BEGINNING), self._read_log()[1].incarnations().values()

        def is_abandoned(topic: str, upto: int) -> bool:
            tables = self._run.signals.tables(topic)
            live = (then.last.name.folded for life in lives if (then := life.upto(upto)) and then.dropped_ts is None)
            return bool(tables) and tables.isdisjoint(live) and topic in self._read_up

        for upto in sorted({*marks.values()}):
            if not all(is_abandoned(name, upto) for name, watermark in marks.items() if watermark < upto):
                break
            found = upto
        return found

    def _pending(self) -> Pending:
        source = self._run.feed.kafka
        return kafka.find_pending(source, kafka.read_topics(source), self._stored.landed)

    @functools.cached_property
    def _read_up(self) -> frozenset[str]:
        """The topics that have completely landed, by the brokers' current offsets; a deleted topic has no more
        messages."""
        topics = self._stored.landed.topics  # A fault of the lake is none of the brokers.
        try:
            pending = self._pending()
        except CdcError:
            return frozenset()  # The next run asks again.
        ends = {partition for partition, (start, end) in pending.offsets.items() if start == end}
        return frozenset(
            name
            for name, topic in topics.items()
            if name not in pending.ids or all(LogPartition(name, number) in ends for number in topic.ends)
        )

    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        """Return the changes of tables in everything that has landed, in order."""
        return [change for change in self._read_log()[0] if upto is None or change.commit_ts <= upto], ()

    def _read_log(self) -> tuple[Sequence[SchemaChange], History, History]:
        """Return the changes in everything that has landed, even beyond the checkpoint; what they make of the tables;
        and what they do with the loads of dumps. They are carried out again only after more has landed."""
        entries, loads = list(self._run.signals.schema_signals()), list(self._run.loads)
        if self._log is None or self._log[0] != (entries, loads):
            form, history = self._format, History()
            changes = schema_changes(
                entries, escapes=form.backslash_escapes, types=self._run.feed.types,
                in_table_order=form.in_table_order, history=history,
            )  # fmt: skip
            loaded = History() if loads else history
            if loads:
                loaded.apply([*changes, *loads])
            self._log = (entries, loads), changes, history, loaded
        return self._log[1:]

    # --- What a sensor and a status see ---

    def _state(
        self, shown: bytes, asked: str | None, reason: str, *, waiting: bool, faults: tuple[CdcError, ...] = ()
    ) -> SourceState:
        cursor = hashlib.sha256(shown).hexdigest()[:16]
        # One run for each state: a run that took only a part is followed by another.
        if waiting and cursor == asked:
            return SourceState(cursor, True, False, "a run for this state of the source was asked for", faults)
        return SourceState(cursor, waiting, waiting, reason, faults)


class Topics(RecordSource):
    shown = SourceKind(
        "kafka", "Messages of the topics, each once, as they were on the brokers.",
        "offsets", "Follows the end offsets of the topics.",
    )  # fmt: skip

    @property
    def _options(self) -> Options:
        source = self._run.feed.kafka
        claims = functools.partial(kafka.read_claim_check, source.claim_check or "", self._run.lake.storage)
        return Options(source.tidb_extension, claims if source.claim_check else None, source.before_2022_03_20)

    def join_point(self, position: DumpPosition) -> int:
        commit_ts = self.tso_of(position, self._run.feed.name)
        for each in self._beginnings:
            if each.complete_from is not None and commit_ts < each.complete_from:
                message = f"the dump is of {commit_ts}, and {each.partition.named} is whole from the commit-ts "
                message += f"{each.complete_from} on: its first messages are gone, or left out by source.start, up to "
                advice = "dump again, at a TSO that is not below, and let the topic keep messages (retention.ms) "
                advice += "longer than a dump and its load take"
                raise SourceError(f"{message}the offset {each.offset}", feed=self._run.feed.name, advice=advice)
        return commit_ts

    def first_ts(self) -> int | None:
        if any(each.offset for each in self._beginnings):
            return None  # The changefeed began before the available messages; `join` checks more.
        # Topics of tables that were created later begin later.
        return min((each.began_at for each in self._beginnings if each.began_at is not None), default=None)

    @functools.cached_property
    def _beginnings(self) -> Sequence[Beginning]:
        """The beginnings of the partitions; empty once something has landed, as the brokers may have removed it."""
        source, landed = self._run.feed.kafka, self._stored.landed
        if not self._format.watermarks(self._options) or landed.topics:
            return ()
        topics = kafka.read_topics(source, whole=True)
        ranges = [
            OffsetRange(partition, start, min(end, start + _LOOKED_AT), _BYTES)
            for partition, (start, end) in kafka.find_pending(source, topics, landed).offsets.items()
            if end > start
        ]
        values = defaultdict[LogPartition, list[bytes | None]](list)
        reader = kafka.RangeReader(source, ranges)
        for found in reader.messages():
            values[found.range.partition] += found.values
        if unreachable := [fault for fault in reader.faults if isinstance(fault, SourceUnreachableError)]:
            raise unreachable[0]
        decode = self._format.make(self._options)
        return [beginning_of(each.partition, each.start, values[each.partition], decode) for each in ranges]

    def _receive(self, batch: int) -> tuple[Sequence[records.LandedSegment], Sequence[CdcError]]:
        run, pending, form, options, decode = self._run, self._pending(), self._format, self._options, None
        # Messages that are read many at once are decoded as they come, where nothing is to be decoded before them.
        if pending.records and form.column_reader(options) and not (options.claims or run.segments.undecoded(OFFSETS)):
            known = self._stored.landed
            late = {(each, batch): known.late_before(each, end) for each, (_, end) in pending.offsets.items()}
            try:
                run.events.ensure()
                decode = self._decoder(late, {batch: run.landed_at})
            except Exception as error:  # noqa: BLE001 - They land whatever it is, and the next step meets it again.
                run.log.warning("messages cannot be decoded as they come: %s", described(error))
        landed_now, faults, self._decoded[batch] = records.append_records(
            run.lake, run.feed, lambda: run.spark, pending, batch, decode
        )
        if waited_for := some([*map(str, self._waited_for())]):
            run.log.info("the cut goes no further than what was read of %s: more waits there", waited_for)
        return landed_now, [*pending.faults, *faults]

    def poll(self, asked: str | None) -> SourceState:
        pending = self._pending()
        shown = repr(sorted((*partition, *offsets) for partition, offsets in pending.offsets.items())).encode()
        waits = f"{plural(pending.records, 'offset')} to land"
        reason = waits if pending.records else "all messages of the topics are landed"
        return self._state(shown, asked, reason, waiting=bool(pending.records), faults=pending.faults)

    def sample(self) -> Sequence[str]:
        source = self._run.feed.kafka
        _, compressions = plain_values(kafka.first_messages(source, kafka.read_topics(source)))
        return [f"TiCDC compresses values with {name}" for name in compressions]

    def status(self) -> SourceStatus:
        try:
            pending = self._pending()
        except CdcError as error:
            return SourceStatus(error=error)
        faults = (*pending.faults, None)
        return SourceStatus(pending_records=None if pending.faults else pending.records, error=faults[0])


def batches_before(run: FeedRun, state: records.LandedState) -> list[int]:
    """Return, for each partition, the first batch whose records may be read together with the next batch."""
    before = format_of(run.feed.message_format).messages_before()
    ranges = _landed_ranges(run).items() if before else ()
    return [_since(found, (state.landed.end(partition) or 0) - before) for partition, found in ranges]


def _since(of_partition: Mapping[int, tuple[int, int]], offset: int) -> int:
    """Return the last batch that begins at or before an offset; the first batch when none does."""
    return max((n for n, (first, _) in of_partition.items() if first <= offset), default=min(of_partition))


def _landed_ranges(
    run: FeedRun, batches: Sequence[int] | None = None
) -> dict[LogPartition, dict[int, tuple[int, int]]]:
    """Return by partition and batch of records, of all or of some: the first offset, and the size in bytes."""
    wanted = pc.field("kind") == OFFSETS
    if batches is not None:
        wanted &= pc.field("record_batch").isin(batches)
    ranges = run.segments.rows.filter(wanted).select(["segment", "record_batch", "size"])
    landed = defaultdict[LogPartition, dict[int, tuple[int, int]]](dict)
    for segment, batch, size in zip(*(column.to_pylist() for column in ranges.columns), strict=True):
        partition, start = parse_segment(segment)
        first, known = landed[partition].get(batch, (start, 0))
        landed[partition][batch] = min(first, start), known + size
    return landed


def wanted_records(run: FeedRun, message_format: Format, batches: Sequence[int]) -> list[records.PartitionRecords]:
    """Return the records of the batches in each partition, with the preceding ones that the format needs."""
    # Only some formats need records of earlier batches.
    landed = _landed_ranges(run, None if message_format.messages_before(1) else batches)
    partitions = Counter(batch for of_partition in landed.values() for batch in of_partition)
    wanted: list[records.PartitionRecords] = []
    for partition, of_partition in landed.items():
        for batch in set(batches) & of_partition.keys():
            start, size = of_partition[batch]
            before = start - message_format.messages_before(partitions[batch])
            since = _since(of_partition, before)
            wanted.append(records.PartitionRecords(partition, batch, start, before, since, size))
    return wanted
