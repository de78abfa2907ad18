"""Topics become tables: data sets of messages through a real broker, stage by stage and all at once."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.operate.retention import Retention
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit import data_sets as packed
from tests.kit.dumped_truth import dump_of
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth
from tests.servers.buckets import Bucket
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

NOT_WHOLE = {"large_handle_key_only", "large_claim_check"}
"""Their messages hold only keys."""
SHORT = {"types_all_random", "rename_chain_topic_per_table", "drop_recreate_topic_per_table"}
"""What other sets have, scenarios over topics and chaos have too."""
SOUND = [
    pytest.param(name, marks=[] if name in SHORT else pytest.mark.long)
    for name in packed.names("kafka")
    if name not in NOT_WHOLE
]


class TopicSet:
    """A data set's messages on the broker: in a topic of its own, or where it has one for each table, in as many, each
    of which is made when it gets its first message."""

    def __init__(
        self, directory: Path, broker: Broker, new_lake: Callable[..., TestLake], storage: Any = None, **source: Any
    ) -> None:
        self.directory = directory
        self.truth = Truth(directory)
        self.stages = json.loads((directory / "stages.json").read_text(encoding="utf-8"))["stages"]
        self._broker = broker
        lines = [
            json.loads(line)
            for file in sorted(directory.glob("*.jsonl"))
            for line in file.read_text(encoding="utf-8").split("\n")
            if line
        ]
        self.messages: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for line in lines:
            self.messages.setdefault((line["topic"], line["partition"]), []).append(line)
        (self._count,) = {len(ends) for stage in self.stages for ends in stage["end"].values()}
        first, *others = sorted({topic for stage in self.stages for topic in stage["end"]})
        self.topic = broker.create(partitions=self._count)
        self._topics = {first: self.topic}
        self.sent = dict.fromkeys(((topic, n) for topic in (first, *others) for n in range(self._count)), 0)
        topics = {"topic_pattern": f"{re.escape(self.topic)}(_.*)?"} if others else {"topics": [self.topic]}
        self.lake = new_lake(
            source={
                "type": "kafka",
                "format": "ticdc-canal-json",
                "bootstrap_servers": broker.bootstrap,
                **topics,
                **source,
            },
            **({} if storage is None else {"storage": storage}),
            start_date="2020-01-01",
        )

    def advance(self, stage: int) -> None:
        """What is there at a stage, sent."""
        for topic, ends in self.stages[stage]["end"].items():
            for place in [(topic, partition) for partition in range(len(ends))]:
                before, end = self.sent[place], ends[place[1]]
                self.send(self.messages.get(place, [])[before:end])
                self.sent[place] = max(end, before)

    def send(self, messages: Sequence[dict[str, Any]]) -> None:
        by_topic: dict[str, list[Sent]] = {}
        for each in messages:
            by_topic.setdefault(each["topic"], []).append(_sent(each))
        for name, sent in by_topic.items():
            if name not in self._topics:
                self._topics[name] = self._broker.create(f"{self.topic}_{name}", partitions=self._count)
            self._broker.send(self._topics[name], sent)

    def forget_all_but(self, left: int) -> None:
        """What retention does, in all partitions."""
        for (topic, partition), sent in self.sent.items():
            if topic in self._topics and sent > left:
                self._broker.forget(self._topics[topic], sent - left, partition)

    def first(self) -> list[dict[str, Any]]:
        """The messages of the first partition of the first topic."""
        return self.messages[min(self._topics), 0]

    def run(self) -> Steps:
        return run_all(self.lake.run())

    def check(self, stage: int) -> None:
        self.lake.check(self.truth.tables(stage))


def _sent(message: dict[str, Any]) -> Sent:
    key, value = message["key"], message["value"]
    return Sent(
        value=None if value is None else value.encode(),
        key=None if key is None else key.encode(),
        partition=message["partition"],
        at=message["timestamp"],
    )


@pytest.fixture
def topic_set(data_sets: Path, kafka: Broker, new_lake: Callable[..., TestLake]) -> Callable[..., TopicSet]:
    return lambda name, **more: TopicSet(data_sets / "kafka" / name, kafka, new_lake, **more)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", SOUND)
def test_topics_at_each_stage_equal_their_rows(name: str, topic_set: Callable[[str], TopicSet]) -> None:
    found = topic_set(name)
    for stage in range(len(found.stages)):
        found.advance(stage)
        done = found.run()
        assert not done.applied.held
        assert done.published.cut.checkpoint_ts == found.stages[stage]["checkpoint_ts"]
        found.check(stage)
    before = found.lake.metadata()
    found.run()
    assert found.lake.metadata() == before


@pytest.mark.in_turn
def test_tables_do_not_depend_on_removed_messages(topic_set: Callable[..., TopicSet]) -> None:
    """Tables do not depend on them, messages that come again are known, and what needs them is refused."""
    found = topic_set("rename_chain")
    lake, last = found.lake, len(found.stages) - 1
    lake.configure(maintenance={"keep_records_days": 1, "keep_segments_days": 1})
    for stage in range(last):
        found.advance(stage)
        found.run()
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)

    def retention() -> Retention:
        return Retention(lake.run(clock=lambda: later))

    dates = {row["feed_date"] for row in lake.machinery("records")}
    count, planned = len(lake.machinery("records")), retention().outdated()
    assert 0 < planned["records"] < count
    assert retention().remove() == planned and len(lake.machinery("records")) == count - planned["records"]
    assert retention().remove()["segments"] > 0, "those of messages that are gone"
    before = lake.metadata()
    with pytest.raises(SourceError, match="cannot be decoded again"):
        run_all(lake.run(dates=frozenset(dates)))
    assert lake.metadata() == before
    # All messages once more, as after a changefeed that began again, and then the rest.
    found.check(last - 1)
    found.send([each for messages in found.messages.values() for each in messages[: len(messages) // 2]])
    found.advance(last)
    assert not found.run().applied.held
    found.check(last)


def test_rows_left_out_by_a_killed_run_are_taken_later(topic_set: Callable[..., TopicSet]) -> None:
    found = topic_set("random_2")
    last = len(found.stages) - 1
    found.advance(last)
    (left_out, *_) = (name for name, rows in found.truth.tables(last).items() if rows["rows"])
    found.lake.configure(tables={"exclude": [".".join(left_out)]})
    committed = ""
    while committed != "update events":
        with KillAtCommit(2)(found.lake) as killed:
            found.run()
        assert killed.happened, "no kill came right after the events"
        (committed,) = killed.commits
    found.lake.configure(tables={})
    assert not found.run().applied.held
    found.check(last)
    assert not [row for row in found.lake.machinery("quarantine") if row["state"] == "open"]
    before = found.lake.metadata()
    found.run()
    assert found.lake.metadata() == before


def test_topic_goes_on_from_a_dump_unless_it_begins_later(topic_set: Callable[..., TopicSet], tmp_path: Path) -> None:
    """As one of a changefeed that was created later, or whose messages the brokers have removed."""
    root = tmp_path / "snapshot"
    found, late = (topic_set("rename_chain", initial={"type": "dumpling", "uri": str(root)}) for _ in range(2))
    middle, last = (len(found.stages) - 1) // 2, len(found.stages) - 1
    at, early = found.stages[middle]["checkpoint_ts"], 400_000_000_000_000_000
    dump_of(found.truth, middle, root, filetype="sql")
    whole = (root / "metadata").read_text()
    (root / "metadata").write_text(whole.replace(str(at), str(early)))
    found.advance(last)
    with pytest.raises(SourceError, match=rf"the dump is of {early} and the change log begins at 4\d{{17}}"):
        found.run()
    (root / "metadata").write_text(whole)
    late.advance(last)
    late.forget_all_but(2)
    words = rf"the dump is of {at}, and partition 0 of the topic \S+ is whole from the commit-ts "
    with pytest.raises(SourceError, match=words):
        late.run()
    assert not found.lake.machinery("segments") and not late.lake.machinery("segments"), "nothing is loaded"
    done = found.run()
    assert not done.applied.held and done.loaded.commit_ts == at
    found.check(last)


def test_claim_checks_are_read_from_the_object_store(
    topic_set: Callable[..., TopicSet], new_bucket: Callable[..., Bucket], data_sets: Path
) -> None:
    bucket = new_bucket("s3")
    for file in (data_sets / "kafka" / "large_claim_check" / "claims").iterdir():
        bucket.put(file.name, file.read_bytes())
    found = topic_set("large_claim_check", storage=bucket.storage, claim_check=bucket.uri)
    for stage in range(len(found.stages)):
        found.advance(stage)
        assert not found.run().applied.held
        found.check(stage)


def test_without_the_extension_the_order_is_the_offset(
    kafka: Broker, topic_set: Callable[..., TopicSet], new_lake: Callable[..., TestLake]
) -> None:
    """The messages of all partitions, in the order of their commits, in a topic with one."""
    found = topic_set("rename_chain")
    told = {}
    for messages in found.messages.values():
        for each in messages:
            value = json.loads(each["value"])
            if "commitTs" in value["_tidb"]:
                # A statement is in every partition.
                place = (
                    value["_tidb"]["commitTs"],
                    value["isDdl"],
                    None if value["isDdl"] else len(told),
                    value["sql"],
                )
                del value["_tidb"]
                told[place] = json.dumps(value).encode()
    topic = kafka.create()
    source = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": kafka.bootstrap, "topics": [topic]}
    lake = new_lake(source={**source, "tidb_extension": False}, start_date="2020-01-01")
    values = [told[place] for place in sorted(told, key=lambda place: place[:2])]
    for part in values[: len(values) // 2], values[len(values) // 2 :]:
        kafka.send(topic, [Sent(value) for value in part])
        assert not run_all(lake.run()).applied.held
    lake.check(found.truth.tables(len(found.stages) - 1))
