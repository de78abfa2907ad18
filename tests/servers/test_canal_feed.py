"""A feed of a real Canal before a real MySQL: tables of the lake have what SELECT shows, whatever ends when."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sources.canal import client
from cdc_lakehouse.sources.canal.client import Batch, CanalClient
from tests import LONG
from tests.kit.kills import Kill, KillAtCall, KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.servers.canal import DESTINATION, PASSWORD, USER, StartCanal
from tests.servers.canal_reader import Writer, holds
from tests.servers.canal_workload import STEPS

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.usefixtures("impatient")]

GEOMETRIES = ("p", "ge")
VIRTUAL = ("vi",)


class CanalFeed:
    def __init__(self, new_lake: Callable[..., TestLake], writer: Writer, address: str, **source: Any) -> None:
        told = {"type": "canal", "addresses": [address], "destination": DESTINATION, "user": USER, "batch_size": 10}
        tables = {"include": ["d.*", "d2.*"]}
        self.lake = new_lake(source={**told, **source}, start_date="2020-01-01", tables=tables)
        self.writer = writer
        self.kills = 0
        self.configure(password=PASSWORD)

    def configure(self, **other: Any) -> None:
        """Settings of the source that are other from now on."""
        feed = self.lake.feed
        feed = feed.model_copy(update={"source": feed.canal.model_copy(update=other)})
        self.lake.config = self.lake.config.model_copy(update={"feeds": (feed,)})

    def land(self, kill: Kill | None = None) -> None:
        """Errors that may pass are those of a run that is tried again."""
        with contextlib.suppress(CdcError), kill(self.lake) if kill else contextlib.nullcontext() as killed:
            self.lake.run().source.land()
        self.kills += killed is not None and killed.happened

    def land_killed(self, kill: Kill) -> None:
        """Until there is something to land, for Canal may not have read it yet: the kill happens."""
        before = self.kills
        for _ in range(60):
            self.land(kill)
            if self.kills > before:
                return
        raise AssertionError(f"nothing came that {kill} could hit")

    def landed(self) -> list[dict[str, Any]]:
        return sorted(self.lake.machinery("records"), key=lambda row: row["offset"])

    def catch_up(self, kills: Iterator[Kill | None]) -> None:
        mark = self.writer.mark()
        with pytest.MonkeyPatch.context() as patch:
            # What Canal has not read by then comes with the next landing.
            patch.setattr(client, "_WAIT_SECONDS", 0.2)
            for kill in kills:
                self.land(kill)
                if holds(Batch(1, tuple(row["value"] for row in self.landed()), 1), mark):
                    return

    def check(self, done: Steps, *, held: tuple[str, ...] = (), left_out: tuple[str, ...] = ()) -> None:
        assert {done.applied.lives[id].last.name.table for id in done.applied.held} == set(held), done.applied.held
        tables = {table: found for (database, table), found in self.lake.tables().items() if database == "d"}
        assert set(tables) == set(self.writer.tables()) - set(held)
        self.writer.check(tables, left_out=left_out)
        keys = Counter(tuple(json.loads(row["key"])[:-1]) for row in self.landed())
        assert keys and max(keys.values()) == 1
        assert [row["offset"] for row in self.landed()] == list(range(len(keys)))


def never() -> Iterator[None]:
    while True:
        yield None


def kills(chance: random.Random) -> Iterator[Kill | None]:
    """A few, then none."""
    for _ in range(chance.randint(1, 3)):
        yield kill_of_landing(chance)
    yield from never()


def kill_of_landing(chance: random.Random) -> Kill:
    """A landing has two commits, its records and their segments, and mostly one acknowledgement."""
    if chance.random() < 0.6:
        return KillAtCommit(chance.randint(1, 2))
    return KillAtCall(CanalClient, "ack", 1, after=chance.random() < 0.5)


@pytest.mark.in_turn
def test_ddl_among_rows_with_kills(writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake]) -> None:
    """Of our process after any commit and between acknowledgements. Canal must have seen a step before the next one.
    Connections end at any byte in tests/sources/canal."""
    chance = random.Random(5)
    feed = CanalFeed(new_lake, writer, start_canal().address)
    writer.begin()
    for number, step in enumerate(STEPS):
        writer.run(*step.split("; "))
        feed.catch_up(kills(chance) if number % 2 else never())
        if number % 6 == 5:
            with KillAtCommit(chance.randint(1, 5))(feed.lake) as killed:
                run_all(feed.lake.run())
            assert killed.happened
    assert feed.kills > 6
    # The last run is one without an accident.
    feed.writer.run("INSERT INTO b VALUES (77, 'last', 1)")
    feed.catch_up(never())
    feed.check(run_all(feed.lake.run()), held=("nokey",))


def change(writer: Writer, chance: random.Random, transactions: int) -> None:
    for _ in range(transactions):
        writer.run("BEGIN")
        for _ in range(chance.randint(1, 4)):
            id, text = chance.randint(1, 60), "x" * chance.randint(0, 100)
            writer.run(
                chance.choice([
                    f"REPLACE INTO t VALUES ({id}, '{text}', {chance.randint(0, 9)})",
                    f"UPDATE t SET n = n + 1 WHERE id <= {id}",
                    f"DELETE FROM t WHERE id = {id}",
                    f"UPDATE IGNORE t SET id = id + 7 WHERE id = {id}",
                ])
            )  # fmt: skip
        writer.run(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(4 if LONG else 1))
def test_rows_survive_kills_of_canal_and_another_server(
    seed: int, writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake]
) -> None:
    """The server that takes over knows of no acknowledgement to the first one, and gives all again."""
    chance = random.Random(seed)
    server, other = start_canal("one"), start_canal("two")
    feed = CanalFeed(new_lake, writer, server.address)
    writer.begin()
    writer.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100), n INT)", "INSERT INTO t VALUES (0, '', 0)")
    feed.catch_up(never())
    for number in range(3):
        change(writer, chance, 40)
        rows = ", ".join(f"({id}, 'row', 0)" for id in range(1000, 1800))
        writer.run(f"REPLACE INTO t VALUES {rows}", "DELETE FROM t WHERE id % 3 = 0")
        # In the midst of what is landed, or before it, or after.
        killer = threading.Timer(chance.random() * 0.6, server.process.kill)
        killer.start()
        feed.land(kill_of_landing(chance))
        killer.join()
        assert server.process.wait() == -signal.SIGKILL
        change(writer, chance, 5)
        writer.run(f"REPLACE INTO t VALUES (0, 'while there is no Canal', {number})")
        feed.land()
        if number < 2:
            server = start_canal("one", port=server.port)
            feed.land_killed(kill_of_landing(chance))
    feed.configure(addresses=(server.address, other.address))
    feed.catch_up(kills(chance))
    feed.check(run_all(feed.lake.run()))


def test_values_under_names_of_newer_columns_hold_a_table(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake]
) -> None:
    """Canal was behind with a statement after which a table has the same columns in another order."""
    server = start_canal()
    feed = CanalFeed(new_lake, writer, server.address)
    server.process.kill()
    server.process.wait()
    writer.begin()
    writer.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    writer.run("INSERT INTO t VALUES (1, 10, 100)", "INSERT INTO u VALUES (1)")
    writer.run("ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN w TO v", "INSERT INTO t VALUES (2, 20, 200)")
    start_canal(port=server.port)
    feed.catch_up(never())
    done = run_all(feed.lake.run())
    feed.check(done, held=("t",))
    (reason,) = done.applied.held.values()
    assert "rows have the columns in the order id, w, v, and the table has id, v, w" in reason and "tsdb" in reason
