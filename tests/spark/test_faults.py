"""Faults that need a patch or bytes of their own. What damaged input does is in `tests/scenarios`."""

import errno
import itertools
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT
from cdc_lakehouse.decoders.registry import FILE_FORMATS
from cdc_lakehouse.errors import ConfigurationError, EngineError, WarehouseFullError, WarehouseUnreachableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current import update_tasks
from cdc_lakehouse.lake.iceberg_java import TableTransaction
from cdc_lakehouse.lake.tables.events import Events
from cdc_lakehouse.lake.tables.records import RecordShare
from cdc_lakehouse.pipeline import synthetic
from cdc_lakehouse.pipeline.topics import Topics
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, DAY, EXCHANGE, ID, MULTI, PARTITIONED, T0, HandSink, row, text
from tests.kit.kafka import MemoryTopic
from tests.kit.kills import KillAtCall
from tests.kit.lakes import NewLake, check_events, let_spark_do_all, run_all

pytestmark = pytest.mark.spark

SKIP = {"quarantine": "skip"}
TABLES = ("large", "other")
"""Something happens to the first; each has a row."""


@pytest.mark.in_turn
@pytest.mark.parametrize("of", ["rows", "file"])
def test_what_ends_worker_holds_table_alone(of: str, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = new_lake(source=CSV)
    (sink := HandSink(lake.sink)).begin(*TABLES)
    lake.go_through()
    for version, table in enumerate(TABLES, 1):
        sink.put(table, version, ("I", 12, 2, 2), index=2)
    sink.checkpoint(19)
    work, form = update_tasks.update_tables, FILE_FORMATS["csv"]

    def update(properties: Any, plans: Any, events: Any) -> Any:
        if any(str(plan.name) == "d.large" for plan in plans):
            os.kill(os.getpid(), signal.SIGKILL)
        return work(properties, plans, events)

    def decode(content: Any, context: Any) -> Any:
        if context.table == "large":
            os.kill(os.getpid(), signal.SIGKILL)
        return form.decode(content, context)

    with monkeypatch.context() as patch:
        let_spark_do_all(patch)
        if of == "rows":
            patch.setattr(update_tasks, "update_tables", update)
        else:
            patch.setitem(FILE_FORMATS, "csv", replace(form, decode=decode))  # pyright: ignore[reportArgumentType]
        done = run_all(lake.run())
    said = "fails when this table alone is updated" if of == "rows" else "fails when it decodes this segment alone"
    ((table, reason),) = done.applied.held.items()
    assert table == "d.large#1" and said in reason and "a Python worker ended" in reason
    assert (lake.rows("large"), lake.rows("other")[-1][0]) == ([(1, 1, "large3")], 2)
    assert {each.error_class for each in done.run.quarantine.open()} <= {"UnreadableSegment"}
    lake.go_through()
    assert lake.rows("large") == [(1, 1, "large3"), (2, 2, "large12")] and not lake.run().quarantine.open()


@pytest.mark.long
def test_value_of_64_mib_is_written_and_changed(new_lake: NewLake) -> None:
    lake = new_lake(source=CSV)
    sink, large = HandSink(lake.sink), SourceColumn("s", ColumnType.of("LONGTEXT"))
    sink.schema("a", 1, ID, large, action=CREATE, query="CREATE TABLE `a` (`id` BIGINT PRIMARY KEY, `s` LONGTEXT)")
    for index, letter in enumerate("xy", start=1):
        rows = [(id, letter * size) for id, size in ((1, 5), (2, 64 << 20), (3, 5))]
        lines = (row("U", "a", 10 * index + id, str(id), f'"{value}"') for id, value in rows)
        sink.rows("d/a", 1, *lines, index=index)
        sink.checkpoint(10 * index + 5)
        lake.go_through()
        assert lake.rows("a") == rows


def test_file_gone_after_its_run_was_killed_is_listed(new_lake: NewLake) -> None:
    """The run has appended its events. The next one is killed while it decodes the file again."""
    lake = new_lake(source=CSV, policy=SKIP)
    (sink := HandSink(lake.sink)).begin(*TABLES)
    place = sink.rows("d/large", 1, row("I", "large", 6, "2", "2", '"x"'), "garbage", index=2)
    for after in (True, False):
        with KillAtCall(Events, "commit", 1, after=after)(lake) as killed:
            run_all(lake.run())
        assert killed.happened
    place.unlink()
    lake.go_through()
    check_events(lake)
    assert lake.rows("large") == [(1, 1, "large3"), (2, 2, "x")]
    assert [each["error_class"] for each in lake.machinery("quarantine")] == ["UnreadableSegment"]


@pytest.mark.in_turn
@pytest.mark.parametrize("times", [1, 100])
def test_engine_without_answer_fails_no_table(times: int, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the run itself tries again. For longer: no cut says that something is wrong with the table."""
    lake = new_lake(source=CSV)
    HandSink(lake.sink).begin(*TABLES)
    real: Any = TableTransaction.commit
    left = itertools.count(times, -1)

    def commit(self: Any, **arguments: Any) -> Any:
        if self.identifier.name == "large" and next(left) > 0:
            raise EngineError("Spark's JVM does not answer (ConnectionRefusedError)")
        return real(self, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TableTransaction, "commit", commit)
        if times == 1:
            lake.go_through()
        else:
            with pytest.raises(EngineError, match="does not answer"):
                run_all(lake.run())
            assert not lake.machinery("checkpoints")
    lake.go_through()
    assert (lake.rows("large"), lake.rows("other")) == ([(1, 1, "large3")], [(1, 1, "other4")])


@pytest.mark.in_turn
@pytest.mark.parametrize(("error", "reason"), [
    (ValueError("no row"), "ValueError no row"), (MemoryError(), "cannot be written"),
    (OSError(errno.ENOSPC, "no room"), WarehouseFullError),
    (FileNotFoundError(errno.ENOENT, "a manifest"), WarehouseUnreachableError),
])  # fmt: skip
def test_exchange_that_fails_holds_its_tables_alone(
    error: Exception, reason: str | type[Exception], new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(source=CSV)
    (sink := HandSink(lake.sink)).begin(*TABLES)
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)
    swap = "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`large`"
    sink.schema("p", 20, *COLUMNS, action=EXCHANGE, query=swap)
    sink.schema("large", 20, *COLUMNS)
    sink.checkpoint(30)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(synthetic._Table, "spans", fail)
        if not isinstance(reason, str):
            with pytest.raises(reason):
                run_all(lake.run())
        else:
            held = run_all(lake.run()).applied.held
            assert set(held) == {"d.p#1", "d.large#1"} and all(reason in each for each in held.values())
            assert lake.rows("other") == [(1, 1, "other4")]
    lake.go_through()
    assert (lake.rows("p"), lake.rows("large")) == ([(1, 1, "large3")], [])


@pytest.mark.in_turn
def test_worker_that_is_ended_by_what_it_decodes_as_it_comes_lands_it(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    let_spark_do_all(monkeypatch)
    topic, pids, killed, decoder = MemoryTopic(monkeypatch), tmp_path / "pids", tmp_path / "killed", Topics._decoder
    lake = new_lake(source={"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": "b:1", "topics": ["x"]})

    def noted(*of: Any) -> Any:
        decode = decoder(*of)

        def in_task(rows: Any) -> Any:
            with pids.open("a") as file:
                print(os.getpid(), file=file)
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return decode(rows)

        return in_task

    monkeypatch.setattr(Topics, "_decoder", noted)
    told = {"database": "d", "table": "t", "isDdl": False, "pkNames": ["id"], "mysqlType": {"id": "int"}, "es": 1}
    create = {**told, "type": "CREATE", "isDdl": True, "sql": "CREATE TABLE t (id INT PRIMARY KEY)"}
    create["_tidb"] = {"commitTs": T0}
    for batch, kills in enumerate((False, True, False), 1):
        for partition in (0, 1):
            row = {**told, "type": "INSERT", "data": [{"id": str(10 * batch + partition)}]}
            sent = [create, {**row, "_tidb": {"commitTs": T0 + batch}}][batch > 1 :]
            sent.append({**told, "type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": T0 + batch}})
            common = {"partition": partition, "key": None, "timestamp": 1}
            topic.send({**common, "value": json.dumps(each)} for each in sent)
        pids.write_text("")
        killed.unlink(missing_ok=True) if kills else killed.touch()
        with monkeypatch.context() as patch:
            if not kills:
                patch.setattr(RecordShare, "read", lambda *_: pytest.fail("records are read again"))
            run_all(lake.run())
        decoded_by = pids.read_text().split()
        assert str(os.getpid()) not in decoded_by and (kills or len(decoded_by) == 2)
        assert [id for id, *_ in lake.rows("t")] == [10 * n + p for n in range(1, batch + 1) for p in (0, 1)]
    check_events(lake)


@pytest.mark.in_turn
def test_events_not_writable_in_tasks_quarantine_nothing(new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    let_spark_do_all(monkeypatch)
    lake = new_lake(source=CSV)
    (sink := HandSink(lake.sink)).begin(*TABLES)
    lake.go_through()
    sink.put("large", 1, ("I", 12, 2, 2), index=2)
    sink.checkpoint(30)
    data = lake.warehouse / f"cdc_{lake.name}/events/data"
    away = data.rename(data.with_name("away"))
    data.touch()
    with pytest.raises(ConfigurationError, match="warehouse cannot be written"):
        run_all(lake.run())
    data.unlink()
    away.rename(data)
    assert not lake.run().quarantine.open()
    lake.go_through()
    assert lake.rows("large") == [(1, 1, "large3"), (2, 2, "large12")]


@pytest.mark.in_turn
def test_held_key_change_of_many_tasks_leaves_no_files(new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes the decisions of a person, though each task has more unusable rows than it lists."""
    let_spark_do_all(monkeypatch)
    lake = new_lake(source=CSV)
    (sink := HandSink(lake.sink)).begin(*TABLES)
    count = 3 * update_tasks.REJECTED_LISTED
    bad = [row("I", "large", 5, str(10 + n), "five", '"x"') for n in range(count)]
    sink.rows("d/large", 1, *bad, index=2)
    name, value, note = (replace(column, primary_key=False) for column in COLUMNS)
    key = (name, replace(value, primary_key=True, nullable=False), note)
    query = "ALTER TABLE `large` DROP PRIMARY KEY, ADD PRIMARY KEY (`v`)"
    sink.schema("large", 10, *key, action=MULTI, query=query)
    sink.checkpoint(20)
    stored: list[set[Path]] = []
    for _ in range(2):
        (reason,) = run_all(lake.run()).applied.held.values()
        assert "rows before it cannot be used" in reason
        events = lake.lake.existing(system_table(lake.name, "events")).location().removeprefix("file://")
        stored.append({*Path(events).rglob("*.parquet")})
        assert not [*Path(events).rglob("*.crc")]  # Hadoop would write one beside each file of its own.
    assert stored[0] and stored[0] == stored[1]
    run = lake.run()
    assert run.quarantine.count() == count
    run.quarantine.discard({row.id for row in run.quarantine.open()}, "ann", "lost", run.clock())
    lake.go_through()
    assert lake.rows("large") == [(1, 1, "large3")] and lake.run().quarantine.count("discarded") == count


@pytest.mark.parametrize(("valid", "bad", "summary"), [(",5,", ",five,", 4), ('"I"', "garbage", None)],
                         ids=["value", "line"])  # fmt: skip
def test_rejected_rows_beyond_those_listed_are_counted(
    valid: str, bad: str, summary: int | None, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_tasks, "REJECTED_LISTED", 2)
    monkeypatch.setattr("cdc_lakehouse.lake.tables.events.LISTED_PER_SEGMENT", 2)
    lake = new_lake(source=CSV, policy=SKIP)
    (sink := HandSink(lake.sink)).begin(*TABLES)
    lines = [row("I", "large", 5, str(10 + n), "5", '"x"').replace(valid, bad) for n in range(5)]
    path = sink.rows("d/large", 1, row("I", "large", 5, "7777", "7", '"x"'), *lines, index=2)
    for _ in range(2):
        lake.go_through()
        found = [(each["line"], each["count"]) for each in lake.machinery("quarantine") if each["state"] == "open"]
        assert sorted(found, key=str) == [(2, 1), (3, 1), (summary, 3)] and lake.run().quarantine.count() == 5
        assert lake.rows("large") == [(1, 1, "large3"), (7777, 7, "x")]
    path.write_text(path.read_text().replace(bad, valid))
    lake.go_through()
    assert not lake.run().quarantine.open() and len(lake.rows("large")) == 7


def test_file_that_tasks_share_is_one_segment(new_lake: NewLake) -> None:
    """Each line has its own number, and the first bad ones are listed."""
    lake = new_lake(policy=SKIP)
    sink, count, each = HandSink(lake.sink), 20_000, 8
    sink.schema("large", 1, *COLUMNS, action=CREATE, query="CREATE TABLE `large` (`id` BIGINT PRIMARY KEY)")
    line = (
        '{"id":0,"database":"d","table":"large","pkNames":["id"],"isDdl":false,"type":"INSERT","es":1768435200000,'
        '"ts":1768435200128,"sql":"","sqlType":{"id":-5,"v":4,"s":12},"mysqlType":{"id":"bigint","v":"int",'
        f'"s":"varchar"}},"old":null,"data":[{{"id":"%d","v":"1","s":"{"x" * 800}"}}],"_tidb":{{"commitTs":{T0 + 5}}}}}'
    )
    lines = ["garbage" if number % each == 0 else line % number for number in range(1, count + 1)]
    sink.write(f"d/large/{T0 + 1}/{DAY}/CDC{1:020d}.json", "\n".join(lines) + "\n")
    sink.checkpoint(9)
    lake.go_through()
    (segment,) = lake.machinery("segments")
    good, bad = count - count // each, count // each
    assert (segment["lines"], segment["events"]) == (count, good)
    assert lake.lake.load(system_table(lake.name, "events")).inspect.files().num_rows > 1
    places = [(event["line"], int(event["after"]["id"])) for event in lake.machinery("events")]
    assert len(places) == good == len({*places}) and all(number == id for number, id in places)
    found = [(row["line"], row["count"]) for row in lake.machinery("quarantine")]
    listed = [(each * number, 1) for number in range(1, LISTED_PER_SEGMENT + 1)]
    assert sorted(found, key=str) == sorted([*listed, (None, bad - LISTED_PER_SEGMENT)], key=str)
    assert len(lake.data_files("large")) and len(lake.rows("large")) == good


def test_tables_are_named_by_schema_files_in_directories_of_ids(new_lake: NewLake) -> None:
    """A RENAME keeps the id, a TRUNCATE gives another, and two tables have the same name one after the other. Files
    wait for the schema file that names their table."""
    create, columns = "CREATE TABLE `a` (`id` BIGINT PRIMARY KEY, `s` VARCHAR(50))", (ID, text("s"))
    steps: list[tuple[str, int, int, str, str]] = [
        ("a", 1, CREATE, create, "101"), ("b", 6, 14, "RENAME TABLE `d`.`a` TO `d`.`b`", "101"),
        ("a", 9, CREATE, create, "102"), ("b", 12, 11, "TRUNCATE TABLE `b`", "103"),
    ]  # fmt: skip
    for stepwise in (True, False):
        lake = new_lake(source={**CSV, "use_table_id_as_path": True}, tables={"include": ["d.*"]})
        sink = HandSink(lake.sink)
        for name, at, action, query, directory in steps:
            sink.rows(directory, at, row("U", name, at + 1, str(at), '"x"'))
            sink.checkpoint(at + 2)
            if at == 1:
                (fault,) = run_all(lake.run()).landed.faults
                assert "waiting for the schema file" in fault and "101/" in fault
            sink.schema(name, at, *columns, action=action, query=query, directory=directory)
            if stepwise:
                lake.go_through()
        lake.go_through()
        assert lake.all_rows() == {"a": [(9, "x")], "b": [(12, "x")]}
        assert {(each["database"], each["table"]) for each in lake.machinery("segments")} == {("d", "a"), ("d", "b")}
