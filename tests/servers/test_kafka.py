"""A real broker: ranges are read whole however they are cut, refusals are reported without a secret; and topics land in
`records`: what is kept of a message, what is new, what is lost; each message once, whatever ends a run."""

import contextlib
import functools
import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation
from pyiceberg.table import Table

from cdc_lakehouse import config
from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.names import OFFSETS, Identifier
from cdc_lakehouse.lake.tables.records import LandedSegment, LandedState, RecordRows, append, landed_state
from cdc_lakehouse.sources.kafka import RangeReader, choose_ranges, find_pending, read_topics, require_all
from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, OffsetRange, Pending
from tests.commands import call
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.kafka import hand_on_often, wait_at_most
from tests.kit.kills import before_commit
from tests.kit.lakes import TestLake
from tests.kit.other_writer import optimize
from tests.kit.waiting import until
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.server, pytest.mark.spark]

PARTITIONS = 3
OTHER_SECRET = "not-the-password-55d1"


def source(brokers: str, *topics: str, **settings: str) -> KafkaSource:
    named: dict[str, Any] = {"topics": list(topics)} if topics else {"topic_pattern": ".*"}
    return KafkaSource.model_validate(
        {"type": "kafka", "format": "canal-json", "bootstrap_servers": brokers, "kafka": settings, **named}
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 8)


# --- Ranges ---


@pytest.fixture(scope="module")
def mixed(kafka: Broker) -> str:
    """A topic with messages in and out of transactions, some of them aborted, also right at the end."""
    topic, rng = kafka.create(partitions=PARTITIONS), random.Random(20260301)
    number = 0
    for step in range(40):
        some: list[Sent | bytes] = []
        for _ in range(rng.choice((0, 1, 3, 40))):
            value = None if rng.random() < 0.1 else b"%d" % number + b"x" * rng.choice((0, 10, 5000))
            some.append(Sent(value, rng.choice((None, b"key")), partition=rng.randrange(PARTITIONS)))
            number += 1
        match rng.choice(("plain", "committed", "aborted")) if step < 39 else "aborted":
            case "plain":
                kafka.send(topic, some)
            case how:
                kafka.send_in_transaction(topic, some or [b"one"], commit=how == "committed")
    return topic


@pytest.mark.in_turn
@pytest.mark.parametrize("limit", [100, 20_000, 1 << 40])
def test_ranges_are_read_whole_however_they_are_cut(
    kafka: Broker, mixed: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends with the message by which its bytes are reached, or at its end, and goes on from there."""
    wait_at_most(monkeypatch, 20)
    rng = random.Random(limit)
    hand_on_often(monkeypatch, rng.choice((1, 7, 10_000)), rng.choice((1, 20_000, 1 << 30)), rng.choice((1, 5, 500)))
    of = source(kafka.bootstrap, mixed)
    (topic,) = read_topics(of)
    expected = {number: list(kafka.read(mixed, number)) for number in range(PARTITIONS)}
    rounds: list[list[OffsetRange]] = [[] for _ in range(4)]
    for number, bounds in topic.partitions.items():
        assert bounds.low == 0 and bounds.end > expected[number][-1][0]
        cuts = sorted(rng.sample(range(1, bounds.end), len(rounds) - 1))
        for each, start, end in zip(rounds, [0, *cuts], [*cuts, bounds.end], strict=True):
            each.append(OffsetRange(LogPartition(mixed, number), start, end, 1 << 40 if start else limit))
    found: dict[int, list[tuple[int, bytes | None]]] = {number: [] for number in range(PARTITIONS)}
    for ranges in rounds:
        while ranges:
            reader, sizes = RangeReader(of, ranges), {each: [0] for each in ranges}
            for messages in reader.messages():
                part = messages.range
                assert all(part.start <= offset < part.end for offset in messages.offsets)
                read = [len(k or b"") + len(v or b"") for k, v in zip(messages.keys, messages.values, strict=True)]
                assert messages.size == sum(read)
                sizes[part] += read
                found[part.partition.number] += zip(messages.offsets, messages.values, strict=True)
            assert not reader.faults
            for part, read in sizes.items():
                assert sum(read[:-1]) < part.max_bytes
                assert sum(read) >= part.max_bytes or reader.ends[part] == part.end
            ranges = [replace(part, start=end) for part, end in reader.ends.items() if end < part.end]
    assert found == expected


# --- Access ---


@pytest.fixture
def topic(kafka: Broker) -> str:
    topic = kafka.create()
    kafka.send(topic, [b"a", b"b", b"c"])
    return topic


def secure(broker: Broker, *topics: str, **settings: str) -> KafkaSource:
    """As the broker's user, with settings of the client that differ."""
    own = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": broker.USER,
        "sasl.password": broker.PASSWORD, "ssl.ca.location": str(broker.certificate), **settings,
    }  # fmt: skip
    return source(broker.secure, *topics, **own)


def ranges(broker: Broker, topic: str) -> tuple[OffsetRange, ...]:
    """Those that somebody who may read would take."""
    reader, nothing = source(broker.bootstrap, topic), LandedOffsets()
    return choose_ranges(find_pending(reader, read_topics(reader), nothing).offsets, nothing, 1000, 10**6)


def values(source: KafkaSource, which: Sequence[OffsetRange]) -> list[bytes | None]:
    """The values of ranges; raises the fault that there was."""
    reader = RangeReader(source, which)
    read = [value for messages in reader.messages() for value in messages.values]
    for fault in reader.faults:
        raise fault
    return read


def check_no_secret(error: CdcError) -> None:
    for text in (str(error), repr(error), repr(error.__cause__), repr(error.__context__ and str(error))):
        assert Broker.PASSWORD not in text and OTHER_SECRET not in text


def wait_for(source: KafkaSource) -> Any:
    """A permission takes the broker a moment."""

    def topics() -> Any:
        with contextlib.suppress(SourceError):
            return read_topics(source)

    return until(topics)


def test_read_and_describe_are_enough(kafka: Broker, topic: str) -> None:
    kafka.allow(topic, AclOperation.READ, AclOperation.DESCRIBE)
    forbidden = kafka.create()
    reader = secure(kafka, topic)
    (found,) = wait_for(reader)
    assert found.name == topic and found.partitions[0].end == 3 and len(found.id) == 22
    assert values(reader, ranges(kafka, topic)) == [b"a", b"b", b"c"]
    assert topic in {each.name for each in read_topics(secure(kafka))}
    # A topic that the user may not read does not stop the others.
    both = secure(kafka, topic, forbidden)
    pending = find_pending(both, read_topics(both), LandedOffsets())
    (fault,) = pending.faults
    assert f"no permission to read the topic {forbidden}" in str(fault) and pending.records == 3
    shown = repr(reader)
    assert kafka.secure in shown and Broker.PASSWORD not in shown


@pytest.mark.parametrize("described", [False, True])
def test_missing_permission_is_reported(kafka: Broker, topic: str, described: bool) -> None:
    reader = secure(kafka, topic)
    words = f"no permission to read the topic {topic}.*READ and DESCRIBE"
    with pytest.raises(SourceError, match=words) as raised:
        read_topics(reader)
    check_no_secret(raised.value)
    if described:
        kafka.allow(topic, AclOperation.DESCRIBE)
        wait_for(reader)
    with pytest.raises(SourceError, match=words) as raised:
        values(reader, ranges(kafka, topic))
    check_no_secret(raised.value)


def test_wrong_access_is_reported_without_secrets(kafka: Broker, topic: str) -> None:
    """All lines of `cases/kafka_access.txt` at the same time, for clients try until their patience ends."""
    existing, text = ranges(kafka, topic), Path(__file__).with_name("cases") / "kafka_access.txt"

    def check(line: str) -> None:
        where, settings, error, words = line.split(" | ")
        own = dict(each.split("=") for each in settings.replace("$OTHER", OTHER_SECRET).split())
        brokers = {"secure": kafka.secure, "open": kafka.bootstrap}.get(where, where)
        reader = secure(kafka, topic, **own) if where == "secure" else source(brokers, topic, **own)
        for look in (lambda: read_topics(reader), lambda: values(reader, existing)):
            with pytest.raises(CdcError, match=words) as raised:
                look()
            assert type(raised.value).__name__ == error, line
            assert error == "ConfigurationError" or brokers in str(raised.value), line
            check_no_secret(raised.value)

    lines = [line for line in text.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    with ThreadPoolExecutor(len(lines)) as pool:
        list(pool.map(check, lines))


def test_one_broker_of_several_is_enough(kafka: Broker, topic: str) -> None:
    reader = source(f"127.0.0.1:1,{kafka.bootstrap}", topic)
    assert values(reader, ranges(kafka, topic)) == [b"a", b"b", b"c"]
    assert read_topics(reader)[0].partitions[0].end == 3
    kafka.send_in_transaction(topic, [b"d"])  # Which makes a topic of the broker's own.
    names = {found.name for found in read_topics(source(kafka.bootstrap))}
    assert topic in names and not {name for name in names if name.startswith("__")}, "which matches no pattern"


def test_missing_topic_is_reported_and_stops_no_other(kafka: Broker, topic: str) -> None:
    reader = source(kafka.bootstrap, topic, "no-such-topic")
    found = read_topics(reader)
    pending = find_pending(reader, found, LandedOffsets())
    (fault,) = pending.faults
    assert [each.name for each in found] == [topic] and pending.records == 3
    assert "there is no topic no-such-topic: correct source.topics" in str(fault)
    with pytest.raises(SourceError, match="there is no topic no-such-topic"):
        require_all(reader, found)
    reader = source(kafka.bootstrap, "no-such-topic")
    with pytest.raises(SourceError, match=r"there is no topic no-such-topic.*source\.topics"):
        read_topics(reader)


# --- Topics that land in `records` ---


class TopicFeed:
    """Topics that land in the shared lake, as a pipeline lands them."""

    def __init__(self, new_lake: Callable[..., TestLake], broker: Broker, **source: Any) -> None:
        self.broker = broker
        named = {} if "topic_pattern" in source else {"topics": [broker.create()]}
        told = {"type": "kafka", "format": "canal-json", "bootstrap_servers": broker.bootstrap, **named, **source}
        self.lake = new_lake(source=told)
        self.source = self.lake.feed.kafka
        self.topic = (self.source.topics or ("",))[0]

    def state(self) -> LandedState:
        return landed_state(self.lake.run().lake, self.lake.name)

    def pending(self) -> Pending:
        return find_pending(self.source, read_topics(self.source), self.state().landed)

    def append(self, pending: Pending) -> tuple[tuple[LandedSegment, ...], Sequence[CdcError]]:
        feed = self.lake.feed.model_copy(update={"source": self.source})
        return append(self.lake.run().lake, feed, self.lake.session, pending, self.state().batch + 1)

    def run(self) -> tuple[tuple[LandedSegment, ...], tuple[CdcError, ...]]:
        pending = self.pending()
        segments, faults = self.append(pending)
        return segments, (*pending.faults, *faults)

    def drain(self) -> None:
        segments: object = True
        while segments:
            segments, faults = self.run()
            assert not faults, faults

    @property
    def table(self) -> Table:
        return self.lake.lake.catalog.load_table((f"cdc_{self.lake.name}", "records"))

    def check_no_file_is_left_over(self) -> None:
        location = Path(self.table.location().removeprefix("file://"))
        found = {f"file://{path}" for path in location.rglob("*.parquet")}
        assert {task.file.file_path for task in self.table.scan().plan_files()} == found

    def rows(self) -> list[dict[str, Any]]:
        found = self.lake.machinery("records")
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def values(self, partition: int = 0, topic: str | None = None) -> list[bytes | None]:
        """Of one partition, in the order of their offsets."""
        where = (topic or self.topic, partition)
        return [row["value"] for row in self.rows() if (row["topic"], row["partition"]) == where]

    def ends(self) -> dict[str, dict[int, int]]:
        return {name: dict(topic.ends) for name, topic in self.state().landed.topics.items()}

    def send(self, *messages: Sent | bytes, **settings: Any) -> None:
        self.broker.send(self.topic, messages, **settings)


NewFeed = Callable[..., TopicFeed]


@pytest.fixture
def new_feed(new_lake: Callable[..., TestLake], kafka: Broker) -> NewFeed:
    return functools.partial(TopicFeed, new_lake, kafka)


@pytest.fixture(params=["here", "in tasks"])
def in_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done by one task in the process itself is done by Spark's tasks where there is more."""
    if request.param == "in tasks":
        monkeypatch.setattr("cdc_lakehouse.sources.kafka._WORTH_A_TASK", 2)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# --- What is kept ---


@pytest.mark.in_turn
@pytest.mark.usefixtures("in_tasks")
def test_every_byte_of_a_message_is_kept(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)])
    all_bytes = bytes(range(256))
    sent = [
        Sent(all_bytes, all_bytes, 1_700_000_000_123, [("a", all_bytes), ("a", None), ("é", b"")]),
        Sent(None, b"tombstone", 1_700_000_000_124),
        Sent(b"", b"", 1_700_000_000_125),
        Sent(None, None, 1_700_000_000_126),
        Sent("订单\x00\n".encode(), None, 1_700_000_000_127),
    ]
    feed.send(*sent, *(Sent(value, partition=1) for value in numbered(3)))
    segments, _ = feed.run()
    assert feed.values(1) == numbered(3)
    seen = [row for row in feed.rows() if row["partition"] == 0]
    assert [(row["key"], row["value"]) for row in seen] == [(each.key, each.value) for each in sent]
    assert [(h["key"], h["value"]) for h in seen[0]["headers"]] == list(sent[0].headers)
    assert not any(row["headers"] for row in seen[1:])
    assert [row["timestamp"].timestamp() for row in seen] == [1_700_000_000 + n / 1000 for n in range(123, 128)]
    assert {row["timestamp_type"] for row in seen} == {"CreateTime"}
    assert [row["offset"] for row in seen] == list(range(5))
    assert {(row["topic"], row["partition"], row["batch"]) for row in seen} == {(feed.topic, 0, 1)}
    segment, other = segments
    assert (other.partition.number, other.start, other.end, other.records) == (1, 0, 3, 3)
    assert {row["segment"] for row in seen} == {segment.segment} == {f"{feed.topic}/0/{0:020d}"}
    assert (segment.start, segment.end, segment.records) == (0, 5, 5)
    assert segment.bytes == sum(row["size"] for row in seen) == 256 * 2 + 9 + len("订单\x00\n".encode())


# --- What is new, and what is lost ---


class Played:
    """A case of `cases/landing.txt`. `create t/2` makes a topic, `grow t/3` brings it to more partitions, and `again t`
    makes one that was deleted. `send t/1 0..9 x*1000` sends to a partition; `commit` and `abort` do in a transaction,
    and `open` in one until its `end`. `run` is `plan` and then `append`."""

    def __init__(self, case: Case, new_feed: NewFeed, kafka: Broker, patch: pytest.MonkeyPatch) -> None:
        self._patch, self._kafka, self._stem, own = patch, kafka, f"{kafka.create()}.", case.settings
        pattern = re.escape(self._stem) + own.get("topic_pattern", "")
        topics = {"topics": [self._stem + name for name in own["topics"]]} if "topics" in own else {}
        self._feed = new_feed(**{**own, **(topics or {"topic_pattern": pattern})})

    def step(self, word: str, of: str = "", *words: str) -> list[str]:
        feed, kafka, (name, _, number) = self._feed, self._kafka, of.partition("/")
        topic, place = self._stem + name, int(number or 0)
        sent = [Sent(value, partition=place) for each in words for value in texts(each)]
        match word:
            case "create":
                kafka.create(topic, place or 1, **dict(each.split("=") for each in words))
            case "grow":
                kafka.add_partitions(topic, place)
            case "delete" | "again":
                (kafka.delete if word == "delete" else kafka.create_again)(topic)
            case "forget":
                kafka.forget(topic, int(words[0]))
            case "send":
                kafka.send(topic, sent, **{"message.max.bytes": 30_000_000})
            case "commit" | "abort":
                kafka.send_in_transaction(topic, sent, commit=word == "commit")
            case "open":
                self._producer = contextlib.ExitStack().enter_context(kafka.transaction(topic, sent))
            case "end":
                self._producer.commit_transaction(30)
            case "patience":
                wait_at_most(self._patch, float(of))
            case "client":
                feed.source = feed.source.model_copy(update={"kafka": json.loads(of)})
            case "plan":
                self._pending = feed.pending()
            case "append" | "run":
                with feed.lake.without_changes() if of == "unchanged" else contextlib.nullcontext():
                    segments, faults = feed.append(self._pending) if word == "append" else feed.run()
                said = list[str]()
                for (topic, number), own in itertools.groupby(segments, lambda each: each.partition):
                    parts = list(own)
                    assert all(before.end == after.start for before, after in itertools.pairwise(parts))
                    count = sum(each.records for each in parts)
                    said.append(f"{topic}/{number} from {parts[0].start} to {parts[-1].end}: {count}")
                return [*(said or ["nothing"]), *(f"{type(each).__name__}: {each}" for each in faults)]
            case "values":
                found = ((value or b"").decode() for value in feed.values(place, topic))
                return [" ".join(map(shortened, found)) or "nothing"]
            case "ends":
                return [json.dumps(feed.ends(), sort_keys=True)]
            case _:
                raise ValueError(word)
        return []


def shortened(text: str) -> str:
    """A long text of one letter as `texts` takes it; others as they are."""
    return f"{text[0]}*{len(text)}" if len(text) > 98 and text == text[0] * len(text) else text


def texts(word: str) -> list[bytes]:
    """Of `0..9` the numbers, of `x*1000` so many letters."""
    first, dots, last = word.partition("..")
    text, _, times = word.partition("*")
    return numbered(int(last) - int(first) + 1, int(first)) if dots else [text.encode() * int(times or 1)]


@pytest.mark.usefixtures("in_tasks")
@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "landing.txt"), ids=str)
def test_messages_land_as_written(
    case: Case, new_feed: NewFeed, kafka: Broker, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    played = Played(case, new_feed, kafka, monkeypatch)
    said = [line for step in case.own for line in played.step(*step.split())]
    case.compare([text_of(line.replace(played._stem, "")) for line in said], update=update)


def test_range_that_ends_early_lands_each_message_once(new_feed: NewFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records grow beyond what was reckoned: what was read behind the early end is read again, and is there once."""
    monkeypatch.setattr("cdc_lakehouse.sources.kafka._WORTH_A_TASK", 10)
    feed = new_feed(max_bytes=2000)
    feed.send(*numbered(40))
    feed.drain()
    values = numbered(20, 40) + [b"large" * 100 + b"%d" % number for number in range(30)]
    feed.send(*values)
    pending = feed.pending()
    assert pending.records == 50
    (segment,), _ = feed.append(pending)
    assert 60 < segment.end < 65, "in the first of two parts"
    summary = feed.table.current_snapshot().summary.additional_properties  # pyright: ignore[reportOptionalMemberAccess]
    assert json.loads(summary[OFFSETS]) == {feed.topic: {"0": [40, segment.end]}}
    assert feed.values() == (numbered(40) + values)[: segment.end]
    feed.drain()
    assert feed.values() == numbered(40) + values
    feed.check_no_file_is_left_over()


# --- Holes in the offsets ---


def test_compacted_topic_is_read_to_its_end(new_feed: NewFeed, kafka: Broker) -> None:
    topic = kafka.create(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0"
    )
    feed = new_feed(topics=[topic])
    feed.send(*(Sent(b"%d" % number, b"key%d" % (number % 3)) for number in range(30)))

    def is_compacted() -> bool:
        feed.send(Sent(b"tick", b"tick"))  # A segment of the log is closed by what comes after it.
        return sum(1 for _ in kafka.read(topic)) <= 10

    until(is_compacted)
    wanted = list(kafka.read(topic))
    feed.drain()
    assert [(row["offset"], row["value"]) for row in feed.rows()] == wanted
    assert feed.ends() == {topic: {0: wanted[-1][0] + 1}}


# --- Once, whatever happens ---


@pytest.mark.in_turn
def test_maintenance_keeps_what_is_known_of_landed_offsets(new_feed: NewFeed) -> None:
    """While a run lands, and after it, when the snapshots that said it are gone."""
    feed = new_feed()

    def maintain() -> None:
        optimize(feed.lake.session(), Identifier(f"cdc_{feed.lake.name}", "records"))

    feed.send(*numbered(5))
    feed.run()
    feed.send(*numbered(5, 5))
    with before_commit(1, maintain):
        second, _ = feed.run()
    maintain()
    assert feed.state().segments == second
    feed.send(*numbered(5, 10))
    feed.drain()
    assert feed.values() == numbered(15)
    records = feed.lake.session().read.format("iceberg").load(system_table(feed.lake.name, "records").sql)
    found = sorted((row["batch"], row["offset"]) for row in records.select("batch", "offset").collect())
    assert found == [(1 + offset // 5, offset) for offset in range(15)]


def test_of_two_runs_at_a_time_one_lands(new_feed: NewFeed) -> None:
    feed = new_feed()
    # The first ever makes the table first.
    for values, commit in ((numbered(5), 2), (numbered(10), 1)):
        feed.send(*values[-5:])
        slow = feed.pending()
        with (
            before_commit(commit, lambda: feed.append(feed.pending())),
            pytest.raises(ConcurrentRunError, match="has landed"),
        ):
            feed.run()
        assert feed.values() == values
        with pytest.raises(ConcurrentRunError, match="has landed"):
            feed.append(slow)
    assert feed.values() == numbered(10)
    feed.check_no_file_is_left_over()


@pytest.mark.in_turn
def test_broker_lost_in_a_read_keeps_what_was_read(
    new_feed: NewFeed, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read lands, the rest is for the next run; one that begins without brokers is told so."""
    monkeypatch.setattr("cdc_lakehouse.sources.kafka._ROWS_TOGETHER", 1000)
    slow = {"fetch.message.max.bytes": 20_000, "queued.min.messages": 100, "queued.max.messages.kbytes": 50}
    feed = new_feed(kafka=slow)
    values = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    feed.send(*values)
    wait_at_most(monkeypatch, 3)
    pending = feed.pending()
    make_rows = RecordRows.of

    def stop_then_make(*arguments: Any) -> Any:
        monkeypatch.setattr(RecordRows, "of", make_rows)
        kafka.stop()
        return make_rows(*arguments)

    monkeypatch.setattr(RecordRows, "of", stop_then_make)
    try:
        segments, faults = feed.append(pending)
        with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:\d+ cannot be reached for now \(_TRANSPORT\)"):
            feed.pending()
    finally:
        kafka.start()
    (fault,) = faults
    assert isinstance(fault, SourceUnreachableError)
    landed = sum(segment.records for segment in segments)
    assert 1000 <= landed < 20_000
    assert feed.values() == values[:landed]
    wait_at_most(monkeypatch, 8)
    feed.drain()
    assert feed.values() == values


# --- `init` ---

MESSAGE = {
    "id": 0, "database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": False, "type": "INSERT",
    "es": 1767225600000, "ts": 1767225600001, "sql": "", "sqlType": {"id": 4, "n": 12},
    "mysqlType": {"id": "int", "n": "varchar(9)"}, "data": [{"id": "1", "n": "a"}], "old": None,
}  # fmt: skip


@pytest.mark.in_turn
def test_init_finds_the_format_of_a_topic(kafka: Broker, here: Path) -> None:
    for other, told in (
        ({"_tidb": {"commitTs": 463256217600000001}}, ("ticdc-canal-json", True)),
        ({}, ("ticdc-canal-json", False)),
        ({"gtid": ""}, ("canal-json", True)),
        ({"mysqlType": {"id": "int", "n": "varchar"}, "gtid": ""}, ("dts-canal-json", True)),
    ):
        topic = kafka.create(partitions=2)
        kafka.send(topic, [json.dumps({**MESSAGE, **other}).encode()])
        uri = f"kafka://{kafka.bootstrap}/{topic}?protocol=canal-json"
        assert call("init", "--force", "--source", uri).exit_code == 0
        source = config.load(here / "lakehouse.yaml").feeds[0].kafka
        assert (source.format, source.tidb_extension) == told
        assert source.topics == (topic,) and ",".join(source.bootstrap_servers) == kafka.bootstrap


@pytest.mark.usefixtures("here")
def test_init_without_a_topic_lists_those_that_exist(kafka: Broker) -> None:
    topic = kafka.create("a-first-one")  # Not all are listed.
    result = call("init", "--source", f"kafka://{kafka.bootstrap}")
    assert result.exit_code == 2 and topic in result.output
