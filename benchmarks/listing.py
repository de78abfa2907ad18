"""`python -m benchmarks.listing`: what it costs to find ten new files in a large sink.

A tick of the sensor is measured beside one that lists the whole sink and compares it with all segments, as is done
without a frontier: on the files as they are, and with a wait for each request, as an object store has it. Then the
first step of the run that the tick asks for."""

from __future__ import annotations

import datetime
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import click

from benchmarks.lakehouse import lake_config
from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.config import FeedConfig, LakeConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.schema_history import Frontiers
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.object_store import LocalStore, StoredObject, UnreadableDirectory
from cdc_lakehouse.sources.sink.paths import list_sink

_PAGE: Final = 1000
"""Objects that an object store gives for one request."""
_NEW: Final = 10


class SlowStore(LocalStore):
    """A store that waits for each request, and counts them and what they give."""

    def __init__(self, root: Path, wait_seconds: float) -> None:
        super().__init__(root)
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self.requests = 0
        self.objects = 0

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        self._request()
        for number, found in enumerate(super().list(prefix, after), 1):
            if number % _PAGE == 0:
                self._request()
            with self._lock:
                self.objects += 1
            yield found

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        self._request()
        return super().directories(prefix)

    def _request(self) -> None:
        with self._lock:
            self.requests += 1
        time.sleep(self._wait_seconds)


@dataclass
class Way:
    """One way of finding the new files: seconds of each repetition, and what the last one asked for."""

    name: str
    find: Callable[[SlowStore], object]
    seconds: list[float] = field(default_factory=list[float])
    requests: int = 0
    objects: int = 0


class Bench:
    def __init__(self, directory: Path, tables: int, dates: int, files: int) -> None:
        self.sink = directory / "sink"
        self._config: LakeConfig = lake_config(directory, 2, 1)
        self._tables, self._dates, self._files = tables, dates, files
        source = {"type": "storage_sink", "uri": self.sink.as_uri(), "protocol": "canal-json"}
        self._feed = FeedConfig.model_validate({"name": "listing", "source": source, "start_date": "2020-01-01"})
        self._version = tso(utc_now() - datetime.timedelta(days=dates))

    def fill(self) -> None:
        today = utc_now().date()
        for table in range(self._tables):
            self._write(table, f"meta/schema_{self._version}_0000000001.json", "{}")
            for days in range(self._dates):
                date = today - datetime.timedelta(days=self._dates - 1 - days)
                for number in range(1, self._files + 1):
                    self._write(table, f"{self._version}/{date}/CDC{number:020d}.json")
                self._write(table, f"{self._version}/{date}/meta/CDC.index", f"CDC{self._files:020d}.json\n")
        # Past all of the files, which are new: those that it has not passed would be looked at again.
        checkpoint = tso(utc_now() + datetime.timedelta(hours=1))
        (self.sink / "metadata").write_text(json.dumps({"checkpoint-ts": checkpoint}))

    def grow(self) -> None:
        for table in range(_NEW):
            self._write(table, f"{self._version}/{utc_now().date()}/CDC{self._files + 1:020d}.json")

    def land(self, store: LocalStore) -> FeedRun:
        run = FeedRun(self._feed, Lake(self._config), lambda: mock.sentinel.no_session)
        run.store = store
        found = run.source.land()
        click.echo(f"landed {len(found.new)} segments", err=True)
        return run

    def whole_tick(self, store: SlowStore) -> list[str]:
        """What a tick does without a frontier."""
        files = list_sink(store, self._feed.storage_sink).data
        known = Segments(Lake(self._config), self._feed.name).etags(file.path for file in files)
        return sorted({file.feed_date or "" for file, etag in zip(files, known, strict=True) if etag != file.etag})

    def tick(self, store: SlowStore) -> list[str]:
        run = FeedRun(self._feed, Lake(self._config))
        run.store = store
        return list(run.source.new_dates())

    def read_segments(self, _: SlowStore) -> int:
        return Segments(Lake(self._config), self._feed.name).rows.num_rows

    def read_frontier(self, _: SlowStore) -> object:
        return Frontiers(Lake(self._config), self._feed.name).last()

    def _write(self, table: int, path: str, text: str = "") -> None:
        place = self.sink / f"shop/table_{table:03d}" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@click.command()
@click.option("--tables", default=100, show_default=True)
@click.option("--dates", default=10, show_default=True, help="Date directories of each table.")
@click.option("--files", default=100, show_default=True, help="Data files of each date directory.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--wait-ms", default=30, show_default=True, help="For each request, in the second half of the table.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Where the sink is made.")
def main(tables: int, dates: int, files: int, repeats: int, wait_ms: int, directory: Path | None) -> None:
    """Measure what it costs to find ten new files."""
    scratch = Path(tempfile.mkdtemp(prefix="listing-", dir=directory))
    try:
        bench = Bench(scratch, tables, dates, files)
        bench.fill()
        first = SlowStore(bench.sink, 0)
        seconds = _time(lambda: bench.land(first))
        click.echo(f"first run: {first.objects:,} objects, {seconds:.1f} s", err=True)
        bench.grow()
        lines = _lines(bench, repeats, 0.0)
        lines += _lines(bench, repeats, wait_ms / 1000)
        click.echo("| wait, ms | what | requests | objects | s | ratio |\n|--:|---|--:|--:|--:|--:|")
        click.echo("\n".join(lines))
        after = SlowStore(bench.sink, 0)
        seconds = _time(lambda: bench.land(after))
        click.echo(f"\nfirst step of the run: {after.requests:,} requests, {after.objects:,} objects, {seconds:.2f} s")
    finally:
        shutil.rmtree(scratch)


def _lines(bench: Bench, repeats: int, wait_seconds: float) -> list[str]:
    ways = [Way("tick, everything listed and all segments read", bench.whole_tick), Way("tick", bench.tick)]
    if not wait_seconds:
        ways += [Way("of these: reading the segments", bench.read_segments)]
        ways += [Way("of these: reading the frontier", bench.read_frontier)]
    found: list[Any] = []
    for _ in range(repeats):
        for way in ways:
            store = SlowStore(bench.sink, wait_seconds)
            way.seconds.append(_time(lambda way=way, store=store: found.append(way.find(store))))
            way.requests, way.objects = store.requests, store.objects
    if found[0] != found[1] or not found[0]:
        raise click.ClickException(f"the ways do not find the same dates: {found[:2]}")
    slowest = statistics.median(ways[0].seconds)
    return [
        f"| {wait_seconds * 1000:.0f} | {way.name} | {way.requests:,} | {way.objects:,} "
        f"| {statistics.median(way.seconds):.2f} | {slowest / statistics.median(way.seconds):.0f} |"
        for way in ways
    ]


def _time(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
