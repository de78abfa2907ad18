"""A Canal server as a source: its entries land in `records`, and are acknowledged when they are there.

A run that ends between the two, or before the next step knows of them, is made up for by the next one: entries that
come again are known, and what landed last stands with `records`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.canal_records import EntryRecords
from cdc_lakehouse.lake.tables.landed_offsets import LandedBatch
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.topic_source import RecordSource
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.canal.rounds import BatchRounds

_PATIENCE_SECONDS: Final = 30
"""For a server that is gone, before the next run tries again."""


class CanalServer(RecordSource):
    """`Source` of a destination of a Canal server. It raises also when the server ends before it has given anything."""

    def _receive(self, batch: int) -> tuple[LandedBatch, Sequence[CdcError]]:
        run = self._run
        records = EntryRecords(run.lake, run.feed, batch)
        try:
            _take(run, records)
        except (SourceError, SourceUnreachableError) as error:
            if not records.batch.segments:
                raise
            return records.batch, [error]
        return records.batch, []


def _take(run: FeedContext, records: EntryRecords) -> None:
    source = run.feed.canal
    with CanalClient(source, patience_seconds=_PATIENCE_SECONDS) as client:
        taking = BatchRounds(client, source)
        for taken in taking.rounds():
            new = records.append(taken)
            run.log.info("landed %d entries of %d that came", new, len(taken.entries))
            taking.acknowledge(taken)
