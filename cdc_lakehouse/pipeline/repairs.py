"""Repair rows that `verify` found to differ with synthetic events, which come after all others of the cut's
checkpoint-ts.

They are a segment of their own, and are applied to tables like any other events: later changes of the log override
them, and a table that is recomputed from its events keeps the repair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.decoders.event_schema import SYNTHETIC, SYNTHETIC_EVENTS, image_text
from cdc_lakehouse.errors import PermanentError
from cdc_lakehouse.lake.tables.segments import LANDED, REPAIR, Segment
from cdc_lakehouse.pipeline.context import TableRepair
from cdc_lakehouse.pipeline.run import FeedRun

_ROWS_OF_A_BATCH: Final = 1000


class NotRepairableError(PermanentError):
    """Events cannot repair the table."""

    default_advice = "load the table again (`cdc-lakehouse load`)"


def version_at(run: FeedRun, incarnation: str, checkpoint_ts: int) -> TableVersion:
    """Return the version of a table at a cut. Raises `NotRepairableError`."""
    whole = run.history.history.incarnations().get(incarnation)
    life = None if whole is None else whole.upto(checkpoint_ts)
    if life is None:
        raise NotRepairableError("the schema history does not know it any more", advice="verify again")
    return life.last


def write_repairs(run: FeedRun) -> None:
    """Write the run's repairs, and finish those of a run that ended early."""
    _finish_earlier(run)
    if not run.repairs:
        return
    repairs, run.repairs = run.repairs, ()
    run.events.ensure()
    batch = run.segments.batch + 1
    landed = [_segment(run, repair, batch) for repair in repairs]
    run.segments.land(landed)
    run.events.commit(run.events.write(_events(run, repairs, landed)), landed)
    run.mark_decoded(landed)
    for repair in repairs:
        run.log.info("wrote the repair of %d rows of %s", len(repair.rows), repair.name)


def _segment(run: FeedRun, repair: TableRepair, batch: int) -> Segment:
    name = version_at(run, repair.incarnation, repair.checkpoint_ts).name
    return Segment(
        # Sorted in the order in which they are made: see `changelog.positions`.
        segment=f"//repair/{repair.checkpoint_ts}/{batch:010d}/{repair.incarnation}",
        kind=REPAIR,
        database=name.database,
        table=name.table,
        table_version=repair.checkpoint_ts,
        size=0,
        batch=batch,
        state=LANDED,
        landed_at=run.clock(),
        requested_by=repair.requested_by,
    )


def _events(run: FeedRun, repairs: Sequence[TableRepair], segments: Sequence[Segment]) -> Iterator[pa.RecordBatch]:
    for repair, segment in zip(repairs, segments, strict=True):
        version = version_at(run, repair.incarnation, repair.checkpoint_ts)
        for start in range(0, len(repair.rows), _ROWS_OF_A_BATCH):
            rows = repair.rows[start : start + _ROWS_OF_A_BATCH]
            count = len(rows)
            columns: Mapping[str, Any] = {
                "feed_date": [None] * count,
                "schema_name": [version.name.database] * count,
                "table_name": [version.name.table] * count,
                "table_version": [version.commit_ts] * count,
                "physical_partition": [None] * count,
                "op": [row.op for row in rows],
                "commit_ts": [repair.checkpoint_ts] * count,
                "before": [image_text(row.image) if row.op == "D" else None for row in rows],
                "after": [None if row.op == "D" else image_text(row.image) for row in rows],
                "segment": [segment.segment] * count,
                "line": range(start + 1, start + count + 1),
                SYNTHETIC: [True] * count,
            }
            yield pa.RecordBatch.from_pydict(dict(columns), schema=SYNTHETIC_EVENTS)


def _finish_earlier(run: FeedRun) -> None:
    """Finish the batches of a run that ended between its commits. A repair that is not in `events` by then is not
    made."""
    for segments in run.segments.undecoded(REPAIR).values():
        run.mark_decoded(segments)
