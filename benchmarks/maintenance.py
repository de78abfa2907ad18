"""`python -m benchmarks.maintenance`: what many runs of small changes leave, with maintenance once a day and compaction
once an hour.

One warm session, a few tables. A pass is what a run does, step by step, without Dagster. In the log the passes are
`--apart` minutes from each other, so the tags of cuts, which go by the checkpoint, come and go as they do in life.
Maintenance is told the time at which a pass of so many hours ago is as old as it would be. CPU is that of this process,
of the JVM and of Python's workers together."""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.lakehouse import lake_config, sink_source
from benchmarks.many_tables import Log
from benchmarks.memory import cpu_seconds
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.config import FeedConfig, LakeConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.operate.maintenance import Maintenance
from cdc_lakehouse.operate.state import table_health
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import STEPS, Steps

_COUNT: Final = click.IntRange(min=1)
_READS: Final = 5
_DAY: Final = datetime.timedelta(days=1)
_HOUR: Final = datetime.timedelta(hours=1)
_NEAR: Final = 10
"""A pass is told with this many around it: the median of them."""


@click.command()
@click.option("--tables", type=_COUNT, default=2, show_default=True)
@click.option("--rows", type=_COUNT, default=20_000, show_default=True, help="Of each table.")
@click.option("--changes", type=_COUNT, default=20, show_default=True, help="Of each table, in each pass.")
@click.option("--passes", type=_COUNT, default=1000, show_default=True)
@click.option("--apart", type=_COUNT, default=15, show_default=True, help="Minutes from one pass to the next.")
@click.option("--warm-up", type=_COUNT, default=30, show_default=True, help="Passes of another feed before.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Spark's task slots.")
def main(tables: int, rows: int, changes: int, passes: int, apart: int, warm_up: int, cores: int) -> None:
    """Measure passes, reads and storage over many small passes with maintenance."""
    CACHE.mkdir(parents=True, exist_ok=True)
    minutes = datetime.timedelta(minutes=apart)
    with tempfile.TemporaryDirectory(prefix="maintenance-", dir=CACHE) as scratch:
        config = lake_config(Path(scratch), cores, 2)
        spark = build_session(config)
        try:
            other = Worn(Path(scratch), config, "warm", lambda: spark, tables, minutes)
            other.fill(rows)
            for _ in range(warm_up):
                other.run(changes)
            other.maintain()
            worn = Worn(Path(scratch), config, "worn", lambda: spark, tables, minutes)
            worn.fill(rows)
            _measure(worn, changes, passes, daily=max(1, _DAY // minutes), hourly=max(1, _HOUR // minutes))
        finally:
            spark.stop()


@dataclass(frozen=True)
class Pass:
    """Seconds of each step, in the order of `STEPS`, and CPU seconds of all. `begun` is in UTC."""

    begun: datetime.datetime
    steps: tuple[float, ...]
    cpu: float

    @property
    def seconds(self) -> float:
        return sum(self.steps)


class Worn:
    """A feed of a few tables that pass after pass writes to."""

    def __init__(
        self,
        directory: Path,
        config: LakeConfig,
        name: str,
        spark: Callable[[], Any],
        tables: int,
        apart: datetime.timedelta,
    ) -> None:
        self._config, self._spark, self._name, self._apart = config, spark, name, apart
        sink = directory / f"sink_{name}"
        self._log = Log(sink, tables)
        self.warehouse = directory / "warehouse"
        self._feed = FeedConfig.model_validate(
            {
                "name": name,
                "source": sink_source(sink, "canal-json"),
                "namespace": f"{name}__{{database}}",
                "start_date": sbtest.FILL_DAY.date(),
            }
        )
        self.passes: list[Pass] = []

    def fill(self, rows: int) -> None:
        self._log.rows = rows
        self.run(rows)
        self.passes.clear()

    def run(self, changes: int) -> Pass:
        self._log.later(self._apart)
        self._log.write(changes)
        begun, cpu = utc_now(), cpu_seconds()
        steps = Steps(FeedRun(self._feed, Lake(self._config), self._spark))
        took = tuple(_timed(lambda step=step: steps.upto(step)) for step in STEPS)
        if steps.published.cut.held:
            raise click.ClickException(f"held: {steps.published.cut.held}")
        self.passes.append(Pass(begun, took, cpu_seconds() - cpu))
        return self.passes[-1]

    def maintain(self) -> float:
        """Seconds that it took."""
        return _timed(Maintenance(self._feed, Lake(self._config), self._spark, clock=self._clock).maintain)

    def compact(self) -> float:
        """Seconds that it took."""
        return _timed(Maintenance(self._feed, Lake(self._config), self._spark, clock=self._clock).compact)

    def _clock(self) -> datetime.datetime:
        """The time at which a pass of a day ago is a day old."""
        return self.passes[-min(len(self.passes), _DAY // self._apart)].begun + _DAY

    def table(self) -> Any:
        return Lake(self._config).catalog.load_table((f"{self._name}__many", "t0"))

    def read(self) -> float:
        """Seconds to read the table through."""
        table = self.table()
        return statistics.median(_timed(lambda: table.scan().to_arrow()) for _ in range(_READS))

    def stored(self) -> float:
        """MB of all files of the feed, those of its machinery too."""
        places = [path for path in self.warehouse.glob(f"*{self._name}*") if path.is_dir()]
        return sum(file.stat().st_size for place in places for file in place.rglob("*") if file.is_file()) / 1e6


def _measure(worn: Worn, changes: int, passes: int, daily: int, hourly: int) -> None:
    click.echo("| passes | a pass, s | CPU s | | read, s | files | deleted | snapshots | stored, MB | maintenance, s |")
    click.echo(f"|{'--:|' * 3}---|{'--:|' * 6}")
    worst: list[float] = []
    compactions: list[float] = []
    for number in range(1, passes + 1):
        worn.run(changes)
        if number % daily == 0 or number in (_NEAR, passes):
            _say(worn, "before", None)
            if number % daily == 0 or number == passes:
                _say(worn, "after", worn.maintain())
        elif number % hourly == 0:
            worst.append(worn.read())
            compactions.append(worn.compact())
    took, read = statistics.median(compactions), statistics.median(worst)
    click.echo(
        f"{len(compactions)} compactions of {took:.2f} s (median); "
        f"reading just before them: {read:.3f} s (median), at most {max(worst):.3f}"
    )
    for name, some in (("first", worn.passes[: 2 * _NEAR]), ("last", worn.passes[-2 * _NEAR :])):
        steps = ", ".join(
            f"{step.__name__} {statistics.median(each.steps[at] for each in some):.3f}" for at, step in enumerate(STEPS)
        )
        click.echo(f"{name} {len(some)} passes, medians: {_pass(some)} s and CPU s; {steps}")


def _pass(some: Sequence[Pass]) -> str:
    return (
        f"{statistics.median(each.seconds for each in some):.2f} | {statistics.median(each.cpu for each in some):.2f}"
    )


def _say(worn: Worn, when: str, seconds: float | None) -> None:
    health = table_health(worn.table())
    figures = f"{worn.read():.3f} | {health.files} | {health.delete_ratio:.1%} | {health.snapshots}"
    took = "" if seconds is None else f"{seconds:.1f}"
    cost = _pass(worn.passes[-_NEAR:])
    click.echo(f"| {len(worn.passes)} | {cost} | {when} | {figures} | {worn.stored():.1f} | {took} |")


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
