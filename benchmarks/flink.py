"""`python -m benchmarks.flink`: the main benchmark's files to a table, beside Flink SQL, which keeps no change log.

Flink runs in a JVM of its own that stays warm (`java/FlinkSql.java`): its filesystem source of canal-json into an
Iceberg table of format 2 by upserts, whose equality deletes are left to readers. Its seconds are those of its job. What
it wrote is read by Spark and compared with what the product wrote.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import click
import pyspark
from pyspark.sql import SparkSession

from benchmarks.__main__ import CACHE
from benchmarks.agreement import check_current
from benchmarks.change_log import ChangeLog, Stage, Workload, change_logs
from benchmarks.lakehouse import Feed, lake_config, sink_source
from benchmarks.memory import cpu_seconds
from cdc_lakehouse.lake.spark import build_session
from tests.servers.tools import compiled, from_ivy

_COUNT: Final = click.IntRange(min=1)
_COLUMNS: Final = "id BIGINT, k INT, c STRING, pad STRING"
_FLINK: Final = "2.1.1"
# Its distribution is in no Maven repository; these are the parts that a job in SQL needs.
_IVY: Final = (
    *((f"org.apache.flink {name}", _FLINK) for name in (
        "flink-clients", "flink-table-planner-loader", "flink-table-runtime", "flink-table-api-java-bridge",
        "flink-json", "flink-connector-files",
    )),
    ("org.apache.iceberg iceberg-flink-runtime-2.1", "1.11.0"),
)  # fmt: skip
# As Flink's own scripts open them.
_OPENED: Final = ("lang", "lang.invoke", "lang.reflect", "util", "util.concurrent", "nio", "net", "io", "text", "time")


class Flink:
    """A warm cluster of Flink in one process."""

    def __init__(self, directory: Path, cores: int, memory_gib: int) -> None:
        self._directory = directory
        libraries = from_ivy(f"flink-{_FLINK}", _IVY)
        hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-*.jar"))
        path = os.pathsep.join(map(str, [*sorted(libraries.glob("*.jar")), *hadoop]))
        classes = compiled(f"flink-{_FLINK}-classes", path, [Path(__file__).parent / "java" / "FlinkSql.java"])
        settings = {
            "parallelism.default": str(cores),
            "restart-strategy.type": "none",
            # It would keep all rows of a job, and drop deletes of those that an earlier job has written.
            "table.exec.sink.upsert-materialize": "NONE",
            "execution.checkpointing.interval": "2 s",
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        }
        opens = [word for name in _OPENED for word in ("--add-opens", f"java.base/java.{name}=ALL-UNNAMED")]
        command = ["java", f"-Xmx{memory_gib}g", *opens, "-cp", os.pathsep.join([str(classes), path]), "FlinkSql"]
        self._process = subprocess.Popen(
            [*command, *(word for setting in settings.items() for word in setting)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Of its loggers.
            text=True,
        )
        catalog = f"'type'='iceberg', 'catalog-type'='hadoop', 'warehouse'='{self.warehouse}'"
        self.run(f"CREATE CATALOG lake WITH ({catalog})")
        self.run("CREATE DATABASE lake.bench")

    @property
    def warehouse(self) -> str:
        return (self._directory / "flink").as_uri()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def run(self, statement: str) -> tuple[float, float]:
        """Return the seconds of a job and of its process' CPU; zeros for a statement without a job."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        if not answer:
            raise click.ClickException(f"Flink ended at: {statement}")
        wall, cpu = (int(number) / 1000 for number in answer)
        return wall, cpu

    def create(self, table: str) -> None:
        options = "'format-version'='2', 'write.upsert.enabled'='true', 'write.parquet.compression-codec'='zstd'"
        self.run(f"CREATE TABLE lake.bench.{table} ({_COLUMNS}, PRIMARY KEY (id) NOT ENFORCED) WITH ({options})")

    def insert(self, table: str, stage: Stage, log: ChangeLog) -> tuple[float, float]:
        """Take a stage's files into the table. Those of changes are joined first: Flink reads files in any order."""
        place = self._directory / "flink-files" / f"{table}_{stage.name}"
        place.mkdir(parents=True)
        files = sorted((log.directory / stage.name).rglob("CDC*[0-9].json"))
        if stage.name == "inserts":
            for file in files:
                os.link(file, place / file.name)
        else:
            with (place / "joined.json").open("wb") as joined:
                joined.writelines(file.read_bytes() for file in files)
        source = f"'connector'='filesystem', 'path'='{place.as_uri()}', 'format'='canal-json'"
        self.run(f"CREATE TABLE {place.name} ({_COLUMNS}) WITH ({source})")
        os.sync()
        return self.run(f"INSERT INTO lake.bench.{table} SELECT * FROM {place.name}")


@dataclass
class Figures:
    """Seconds of wall and CPU of each pass."""

    stage: Stage
    ours: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    flink: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def line(self) -> str:
        (wall, cpu), (their_wall, their_cpu) = map(_medians, (self.ours, self.flink))
        cells = f"{wall:.2f} | {cpu:.2f} | {their_wall:.2f} | {their_cpu:.2f}"
        return f"| {self.stage.total:,} {self.stage.name} | {cells} | {their_wall / wall:.2f} | {their_cpu / cpu:.2f} |"


def _medians(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [statistics.median(values) for values in zip(*pairs, strict=True)]


def _pass(number: int, log: ChangeLog, figures: list[Figures], feed: Feed, sink: Path, flink: Flink) -> None:
    table = f"t{number}"
    flink.create(table)
    for found in figures:
        log.lay(found.stage, sink)
        os.sync()
        begun, cpu = time.perf_counter(), cpu_seconds()
        feed.decode(found.stage)
        feed.publish(found.stage)
        found.ours.append((time.perf_counter() - begun, cpu_seconds() - cpu))
        found.flink.append(flink.insert(table, found.stage, log))
        click.echo(found.line(), err=True)


def _agree(spark: SparkSession, directory: Path, number: int, log: ChangeLog, feed: Feed) -> None:
    read = directory / f"flink-rows-{number}"
    spark.read.table(f"flink.bench.t{number}").write.parquet(str(read))
    last = len(log.stages) - 1
    theirs = f"read_parquet('{read}/*.parquet')"
    check_current(feed.current(last), theirs, log.stages[last].rows, f"pass {number}", ("id", "k", "c", "pad"))


@click.command()
@click.option("--inserts", type=_COUNT, default=1_000_000, show_default=True, help="Rows the table is filled with.")
@click.option("--changes", type=_COUNT, default=300_000, show_default=True, help="Changes on top of them.")
@click.option("--repeats", type=_COUNT, default=3, show_default=True, help="Passes that are measured.")
@click.option("--warm-up", type=_COUNT, default=300_000, show_default=True, help="Rows of the pass before, unmeasured.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Task slots of Spark and of Flink.")
@click.option("--memory-gib", type=_COUNT, default=2, show_default=True, help="Spark's heap; Flink's is twice that.")
def main(inserts: int, changes: int, repeats: int, warm_up: int, cores: int, memory_gib: int) -> None:
    """Measure files to tables beside Flink SQL."""
    workload = Workload(inserts, changes, 64, 1)
    log, small = change_logs(workload, warm_up, CACHE)
    log.read_through()
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="flink-", dir=CACHE)))
        flink = opened.enter_context(Flink(directory, cores, 2 * memory_gib))
        lake = lake_config(directory, cores, memory_gib)
        catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": flink.warehouse}
        lake.spark.conf.update({f"spark.sql.catalog.flink{key}": value for key, value in catalog.items()})
        spark = build_session(lake)
        opened.callback(spark.stop)
        figures = [Figures(stage) for stage in log.stages]
        feeds: list[Feed] = []
        for number in range(repeats + 1):
            sink = directory / "sinks" / str(number)
            feed = Feed(lake, spark, f"bench_{number}", sink_source(sink, "canal-json"))
            feeds.append(feed)
            if number:
                _pass(number, log, figures, feed, sink, flink)
            else:
                _pass(number, small, [Figures(stage) for stage in small.stages], feed, sink, flink)
        # Afterwards: what is read here would cost what is measured next.
        for number, feed in enumerate(feeds):
            _agree(spark, directory, number, log if number else small, feed)
    click.echo("| events | s | CPU s | Flink, s | Flink, CPU s | ratio | of CPU |")
    click.echo(f"|---|{'--:|' * 6}")
    click.echo("\n".join(found.line() for found in figures))


if __name__ == "__main__":
    main()
