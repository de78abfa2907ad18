"""`cdc-lakehouse metrics`: the state of feeds in the text format of Prometheus. No JVM starts, no source is asked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
import dagster as dg
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cdc_lakehouse.assets.last_runs import last_runs
from cdc_lakehouse.commands.common import DONE, chosen, configured, feed_option, find_home
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.context import utc_now
from cdc_lakehouse.pipeline.feed_state import read_feed_state, read_sizes

_PREFIX: Final = "cdc_lakehouse_"
_FEED: Final = ("feed",)
_TABLE: Final = ("feed", "database", "table")
_JOB: Final = ("feed", "job")
_METRICS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "up": (_FEED, "1 where the state of the feed could be read from the lake, else 0."),
    "published_checkpoint_timestamp_seconds": (_FEED, "What the published cut shows, in seconds since 1970."),
    "published_lag_seconds": (_FEED, "How far the published cut is behind now."),
    "freshness_limit_seconds": (_FEED, "freshness_minutes of the feed."),
    "last_cut_timestamp_seconds": (_FEED, "When the last cut was published, in seconds since 1970."),
    "tables": (_FEED, "Tables of the published cut."),
    "held_tables": (_FEED, "Tables that stay at an earlier cut."),
    "quarantined_rows": (_FEED, "Rows that could not be used and are open."),
    "discarded_rows": (_FEED, "Rows that could not be used and were given up."),
    "events": (_FEED, "Rows of the table events."),
    "segments_waiting": (_FEED, "Segments that are landed and not decoded."),
    "table_rows": (_TABLE, "Rows of a table in the published cut."),
    "table_held": (_TABLE, "1 for a table that stays at an earlier cut."),
    "last_run_end_timestamp_seconds": (_JOB, "When the last run ended, in seconds since 1970; job is empty for the run "
                                             "that brings tables up to date."),
    "last_run_duration_seconds": (_JOB, "How long the last run took."),
    "last_run_failed": (_JOB, "1 where the last run failed, else 0."),
}  # fmt: skip
"""The labels and the help of each metric."""


@click.command()
@feed_option
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics there until interrupted, such as 127.0.0.1:9464.")
@configured
def command(config: LakehouseConfig, feed_name: str | None, listen: str | None) -> int:
    """Print the state of the feeds for Prometheus, or serve it.

    Without --listen it is printed once, for the textfile collector of the node exporter. Metrics of runs need the
    Dagster instance: DAGSTER_HOME, or the one beside the configuration.

    \b
    Examples:
      cdc-lakehouse metrics --feed shop
      cdc-lakehouse metrics --listen 127.0.0.1:9464
    """
    feeds = chosen(config, feed_name)
    address = None if listen is None else _address(listen)
    registry = CollectorRegistry()
    with contextlib.ExitStack() as stack:
        home = find_home()
        os.environ["DAGSTER_HOME"] = str(home)
        has_instance = (home / "dagster.yaml").exists()
        instance = stack.enter_context(dg.DagsterInstance.get()) if has_instance else None
        registry.register(_Feeds(Lake(config.lake, config.storage), feeds, instance))
        if address is None:
            click.echo(generate_latest(registry), nl=False)
            return DONE
        try:
            server, thread = start_http_server(address[1], address[0], registry)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {listen}: {error.strerror}") from None
        stack.callback(server.server_close)
        click.echo(f"metrics are at http://{listen}/metrics", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            thread.join()
        server.shutdown()
    return DONE


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter("is not of the form HOST:PORT, such as 127.0.0.1:9464", param_hint="--listen")
    return host.strip("[]"), int(port)


class _Feeds(Collector):
    """Reads the state of feeds whenever it is asked."""

    def __init__(self, lake: Lake, feeds: Sequence[FeedConfig], instance: dg.DagsterInstance | None) -> None:
        self._lake, self._feeds, self._instance = lake, feeds, instance

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = _families()

        def add(name: str, value: float | None, *labels: str) -> None:
            if value is not None:
                families[name].add_metric(labels, value)

        for feed in self._feeds:
            self._of_lake(feed, add)
            for run in () if self._instance is None else last_runs(self._instance, feed.name):
                add("last_run_end_timestamp_seconds", run.ended_at, feed.name, run.job)
                add("last_run_duration_seconds", run.seconds, feed.name, run.job)
                add("last_run_failed", run.error is not None, feed.name, run.job)
        return iter(families.values())

    def _of_lake(self, feed: FeedConfig, add: Any) -> None:
        name = feed.name
        add("freshness_limit_seconds", feed.freshness_minutes * 60, name)
        try:
            state, sizes = read_feed_state(self._lake, feed, utc_now()), read_sizes(self._lake, name)
        except CdcError as error:
            click.echo(f"feed {name}: {error}", err=True)
            add("up", 0, name)
            return
        shown, published = state.checkpoint_time, state.published_at
        add("up", 1, name)
        add("published_checkpoint_timestamp_seconds", shown and shown.timestamp(), name)
        add("published_lag_seconds", state.lag_seconds, name)
        add("last_cut_timestamp_seconds", published and published.timestamp(), name)
        add("tables", len(state.cut), name)
        add("held_tables", len(state.held), name)
        add("quarantined_rows", state.quarantined_rows, name)
        add("discarded_rows", state.discarded, name)
        add("events", sizes.events, name)
        add("segments_waiting", sizes.segments_waiting, name)
        for row in state.cut:
            add("table_rows", row.row_count, name, row.database, row.table)
        for table in sorted(state.held, key=str):
            add("table_held", 1, name, table.database, table.table)


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels) for name, (labels, text) in _METRICS.items()
    }
