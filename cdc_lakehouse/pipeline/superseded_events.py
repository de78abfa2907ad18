"""Which events are not kept any longer because later ones of their rows say it all.

Only events take part that cannot be decoded again: another content of a later one would bring the earlier one back. So
they are those whose segments have no rows in `segments` any more (see `retention`)."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from typing import Any, Final

import pyarrow.compute
from pyroaring import BitMap64

from cdc_lakehouse.changelog.positions import BEGINNING, row_stage, tso
from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.lake.current.key_texts import TableKey
from cdc_lakehouse.lake.current.superseded_changes import VersionSpan, find_superseded
from cdc_lakehouse.lake.engine_faults import engine_errors
from cdc_lakehouse.lake.tables.segments import SUMMARY, totals
from cdc_lakehouse.lake.tables.superseded_events import delete_superseded, removal_of
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.row_keys import key_columns
from cdc_lakehouse.pipeline.table_changes import is_shown, keyed_span

pc: Any = pyarrow.compute  # Its functions are made at run time, which type checkers do not see.

_WORTH: Final = 0.1
"""All events that can go are read to find those that do: it is done when there are so many more, as a share of them."""


class SupersededEvents:
    """Of one feed, as it is now. `run` is one that only reads, of the configuration as it is."""

    def __init__(self, run: FeedContext) -> None:
        self._run = run
        self._looked_at = totals(run.segments.rows.filter(pc.field("kind") == SUMMARY)).events

    def find(self) -> dict[str, BitMap64] | None:
        """Which can go: positions in data files. None, without a job, where there is little to be found."""
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
        """Remove what was found; how many events that are."""
        run = self._run
        return delete_superseded(run.lake, run.feed.name, run.iceberg, found, self._looked_at, self._upto_ts)

    @functools.cached_property
    def _upto_ts(self) -> int:
        """Of events up to this commit-ts the earlier ones can go."""
        days = self._run.feed.maintenance.keep_superseded_days
        if days is None:
            return BEGINNING
        return min(tso(self._run.clock() - datetime.timedelta(days=days)), self._run.last_cut.checkpoint_ts)

    def _versions(self) -> Iterator[VersionSpan]:
        """Of the tables that are as far as the last cut: others may still have to go through what they were."""
        run = self._run
        for number, life in enumerate(run.history.history.incarnations().values()):
            if not is_shown(run, life) or any(version.hold is not None for version in life.versions):
                continue
            for span in life.spans():
                # Each version by its own key.
                key = key_columns(run.feed, span.version)
                if not key:
                    continue
                # One text is one key. That a key may have others leaves more than there need be.
                keyed = keyed_span(life, span, TableKey(key), number, BEGINNING, row_stage(self._upto_ts))
                if keyed is not None:
                    yield VersionSpan(keyed, tuple(column.name for column in span.version.carried))
