"""The whole of a run, in order."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lakehouse.pipeline.apply import Applied, apply
from cdc_lakehouse.pipeline.cut import Published, publish_cut
from cdc_lakehouse.pipeline.decode import Decoded, decode
from cdc_lakehouse.pipeline.evolve import Evolved, evolve
from cdc_lakehouse.pipeline.feed_run import FeedRun
from cdc_lakehouse.pipeline.land import Landed, land


@dataclass(frozen=True)
class Done:
    landed: Landed
    decoded: Decoded
    evolved: Evolved
    applied: Applied
    published: Published


def run_all(run: FeedRun) -> Done:
    """Land, decode, evolve, apply, publish."""
    landed = land(run)
    decoded = decode(run)
    evolved = evolve(run, landed)
    applied = apply(run, landed)
    return Done(landed, decoded, evolved, applied, publish_cut(run, applied))
