"""The whole of a run, in order: each step once, and each after the ones before it."""

from __future__ import annotations

import functools

from cdc_lakehouse.config import CanalSource, KafkaSource
from cdc_lakehouse.pipeline.apply import Applied, apply
from cdc_lakehouse.pipeline.canal_source import land_entries
from cdc_lakehouse.pipeline.decode import Decoded, decode
from cdc_lakehouse.pipeline.evolve import Evolved, evolve
from cdc_lakehouse.pipeline.land import Landed, land
from cdc_lakehouse.pipeline.publish import Published, publish_cut
from cdc_lakehouse.pipeline.purge import purge_dropped
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.topic_source import (
    LandedTopics,
    checkpoint_of_topics,
    decode_topics,
    evolve_topics,
    land_topics,
)


class Steps:
    """The steps of one run. A step that is asked for makes those before it happen first."""

    def __init__(self, run: FeedRun) -> None:
        self.run = run

    @functools.cached_property
    def landed(self) -> Landed | LandedTopics:
        match self.run.feed.source:
            case KafkaSource():
                return land_topics(self.run)
            case CanalSource():
                return land_entries(self.run)
            case _:
                return land(self.run)

    @functools.cached_property
    def decoded(self) -> Decoded:
        landed = self.landed
        if isinstance(landed, LandedTopics):
            return decode_topics(self.run)
        return decode(self.run, landed.schema_files)

    @functools.cached_property
    def checkpoint_ts(self) -> int:
        """Up to where the run applies: topics say it in their messages."""
        _ = self.decoded
        landed = self.landed
        return checkpoint_of_topics(self.run) if isinstance(landed, LandedTopics) else landed.checkpoint_ts

    @functools.cached_property
    def evolved(self) -> Evolved:
        checkpoint_ts, landed = self.checkpoint_ts, self.landed
        if isinstance(landed, LandedTopics):
            return evolve_topics(self.run, checkpoint_ts)
        return evolve(self.run, landed)

    @functools.cached_property
    def applied(self) -> Applied:
        _ = self.evolved
        return apply(self.run, self.checkpoint_ts)

    @functools.cached_property
    def published(self) -> Published:
        published = publish_cut(self.run, self.applied)
        purge_dropped(self.run, self.applied.lives)
        return published


def run_all(run: FeedRun) -> Steps:
    """Land, decode, evolve, apply, publish."""
    steps = Steps(run)
    _ = steps.published
    return steps
