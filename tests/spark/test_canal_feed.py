"""A feed of a Canal server, with sessions that were captured, and of its topics, through the whole pipeline; and a
table whose rows are in several partitions of a topic that has no commit-ts: its clock orders them."""

import base64
import json
import random
from typing import Any, Final

import dagster as dg
import pytest

from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.operate.state import uncounted_lines
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sources.canal.wire import entries_pb2 as entries
from tests.canal_captures import SOURCES, Capture, capture
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import NewLake, TestLake, check_events, run_all
from tests.kit.truth import differences
from tests.sources.canal.servers import HandMadeCanal, batch, serving

pytestmark = pytest.mark.spark


class CapturedCanal(HandMadeCanal):
    """What was acknowledged in the session, in batches as they were sent: `acked` counts batches. `end` bounds what
    there is for now, `ring` how many batches may be open at once."""

    def __init__(self, of: Capture, end: int = 1 << 30, ring: int = 1 << 30, acked: int = 0) -> None:
        super().__init__([], ring=ring, _acked=acked)
        self.end = end
        self._batches = of.batches

    def _batch(self, size: int) -> bytes:
        if self._given >= min(self.end, len(self._batches), self._acked + self.ring):
            return batch(-1)
        self._given += 1
        self._open.append((next(self._ids), self._given))
        return batch(self._open[-1][0], *self._batches[self._given - 1].messages)


def canal_lake(new_lake: NewLake, address: str, **source: object) -> TestLake:
    told = {"type": "canal", "addresses": [address], "destination": "example", **source}
    return new_lake(source=told, start_date="2020-01-01")


NOT_THE_SAME: Final = {"c_latin", "c_gbk", "c_point"}
"""Canal has made something else of the characters of two; a geometry is its bytes."""
HELD: Final = {"mysql8.0.12": {"t_nopk", "t_renamed"}, "mariadb10.11": {"t_renamed"}}
"""A table without a key (MariaDB's was dropped in the end); and one to which a column with DEFAULT CURRENT_TIMESTAMP is
added, so that the log does not say what older rows have: it is held before it is renamed."""


def check_tables(lake: TestLake, done: Steps, source: str, of: Capture) -> None:
    wrong: dict[str, Any] = {}
    tables = lake.tables()
    for name, expected in of.tables.items():
        table = name.removesuffix("_final")
        if not name.endswith("_final") or table in HELD[source]:
            continue
        found = next((each for (_, own), each in tables.items() if own == table), None)
        if found is None:
            wrong[table] = done.applied.held
            continue
        columns = [(column, kind) for column, kind, _ in expected["columns"]]
        told = differences(found, columns, expected["rows"], left_out=NOT_THE_SAME)
        wrong |= {f"{table}.{column}": how for column, how in told.items()}
    held = {done.applied.lives[id].last.name.table.replace("t_two", "t_renamed") for id in done.applied.held}
    assert held == HELD[source]
    assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())
    damage = lake.run().signals.damage()
    assert {table.table: set(columns) for table, columns in damage.items()} == {"t_all": {"c_latin", "c_gbk"}}


@pytest.mark.parametrize("source", SOURCES)
def test_tables_are_as_the_server_shows_them(source: str, new_lake: NewLake) -> None:
    of = capture(source)
    server = CapturedCanal(of, ring=5)
    with serving(server) as address:
        lake = canal_lake(new_lake, address)
        # In several runs: nothing that one has found may be lost to the next.
        step = 1 + len(of.batches) // 4
        for end in range(step, len(of.batches) + step, step):
            server.end = end
            done = run_all(lake.run())
            assert server.acked == min(end, len(of.batches))
        before = lake.metadata()
        done = run_all(lake.run())
        assert lake.metadata() == before
    check_tables(lake, done, source, of)
    assert uncounted_lines(lake.run()) == []
    segments = lake.machinery("segments")
    assert sum(row["lines"] for row in segments if row["kind"] == "offsets") == len(of.entries)
    checks = [each for each in build_checks(lake.lake, lake.feed, []) if "text_undamaged" in str([*each.check_keys])]
    (result,) = [check() for check in checks]
    assert not result.passed and result.severity == dg.AssetCheckSeverity.WARN
    assert "cdc.t_all: c_gbk in" in str(result.metadata["where"].value)
    records = sorted(lake.machinery("records"), key=lambda row: row["offset"])
    assert [row["offset"] for row in records] == list(range(len(of.entries)))
    assert [row["value"] for row in records] == of.entries


@pytest.mark.in_turn
def test_tables_of_protobuf_in_topics_are_the_servers(new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, of = MemoryTopic(monkeypatch), capture("mysql8.0.12")
    source = {"type": "kafka", "format": "canal-protobuf", "bootstrap_servers": "localhost:1", "topics": ["x"]}
    lake = new_lake(source=source, start_date="2020-01-01")
    half = len(of.topic_values) // 2
    # In two runs: nothing that one has found may be lost to the next.
    for values in (of.topic_values[:half], of.topic_values[half:]):
        values = [base64.b64encode(value).decode() for value in values]
        topic.send({"partition": 0, "key": None, "b64": value, "timestamp": 0} for value in values)
        done = run_all(lake.run())
    check_tables(lake, done, "mysql8.0.12", of)


def test_a_transaction_that_two_runs_share_is_seen_whole(new_lake: NewLake) -> None:
    """An INSERT of 3000 rows is six entries in as many batches."""
    of = capture("mysql8.0.12")
    rows = [
        number
        for number, batch in enumerate(of.batches, start=1)
        for entry in map(entries.Entry.FromString, batch.messages)
        if entry.header.table_name == "t_bulk" and entry.header.event_type == entries.INSERT
    ]
    assert len(rows) == 6
    server = CapturedCanal(of, end=rows[3])
    with serving(server) as address:
        lake = canal_lake(new_lake, address)
        done = run_all(lake.run())
        bulk = next(table for (_, name), table in lake.tables().items() if name == "t_bulk")
        assert bulk.scan().to_arrow().num_rows == 0
        events = [event for event in lake.machinery("events") if event["table_name"] == "t_bulk"]
        assert len(events) > 1000 and min(e["commit_ts"] for e in events) > done.checkpoint_ts
        server.end = len(of.batches)
        run_all(lake.run())
    assert bulk.refresh().scan().to_arrow().num_rows == 2900


START, SECONDS = 1_780_000_000, 240
STATEMENTS = {
    0: "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", 60: "TRUNCATE TABLE t", 100: "ALTER TABLE t DROP COLUMN w",
    101: "ALTER TABLE t ADD COLUMN w INT DEFAULT 7", 160: "TRUNCATE t",
    161: "ALTER TABLE t CHANGE v w INT, CHANGE w v INT", 210: "TRUNCATE t",
}  # fmt: skip
Rows = list[tuple[int, int | None, int | None]]


def history() -> tuple[list[list[dict[str, Any]]], list[Rows]]:
    """The messages of three partitions, and the table's rows after each second, in which one thing happens."""
    rng = random.Random(7)
    partitions: list[list[dict[str, Any]]] = [[], [], []]
    rows: dict[int, tuple[int, int]] = {}
    states: list[Rows] = []
    for second in range(SECONDS):
        told = {"database": "d", "table": "t", "es": (START + second) * 1000, "isDdl": False, "pkNames": ["id"]}
        number = 0
        if (text := STATEMENTS.get(second)) is not None:
            told |= {"type": "ALTER", "isDdl": True, "sql": text}
            rows = {} if "TRUNCATE" in text else rows
            if "ADD" in text:
                rows = {id: (v, 7) for id, (v, _) in rows.items()}
            if "CHANGE" in text:
                rows = {id: (w, v) for id, (v, w) in rows.items()}
        else:
            # First most rows are in one partition, then in another.
            number = rng.choices(range(3), weights=(1, 20, 1) if second < SECONDS // 2 else (4, 1, 8))[0]
            id = 3 * rng.randrange(8) + number
            image = {"id": id, "v": second, "w": -second}
            image = image if second < 161 else {name: image[name] for name in ("id", "w", "v")}
            op = "DELETE" if id in rows and rng.random() < 0.3 else "UPDATE" if id in rows else "INSERT"
            if op == "DELETE":
                del rows[id]
            else:
                rows[id] = second, -second
            data = [{name: str(value) for name, value in image.items()}]
            told |= {"type": op, "data": data, "mysqlType": dict.fromkeys(image, "int")}
        message = {"partition": number, "key": None, "value": json.dumps(told), "timestamp": told["es"]}
        partitions[number].append(message)
        states.append(sorted((id, v, w) for id, (v, w) in rows.items()))
    return partitions, states


def shown(lake: TestLake) -> Rows:
    found = lake.tables()["d", "t"].scan().to_arrow().to_pylist()
    return sorted((row["id"], row["v"], row["w"]) for row in found)


@pytest.mark.parametrize("late", [None, 0, 1, 2])
def test_partitions_that_are_read_late_give_the_same_rows(
    late: int | None, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cut is the state of its second; with a partition that cannot be read until the others are, the last is."""
    topic, (partitions, states) = MemoryTopic(monkeypatch), history()
    source = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "localhost:1", "topics": ["x"]}
    lake = new_lake(source={**source, "max_records": 45})

    def read_up() -> None:
        cursor = None
        while cursor != (state := run_all(lake.run()).run.source.poll(None)).cursor:
            cursor, cut = state.cursor, lake.run().last_cut.checkpoint_ts >> LOGICAL_BITS
            if late is None and cut:
                assert shown(lake) == states[cut // 1000 - START]

    for messages in partitions:
        topic.send(messages)
    topic.unreadable = set() if late is None else {late}
    read_up()
    topic.unreadable = set()
    read_up()
    assert shown(lake) == states[-1]
    check_events(lake)
