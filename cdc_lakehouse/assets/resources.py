"""The objects that the assets of a run share: the configuration, Spark, and the steps."""

import contextlib
import json
from typing import Any, Final

import dagster as dg
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from cdc_lakehouse.assets.runs import FEED_TAG
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.pipeline.run import FeedRun, take_feed
from cdc_lakehouse.pipeline.steps import Steps

LOAD_TAG = "cdc/load"
"""Tables of the initial dump to load again: a list in JSON."""
DATES_TAG = "cdc/dates"
"""The dates to decode again, separated by commas, if they are not all dates of a range."""
CONFIGURATIONS: Final[dict[str, LakehouseConfig]] = {}
"""By feed, those of this process's definitions."""
_STEPS: Final[dict[str, tuple[dict[str, Steps], contextlib.ExitStack]]] = {}
"""By run: the steps of each of its feeds, and what releases their leases."""


class Lakehouse(dg.ConfigurableResource[Any]):
    """Spark, and the steps of the runs of this process. Nothing is configured here: settings can hold secrets, and
    Dagster shows the configuration of resources."""

    _config_of_run: LakehouseConfig | None = PrivateAttr(None)

    def session(self, config: LakehouseConfig) -> SparkSession:
        """Return Spark's session, started if there is none. Raises `ConfigurationError` for a run's second lake."""
        first = self._config_of_run or config
        if (first.lake, first.storage) != (config.lake, config.storage):
            advice = "start a run for the feeds of each"
            raise ConfigurationError("the feeds of this run have different lakes", advice=advice)
        self._config_of_run = first
        # The session of the run before may have ended with its JVM.
        return build_session(first.lake, first.storage)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Forget the steps of a run that has ended, and release its leases."""
        if context.run is not None and context.run.run_id in _STEPS:
            _STEPS.pop(context.run.run_id)[1].close()

    def steps(self, context: dg.AssetExecutionContext | dg.OpExecutionContext, feed: str) -> Steps:
        """Return the steps of a feed in a run, whose ops share a process. Raises `ConcurrentRunError`."""
        run_id = context.run.run_id
        of_run, ends = _STEPS.setdefault(run_id, ({}, contextlib.ExitStack()))
        if feed not in of_run:
            config = CONFIGURATIONS[feed]
            lake = Lake(config.lake, config.storage)
            lease = take_feed(lake, feed, run_id)
            ends.callback(lease.release)
            # A run of assets that was started in the UI has no tag.
            context.instance.add_run_tags(run_id, {FEED_TAG: feed})
            # The partitions that a person requested; a run that processes what is new has none.
            tags, dates = context.run.tags, list[str]()
            if DATES_TAG in tags:
                dates = tags[DATES_TAG].split(",")
            elif "dagster/partition" in tags:
                dates = [tags["dagster/partition"]]
            elif isinstance(context, dg.AssetExecutionContext) and context.has_partition_key_range:
                dates = list(context.partition_keys)
            run = FeedRun(
                config.feed(feed), lake, lambda: self.session(config), dates=frozenset(dates),
                reload_tables=frozenset(json.loads(tags.get(LOAD_TAG, "[]"))), log=context.log,
                require_lease=lease.require,
            )  # fmt: skip
            of_run[feed] = Steps(run)
        return of_run[feed]
