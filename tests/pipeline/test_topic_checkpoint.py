"""How far topics may be applied: transactions of DTS whose end has not come wait, and TiCDC's topics for the least
watermark, but for those that get no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.records import LandedState
from cdc_lakehouse.lake.tables.segments import Appended, Segment
from cdc_lakehouse.pipeline import topics as topic_source
from cdc_lakehouse.sources.kafka import Bounds, Topic
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic
from tests.decoders.messages.dts_source import DtsSource, row
from tests.kit.case_files import Case, read_cases
from tests.kit.decoding import Reading
from tests.kit.lakes import TestLake
from tests.lake import NOON
from tests.pipeline import lake_in

COLUMNS = ("id", "name")


class Partitions:
    """Partitions of a topic, each with a source of its own that writes to it."""

    def __init__(self, directory: Path, count: int = 1) -> None:
        source = {"type": "kafka", "format": "dts-avro", "bootstrap_servers": "k:9092", "topics": ["t"]}
        self.lake: TestLake = lake_in(directory, source=source)
        self.sources = [DtsSource() for _ in range(count)]
        for each in self.sources:
            each.create("t", COLUMNS, told=False)
        self._reading = Reading("dts-avro")
        self._batch = 0
        self._ids = 0

    def insert(self, partition: int = 0) -> None:
        self._ids += 1
        self.sources[partition].insert("t", row(self._ids, COLUMNS))

    def transaction(self, partition: int = 0) -> None:
        self.sources[partition].begin()
        self.insert(partition)
        self.sources[partition].commit()

    def run(self) -> int:
        """The checkpoint after a batch with all that is there."""
        self._batch += 1
        values = [source.records for source in self.sources]
        self._reading.read(values, [len(each) for each in values])
        new = {place: summary for place, summary in self._reading.summaries.items() if place[2] == self._batch}
        self.lake.run().signals.write(self._batch, new)
        return self.lake.run().source.checkpoint_ts()

    @property
    def last(self) -> int:
        """The commit-ts of the last row or statement."""
        rows = [event["commit_ts"] for event in self._reading.events]
        found = self._reading.summaries.values()
        return max(rows + [each.commit_ts for summary in found for _, each in summary.statements])


@pytest.mark.parametrize(
    "steps",
    [
        "begin 0, insert 0, run nothing, insert 0, run nothing, commit 0, run last",
        "transaction 0, run last, begin 0, insert 0, run same, begin 0, run last",
        # A statement ends what is open and waits for nothing.
        "transaction 0, run last, statement 0, run last",
        # A partition that stands still holds up no other.
        "transaction 0, transaction 1, run last, beside 0, transaction 1, run last, beside 0, run last",
        # Where nothing tells transactions apart all is applied.
        "insert 0, run last, statement 0, insert 0, run last",
    ],
)  # fmt: skip
def test_open_transaction_alone_waits_for_its_end(tmp_path: Path, steps: str) -> None:
    topic, before = Partitions(tmp_path, count=2 if "1" in steps else 1), BEGINNING
    for verb, where in (step.split() for step in steps.split(", ")):
        if verb == "run":
            found = topic.run()
            assert found == {"nothing": BEGINNING, "same": before, "last": topic.last}[where]
            assert (found == topic.last) == (where == "last") and (
                found > before or where != "last" or "beside" in steps
            )
            before = found
        elif verb == "statement":
            topic.sources[0].statement("ALTER TABLE t COMMENT 'x'", "t")
        elif verb in ("insert", "transaction"):
            getattr(topic, verb)(int(where))
        else:
            getattr(topic.sources[int(where)], verb)()


class TopicPerTable:
    """Topics of TiCDC, one for each table and the default one, with two partitions each. A statement is (topic, ts,
    database, table, text), a row (topic, ts, table)."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, pattern: str = ".*", names: Sequence[str] = ()
    ) -> None:
        source = {
            "type": "kafka",
            "format": "ticdc-canal-json",
            "bootstrap_servers": "k:9092",
            **({"topics": list(names)} if names else {"topic_pattern": pattern}),
        }
        self.lake = lake_in(directory, source=source)
        self._log: dict[str, list[bytes]] = {}
        self.unread: set[str] = set()
        self.gone: set[str] = set()
        self.forbidden: set[str] = set()
        self.unreachable = False
        monkeypatch.setattr(topic_source, "read_topics", self._read_topics)

    def _read_topics(self, _: Any) -> list[Topic]:
        if self.unreachable:
            raise SourceUnreachableError("no broker answers")
        there = self._log.keys() - self.gone
        return [
            Topic(name, "", {}, SourceError("no permission"))
            if name in self.forbidden
            else Topic(name, name, {n: Bounds(0, 7 + (name in self.unread)) for n in (0, 1)})
            for name in sorted(there)
        ]

    def _send(self, topic: str, **message: Any) -> None:
        self._log.setdefault(topic, []).append(json.dumps(message).encode())

    def row(self, topic: str, ts: int, table: str) -> None:
        data = {"data": [{"id": "1"}], "mysqlType": {"id": "int"}, "pkNames": ["id"]}
        self._send(topic, database="d", table=table, type="INSERT", **data, _tidb={"commitTs": ts})

    def statement(self, topic: str, ts: int, table: str, text: str) -> None:
        self._send(topic, database="d", table=table, type="QUERY", isDdl=True, sql=text, _tidb={"commitTs": ts})

    def create(self, table: str, ts: int) -> None:
        self.statement(f"d_{table}", ts, table, f"CREATE TABLE `{table}` (`id` INT PRIMARY KEY)")
        self.row(f"d_{table}", ts + 1, table)

    def checkpoint(self, watermarks: Mapping[str, int]) -> int:
        """With all that was sent, and these watermarks behind it."""
        for topic in watermarks:
            self._log.setdefault(topic, [])
        summaries: dict[Any, Any] = {}
        for topic, values in self._log.items():
            ts = watermarks.get(topic)
            mark = [] if ts is None else [json.dumps({"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": ts}}).encode()]
            reading = Reading("ticdc-canal-json")
            reading.read([[*values, *mark], mark], [len(values) + len(mark), len(mark)])
            summaries |= {(topic, number, 1): found for (_, number, _), found in reading.summaries.items()}
        landed = LandedOffsets({name: LandedTopic(name, {0: 7, 1: 7}) for name in self._log}, began=True)
        self.lake.lake.catalog.create_namespace_if_not_exists(f"cdc_{self.lake.name}")
        records = (f"cdc_{self.lake.name}", "records")
        self.lake.lake.catalog.create_table(
            records, pa.schema([("offset", pa.int64())]), properties=LandedState(landed).as_properties()
        )
        self.lake.run().signals.write(1, summaries)
        return self.lake.run().source.checkpoint_ts()


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/watermarks.txt"), ids=str)
def test_topic_is_waited_for_while_its_tables_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, update: bool
) -> None:
    steps = [line.partition(" ")[::2] for line in case.own]
    said = {word: rest.split() for word, rest in steps}
    topics = TopicPerTable(tmp_path, monkeypatch, *said.get("pattern", [".*"]), names=said.get("names", ()))
    topics.create("t", 10)
    topics.create("u", 20)
    topics.unreachable = "unreachable" in said
    for word, rest in steps:
        if word == "statement":
            where, _, text = rest.partition(": ")
            topic, ts, table = where.split()
            topics.statement(topic, int(ts), table.strip("-"), text)
        elif word in ("unread", "gone", "forbidden"):
            getattr(topics, word).add(rest)
    names, marks = said["watermarks"][::2], map(int, said["watermarks"][1::2])
    case.compare([str(topics.checkpoint(dict(zip(names, marks, strict=True))))], update=update)


def test_batch_of_a_topic_that_a_dump_has_passed_lands_again_behind_it(tmp_path: Path) -> None:
    """A run ended before it decoded batch 1, and the next one has committed batch 2 of a dump."""
    lake = Partitions(tmp_path).lake
    segment = Segment(
        segment="t/0/0-3", kind="offsets", size=9, batch=1, record_batch=1, state="landed", landed_at=NOON
    )
    dumped = Segment(segment="dump", kind="dump", size=9, batch=2, state="decoded", landed_at=NOON)
    lake.run().segments.land([segment, dumped])
    schema = pa.schema([("segment", pa.string())])
    lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), schema, properties=Appended(2).as_properties())
    source: Any = lake.run().source
    (again,) = source._land_passed()
    assert (again.segment, again.batch, again.record_batch, again.state) == ("t/0/0-3", 3, 1, "landed")
    source = lake.run().source
    assert not source._land_passed()
