"""A table whose rows are in several partitions of a topic that has no commit-ts: its clock orders them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import TestLake, check_events, run_all

pytestmark = pytest.mark.spark

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
    late: int | None, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
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
