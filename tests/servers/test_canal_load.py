"""A MySQL whose tables are dumped, or read, while they change, and the Canal that goes on: the lake has what SELECT
shows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.pipeline import progress
from cdc_lakehouse.pipeline.database_load import DatabaseDump
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sources.dump.contents import Dump
from cdc_lakehouse.sources.dump.database import Plan, directory_of, read_database_dump, read_document
from cdc_lakehouse.sources.object_store import ObjectStore, open_store
from tests.kit.kills import KillAtCall
from tests.kit.lakes import TestLake, run_all
from tests.servers.canal import StartCanal, executed
from tests.servers.canal_reader import Writer
from tests.servers.canal_workload import every_type
from tests.servers.mysql_dumps import dump
from tests.servers.test_canal_feed import GEOMETRIES, VIRTUAL, CanalFeed, never

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.usefixtures("impatient")]

READER = "reader"


class Load:
    """A feed that begins with a dump, which need not be there yet."""

    def __init__(
        self, new_lake: Callable[..., TestLake], writer: Writer, address: str, initial: dict[str, Any]
    ) -> None:
        self.feed = CanalFeed(new_lake, writer, address, initial=initial)
        self.writer = writer
        self.root = Path(self.feed.lake.lake.location(f"cdc_{self.feed.lake.name}", "initial").removeprefix("file://"))

    def run(self, **options: Any) -> Steps:
        return run_all(self.feed.lake.run(**options))

    def land(self) -> None:
        self.feed.catch_up(never())

    def catch_up(self) -> Steps:
        self.land()
        return self.run()

    def check_nothing_to_do(self) -> None:
        before = self.feed.lake.metadata()
        assert self.run().loaded.commit_ts is None and self.feed.lake.metadata() == before

    def check(self, done: Steps) -> None:
        self.feed.check(done, left_out=(*GEOMETRIES, *VIRTUAL))

    def loaded(self) -> list[dict[str, Any]]:
        return [event for event in self.feed.lake.machinery("events") if event["op"] == "R"]

    @property
    def store(self) -> ObjectStore:
        return open_store(self.root.as_uri(), StorageConfig())

    def read(self, number: int = 1) -> Dump:
        return read_database_dump(self.store, number)


def of_database(writer: Writer) -> dict[str, Any]:
    """The database itself, of which a user reads that may do nothing else."""
    writer.run(
        f"DROP USER IF EXISTS {READER}@'%'", f"CREATE USER {READER}@'%'",
        f"GRANT SELECT ON *.* TO {READER}@'%'", f"GRANT REPLICATION CLIENT ON *.* TO {READER}@'%'",
    )  # fmt: skip
    url = f"mysql://{READER}@127.0.0.1:{writer.mysql.port}"
    return {"type": "database", "url": url, "chunk_rows": 30, "connections": 2}


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


@pytest.mark.in_turn
def test_dump_and_what_is_written_meanwhile_are_true(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    writer.begin()
    fill(writer)
    root = tmp_path / "snapshot"
    load = Load(new_lake, writer, start_canal().address, {"type": "mydumper", "uri": str(root)})
    # Canal has seen these before the dump: they count for nothing behind it.
    writer.run("DROP TABLE gone", "INSERT INTO still VALUES (3, 'a')", "ALTER TABLE still ADD COLUMN w INT DEFAULT 5")
    with Writes(writer) as writes:
        dump(writer.mysql, ["d"], root)
    assert writes.count
    writer.run(
        "DELETE FROM still WHERE id = 1", "UPDATE still SET w = 6 WHERE id = 2", "INSERT INTO bare VALUES (1)",
        "ALTER TABLE t ADD COLUMN m INT NOT NULL DEFAULT 3", "INSERT INTO t VALUES (1001, 'last', 1, 2)",
        "CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1)",
    )  # fmt: skip
    done = load.catch_up()
    load.check(done)
    assert done.loaded.commit_ts is not None and load.loaded()
    cuts = sorted({row["checkpoint_ts"] for row in load.feed.lake.machinery("checkpoints")})
    assert cuts[0] == done.loaded.commit_ts < cuts[1] and len(cuts) == 2
    load.check_nothing_to_do()


@pytest.mark.in_turn
def test_canal_started_at_a_dump_is_known_by_gtids(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    """A dump of another server, whose binlog files are called alike, is refused."""
    writer.begin()
    fill(writer)
    root = tmp_path / "snapshot"
    dump(writer.mysql, ("d",), root)
    gtids = executed(writer.mysql)
    initial = {"type": "mydumper", "uri": str(root), "log_starts_at_dump": True}
    load = Load(new_lake, writer, start_canal(gtids=gtids).address, initial)
    assert "the log is" not in (waits := load.run().loaded.waits or "") and "nothing of it has landed" in waits
    writer.run("INSERT INTO still VALUES (4, 'a')")
    uuid, _, last = gtids.partition(":1-")
    metadata = root / "metadata"
    whole = metadata.read_text()
    metadata.write_text(whole.replace(gtids, f"{uuid}:1-{int(last) + 1}"))
    load.land()
    of_other = f"{uuid}:1-{int(last) + 1}"
    with pytest.raises(SourceError, match=f"transactions {of_other}, and the log has behind its place {uuid}:"):
        load.run()
    assert not load.feed.lake.tables() and not load.loaded()
    metadata.write_text(whole)
    load.check(load.catch_up())


@pytest.fixture
def load(writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake]) -> Load:
    """With tables that Canal has not seen, but for one change; one has each type."""
    writer.begin()
    every_type(writer)
    fill(writer)
    writer.run(
        "CREATE TABLE `ke%y` (`a%` VARCHAR(20) COLLATE utf8mb4_0900_ai_ci, b DECIMAL(8,2), c DATETIME, "
        "n INT, PRIMARY KEY (`a%`, b, c))",
        *(f"INSERT INTO `ke%y` VALUES ('{'aÀbB%'[n % 5]}{n % 7}', {n % 3}.5, '2024-01-0{n % 9 + 1}', {n})"
          for n in range(120)),
        "CREATE TABLE bytes (k VARBINARY(8) PRIMARY KEY, v INT)",
        *(f"INSERT INTO bytes VALUES (x'{n * 7919 % 65536:04x}', {n})" for n in range(90)),
    )  # fmt: skip
    found = Load(new_lake, writer, start_canal().address, of_database(writer))
    # Where the log begins is not known yet: nothing is read.
    assert "nothing of it has landed" in (found.run().loaded.waits or "") and not found.root.exists()
    writer.run("INSERT INTO still VALUES (7, 'a')")
    return found


@pytest.mark.in_turn
def test_table_that_cannot_be_read_is_held_alone(load: Load, writer: Writer) -> None:
    """With what the server said, until it is loaded by itself."""
    writer.run(f"REVOKE REPLICATION CLIENT ON *.* FROM {READER}@'%'", f"ALTER USER {READER}@'%' IDENTIFIED BY 'hush'")
    initial = load.feed.lake.feed.canal.initial
    assert initial is not None and initial.url is not None
    load.feed.configure(initial=initial.model_copy(update={"url": initial.url.replace("@", ":hush@")}))
    load.land()
    with pytest.raises(SourceError, match="grant the user REPLICATION CLIENT") as raised:
        load.run()
    assert "hush" not in str(raised.value) and "hush" not in repr(load.feed.lake.config)
    assert not load.feed.lake.tables() and not load.loaded()
    readable = ("t", "still", "bare", "gone", "ke%y", "types")
    writer.run(
        f"GRANT REPLICATION CLIENT ON *.* TO {READER}@'%'", f"REVOKE SELECT ON *.* FROM {READER}@'%'",
        *(f"GRANT SELECT ON d.`{table}` TO {READER}@'%'" for table in readable),
        f"GRANT INSERT, SHOW VIEW ON d.bytes TO {READER}@'%'",
    )  # fmt: skip
    done = load.catch_up()
    done = load.catch_up() if done.loaded.waits is not None else done
    ((table, reason),) = done.applied.held.items()
    assert table == "d.bytes" and "SELECT command denied" in reason
    assert "cdc-lakehouse load --table d.bytes" in reason
    assert {name for _, name in load.feed.lake.tables()} == set(writer.tables()) - {"bytes"}
    writer.run(f"GRANT SELECT ON d.bytes TO {READER}@'%'", "INSERT INTO bytes VALUES (x'ff', 7)")
    load.land()
    load.run(reload_tables=frozenset({"d.bytes"}))
    writer.run("INSERT INTO bytes VALUES (x'fe', 8)")
    load.check(load.catch_up())


@pytest.mark.in_turn
def test_tables_that_change_are_loaded_true(
    load: Load, writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_READING_SECONDS", 0.1)
    caplog.set_level("INFO", logger="cdc_lakehouse")
    load.land()
    with Writes(writer, 0.05) as writes:
        writer.run("UPDATE `ke%y` SET `a%` = CONCAT(`a%`, 'z') WHERE n % 4 = 0", "DELETE FROM bytes WHERE v < 9")
        first = load.run()
    assert writes.count and first.loaded.waits is not None and not load.feed.lake.tables()
    assert " of about " in caplog.text and " ranges" in caplog.text
    writer.run("INSERT INTO bare VALUES (1)")
    done = load.catch_up()
    load.check(done)
    read = load.read()
    assert read.position != read.until and len(load.loaded()) == sum(each.rows or 0 for each in read.tables)
    assert all(len(each.files) > 2 for each in read.tables if each.name.table in ("t", "ke%y", "bytes"))
    cuts = sorted({row["checkpoint_ts"] for row in load.feed.lake.machinery("checkpoints")})
    assert cuts[0] == done.loaded.commit_ts and min(event["commit_ts"] for event in load.loaded()) < cuts[0]
    load.check_nothing_to_do()
    # Once more, of a table alone.
    writer.run("UPDATE still SET e = 'b'", "DELETE FROM still WHERE id = 7")
    load.land()
    again = load.run(reload_tables=frozenset({"d.still"}))
    writer.run("INSERT INTO still VALUES (8, 'b')")
    load.land()
    if again.loaded.waits is not None:
        again = load.run(reload_tables=frozenset({"d.still"}))
    assert [each.name.table for each in load.read(2).tables] == ["still"] and again.loaded.commit_ts is not None
    load.check(load.run())


@pytest.mark.in_turn
def test_table_dropped_while_it_is_read_is_left_out(
    load: Load, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else has changed: no other round of reading follows."""
    real = vars(DatabaseDump)["_read_ranges"]

    def read(dump: DatabaseDump, *arguments: Any) -> None:
        real(dump, *arguments)
        writer.run("DROP TABLE IF EXISTS gone")

    monkeypatch.setattr(DatabaseDump, "_read_ranges", read)
    load.catch_up()
    load.check(load.catch_up())


@pytest.mark.in_turn
def test_killed_load_goes_on_among_statements(load: Load, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no range again. Statements come after the rows of a round are there, and before it is known that the
    tables are the same."""
    load.land()
    with KillAtCall(DatabaseDump, "_end", 1, after=False)(load.feed.lake) as killed:
        load.run()
    assert killed.happened and not load.loaded()
    # Of one range, what a task that died leaves.
    directory = load.root / directory_of(1, read_document(load.store, 1, Plan).tables["d.ke%y"].directory)
    lost = next(directory.glob("000000001-*.done"))
    lost.unlink()
    names = set(directory.glob("*.done"))
    writer.run("DELETE FROM t WHERE id % 2 = 0", "UPDATE t SET v = 'later'")
    real, rounds = vars(DatabaseDump)["_read_ranges"], iter([
        ("ALTER TABLE t ADD COLUMN m INT NOT NULL DEFAULT 3, DROP COLUMN n", "UPDATE t SET m = id",
         "RENAME TABLE still TO moved", "INSERT INTO moved VALUES (9, 'b')", "TRUNCATE TABLE bytes",
         "INSERT INTO bytes VALUES (x'ff', 1)", "DROP TABLE gone", "CREATE TABLE made (id INT PRIMARY KEY)",
         "INSERT INTO made VALUES (1)"),
        ("ALTER TABLE moved ADD COLUMN w INT", "INSERT INTO t (id, v, m) VALUES (900, 'late', 1)"),
    ])  # fmt: skip

    def read(dump: DatabaseDump, *arguments: Any) -> None:
        real(dump, *arguments)
        writer.run(*next(rounds, ()))

    monkeypatch.setattr(DatabaseDump, "_read_ranges", read)
    load.land()
    load.run()
    at = {each.name.table: each.position for each in load.read().tables}
    positions = {name: position.log_offset or 0 for name, position in at.items() if position is not None}
    assert positions["bare"] < positions["t"] < positions["moved"] and "gone" not in positions
    (new,) = set(directory.glob("*.done")) - names
    assert new.name.startswith("000000001-") and new.name != lost.name
    writer.run("INSERT INTO bare VALUES (1)", "ALTER TABLE t DROP COLUMN v", "UPDATE moved SET w = 4")
    load.check(load.catch_up())
