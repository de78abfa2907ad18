"""`python -m benchmarks.kafka`: from a broker to the published current state, beside a consumer that throws all away.

The messages are those of the main benchmark as TiCDC sends them with the dispatcher `index-value`: keyed by the row,
over some partitions, with the CREATE in the first and a watermark at the end of each. The consumer is the limit that
the source sets: confluent-kafka with its own settings, which takes messages and looks at none, a thousand at a time and
one by one, as most programs do. The broker is the tests', on the same machine, so it takes its share of the processors
from all of them."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.agreement import check_current
from benchmarks.change_log import ChangeLog, Stage, Workload, change_logs
from benchmarks.duck import Files
from benchmarks.lakehouse import Feed, lake_config
from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.spark import build_session
from tests.servers.kafka import Broker

_COUNT: Final = click.IntRange(min=1)
_AT_ONCE: Final = 1000
PARTS: Final = ("land", "decode", "apply, publish")


@dataclass
class Figures:
    """Seconds of each pass."""

    stage: Stage
    bytes: int = 0
    bare: list[float] = field(default_factory=list[float])
    polled: list[float] = field(default_factory=list[float])
    ours: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def line(self) -> str:
        bare, polled = statistics.median(self.bare), statistics.median(self.polled)
        whole = statistics.median(map(sum, zip(*self.ours.values(), strict=True)))
        parts = " | ".join(f"{statistics.median(seconds):.2f}" for seconds in self.ours.values())
        return (
            f"| {self.stage.total:,} {self.stage.name} | {self.bytes >> 20:,} | {self.stage.total / bare:,.0f} "
            f"| {self.stage.total / polled:,.0f} | {parts} | {whole:.2f} | {self.stage.total / whole:,.0f} "
            f"| {bare / whole:.2f} | {polled / whole:.2f} |"
        )


class Topic:
    """A topic that gets the messages of one stage after the other."""

    def __init__(self, broker: Broker, partitions: int) -> None:
        self.broker = broker
        self.name = broker.create(partitions=partitions)
        self._partitions = partitions
        self._ends = [0] * partitions

    def send(self, log: ChangeLog, stage: Stage) -> int:
        """The bytes of the stage's messages."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20, "compression.type": "lz4"})
        last, size = 0, 0
        if not any(self._ends):
            self._produce(producer, 0, _create_table())
        for line in _lines(log.directory / stage.name):
            message = json.loads(line)
            key = message["data"][0]["id"]
            last = max(last, message["_tidb"]["commitTs"])
            size += len(line)
            self._produce(producer, zlib.crc32(key.encode()) % self._partitions, line)
        for partition in range(self._partitions):
            self._produce(producer, partition, _watermark(last))
        if producer.flush(120):
            raise click.ClickException("the broker did not take all messages")
        return size

    def consume(self, starts: list[int], at_once: int = _AT_ONCE) -> float:
        """Seconds that a bare consumer takes for what is behind these offsets, so many messages at a time."""
        settings = {"bootstrap.servers": self.broker.bootstrap, "group.id": "bench", "enable.partition.eof": True}
        begun, left, seen = time.perf_counter(), self._partitions, 0
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(self.name, n, at or OFFSET_BEGINNING) for n, at in enumerate(starts)])
        while left:
            for message in consumer.consume(at_once, 1) if at_once > 1 else filter(None, [consumer.poll(1)]):
                error = message.error()
                if error is None:
                    seen += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    left -= 1
                else:
                    raise click.ClickException(str(error))
        seconds = time.perf_counter() - begun
        consumer.close()
        if seen != sum(self._ends) - sum(starts):
            raise click.ClickException(f"the consumer has {seen} messages of {sum(self._ends) - sum(starts)}")
        return seconds

    @property
    def ends(self) -> list[int]:
        return list(self._ends)

    def _produce(self, producer: Producer, partition: int, value: bytes) -> None:
        while True:
            try:
                producer.produce(self.name, value, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        self._ends[partition] += 1


def _lines(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("CDC*[0-9].json")):
        with path.open("rb") as file:
            for line in file:
                yield line.rstrip(b"\r\n")


def _create_table() -> bytes:
    made = sbtest.create_table()
    message = {"database": made.database, "table": made.table, "isDdl": True, "type": "CREATE", "data": None}
    return json.dumps({**message, "sql": made.query, "_tidb": {"commitTs": made.commit_ts}}).encode()


def _watermark(commit_ts: int) -> bytes:
    message = {"database": "", "table": "", "isDdl": False, "type": "TIDB_WATERMARK", "data": None}
    return json.dumps({**message, "_tidb": {"watermarkTs": commit_ts}}).encode()


@dataclass
class Bench:
    directory: Path
    lake: LakeConfig
    spark: SparkSession
    broker: Broker
    cores: int
    memory_gib: int
    partitions: int
    passes: int = 0

    def measure(self, log: ChangeLog, repeats: int) -> list[Figures]:
        """Raises `Disagreement` when a table is not what it must be."""
        figures = [Figures(stage) for stage in log.stages]
        for _ in range(repeats):
            self._pass(log, figures)
        return figures

    def _pass(self, log: ChangeLog, figures: Iterable[Figures]) -> None:
        self.passes += 1
        name = f"topics_{self.passes}"
        topic = Topic(self.broker, self.partitions)
        source = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": self.broker.bootstrap}
        feed = Feed(self.lake, self.spark, name, {**source, "topics": [topic.name], "max_bytes": 1 << 34})
        sink = self.directory / "sinks" / name
        files = Files(self.directory / "duckdb" / name, sink, self.cores, self.memory_gib, log.protocol)
        for found in figures:
            before = topic.ends
            found.bytes = topic.send(log, found.stage)
            topic.consume(before)  # So that the broker has read it once for both.
            found.bare.append(topic.consume(before))
            found.polled.append(topic.consume(before, 1))
            steps = (
                feed.land,
                lambda found=found: feed.decode(found.stage),
                lambda found=found: feed.publish(found.stage),
            )
            for part, step in zip(PARTS, steps, strict=True):
                start = time.perf_counter()
                step()
                found.ours[part].append(time.perf_counter() - start)
            click.echo(found.line(), err=True)
        for number, stage in enumerate(log.stages):
            log.lay(stage, sink)
            files.decode(stage)
            files.publish(stage)
            what = f"the table after the {stage.name}"
            check_current(feed.current(number), files.current(number), stage.rows, what)
        files.close()
        self.broker.delete(topic.name)


@click.command()
@click.option("--inserts", type=_COUNT, default=1_000_000, show_default=True, help="Rows the table is filled with.")
@click.option("--changes", type=_COUNT, default=300_000, show_default=True, help="Changes on top of them.")
@click.option("--partitions", type=_COUNT, default=4, show_default=True, help="Of the topic.")
@click.option("--repeats", type=_COUNT, default=3, show_default=True, help="Passes that are measured.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Spark's task slots.")
@click.option("--memory-gib", type=_COUNT, default=2, show_default=True, help="The driver's heap.")
@click.option("--warm-up", type=_COUNT, default=100_000, show_default=True, help="Rows of the unmeasured pass.")
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), default=CACHE, help="Where workloads are kept."
)
def main(
    inserts: int, changes: int, partitions: int, repeats: int, cores: int, memory_gib: int, warm_up: int, cache: Path
) -> None:
    """Measure topics to tables beside a bare consumer of the same topics."""
    workload = Workload(inserts, changes, 64, 1)
    log, small = change_logs(workload, warm_up, cache)
    with tempfile.TemporaryDirectory(prefix="topics-", dir=cache) as scratch:
        lake = lake_config(Path(scratch), cores, memory_gib)
        (Path(scratch) / "broker").mkdir()
        broker = Broker(Path(scratch) / "broker")
        broker.start()
        spark = build_session(lake)
        try:
            bench = Bench(Path(scratch), lake, spark, broker, cores, memory_gib, partitions)
            bench.measure(small, 1)
            figures = bench.measure(log, repeats)
        finally:
            spark.stop()
            broker.stop()
    parts = " | ".join(f"{part}, s" for part in PARTS)
    consumers = "consumer, events/s | one by one"
    click.echo(f"| events | MiB | {consumers} | {parts} | whole, s | events/s | ratio | to one by one |")
    click.echo(f"|---|{'--:|' * 10}")
    click.echo("\n".join(found.line() for found in figures))


if __name__ == "__main__":
    main()
