"""`cdc-lakehouse metrics`: the state of feeds in the text format of Prometheus. No JVM is started."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.commands.common import DONE, Asked, existing_home, of_feeds, say
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.operate.signals import SIGNALS
from cdc_lakehouse.operate.state import FeedState, KnownHealth
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceStatus

PREFIX: Final = "cdc_lakehouse_"
_PATIENCE_SECONDS: Final = 5
_FEED: Final = ("feed",)
_TABLE: Final = ("feed", "database", "table")
_JOB: Final = ("feed", "job")
METRICS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "up": (_FEED, "1 where the state of the feed could be read from the lake, else 0."),
    **{signal.name: (_TABLE if signal.of_tables else _FEED, signal.help) for signal in SIGNALS},
    "source_up": (_FEED, "1 where the source answered in time and can be used, else 0."),
    "source_checkpoint_timestamp_seconds": (_FEED, "The checkpoint-ts that a storage sink shows, in seconds since "
                                                   "1970."),
    "source_pending_records": (_FEED, "Offsets of topics that are not landed."),
    "last_run_end_timestamp_seconds": (_JOB, "When the last run ended, in seconds since 1970; job is empty for the run "
                                             "that brings tables up to date."),
    "last_run_duration_seconds": (_JOB, "How long the last run took."),
    "last_run_failed": (_JOB, "1 where the last run failed, else 0."),
}  # fmt: skip
"""The labels and the help of each metric."""


@click.command()
@of_feeds(None)
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics there until interrupted, such as 127.0.0.1:9464.")
@click.option(
    "--source/--no-source", "asks_source", default=True, show_default=False,
    help="Whether to ask the sources. [default: yes]",
)  # fmt: skip
def command(asked: Asked, listen: str | None, asks_source: bool) -> int:
    """Print the state of the feeds for Prometheus, or serve it.

    Without --listen it is printed once, for the textfile collector of the node exporter. A source that does not answer
    within five seconds counts as down. Metrics of runs need the Dagster instance: DAGSTER_HOME, or the one beside the
    configuration.

    \b
    Examples:
      cdc-lakehouse metrics --feed shop
      cdc-lakehouse metrics --listen 127.0.0.1:9464
    """
    host, _, port = (listen or "").rpartition(":")
    if listen is not None and not (host and port.isdecimal() and int(port) <= 65535):
        raise click.BadParameter("is not of the form HOST:PORT, such as 127.0.0.1:9464", param_hint="--listen")
    registry = CollectorRegistry()
    with contextlib.ExitStack() as stack:
        runs: Callable[[str], Iterable[Any]] = lambda _: ()  # noqa: E731
        if existing_home() is not None:
            from dagster import DagsterInstance  # noqa: PLC0415

            from cdc_lakehouse.assets.runs import last_runs  # noqa: PLC0415

            runs = functools.partial(last_runs, stack.enter_context(DagsterInstance.get()))
        registry.register(_Feeds(asked.lake, asked.feeds, runs, asks_source=asks_source))
        if listen is None:
            click.echo(generate_latest(registry), nl=False)
            return DONE
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            what, advice = f"cannot listen at {listen}: {error.strerror}", "give --listen another address or port"
            raise ConfigurationError(what, advice=advice) from None
        stack.callback(server.server_close)
        say(f"metrics are at http://{listen}/metrics", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            thread.join()
        server.shutdown()
    return DONE


class _Feeds(Collector):
    """Reads feeds at each collection, and asks their sources concurrently, but those that have not answered yet."""

    def __init__(
        self, lake: Lake, feeds: Sequence[FeedConfig], runs: Callable[[str], Iterable[Any]], *, asks_source: bool
    ) -> None:
        self._lake, self._feeds, self._runs = lake, feeds, runs
        self._known_health: KnownHealth = {}
        self._pool = ThreadPoolExecutor(max_workers=len(feeds)) if asks_source else None
        self._asked: dict[str, Future[SourceStatus]] = {}
        self._lock = threading.Lock()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = _families()

        def add(name: str, value: float | None, *labels: str) -> None:
            if value is not None:
                families[name].add_metric(labels, value)

        statuses: dict[str, SourceStatus | None] = {}
        if self._pool is not None:
            with self._lock:
                for feed in self._feeds:
                    if feed.name not in self._asked:
                        self._asked[feed.name] = self._pool.submit(self._ask, feed)
                done, _ = wait(self._asked.values(), _PATIENCE_SECONDS)
                asked, self._asked = self._asked, {name: each for name, each in self._asked.items() if each not in done}
                statuses = {name: each.result() if each in done else None for name, each in asked.items()}
        for feed in self._feeds:
            state = FeedState(feed, self._lake, known_health=self._known_health)
            try:
                found = [(signal.name, *each) for signal in SIGNALS for each in signal.values(state)]
                found.append(("up", None, 1))
            except CdcError as error:
                say(f"feed {feed.name}: {error.coded}", err=True)
                found = [("freshness_limit_seconds", None, feed.freshness_minutes * 60), ("up", None, 0)]
            for name, table, value in found:
                add(name, value, feed.name, *(() if table is None else (table.database, table.table)))
            if feed.name in statuses:
                status = statuses[feed.name]
                # None: it does not answer in time.
                if status is None or status.error is not None:
                    why = "the source does not answer" if status is None else str(status.error)
                    say(f"feed {feed.name}: {why}", err=True)
                add("source_up", status is not None and status.error is None, feed.name)
                if status is not None:
                    shown = status.checkpoint_ts
                    add("source_checkpoint_timestamp_seconds", shown and commit_time(shown).timestamp(), feed.name)
                    add("source_pending_records", status.pending_records, feed.name)
            for run in self._runs(feed.name):
                add("last_run_end_timestamp_seconds", run.ended_at, feed.name, run.job)
                add("last_run_duration_seconds", run.seconds, feed.name, run.job)
                add("last_run_failed", run.error is not None, feed.name, run.job)
        return iter(families.values())

    def _ask(self, feed: FeedConfig) -> SourceStatus:
        try:
            return FeedRun(feed, self._lake).source.status()
        except CdcError as error:
            return SourceStatus(error=error)


def _families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(f"{PREFIX}{name}", text, labels=labels) for name, (labels, text) in METRICS.items()}
