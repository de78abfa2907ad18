"""Determine which events are no longer kept because later events of their rows supersede them.

Only events that cannot be decoded again are considered, because different content of a later one would make the earlier
one necessary again. So they are those whose segments no longer have rows in `segments` (see `retention`)."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from typing import Final

from pyroaring import BitMap64

from cdc_lakehouse.changelog.positions import BEGINNING, row_stage, tso
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.lake.current.key_texts import TableKey
from cdc_lakehouse.lake.current.superseded_changes import VersionSpan, find_superseded
from cdc_lakehouse.lake.engine_faults import engine_errors
from cdc_lakehouse.lake.tables.segments import SUMMARY, totals
from cdc_lakehouse.lake.tables.superseded_events import delete_superseded, removal_of
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.row_keys import key_columns
from cdc_lakehouse.pipeline.table_changes import is_shown, keyed_span

_WORTH: Final = 0.1
"""The growth, as a share of the events, after which removal is done again: finding the superseded events reads all
candidates."""


class SupersededEvents:
    """The superseded events of one feed in its current state. `run` has the current configuration."""

    def __init__(self, run: FeedContext) -> None:
        self._run = run
        self._looked_at = totals(run.segments.rows.filter(pc.field("kind") == SUMMARY)).events

    def find(self) -> dict[str, BitMap64] | None:
        """Find the events that can be removed: positions by data file. None, without running a job, when little can be
        found."""
        before = removal_of(self._run.lake, self._run.feed.name)
        new = self._looked_at - before.looked_at
        if self._upto_ts == BEGINNING or new <= _WORTH * (self._looked_at - before.removed):
            return None
        versions = list(self._versions())
        if not versions:
            return None
        rows = self._run.segments.rows
        still_there = rows.filter((pc.field("kind") != SUMMARY) & (pc.field("min_commit_ts") <= self._upto_ts))
        segments = frozenset(still_there["segment"].to_pylist())
        with engine_errors(), errors_of_tasks():
            return find_superseded(self._run.spark, self._run.feed.name, versions, segments)

    def remove(self, found: dict[str, BitMap64]) -> int:
        """Remove what was found; return the number of events."""
        run = self._run
        return delete_superseded(run.lake, run.feed.name, run.iceberg, found, self._looked_at, self._upto_ts)

    @functools.cached_property
    def _upto_ts(self) -> int:
        """The commit-ts up to which superseded events can be removed."""
        days = self._run.feed.maintenance.keep_superseded_days
        if days is None:
            return BEGINNING
        return min(tso(self._run.clock() - datetime.timedelta(days=days)), self._run.last_cut.checkpoint_ts)

    def _versions(self) -> Iterator[VersionSpan]:
        """Yield the versions of the tables that the last cut shows: others may still have to apply these events."""
        run = self._run
        for number, life in enumerate(run.history.history.incarnations().values()):
            if not is_shown(run, life) or any(version.hold is not None for version in life.versions):
                continue
            for span in life.spans():
                # Each version has its own key.
                key = key_columns(run.feed, span.version)
                if not key:
                    continue
                # Each text is treated as one key. A key with several texts only leaves more events than necessary.
                keyed = keyed_span(life, span, TableKey(key), number, BEGINNING, row_stage(self._upto_ts))
                if keyed is not None:
                    yield VersionSpan(keyed, tuple(column.name for column in span.version.carried))
