"""A MySQL that is dumped, and the Canal that goes on from it: tables of the lake have what SELECT shows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.lakes import TestLake, run_all
from tests.servers.canal import StartCanal, executed
from tests.servers.canal_reader import Writer
from tests.servers.mysql_dumps import dump, dump_as_shell
from tests.servers.test_canal_feed import CanalFeed, never

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.usefixtures("impatient")]


class Load:
    """A feed that begins with a dump, which is not there yet."""

    def __init__(
        self, new_lake: Callable[..., TestLake], writer: Writer, address: str, root: Path, **form: Any
    ) -> None:
        self.root = root / "snapshot"
        initial = {"type": "mydumper", "uri": str(self.root), **form}
        self.feed = CanalFeed(new_lake, writer, address, initial=initial)
        self.writer = writer

    def dump(self, *databases: str) -> tuple[str, int]:
        return dump(self.writer.mysql, databases or ("d",), self.root)

    def run(self) -> Steps:
        return run_all(self.feed.lake.run())

    def catch_up(self) -> Steps:
        self.feed.catch_up(never())
        return self.run()

    def loaded(self) -> list[dict[str, Any]]:
        return [event for event in self.feed.lake.machinery("events") if event["op"] == "R"]


class Writes:
    """Goes on writing from beginning to end of a block."""

    def __init__(self, writer: Writer, pause_seconds: float = 0) -> None:
        self._pause_seconds = pause_seconds
        self._writer = Writer(writer.mysql, "d")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.count = 0

    def _write(self) -> None:
        chance = random.Random(7)
        self._writer.run("USE d")
        while not self._end.wait(self._pause_seconds):
            id = chance.randint(1, 300)
            self._writer.run(
                chance.choice([
                    f"REPLACE INTO t VALUES ({id}, 'put {self.count}', {self.count})",
                    f"UPDATE t SET v = CONCAT(v, 'x'), n = n + 1 WHERE id = {id}",
                    f"DELETE FROM t WHERE id = {id}",
                ])
            )  # fmt: skip
            self.count += 1

    def __enter__(self) -> Writes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def fill(writer: Writer) -> None:
    rows = ", ".join(f"({id}, 'first', 0)" for id in range(1, 201))
    writer.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100), n INT)",
        "CREATE TABLE still (id INT PRIMARY KEY, e ENUM('a','b'))",
        "CREATE TABLE bare (id INT PRIMARY KEY)",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        f"INSERT INTO t VALUES {rows}",
        "INSERT INTO still VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO gone VALUES (1)",
    )


@pytest.mark.parametrize("tool", ["mydumper", "mysqlshell"])
def test_the_tables_that_were_there_and_what_is_written_meanwhile(
    tool: str, writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    writer.begin()
    fill(writer)
    load = Load(new_lake, writer, start_canal().address, tmp_path, type=tool)
    # Canal has seen these before the dump: they count for nothing behind it.
    writer.run("DROP TABLE gone", "INSERT INTO still VALUES (3, 'a')", "ALTER TABLE still ADD COLUMN w INT DEFAULT 5")
    with Writes(writer) as writes:
        if tool == "mydumper":
            load.dump()
        else:
            dump_as_shell(writer.mysql, ["d"], load.root)
    assert writes.count
    writer.run(
        "DELETE FROM still WHERE id = 1", "UPDATE still SET w = 6 WHERE id = 2", "INSERT INTO bare VALUES (1)",
        "ALTER TABLE t ADD COLUMN m INT NOT NULL DEFAULT 3", "INSERT INTO t VALUES (1001, 'last', 1, 2)",
        "CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1)",
    )  # fmt: skip
    done = load.catch_up()
    load.feed.check(done)
    assert done.loaded.commit_ts is not None and load.loaded()
    cuts = sorted({row["checkpoint_ts"] for row in load.feed.lake.machinery("checkpoints")})
    assert cuts[0] == done.loaded.commit_ts < cuts[1] and len(cuts) == 2
    before = load.feed.lake.metadata()
    assert load.run().loaded.commit_ts is None
    assert load.feed.lake.metadata() == before


def test_a_canal_that_was_started_at_the_dump(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    """By its GTIDs: a dump of another server, whose binlog files are called alike, is told by them."""
    writer.begin()
    fill(writer)
    dump(writer.mysql, ("d",), tmp_path / "snapshot")
    gtids = executed(writer.mysql)
    load = Load(new_lake, writer, start_canal(gtids=gtids).address, tmp_path, log_starts_at_dump=True)
    assert "the log is" not in (waits := load.run().loaded.waits or "") and "nothing of it has landed" in waits
    writer.run("INSERT INTO still VALUES (4, 'a')")
    uuid, _, last = gtids.partition(":1-")
    metadata = tmp_path / "snapshot" / "metadata"
    whole = metadata.read_text()
    metadata.write_text(whole.replace(gtids, f"{uuid}:1-{int(last) + 1}"))
    load.feed.catch_up(never())
    of_other = f"{uuid}:1-{int(last) + 1}"
    with pytest.raises(SourceError, match=f"transactions {of_other}, and the log has behind its place {uuid}:"):
        load.run()
    assert not load.feed.lake.tables() and not load.loaded()
    metadata.write_text(whole)
    load.feed.check(load.catch_up())
