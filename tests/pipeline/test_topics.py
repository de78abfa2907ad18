"""Topics and servers: where they begin, which records are read again or removed, what cannot be used or joined, and how
far they may be applied."""

import functools
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.format import Options
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.decoders.topic_reader import PartitionSummary
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.events import EventWriter
from cdc_lakehouse.lake.tables.records import LandedState, RecordCommits, files_before, landed_state, remove_before
from cdc_lakehouse.lake.tables.segments import OFFSETS, Appended, Segment
from cdc_lakehouse.pipeline import canal
from cdc_lakehouse.pipeline.canal import CanalServer
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.topics import beginning_of, wanted_records
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


def test_partition_that_comes_after_a_look_begins_at_its_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, lake = MemoryTopic(monkeypatch), lake_in(tmp_path, source=kafka("ticdc-canal-json", "x", start="latest"))
    lake.run().source.land()
    value = message(_tidb={"commitTs": FIRST}).decode()
    topic.send([{"partition": 0, "key": None, "value": value, "timestamp": 0}])
    assert lake.run().source.first_ts() == FIRST


def test_messages_land_and_can_be_decoded_alike_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, lake = MemoryTopic(monkeypatch), lake_in(tmp_path, source=kafka("ticdc-canal-json", "x"))
    lake.lake.ensure_namespace(f"cdc_{lake.name}")
    events_of(lake)
    topic.send(
        {"partition": n % 2, "key": None if n % 3 else "k", "value": None if n % 5 else f"é{n}", "timestamp": time}
        for n, time in enumerate([0, 86_400_000, -1, 2**53, 1] * 4)
    )
    given, source = list[pa.Table](), lake.run().source
    monkeypatch.setattr(EventWriter, "decode", lambda *of: given.append(pa.Table.from_batches(of[-1])) or 1 // 0)
    landed = source.land().new
    assert [each.lines for each in landed] == [10, 10]
    with pytest.raises(ZeroDivisionError):
        source.decode(landed)
    for number in (0, 1):
        as_they_came, stored = (rows.filter(pc.field("partition") == number).to_pylist() for rows in given)
        assert as_they_came == stored and [row["offset"] for row in stored] == [*range(10)]


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
