"""Enforce `policy.max_quarantined_rows`: the number of quarantined rows, of what one run has landed, at which runs
stop.

The lake's state decides: each run stops until the rows are repaired or discarded, or the limit is raised. Nothing is
applied or published before that. The segments that one run landed, in one batch or several, are identified by their
landing time."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection

from cdc_lakehouse.decoders.problems import BAD_VALUE
from cdc_lakehouse.errors import QuarantineLimitError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED
from cdc_lakehouse.pipeline.context import FeedContext


def require_few_rejected(run: FeedContext, landed_at: Collection[datetime.datetime] | None = None) -> None:
    """Raises `QuarantineLimitError` when what a run has landed (at these times, None: at any) has more open rows of
    decoded segments than the policy allows. Rows that a table cannot take do not count: they only hold their table."""
    limit = run.feed.policy.max_quarantined_rows
    if limit is None:
        return
    rows = [row for row in run.quarantine.open() if row.error_class != BAD_VALUE]
    segments = run.segments.find(row.segment for row in rows)
    found: dict[datetime.datetime, list[Quarantined]] = defaultdict(list)
    for row in rows:
        segment = segments.get(row.segment)
        if segment is not None and segment.state == DECODED and (landed_at is None or segment.landed_at in landed_at):
            found[segment.landed_at].append(row)
    for at, rejected in sorted(found.items()):
        count = sum(row.count for row in rejected)
        if count > limit:
            first = min(rejected, key=lambda row: (row.segment, row.line or 0))
            raise QuarantineLimitError(
                f"{count} rows of what the run of {at:%Y-%m-%d %H:%M:%S} UTC has landed are quarantined, more than "
                f"policy.max_quarantined_rows ({limit}); nothing is "
                f"applied or published. The first is {first.id} ({first.error_class}: {first.message})",
                feed=run.feed.name,
                segment=first.segment,
                line=first.line,
                advice="look at `cdc-lakehouse quarantine list`; mend the source, or mend the configuration and "
                "replay the rows, discard them, or raise the limit",
            )
