"""One run of a feed: its tables in the lake, and its source."""

from __future__ import annotations

import datetime
import functools
import importlib
from typing import Final

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.lease import Lease, take_when_free
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.source import LogSource

_SOURCES: Final = {"storage_sink": "sink.Sink", "kafka": "topics.Topics", "canal": "canal.CanalServer"}
"""By `source.type`: the module of this package and its class."""
_MAINTENANCE: Final = datetime.timedelta(minutes=4)
"""How long a run waits for maintenance: it must hold the feed before it is considered dead at its start."""


class FeedRun(FeedContext):
    """What the steps of one run share."""

    @functools.cached_property
    def source(self) -> LogSource:
        """The feed's source, opened by its configuration. Its module is imported now: others need other clients."""
        module, _, name = _SOURCES[self.feed.source.type].partition(".")
        return getattr(importlib.import_module(f"{__package__}.{module}"), name)(self)


def take_feed(lake: Lake, feed: str, run_id: str) -> Lease:
    """Take the feed's lease for a run, which waits for maintenance. Raises `ConcurrentRunError` when another run holds
    it."""
    return take_when_free(lake, feed, run_id, utc_now, _MAINTENANCE, lambda holder: holder.is_maintenance)
