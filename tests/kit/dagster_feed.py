"""A feed as Dagster has it: its sensor, its checks, and runs that others made."""

import datetime
import functools
import json
from typing import Any

import dagster as dg
from alembic.script import ScriptDirectory
from cachetools import cached

from cdc_lakehouse.assets import keys, runs
from cdc_lakehouse.assets.keys import partitions_of, run_partitions
from cdc_lakehouse.assets.maintenance import build_retention, delete_runs
from cdc_lakehouse.assets.runs import FAILURE_TAG, FEED_TAG
from cdc_lakehouse.assets.steps import decisions_config, made_of_events
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.config import FeedConfig, load
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CatalogUnreachableError
from cdc_lakehouse.pipeline.run import take_feed
from tests.kit.lakes import TestLake
from tests.kit.waiting import clock_at

__all__ = [
    "FAILURE_TAG", "FEED_TAG", "build_retention", "decisions_config", "delete_runs", "keys", "made_of_events",
    "partitions_of", "run_partitions", "runs", "take_feed",
]  # fmt: skip


# Alembic's revisions of a storage, which each new instance would read again, three times.
_by_place = cached(cache={}, key=lambda config: config.get_main_option("script_location"))
ScriptDirectory.from_config = _by_place(ScriptDirectory.from_config)


@functools.cache
def empty_instance() -> dg.DagsterInstance:
    """One without runs, for all that only read it: to make one costs more than most tests do."""
    return dg.DagsterInstance.ephemeral()


def feed_named(name: str) -> FeedConfig:
    source = {"type": "storage_sink", "uri": "file:///s", "protocol": "canal-json", "date_separator": "day"}
    document = {"name": name, "source": {**source, "time_zone": "UTC"}, "start_date": "2026-06-01"}
    return FeedConfig.model_validate(document)


def tick(lake: TestLake, cursor: str | None = None, instance: dg.DagsterInstance | None = None) -> Any:
    (sensor,) = build_definitions(lake.config).sensors or []
    with dg.build_sensor_context(instance=instance or empty_instance(), cursor=cursor) as context:
        return sensor(context)  # pyright: ignore


def skipped(result: Any) -> str:
    assert isinstance(result, dg.SkipReason), result
    return str(result.skip_message)


def asked(result: Any) -> dg.RunRequest:
    assert isinstance(result, dg.SensorResult), result
    (request,) = result.run_requests or []
    return request


def started(
    instance: dg.DagsterInstance, feed: str | None, status: dg.DagsterRunStatus | None = None, **tags: str
) -> dg.DagsterRun:
    """A run of the feed that Dagster takes for being under way."""
    own = {} if feed is None else {FEED_TAG: feed}
    status = status or dg.DagsterRunStatus.STARTED
    return instance.create_run_for_job(dg.job(name="a")(lambda: None), tags={**own, **tags}, status=status)


def ended(instance: dg.DagsterInstance, feed: str | None, *, fails: bool, job: str = "any") -> str:
    @dg.op
    def work() -> None:
        if fails:
            raise CatalogUnreachableError("the catalog is gone", feed=feed)

    @dg.job(name=job, executor_def=dg.in_process_executor)
    def run() -> None:
        work()

    tags = {} if feed is None else {FEED_TAG: feed}
    return run.execute_in_process(instance=instance, tags=tags, raise_on_error=False).run_id


SECRET_OF_HOOK = "hunter2-of-the-hook"


def set_receivers(lake: TestLake, *receivers: dict[str, Any]) -> None:
    document = json.loads(lake.config_path.read_text())
    lake.config_path.write_text(json.dumps({**document, "alerts": receivers}))


class AlertSensor:
    """Ticks of the sensor, with the cursor that it left."""

    def __init__(self, lake: TestLake, instance: dg.DagsterInstance, *receivers: dict[str, Any]) -> None:
        self.lake, self.instance, self.receivers = lake, instance, receivers
        self.cursor, self.now = None, utc_now().replace(microsecond=0)
        self.configure()

    def configure(self, *checks: Any, **feed: Any) -> None:
        """Settings of the feed, and checks of people, for the ticks that follow."""
        self.lake.configure(**feed)
        set_receivers(self.lake, *self.receivers)
        config = load(self.lake.config_path, {"HOOK": SECRET_OF_HOOK})
        definitions = dg.Definitions.merge(build_definitions(config), dg.Definitions(asset_checks=checks))
        self.loaded = definitions.get_repository_def()

    def tick(self, after: datetime.timedelta = datetime.timedelta(minutes=1)) -> str:
        self.now += after
        repository = self.loaded
        with (
            clock_at(lambda: self.now),
            dg.build_sensor_context(self.instance, self.cursor, repository_def=repository) as context,
        ):
            result = repository.get_sensor_def("cdc_alerts").evaluate_tick(context)
        self.cursor = result.cursor
        return str(result.skip_message)
