"""Topics become tables: data sets of messages through a real broker, stage by stage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit import data_sets as packed
from tests.kit.dumped_truth import dump_of
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth
from tests.servers.buckets import Bucket
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

CLAIM_CHECK = "large_claim_check"
SHORT = {"types_all_random", "rename_chain_topic_per_table", "drop_recreate_topic_per_table", CLAIM_CHECK}
"""What other sets have, scenarios over topics and chaos have too."""
SOUND = [
    pytest.param(name, marks=[] if name in SHORT else pytest.mark.long)
    for name in packed.names("kafka")
    if name != "large_handle_key_only"  # Its messages hold only keys.
]
PARTITIONS = 3


class TopicSet:
    """A data set's messages on the broker: in a topic of its own, or where it has one for each table, in as many, each
    of which is made when it gets its first message."""

    def __init__(
        self, directory: Path, broker: Broker, new_lake: Callable[..., TestLake], storage: Any = None, **source: Any
    ) -> None:
        self.truth, self._broker = Truth(directory), broker
        self.stages = json.loads((directory / "stages.json").read_text(encoding="utf-8"))["stages"]
        self.messages: dict[tuple[str, int], list[dict[str, Any]]] = {}
        lines = [line for file in sorted(directory.glob("*.jsonl")) for line in file.read_bytes().split(b"\n") if line]
        for line in map(json.loads, lines):
            self.messages.setdefault((line["topic"], line["partition"]), []).append(line)
        first, *others = sorted({topic for stage in self.stages for topic in stage["end"]})
        self.topic = broker.create(partitions=PARTITIONS)
        self._topics = {first: self.topic}
        self.sent = dict.fromkeys(((topic, n) for topic in (first, *others) for n in range(PARTITIONS)), 0)
        topics = {"topic_pattern": f"{re.escape(self.topic)}(_.*)?"} if others else {"topics": [self.topic]}
        told = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": broker.bootstrap, **topics}
        more = {} if storage is None else {"storage": storage}
        self.lake = new_lake(source={**told, **source}, start_date="2020-01-01", **more)

    def advance(self, stage: int) -> None:
        """What is there at a stage, sent."""
        for topic, ends in self.stages[stage]["end"].items():
            for place, end in (((topic, number), end) for number, end in enumerate(ends)):
                messages = self.messages.get(place, [])[self.sent[place] : end]
                if messages and topic not in self._topics:
                    self._topics[topic] = self._broker.create(f"{self.topic}_{topic}", partitions=PARTITIONS)
                if messages:
                    self._broker.send(self._topics[topic], map(_sent, messages))
                self.sent[place] = max(end, self.sent[place])

    def forget_all_but(self, left: int) -> None:
        """What retention does, in all partitions."""
        for (topic, partition), sent in self.sent.items():
            if topic in self._topics and sent > left:
                self._broker.forget(self._topics[topic], sent - left, partition)

    def run(self) -> Steps:
        return run_all(self.lake.run())

    def check(self, stage: int, done: Steps) -> None:
        assert not done.applied.held
        self.lake.check(self.truth.tables(stage))

    def check_nothing_to_do(self) -> None:
        before = self.lake.metadata()
        self.run()
        assert self.lake.metadata() == before


def _sent(message: dict[str, Any]) -> Sent:
    key, value = (None if each is None else each.encode() for each in (message["key"], message["value"]))
    return Sent(value, key, partition=message["partition"], at=message["timestamp"])


@pytest.fixture
def topic_set(data_sets: Path, kafka: Broker, new_lake: Callable[..., TestLake]) -> Callable[..., TopicSet]:
    return lambda name, **more: TopicSet(data_sets / "kafka" / name, kafka, new_lake, **more)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", SOUND)
def test_topics_at_each_stage_equal_their_rows(
    name: str, topic_set: Callable[..., TopicSet], new_bucket: Callable[..., Bucket], data_sets: Path
) -> None:
    more: dict[str, Any] = {}
    if name == CLAIM_CHECK:
        bucket = new_bucket("s3")
        for file in (data_sets / "kafka" / name / "claims").iterdir():
            bucket.put(file.name, file.read_bytes())
        more = {"storage": bucket.storage, "claim_check": bucket.uri}
    found = topic_set(name, **more)
    for stage in range(len(found.stages)):
        found.advance(stage)
        done = found.run()
        assert done.published.cut.checkpoint_ts == found.stages[stage]["checkpoint_ts"]
        found.check(stage, done)
    found.check_nothing_to_do()


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
    found.check(last, found.run())
    assert not [row for row in found.lake.machinery("quarantine") if row["state"] == "open"]
    found.check_nothing_to_do()


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
    assert done.loaded.commit_ts == at
    found.check(last, done)


def test_without_the_extension_the_order_is_the_offset(kafka: Broker, topic_set: Callable[..., TopicSet]) -> None:
    """The messages of all partitions, in the order of their commits, in a topic with one."""
    found = topic_set("rename_chain", tidb_extension=False, topics=[topic := kafka.create()])
    told: dict[tuple[int, bool, Any], bytes] = {}
    for value in (json.loads(each["value"]) for messages in found.messages.values() for each in messages):
        if (at := value.pop("_tidb").get("commitTs")) is not None:
            # A statement is in every partition.
            told[at, value["isDdl"], value["sql"] or len(told)] = json.dumps(value).encode()
    values = [told[place] for place in sorted(told, key=lambda place: place[:2])]
    for part in values[: len(values) // 2], values[len(values) // 2 :]:
        kafka.send(topic, part)
        done = found.run()
    found.check(len(found.stages) - 1, done)
