"""A Canal server as a source: its entries land in `records`, and are acknowledged once they have landed. A run that
ends between the two, or before the next step has recorded them, is completed by the next run: redelivered entries are
recognized, and `records` holds the batch that landed last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.canal_records import EntryRecords
from cdc_lakehouse.lake.tables.records import LandedBatch
from cdc_lakehouse.pipeline.source import JoinPoint, SourceKind, SourceState, SourceStatus
from cdc_lakehouse.pipeline.topics import RecordSource
from cdc_lakehouse.sources.canal.client import CanalClient, rounds
from cdc_lakehouse.sources.canal.positions import BinlogPosition, contradiction
from cdc_lakehouse.sources.dump.contents import DumpPosition

_PATIENCE_SECONDS: Final = 30
"""How long to wait for an unreachable server before the run fails and the next one tries again."""


class CanalServer(RecordSource):
    """The `Source` for a destination of a Canal server. Raises when the server fails before any entry has landed.

    A destination has one consumer: asking for waiting entries takes them away from a run. What was delivered is sent
    again, as it is not acknowledged."""

    shown = SourceKind(
        "canal", "Entries of the Canal server, each once, as it gave them.",
        "entries", "Asks the Canal server whether entries wait.",
    )  # fmt: skip
    can_stick = True
    look_takes = True
    dump_comes_first = False
    _has_record_times = False

    def _receive(self, batch: int) -> tuple[LandedBatch, Sequence[CdcError]]:
        run = self._run
        records = EntryRecords(run.lake, run.feed, batch)
        try:
            with CanalClient(run.feed.canal, patience_seconds=_PATIENCE_SECONDS) as client:
                for taken in rounds(client, run.feed.canal):
                    new = records.append(taken)
                    run.log.info("landed %d entries of %d that came", new, len(taken.entries))
        except (SourceError, SourceUnreachableError) as error:
            if not records.batch.segments:
                raise
            return records.batch, [error]
        stuck = self.stuck()
        return records.batch, [] if stuck is None else [stuck]

    def join_point(self, position: DumpPosition) -> JoinPoint:
        run = self._run
        if position.log_file is None or position.log_offset is None:
            advice = "load a dump of the database server that Canal reads, with the name and the offset of its binlog: "
            advice += "dump as a user who may see its status (REPLICATION CLIENT)"
            message = f"the dump's position is not a place in a binlog ({position})"
            raise SourceError(message, feed=run.feed.name, advice=advice)
        sought = BinlogPosition.of(position.log_file, position.log_offset)
        found = EntryRecords(run.lake, run.feed).find(sought, run.signals.last_ts)
        other = contradiction(position, *found.values, found.server_ids)
        if other is not None:
            advice = "dump that server itself, not another one of its replicas, and name the dump as "
            advice += "source.initial.uri (with type database: its address as url)"
            message = f"the dump of {sought} is not of the database server that Canal reads: {other}"
            raise SourceError(message, feed=run.feed.name, advice=advice)
        initial = run.feed.initial
        if found.first is not None and not found.covered and not (initial is not None and initial.log_starts_at_dump):
            advice = "start Canal at the dump's position or before it, and the feed afresh; where it was started at "
            advice += "that position, say so with source.initial.log_starts_at_dump"
            message = f"the dump is of {sought} and the log begins at {found.first}"
            raise SourceError(
                f"{message}: what changed in between may be in neither", feed=run.feed.name, advice=advice
            )
        if found.commit_ts is not None:
            return JoinPoint(found.commit_ts)
        if found.reached:
            return JoinPoint(None, f"the dump of {sought} waits for the first change in the log")
        where = "nothing of it has landed" if found.last is None else f"the log is at {found.last}"
        return JoinPoint(None, f"the dump waits for the log to reach {sought}; {where}")

    def stuck(self) -> CdcError | None:
        return EntryRecords(self._run.lake, self._run.feed).stuck()

    def poll(self, asked: str | None) -> SourceState:
        # The first waiting entry may have landed already, when a run ended before acknowledging it: the next run
        # acknowledges it.
        landed = EntryRecords(self._run.lake, self._run.feed).landed
        with CanalClient(self._run.feed.canal, patience_seconds=0) as client:
            batch = client.get(batch_size=1, wait_seconds=0)
        shown = b"%d " % landed + (b"" if batch is None else b"".join(batch.entries[:1]))
        reason = "no entries wait" if batch is None else f"entries wait; {landed} are landed"
        return self._state(shown, asked, reason, waiting=batch is not None)

    def status(self) -> SourceStatus:
        status = SourceStatus()
        try:
            records = EntryRecords(self._run.lake, self._run.feed)
            status = SourceStatus(landed_entries=records.landed, landed_position=records.position)
            with CanalClient(self._run.feed.canal) as client:
                client.check()
            return replace(status, error=records.stuck())
        except CdcError as error:
            return replace(status, error=error)
