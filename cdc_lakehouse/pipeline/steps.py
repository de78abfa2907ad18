"""The whole of a run, in order: each step once, and each after the ones before it."""

from __future__ import annotations

import functools

from cdc_lakehouse.pipeline.apply import Applied, apply
from cdc_lakehouse.pipeline.cut import Published, publish_cut
from cdc_lakehouse.pipeline.decode import Decoded, decode
from cdc_lakehouse.pipeline.evolve import Evolved, evolve
from cdc_lakehouse.pipeline.feed_run import FeedRun
from cdc_lakehouse.pipeline.land import Landed, land
from cdc_lakehouse.pipeline.purge import purge_dropped


class Steps:
    """The steps of one run. A step that is asked for makes those before it happen first."""

    def __init__(self, run: FeedRun) -> None:
        self.run = run

    @functools.cached_property
    def landed(self) -> Landed:
        return land(self.run)

    @functools.cached_property
    def decoded(self) -> Decoded:
        return decode(self.run, self.landed.schema_files)

    @functools.cached_property
    def evolved(self) -> Evolved:
        _ = self.decoded
        return evolve(self.run, self.landed)

    @functools.cached_property
    def applied(self) -> Applied:
        _ = self.evolved
        return apply(self.run, self.landed)

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
