"""Topics and servers: where they begin, which records are read again or removed, what cannot be used or joined, and how
far they may be applied."""

import errno
import functools
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.event_schema import EVENTS
from cdc_lakehouse.decoders.format import Options
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.decoders.topic_reader import PartitionSummary, Summaries, TopicReader
from cdc_lakehouse.errors import (
    ConcurrentRunError,
    SourceError,
    SourceUnreachableError,
    WarehouseFullError,
    WarehouseUnreachableError,
)
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.files import DatedFiles
from cdc_lakehouse.lake.tables import events
from cdc_lakehouse.lake.tables.events import Events, EventWriter
from cdc_lakehouse.lake.tables.records import (
    LandedState,
    RecordCommits,
    RecordRows,
    RecordShare,
    files_before,
    landed_state,
    remove_before,
)
from cdc_lakehouse.lake.tables.segments import DECODED, OFFSETS, Appended, Segment
from cdc_lakehouse.lake.tables.source_metadata import Signals
from cdc_lakehouse.pipeline import canal
from cdc_lakehouse.pipeline.canal import CanalServer
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.topics import beginning_of, wanted_records
from cdc_lakehouse.sources import kafka as kafka_source
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.kafka import Bounds, Topic
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic, LogPartition, OffsetRange, parse_segment
from tests import LONG
from tests.decoders.records import DtsSource
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.decoding import Reading
from tests.kit.kafka import MemoryTopic
from tests.kit.kills import KillAtCall, KillAtCommit
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import land, offsets
from tests.lake import NOON
from tests.pipeline import DAY, events_of, kafka, lake_in
from tests.sources.canal.servers import Binlog, HandMadeCanal, binlog_of, binlogs, closed_port, number_of, serving

ONE, TWO = LogPartition("t", 0), LogPartition("t", 1)
FIRST = 466_100_000_000_000_000


def message(**more: Any) -> bytes:
    row = {"database": "d", "table": "t", "type": "INSERT", "isDdl": False, "data": [{"id": "1"}], "old": None,
           "pkNames": ["id"], "mysqlType": {"id": "int"}, "es": 1, "ts": 1, "sqlType": {"id": 4}, **more}  # fmt: skip
    return json.dumps(row).encode()


def records_read(before: int, *batches: int) -> list[tuple[object, ...]]:
    """By partition and batch: the first offset, the one before which others are read with it, since which batch."""
    landed = [(ONE, 0, 1), (ONE, 100, 2), (ONE, 150, 4), (TWO, 7, 2), (TWO, 900, 4)]  # Partition, offset, batch.
    same = {"size": 10, "kind": OFFSETS}
    rows = [
        {"segment": OffsetRange(partition, start, start + 1, 0).segment, "record_batch": batch, **same}
        for partition, start, batch in landed
    ]
    run: Any = SimpleNamespace(segments=SimpleNamespace(rows=pa.Table.from_pylist(rows)))
    of: Any = SimpleNamespace(messages_before=lambda partitions: before // partitions)
    found = sorted(wanted_records(run, of, batches), key=lambda each: (each.batch, each.partition))
    assert all(each.bytes == 10 for each in found)
    return [(str(each.partition), each.batch, each.start, each.before, each.since) for each in found]


def begins(offset: int, *messages: str) -> str:
    values: list[bytes] = []
    for kind, _, ts in (each.partition(" ") for each in messages):
        at = FIRST + int(ts or 0)
        tidb = {"commitTs": at} if kind == "row" else {"watermarkTs": at}
        of = {} if kind == "row" else {"type": "TIDB_WATERMARK"}
        values.append(message(_tidb=tidb, **of) if ts else kind.encode())
    decode = format_of("ticdc-canal-json").make(Options())
    found = beginning_of(ONE, offset, values, decode)
    began, whole = (at and at - FIRST for at in (found.began_at, found.complete_from))
    return f"began at {began}, whole from {whole}"


def bad_name(directory: Path, format_name: str, half: bytes) -> int:
    reading = Reading(format_name)
    reading.read([[b'{"database":"%b","table":"t","type":"INSERT","data":[{"id":"1"}],"es":1}' % half]], [1])
    run = lake_in(directory).run()
    run.quarantine.replace(lambda _: False, reading.rejected, NOON)
    return run.quarantine.count()


def join(directory: Path, **position: Any) -> int | str:
    source = {"type": "canal", "addresses": ["canal-1:11111"], "destination": "example"}
    server = CanalServer(lake_in(directory, source=source, start_date="2020-01-01").run())
    return server.join_point(DumpPosition(**position))


def records(lake: TestLake, *files: tuple[str, list[int]]) -> Table:
    """Files of a date with messages of these batches."""
    table = RecordCommits(lake.lake, lake.name).create()
    same = {"topic": "t", "partition": 0, "timestamp": DAY, "key": b"k", "value": b"v", "size": 2, "segment": "s"}
    for date, batches in files:
        rows = [{**same, "feed_date": date, "offset": batch * 10, "batch": batch} for batch in batches]
        table.append(pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema())))
    return table


def removed(lake: TestLake, batch: int) -> str:
    table = records(lake, ("2026-06-01", [1]), ("2026-06-01", [1, 2]), ("2026-06-02", [3]))
    if files := files_before(table, batch):
        remove_before(table, batch, files)
    left, state = sorted(row["batch"] for row in lake.machinery("records")), landed_state(lake.lake, lake.name)
    return f"{left} left, whole from {state.first_batch}, removed up to {state.removed_upto or 'nothing'}"


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/topics.txt"), ids=str)
def test_topics_and_servers_show(case: Case, lake: TestLake, tmp_path: Path, update: bool) -> None:
    of_lake = {"bad_name": bad_name, "join": join}
    names = {"records_read": records_read, "begins": begins, "removed": functools.partial(removed, lake)}
    names |= {name: functools.partial(function, tmp_path) for name, function in of_lake.items()}
    case.compare([re.sub(r" \[feed \w+\]", "", each) for each in evaluated(case, names)], update=update)


def test_excluded_table_whose_messages_were_removed_is_held(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, source=kafka("canal-json", "x"), tables={"exclude": ["d.z"]})
    # Batches of the topic: `z` is left out from 1 on, `a` from 2 on, `b` from 3 on.
    for batch, name in enumerate("zab", 1):
        lake.run().signals.write(batch, {("x", 0, batch): PartitionSummary(0, 0, left_out={("d", name)})})
    table = records(lake, ("2026-06-01", [2]))
    assert find_holds(lake.run(), {}, 1) == {}
    remove_before(table, 3, files_before(table, 3))
    (held,) = find_holds(lake.run(), {}, 1).values()
    assert "no longer in `records`" in held
    lake.configure(tables={})
    assert len(find_holds(lake.run(), {}, 1)) == 2


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/late.txt"), ids=str)
def test_messages_left_behind_by_a_batch_are_late_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: Case, update: bool
) -> None:
    topic, results = MemoryTopic(monkeypatch), list[str]()
    caplog.set_level("INFO", "cdc_lakehouse")
    lake = lake_in(tmp_path, source=kafka("canal-json", "x", max_records=4))
    for line in case.own:
        step = re.fullmatch(r"(\d+x\d+(?: \d+x\d+)*)(?: (unreadable|away) (\d))?", line)
        assert step, line
        topic.unreadable, topic.away = ({int(step[3])} if step[2] == each else set() for each in ("unreadable", "away"))
        for number, count in (each.split("x") for each in step[1].split()):
            topic.send([{"partition": int(number), "key": None, "value": "{}", "timestamp": 0}] * int(count))
        caplog.clear()
        found = [(*parse_segment(each.segment), each.lines, each.file_index) for each in lake.run().source.land().new]
        landed = [f"{part.number}: {start}, {lines}, {late}" for part, start, lines, late in sorted(found)]
        waits = "; more waits" * ("was read of x/0: more waits there" in caplog.text)
        results.append(("; ".join(landed).replace("None", "-") or "nothing") + waits)
    case.compare(results, update=update)


def test_partition_after_a_look_begins_at_its_first_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, lake = MemoryTopic(monkeypatch), lake_in(tmp_path, source=kafka("ticdc-canal-json", "x", start="latest"))
    lake.run().source.land()
    value = message(_tidb={"commitTs": FIRST}).decode()
    topic.send([{"partition": 0, "key": None, "value": value, "timestamp": 0}])
    assert lake.run().source.first_ts() == FIRST


@pytest.fixture
def topic_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    """A topic of two partitions with ten messages each, most of which are odd, and a lake without an event."""
    topic, lake = MemoryTopic(monkeypatch), lake_in(tmp_path, source=kafka("ticdc-canal-json", "x", max_records=12))
    lake.lake.ensure_namespace(f"cdc_{lake.name}")
    events_of(lake, EVENTS.empty_table())
    rows = [None if n % 5 else f"é{n}" for n in range(20)]
    rows[1::5] = [message(_tidb={"commitTs": FIRST + n}).decode() for n in range(4)]
    rows[4:6] = [message(type="TIDB_WATERMARK", _tidb={"watermarkTs": FIRST + 2}).decode()] * 2
    topic.send(
        {"partition": n % 2, "key": None if n % 3 else "k", "value": rows[n], "timestamp": time}
        for n, time in enumerate([0, 86_400_000, -1, 2**53, 1] * 4)
    )
    return lake


def event_files(lake: TestLake) -> list[Path]:
    return [*(lake.warehouse / f"cdc_{lake.name}" / "events").rglob("*.parquet")]


def test_messages_are_decoded_alike_on_arrival_and_later(topic_lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    found, decode = list[tuple[list[Any], Summaries]](), EventWriter.decode

    def noted(writer: EventWriter, make: Any, rows: Iterator[pa.RecordBatch]) -> tuple[list[str], Summaries]:
        given = [*rows]
        files, summaries = decode(writer, make, given)
        given = pa.Table.from_batches(given).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
        found.append((given, summaries))
        return files, summaries

    monkeypatch.setattr(EventWriter, "decode", noted)
    monkeypatch.setattr(Events, "commit", lambda *_: None)
    for late, lines in ((0, 6), (10, 4)):
        source = topic_lake.run().source
        landed = source.land().new
        assert [each.lines for each in landed] == [lines] * 2
        with monkeypatch.context() as patch:
            patch.setattr(RecordShare, "read", lambda *_: pytest.fail("records are read again"))
            as_they_came = source.decode(landed)
        counted, rejected = topic_lake.run().source.decode(landed)
        assert counted == as_they_came[0] and Counter(rejected) == Counter(as_they_came[1])
        first, later = found
        assert first == later and {each.late_before for each in first[1].values()} == {late}
        assert len(first[1]) == 2 and any(each.bad for each in first[1].values())
        found.clear()
        topic_lake.run().segments.mark_decoded([replace(each, state=DECODED) for each in landed])


def fail(error: Exception, *, after: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function that fails, after another has been called."""

    def failing(*of: Any, **more: Any) -> Any:
        if after is not None:
            after(*of, **more)
        raise error

    return failing


SECRET = "jdbc:postgresql://u:hunter2@db"


@pytest.mark.parametrize(("owner", "name", "error"), [
    (Events, "ensure", Py4JError(f"o1.run.\n: {SECRET}")), (Signals, "last_ts", WarehouseUnreachableError("away")),
    (EventWriter, "write", PermissionError(errno.EACCES, "no")), (EventWriter, "decode", WarehouseFullError("full")),
    (TopicReader, "read", ZeroDivisionError()), (TopicReader, "rest", MemoryError()),
])  # fmt: skip
def test_messages_land_whatever_fails_in_decoding_them(
    topic_lake: TestLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: type, name: str,
    error: Exception,
) -> None:  # fmt: skip
    reads, rows_of = list[object](), RecordRows.add
    monkeypatch.setattr(RecordRows, "add", lambda *of: reads.append(of) or rows_of(*of))
    monkeypatch.setattr(owner, name, fail(error))
    source = topic_lake.run().source
    landed = source.land().new
    assert [each.lines for each in landed] == [6, 6] and len(reads) == 2
    assert len(topic_lake.machinery("records")) == 12 and not event_files(topic_lake)
    assert "as they come" in caplog.text.replace("came", "come") and SECRET not in caplog.text
    if owner is not Events:
        with pytest.raises(type(error)):
            source.decode(landed)


@pytest.mark.parametrize("kind", ["read", "close", "race", "unknown"])
def test_fault_of_records_ends_a_run_as_if_nothing_was_decoded(
    topic_lake: TestLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    adds, add, exit_files = list[object](), RecordRows.add, DatedFiles.__exit__
    full = OSError(errno.ENOSPC, "no room")

    def fails(files: DatedFiles, *how: Any) -> None:
        if "batch-1" in files._name:
            exit_files(files, type(full), full, None)
            raise full
        exit_files(files, *how)

    error = {"race": CommitFailedException(), "unknown": CommitStateUnknownException()}.get(kind, full)
    if kind == "read":
        monkeypatch.setattr(RecordRows, "add", lambda *of: adds.append(of) or fail(full, after=add)(*of))
    elif kind == "close":
        monkeypatch.setattr(DatedFiles, "__exit__", fails)
    else:
        monkeypatch.setattr("cdc_lakehouse.lake.tables.records.commit", fail(error))
    raised = ConcurrentRunError if kind == "race" else type(error)
    with pytest.raises(raised):
        topic_lake.run().source.land()
    assert not topic_lake.machinery("records") and "decoded" not in caplog.text and len(adds) == (kind == "read")
    # Whose commit may have gone through are kept.
    assert bool(event_files(topic_lake)) == (kind == "unknown")


def test_parts_of_partitions_land_up_to_the_first_that_is_not_read_up(
    topic_lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step decodes them, as it does what one process lands and several can decode."""
    decoded = list[object]()
    monkeypatch.setattr(EventWriter, "decode", lambda *of: decoded.append(of))
    monkeypatch.setattr(events, "_TASK_BYTES", 10)
    topic_lake.run().segments.mark_decoded([replace(s, state=DECODED) for s in topic_lake.run().source.land().new])
    reader = kafka_source.RangeReader

    def short(source: Any, ranges: list[OffsetRange]) -> Any:
        return reader(source, [replace(of, end=of.end - (of.partition.number == 0 and of.start == 6)) for of in ranges])

    monkeypatch.setattr(kafka_source, "RangeReader", short)
    monkeypatch.setattr(kafka_source, "_WORTH_A_TASK", 1)
    monkeypatch.setattr(FeedRun, "spark", SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=4)))
    monkeypatch.setattr("cdc_lakehouse.lake.tables.records.run_tasks", lambda _, *of: run_tasks(None, *of))
    landed = topic_lake.run().source.land().new
    assert [(each.segment[:3], int(each.segment[4:]), each.lines) for each in landed] == [
        ("x/0", 6, 1), ("x/1", 6, 2), ("x/1", 8, 2)
    ]  # fmt: skip
    assert not decoded
    offsets_of = Counter((row["partition"], row["offset"]) for row in topic_lake.machinery("records"))
    assert offsets_of == Counter([*((0, n) for n in range(7)), *((1, n) for n in range(10))])
    table = topic_lake.lake.existing(system_table(topic_lake.name, "records"))
    stored = {Path(row["file_path"].removeprefix("file://")) for row in table.inspect.files().to_pylist()}
    assert stored == {*(topic_lake.warehouse / f"cdc_{topic_lake.name}/records/data").rglob("*.parquet")}


# --- How far topics may be applied: transactions of DTS whose end has not come wait, and TiCDC's topics for the least
# watermark, but for those that get no more ---


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/transactions.txt"), ids=str)
def test_open_transaction_alone_waits_for_its_end(tmp_path: Path, case: Case, update: bool) -> None:
    """Each partition has a source of its own that writes to it; a run reads all that is there in a batch."""
    steps = [step.split() for line in case.own for step in line.split(", ")]
    sources = [DtsSource() for _ in range(2 if ["transaction", "1"] in steps else 1)]
    lake, reading = lake_in(tmp_path, source=kafka("dts-avro", "t")), Reading("dts-avro")
    batch, before, results = 0, BEGINNING, list[str]()
    for number, (verb, *where) in enumerate(steps):
        source = sources[int(where[0]) if where else 0]
        if verb == "run":
            batch += 1
            reading.read([each.records for each in sources])
            assert not reading.rejected
            found = reading.summaries
            lake.run().signals.write(batch, {place: each for place, each in found.items() if place[2] == batch})
            statements = [each.commit_ts for summary in found.values() for _, each in summary.statements]
            last = max([event["commit_ts"] for event in reading.events] + statements)
            upto = lake.run().source.checkpoint_ts()
            results.append(f"{'last' if upto == last else 'earlier'}{', as before' if upto == before else ''}")
            before = upto
        elif verb == "statement":
            source.statement("ALTER TABLE t COMMENT 'x'", "t")
        elif verb == "insert":
            source.change("t", (None, {"id": str(number)}))
        elif verb == "transaction":
            source.say("BEGIN")
            source.change("t", (None, {"id": str(number)}))
            source.say("COMMIT")
        elif verb == "beside":
            source.say("HEARTBEAT", "CHECKPOINT")
            source.records.append(b"\0")  # The broker's own: no operation.
        else:
            source.say(verb.upper())
    case.compare(results, update=update)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/watermarks.txt"), ids=str)
def test_topic_is_waited_for_while_its_tables_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, update: bool
) -> None:
    """Topics of TiCDC, one for each table and the default one, with two partitions each. The watermarks come behind all
    that was sent, in every partition."""
    steps = [line.partition(" ")[::2] for line in case.own]
    said = {word: rest.split() for word, rest in steps}
    unread, gone, forbidden = (
        {rest for word, rest in steps if word == each} for each in ("unread", "gone", "forbidden")
    )
    log = defaultdict[str, list[bytes]](list)
    for at, table in ((10, "t"), (20, "u")):
        create = f"CREATE TABLE `{table}` (`id` INT PRIMARY KEY)"
        log[f"d_{table}"] += [stated(at, table, create), message(table=table, _tidb={"commitTs": at + 1})]
    for word, rest in steps:
        if word == "statement":
            where, _, text = rest.partition(": ")
            topic, ts, table = where.split()
            log[topic].append(stated(int(ts), table.strip("-"), text))

    def topics(_: object) -> list[Topic]:
        if "unreachable" in said:
            raise SourceUnreachableError("no broker answers")
        return [
            Topic(name, "", {}, SourceError("no permission"))
            if name in forbidden
            else Topic(name, name, {n: Bounds(0, 7 + (name in unread)) for n in (0, 1)})
            for name in sorted(log.keys() - gone)
        ]

    monkeypatch.setattr("cdc_lakehouse.sources.kafka.read_topics", topics)
    marks = {
        topic: [message(type="TIDB_WATERMARK", _tidb={"watermarkTs": int(ts)})]
        for topic, ts in zip(said["watermarks"][::2], said["watermarks"][1::2], strict=True)
    }
    summaries = dict[tuple[str, int, int], PartitionSummary]()
    for topic in log.keys() | marks:
        mark, reading = marks.get(topic, []), Reading("ticdc-canal-json")
        reading.read([[*log[topic], *mark], mark])
        summaries |= {(topic, number, 1): found for (_, number, _), found in reading.summaries.items()}
    read = {} if "names" in said else {"topics": None, "topic_pattern": "".join(said.get("pattern", [".*"]))}
    lake = lake_in(tmp_path, source=kafka("ticdc-canal-json", *said.get("names", ()), **read))
    landed = LandedState(LandedOffsets({name: LandedTopic(name, {0: 7, 1: 7}) for name in log}, began=True))
    machinery = f"cdc_{lake.name}"
    lake.lake.catalog.create_namespace_if_not_exists(machinery)
    columns = pa.schema([("offset", pa.int64())])
    lake.lake.catalog.create_table((machinery, "records"), columns, properties=landed.as_properties())
    lake.run().signals.write(1, summaries)
    case.compare([str(lake.run().source.checkpoint_ts())], update=update)


def stated(ts: int, table: str, text: str) -> bytes:
    return message(table=table, type="QUERY", isDdl=True, sql=text, data=None, _tidb={"commitTs": ts})


def test_batch_of_a_topic_that_a_dump_has_passed_lands_again_behind_it(tmp_path: Path) -> None:
    """A run ended before it decoded batch 1, and the next one has committed batch 2 of a dump."""
    lake = lake_in(tmp_path, source=kafka("dts-avro", "t"))
    dumped = Segment(segment="dump", kind="dump", size=9, batch=2, state="decoded", landed_at=NOON)
    land(lake, offsets("t/0/0-3", state="landed"), dumped)
    events_of(lake, appended=Appended(2))
    source: Any = lake.run().source
    (again,) = source._land_passed()
    assert (again.segment, again.batch, again.record_batch, again.state) == ("t/0/0-3", 3, 1, "landed")
    source = lake.run().source
    assert not source._land_passed()


# --- Entries of a Canal server land each once and in order, whatever ends when ---

KILLS = [
    None,
    *(KillAtCommit(number) for number in (1, 2, 3, 4, 5)),
    *(KillAtCall(CanalClient, "ack", number, after) for number in (1, 3) for after in (False, True)),
]


def canal_lake(directory: Path, address: str, **source: Any) -> TestLake:
    told = {"type": "canal", "addresses": [address], "destination": "example", "batch_size": 3, **source}
    return lake_in(directory, source=told, start_date="2020-01-01")


def numbers(lake: TestLake) -> list[int]:
    records = sorted(lake.machinery("records"), key=lambda row: row["offset"])
    assert [row["offset"] for row in records] == list(range(len(records)))
    return [number_of(row["value"]) for row in records]


steps = st.fixed_dictionaries({
    "entries": st.integers(0, 25),
    "cuts": st.lists(st.integers(0, 900), max_size=3),
    "kill": st.sampled_from(KILLS),
    "back": st.integers(-3, 6),
    "ring": st.sampled_from([3, 8, 1000]),
})  # fmt: skip


@pytest.mark.slow
def test_each_entry_lands_once_and_in_order() -> None:
    kills: Counter[bool] = Counter()

    # What fails is not made smaller: each example is many commits.
    @settings(max_examples=100 if LONG else 10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(binlogs, st.lists(steps, min_size=1, max_size=5))
    def lands(log: Binlog, steps: list[dict[str, Any]]) -> None:
        kills.update(landed_in_steps(log, steps))

    lands()
    assert kills[True] > 4, "the others are of landings that have less to do"


def landed_in_steps(log: Binlog, steps: list[dict[str, Any]]) -> Iterator[bool]:
    """Tells of each kill whether it happened."""
    server = HandMadeCanal([])
    entries, there = list(log.entries), 0
    with tempfile.TemporaryDirectory() as directory, serving(server) as address:
        lake = canal_lake(Path(directory), address)
        for step in [*steps, {"entries": len(entries), "cuts": [], "kill": None, "back": -1, "ring": 5}]:
            if step["back"] >= 0:
                # It is started again, and does not know what was acknowledged last.
                server.acked = [start for start in log.starts if start <= server.acked][-1 - step["back"] :][0]
                entries[server.acked :] = map(log.told_anew, entries[server.acked :])
            there += step["entries"]
            server.entries, server.ring = entries[:there], step["ring"]
            server.cut(*step["cuts"])
            if step["kill"] is None:
                lake.run().source.land()
            else:
                with step["kill"](lake) as killed:
                    lake.run().source.land()
                yield killed.happened
        assert server.acked == len(entries)
        assert numbers(lake) == list(range(len(entries)))
        segments = lake.machinery("segments")
        assert sum(row["size"] for row in segments) == sum(row["size"] for row in lake.machinery("records"))
        with lake.without_changes():
            lake.run().source.land()


LOG = binlog_of([{"kind": "mysql", "rows": 40, "seconds": 1, "rotated": False}] * 3)


@pytest.mark.parametrize("get", range(1, 6))
def test_entries_land_in_order_beside_another_client(tmp_path: Path, get: int) -> None:
    """It takes some after the run has connected, between two batches, or before the run asks whether there is more."""
    server = HandMadeCanal(list(LOG.entries[:20]), others={get}, ring=5)
    with serving(server) as address:
        lake = canal_lake(tmp_path, address)
        lake.run().source.land()
    assert server.heard[wire.GET] >= get and numbers(lake) == list(range(20)) and server.acked == 20


@pytest.mark.parametrize(("bounds", "most"), [({"max_entries": 20}, 23), ({"max_bytes": 1500}, 40)])
def test_a_run_takes_no_more_than_its_bounds(tmp_path: Path, bounds: dict[str, int], most: int) -> None:
    server = HandMadeCanal(list(LOG.entries))
    with serving(server) as address:
        lake = canal_lake(tmp_path, address, **bounds)
        for _ in range(2):
            before = server.acked
            lake.run().source.land()
            assert 0 < server.acked - before <= most < len(LOG.entries)
    assert numbers(lake) == list(range(server.acked))


@pytest.mark.slow
def test_a_run_ends_in_time_where_the_source_never_rests(tmp_path: Path) -> None:
    """Its entries are those of before the run, as far as clocks go, and there are always more."""
    server = HandMadeCanal(
        list(binlog_of([{"kind": "ddl", "rows": 1, "seconds": 0, "rotated": False}] * 30_000).entries)
    )
    with serving(server) as address:
        lake = canal_lake(tmp_path, address, max_seconds=1, batch_size=1)
        lake.run().source.land()
    assert 0 < server.acked < len(server.entries) and numbers(lake) == list(range(server.acked))


def test_a_server_that_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = canal_lake(tmp_path, closed_port())
    monkeypatch.setattr(canal, "_PATIENCE_SECONDS", 0.1)
    with pytest.raises(SourceUnreachableError, match="cannot be reached"):
        lake.run().source.land()
    assert lake.metadata() == {}


@pytest.mark.parametrize("kind", ["ddl", "mysql", "mariadb", "compressed"])
def test_entries_of_a_stuck_server_land_once_and_are_reported(tmp_path: Path, kind: str) -> None:
    """It connects to its database again and again, and each time sends the last event that it could read."""
    shape = {"kind": kind, "rows": 2, "seconds": 1, "rotated": False}
    log = binlog_of([shape, shape])
    last = list(log.entries[log.starts[-1] :])
    server = HandMadeCanal([*log.entries, *last, *last])
    with serving(server) as address:
        lake = canal_lake(tmp_path, address)
        assert lake.run().source.land().faults == ()
        for _ in range(5):
            assert numbers(lake) == list(range(len(log.entries)))
            server.entries += last
            landed = lake.run().source.land()
        assert numbers(lake) == list(range(len(log.entries))) and not landed.new
        (fault,) = landed.faults
        assert "stuck after bin.000001:" in fault and "tsdb" in fault
        status = FeedRun(lake.feed, lake.lake).source.status()
        assert str(status.error) == fault and status.landed_entries == len(log.entries)
        server.entries += last
        with lake.without_changes():
            lake.run().source.land()
        server.entries += binlog_of([shape, shape, shape]).entries[len(log.entries) :]
        assert lake.run().source.land().faults == ()
