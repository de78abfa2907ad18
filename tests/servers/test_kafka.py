"""A real broker: ranges are read whole however they are cut, refusals are reported without a secret; and topics land in
`records`: what is kept of a message, what is new, what is lost; each message once, whatever ends a run."""

import contextlib
import functools
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from cdc_lakehouse import config
from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.records import LandedSegment, RecordRows, append_records, landed_state
from cdc_lakehouse.sources.kafka import RangeReader, find_pending, read_topics
from cdc_lakehouse.sources.record_log import LogPartition, OffsetRange, Pending
from tests.commands import call
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.kafka import hand_on_often, wait_at_most
from tests.kit.kills import before_commit
from tests.kit.lakes import TestLake, optimize
from tests.kit.waiting import until
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.server, pytest.mark.spark]

PARTITIONS = 3
OTHER_SECRET = "not-the-password-55d1"


def source(brokers: str, topic: str, **settings: str) -> KafkaSource:
    own = {"bootstrap_servers": brokers, "topics": [topic], "kafka": settings}
    return KafkaSource.model_validate({"type": "kafka", "format": "canal-json", **own})


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


def of_reader(broker: Broker) -> dict[str, str]:
    """The client's settings."""
    return {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": broker.USER,
        "sasl.password": broker.PASSWORD, "ssl.ca.location": str(broker.certificate),
    }  # fmt: skip


def check_no_secret(error: CdcError) -> None:
    for text in (str(error), repr(error), repr(error.__cause__), repr(error.__context__ and str(error))):
        assert Broker.PASSWORD not in text and OTHER_SECRET not in text


def test_wrong_access_is_reported_without_secrets(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of `cases/kafka_access.txt` at the same time: clients try until their patience ends, which must last until
    a busy machine has refused all."""
    topic, text = kafka.create(), Path(__file__).with_name("cases") / "kafka_access.txt"
    kafka.send(topic, [b"a", b"b", b"c"])

    def read(of: KafkaSource) -> None:
        reader = RangeReader(of, [OffsetRange(LogPartition(topic, 0), 0, 3, 10**6)])
        for _ in reader.messages():
            pass
        for fault in reader.faults:
            raise fault

    def check(line: str) -> None:
        where, settings, error, words = line.split(" | ")
        own = dict(each.split("=") for each in settings.replace("$OTHER", OTHER_SECRET).split())
        brokers = {"secure": kafka.secure, "open": kafka.bootstrap}.get(where, where)
        reader = source(brokers, topic, **{**(of_reader(kafka) if where == "secure" else {}), **own})
        for look in (read_topics, read):
            with pytest.raises(CdcError, match=words) as raised:
                look(reader)
            assert type(raised.value).__name__ == error, line
            assert error in ("ConfigurationError", "TopicError") or brokers in str(raised.value), line
            check_no_secret(raised.value)
            assert OTHER_SECRET not in repr(reader)

    lines = [line for line in text.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for seconds, is_reached in ((3, False), (25, True)):
        wait_at_most(monkeypatch, seconds)
        with ThreadPoolExecutor(len(lines)) as pool:
            list(pool.map(check, [line for line in lines if ("SourceUnreachable" not in line) == is_reached]))


# --- Topics that land in `records` ---


class TopicFeed:
    """Topics that land in the shared lake, as a pipeline lands them; and the steps of `cases/landing.txt`.

    `create t/2` makes a topic, `grow t/3` brings it to more partitions, and `again t` makes one that was deleted.
    `send t/1 0..9 x*1000` sends to a partition; `commit` and `abort` do in a transaction, and `open` in one until its
    `end`. `run` is `plan` and then `append`, `drain` runs until there is nothing left; `before N STEP` takes a step
    before the n-th commit of the next one. `init` finds the format of a topic. `secure` feeds are read as somebody who
    may do nothing that is not allowed: `allow t READ`; other brokers can be tried `first`."""

    def __init__(
        self, new_lake: Callable[..., TestLake], broker: Broker, patch: pytest.MonkeyPatch, **own: Any
    ) -> None:
        self.broker, self._patch, self._stem = broker, patch, f"{broker.create()}."
        names = [self._stem + name for name in own.get("topics", () if "topic_pattern" in own else ("t",))]
        which = {"topics": names} if names else {"topic_pattern": re.escape(self._stem) + own["topic_pattern"]}
        told = {"type": "kafka", "format": "canal-json", "bootstrap_servers": own.pop("first", "") + broker.bootstrap}
        secure = own.pop("secure", False)
        self.lake = new_lake(source={**told, **own, **which})
        self.source = self.lake.feed.kafka
        if secure:
            settings = {"bootstrap_servers": (broker.secure,), "kafka": of_reader(broker)}
            self.source = self.source.model_copy(update=settings)
        self.topic = f"{self._stem}t"
        self._around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def plan(self) -> Pending:
        landed = landed_state(self.lake.run().lake, self.lake.name).landed
        return find_pending(self.source, read_topics(self.source), landed)

    def append(self, pending: Pending) -> tuple[tuple[LandedSegment, ...], Sequence[CdcError]]:
        feed, lake = self.lake.feed.model_copy(update={"source": self.source}), self.lake.run().lake
        return append_records(lake, feed, self.lake.session, pending, landed_state(lake, self.lake.name).batch + 1)[:2]

    def drain(self) -> None:
        segments: object = True
        while segments:
            pending = self.plan()
            segments, faults = self.append(pending)
            assert not faults and not pending.faults, (faults, pending)

    def rows(self) -> list[dict[str, Any]]:
        found = self.lake.machinery("records")
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def values(self, partition: int = 0, topic: str = "") -> list[bytes | None]:
        """Of one partition, in the order of their offsets."""
        where = (topic or self.topic, partition)
        return [row["value"] for row in self.rows() if (row["topic"], row["partition"]) == where]

    def send(self, *messages: Sent | bytes) -> None:
        self.broker.send(self.topic, messages)

    def step(self, word: str, of: str = "", *words: str) -> list[str]:
        broker, (name, _, number) = self.broker, of.partition("/")
        topic, place = self._stem + name, int(number or 0)
        match word:
            case "create":
                broker.create(topic, place or 1, **dict(each.split("=") for each in words))
            case "grow":
                broker.add_partitions(topic, place)
            case "delete" | "again":
                (broker.delete if word == "delete" else broker.create_again)(topic)
            case "forget":
                broker.forget(topic, int(words[0]))
            case "allow":
                broker.allow(topic, *(AclOperation[each] for each in words))
                alone = self.source.model_copy(update={"topics": (topic,), "topic_pattern": None})
                until(lambda: is_seen(alone))  # Which takes the broker a moment.
            case "send" | "commit" | "abort" | "open":
                sent = [Sent(value, partition=place) for each in words for value in texts(each)]
                if word == "send":
                    broker.send(topic, sent)
                elif word == "open":
                    self._producer = contextlib.ExitStack().enter_context(broker.transaction(topic, sent))
                else:
                    broker.send_in_transaction(topic, sent, commit=word == "commit")
            case "end":
                self._producer.commit_transaction(30)
            case "patience":
                wait_at_most(self._patch, float(of))
            case "tasks":
                self._patch.setattr("cdc_lakehouse.sources.kafka._WORTH_A_TASK", int(of))
            case "client":
                self.source = self.source.model_copy(update={"kafka": json.loads(of)})
            case "maintain":
                optimize(self.lake.session(), Identifier(f"cdc_{self.lake.name}", "records"))
            case "before":
                self._around = before_commit(int(of), lambda: self.step(*words))
            case "plan":
                self._pending = self.plan()
            case "drain":
                self.drain()
            case "append" | "run":
                around, self._around = self._around, contextlib.nullcontext()
                with self.lake.without_changes() if of == "unchanged" else around:
                    try:
                        pending = self._pending if word == "append" else self.plan()
                        segments, faults = self.append(pending)
                        faults = [*(pending.faults if word == "run" else ()), *faults]
                    except CdcError as error:
                        segments, faults = (), [error]
                said = list[str]()
                for partition, own in itertools.groupby(segments, lambda each: each.partition):
                    parts = list(own)
                    assert all(before.end == after.start for before, after in itertools.pairwise(parts))
                    count = sum(each.records for each in parts)
                    said.append(f"{partition} from {parts[0].start} to {parts[-1].end}: {count}")
                for each in faults:
                    check_no_secret(each)
                return [*(said or ["nothing"]), *(f"{type(each).__name__}: {each}" for each in faults)]
            case "values":
                found = ((value or b"").decode() for value in self.values(place, topic))
                return [" ".join(map(shortened, found)) or "nothing"]
            case "state":
                state = landed_state(self.lake.run().lake, self.lake.name)
                ends = {name: dict(topic.ends) for name, topic in state.landed.topics.items()}
                counts = Counter(row["batch"] for row in self.rows())
                last = f"{state.segments[0].segment} to {state.segments[-1].end}"
                table = self.lake.lake.catalog.load_table((f"cdc_{self.lake.name}", "records"))
                told = table.current_snapshot().summary["cdc.offsets"]  # pyright: ignore[reportOptionalMemberAccess, reportOptionalSubscript]
                return [
                    json.dumps(ends, sort_keys=True),
                    f"batches {dict(counts)}, the last from {last}",
                    f"the snapshot says {told}",
                ]
            case "files":
                table = self.lake.lake.catalog.load_table((f"cdc_{self.lake.name}", "records"))
                found = {f"file://{path}" for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")}
                return [f"left over: {found - {task.file.file_path for task in table.scan().plan_files()}}"]
            case "init":
                uri = f"kafka://{broker.bootstrap}/{topic}?protocol=canal-json"
                done = call("init", "--force", "--source", uri)
                if done.exit_code:
                    return done.output.splitlines()
                source = config.load(Path("lakehouse.yaml")).feeds[0].kafka
                assert source.topics == (topic,) and ",".join(source.bootstrap_servers) == broker.bootstrap
                return [f"{source.format}, tidb_extension: {source.tidb_extension}"]
            case _:
                raise ValueError(word)
        return []


def is_seen(source: KafkaSource) -> bool:
    with contextlib.suppress(SourceError):
        return bool(read_topics(source))
    return False


def shortened(text: str) -> str:
    """A long text of one letter as `texts` takes it; others as they are."""
    return f"{text[0]}*{len(text)}" if len(text) > 98 and text == text[0] * len(text) else text


def texts(word: str) -> list[bytes]:
    """Of `0..9` the numbers, of `x*1000` so many letters."""
    first, dots, last = word.partition("..")
    text, _, times = word.partition("*")
    return numbered(int(last) - int(first) + 1, int(first)) if dots else [text.encode() * int(times or 1)]


NewFeed = Callable[..., TopicFeed]


@pytest.fixture
def new_feed(new_lake: Callable[..., TestLake], kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> NewFeed:
    return functools.partial(TopicFeed, new_lake, kafka, monkeypatch)


WAYS = ("here", "in tasks")


@pytest.fixture(params=WAYS)
def in_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done by one task in the process itself is done by Spark's tasks where there is more."""
    if request.param == "in tasks":
        monkeypatch.setattr("cdc_lakehouse.sources.kafka._WORTH_A_TASK", 2)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# --- What is kept ---


@pytest.mark.in_turn
@pytest.mark.usefixtures("in_tasks")
def test_every_byte_of_a_message_is_kept(new_feed: NewFeed) -> None:
    feed = new_feed()
    feed.step("create", "t/2")
    all_bytes = bytes(range(256))
    sent = [
        Sent(all_bytes, all_bytes, 1_700_000_000_123, [("a", all_bytes), ("a", None), ("é", b"")]),
        Sent(None, b"tombstone", 1_700_000_000_124),
        Sent(b"", b"", 1_700_000_000_125),
        Sent(None, None, 1_700_000_000_126),
        Sent("订单\x00\n".encode(), None, 1_700_000_000_127),
    ]
    feed.send(*sent, *(Sent(value, partition=1) for value in numbered(3)))
    segments, _ = feed.append(feed.plan())
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


def landings() -> Iterator[Any]:
    """Cases `once` are not read in tasks too, and those `in_turn` not in each run."""
    for case in read_cases(Path(__file__).with_name("cases") / "landing.txt"):
        marks = [pytest.mark.in_turn] if case.settings.get("in_turn") else []
        for way in WAYS[:1] if case.settings.get("once") else WAYS:
            yield pytest.param(case, way, marks=marks, id=f"{case}-{way}")


@pytest.mark.usefixtures("in_tasks", "here")
@pytest.mark.parametrize(("case", "in_tasks"), [*landings()], indirect=["in_tasks"])
def test_messages_land_as_written(case: Case, new_feed: NewFeed, update: bool) -> None:
    feed = new_feed(**{name: value for name, value in case.settings.items() if name not in ("once", "in_turn")})
    said = [line for step in case.own for line in feed.step(*step.split())]
    assert Broker.PASSWORD not in repr(feed.source)
    shown = [line.replace(feed._stem, "").replace(feed.lake.name, "<feed>") for line in said]
    case.compare([*map(text_of, shown)], update=update)


# --- Holes in the offsets ---


def test_compacted_topic_is_read_to_its_end(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    settings = ("cleanup_policy=compact", "segment_ms=100", "min_cleanable_dirty_ratio=0.01", "delete_retention_ms=0")
    feed.step("create", "t", *settings)
    feed.send(*(Sent(b"%d" % number, b"key%d" % (number % 3)) for number in range(30)))

    def is_compacted() -> bool:
        feed.send(Sent(b"tick", b"tick"))  # A segment of the log is closed by what comes after it.
        return sum(1 for _ in kafka.read(feed.topic)) <= 10

    until(is_compacted)
    wanted = list(kafka.read(feed.topic))
    feed.drain()
    assert [(row["offset"], row["value"]) for row in feed.rows()] == wanted
    assert feed.step("run", "unchanged") == ["nothing"]


# --- Once, whatever happens ---


@pytest.mark.in_turn
def test_broker_lost_in_read_keeps_messages(new_feed: NewFeed, kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read lands, the rest is for the next run; one that begins without brokers is told so."""
    monkeypatch.setattr("cdc_lakehouse.sources.kafka._ROWS_TOGETHER", 1000)
    slow = {"fetch.message.max.bytes": 20_000, "queued.min.messages": 100, "queued.max.messages.kbytes": 50}
    feed = new_feed(kafka=slow)
    feed.step("create", "t")
    values = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    feed.send(*values)
    wait_at_most(monkeypatch, 3)
    pending = feed.plan()
    add_rows = RecordRows.add

    def stop_then_add(*arguments: Any) -> Any:
        monkeypatch.setattr(RecordRows, "add", add_rows)
        kafka.stop()
        return add_rows(*arguments)

    monkeypatch.setattr(RecordRows, "add", stop_then_add)
    try:
        segments, faults = feed.append(pending)
        with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:\d+ cannot be reached for now \(_TRANSPORT\)"):
            feed.plan()
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


@pytest.mark.usefixtures("here")
def test_init_without_a_topic_lists_those_that_exist(kafka: Broker) -> None:
    topic = kafka.create("a-first-one")  # Not all are listed.
    kafka.send_in_transaction(topic, [b"d"])  # Which makes a topic of the broker's own.
    result = call("init", "--source", f"kafka://{kafka.bootstrap}")
    assert result.exit_code == 2 and topic in result.output and "__" not in result.output
