"""One run of a feed: its tables in the lake, and its source."""

from __future__ import annotations

import functools

from cdc_lakehouse.config import CanalSource, KafkaSource
from cdc_lakehouse.pipeline.canal import CanalServer
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.sink import Sink
from cdc_lakehouse.pipeline.source import LogSource
from cdc_lakehouse.pipeline.topics import Topics


class FeedRun(FeedContext):
    """What the steps of one run share."""

    @functools.cached_property
    def source(self) -> LogSource:
        """The feed's source, opened by its configuration."""
        match self.feed.source:
            case KafkaSource():
                return Topics(self)
            case CanalSource():
                return CanalServer(self)
            case _:
                return Sink(self)
