"""A real Canal 1.1.7 before a real MySQL 8.0: what it gives (`cases/canal.txt`) and refuses; and feeds of it, which can
begin with a dump or with the database, while that changes: tables of the lake have what SELECT shows."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pymysql.converters
import pytest

from cdc_lakehouse import config
from cdc_lakehouse.changelog.events import MessageError, RowChange
from cdc_lakehouse.changelog.schema import quoted
from cdc_lakehouse.config import CanalSource, StorageConfig
from cdc_lakehouse.decoders.formats import canal_entries
from cdc_lakehouse.errors import CdcError, SourceError
from cdc_lakehouse.pipeline import database_load
from cdc_lakehouse.pipeline.database_load import DatabaseDump
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sources.canal import client
from cdc_lakehouse.sources.canal.client import CanalClient, CanalRedeliveryError, CanalRefusedError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.dump.contents import Dump
from cdc_lakehouse.sources.dump.database import Plan, directory_of, read_database_dump, read_document
from cdc_lakehouse.sources.object_store import ObjectStore, open_store
from tests import LONG
from tests.commands import call
from tests.kit.case_files import Case, read_cases
from tests.kit.dumps import DumpTable, mydumper
from tests.kit.kills import Kill, KillAtCall, KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.kit.processes import free_port, running
from tests.kit.waiting import until
from tests.servers import tools
from tests.servers.mysql import WORKLOAD, MySqlServer, Session, Writer, every_type

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.usefixtures("impatient")]

# --- The server ---

DESTINATION: Final = "example"
USER, PASSWORD = "reader", "reader-secret-51c0"


@dataclass(frozen=True)
class CanalServer:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def source(self, **other: Any) -> CanalSource:
        own = {"addresses": [self.address], "destination": DESTINATION, "user": USER, "password": PASSWORD}
        return CanalSource.model_validate({"type": "canal", **own, **other})


StartCanal = Callable[..., CanalServer]


@contextlib.contextmanager
def canal_server(
    directory: Path, mysql: MySqlServer, begin: tuple[str, int], *, port: int | None = None, zone: str = "UTC",
    gtids: str | None = None,
) -> Iterator[CanalServer]:  # fmt: skip
    """Reads from `begin`, or with GTIDs from after a set of them, where `directory` does not hold how far it came."""
    port = port or free_port()
    directory.mkdir(exist_ok=True)
    said = {
        "port": port, "destination": DESTINATION, "mysqlPort": mysql.port, "mysqlUser": "canal",
        "mysqlPassword": "canal", "dataDir": directory, "user": USER, "password": PASSWORD,
        "position": json.dumps({"journalName": begin[0], "position": begin[1], "gtid": gtids}),
        "gtid": "true" if gtids else "false",
    }  # fmt: skip
    command = [*tools.canal("CanalServer"), *(f"{name}={value}" for name, value in said.items())]
    with running(command, port, directory / "log", {**os.environ, "TZ": zone}) as process:
        yield CanalServer(port, process)


@pytest.fixture
def start_canal(mysql: MySqlServer, tmp_path: Path) -> Iterator[StartCanal]:
    """Starts a Canal that reads what comes from now on; one of the same name is that one started again. They end with
    the test."""
    begins: dict[str, tuple[str, int]] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str = "canal", **options: Any) -> CanalServer:
            begin = begins.setdefault(name, mysql.binlog_end())
            return stack.enter_context(canal_server(tmp_path / name, mysql, begin, **options))

        yield start


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not wait long for a Canal that cannot be reached."""
    monkeypatch.setattr("cdc_lakehouse.pipeline.canal._PATIENCE_SECONDS", 0.5)


# --- What it gives ---


def read(client: CanalClient, mark: int) -> list[bytes]:
    """Each entry once, by its place in the binlog, until the mark has come and is acknowledged."""
    entries: dict[tuple[str, int], bytes] = {}
    while True:
        with contextlib.suppress(CanalRedeliveryError):
            if (batch := client.get(wait_seconds=0.2)) is None:
                continue
            for entry in batch.entries:
                header = wire.Entry.FromString(entry).header
                entries.setdefault((header.logfile_name, header.logfile_offset), entry)
            client.ack(batch)
            if holds(batch.entries, mark):
                return list(entries.values())


def changes(entries: Iterable[bytes], table: str) -> list[RowChange]:
    parts = itertools.chain.from_iterable(canal_entries.decode(entry).parts for entry in entries)
    return [part for part in parts if isinstance(part, RowChange) and part.table == table]


def holds(entries: Iterable[bytes], mark: int) -> bool:
    for entry in entries:
        with contextlib.suppress(MessageError):
            if any(change.after == {"n": str(mark)} for change in changes([entry], "m")):
                return True
    return False


@pytest.fixture(scope="module")
def canal(mysql: MySqlServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    with canal_server(tmp_path_factory.mktemp("canal"), mysql, mysql.binlog_end()) as server:
        yield server


@pytest.mark.in_turn
@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/canal.txt"), ids=str)
def test_rows_are_given_as_written(case: Case, canal: CanalServer, writer: Writer, update: bool) -> None:
    with CanalClient(canal.source()) as client:
        writer.begin()
        writer.run(*case.given)
        entries = read(client, writer.mark())
    try:
        rows = changes(entries, "t")
        images = [[each.op, *filter(None, (each.before, each.after))] for each in rows]
        found = [" ".join(each if isinstance(each, str) else json.dumps(each) for each in parts) for parts in images]
        assert all(each.key == ("id",) for each in rows)
    except MessageError as error:
        found = [f"error: {error}"]
    case.compare(found, update=update)


def test_canals_own_options_count(writer: Writer, start_canal: StartCanal) -> None:
    """Its time zone for TIMESTAMP, the whole set of GTIDs that are executed, and a filter."""
    uuid, _, last = writer.mysql.executed().partition(":1-")
    server = start_canal(zone="Asia/Shanghai", gtids=f"{uuid}:1-{last}")
    with CanalClient(server.source(filter=r"d\.t,marks\..*")) as client:
        writer.begin()
        writer.run(
            "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, dt DATETIME)", "CREATE TABLE left_out (a INT)",
            "INSERT INTO left_out VALUES (1)", "SET time_zone = '-05:00'",
            "INSERT INTO t VALUES (1, '2024-06-30 12:00:00', '2024-06-30 12:00:00')",
        )  # fmt: skip
        entries = read(client, writer.mark())
    (change,) = changes(entries, "t")
    assert change.after == {"id": "1", "ts": "2024-07-01 01:00:00", "dt": "2024-06-30 12:00:00"}
    assert not changes(entries, "left_out")
    (gtid,) = {message.origin.gtid for message in map(canal_entries.decode, entries) if change in message.parts}
    assert gtid == f"{uuid}:1-{int(last) + 6}"


@pytest.mark.in_turn
def test_what_comes_after_another_clients_batch_is_not_taken(canal: CanalServer, writer: Writer) -> None:
    writer.begin()
    writer.run("CREATE TABLE t (id INT PRIMARY KEY)", *(f"INSERT INTO t VALUES ({id})" for id in range(100)))
    with CanalClient(canal.source(batch_size=1)) as client, CanalClient(canal.source(batch_size=1)) as other:
        first, taken = (next(filter(None, (each.get() for _ in range(60)))) for each in (client, other))
        assert taken.entries[0] == first.entries[0]
        with pytest.raises(CanalRedeliveryError, match="another client of the Canal server"):
            client.get()
        again = client.get()
        assert again is not None and again.entries[0] == first.entries[0]
    with CanalClient(canal.source()) as client:
        # What is left is no part of the next test.
        read(client, writer.mark())


def test_refusals_are_reported_without_a_secret(canal: CanalServer) -> None:
    for other, words in (
        ({"password": "wrong-secret"}, r"refuses the user: error 400, auth failed for user:reader"),
        ({"user": None, "password": None}, r"refuses the user: error 400"),
        ({"destination": "nosuch"}, r"refuses the destination nosuch: error 400"),
    ):
        with CanalClient(canal.source(**other)) as client, pytest.raises(CanalRefusedError, match=words) as caught:
            client.get()
        assert "secret" not in str(caught.value)


def test_init_writes_a_canal_server_without_its_password(canal: CanalServer, here: Path) -> None:
    result = call("init", "--source", f"canal://{USER}:{PASSWORD}@{canal.address}/{DESTINATION}")
    assert result.exit_code == 0, result.output
    written = (here / "lakehouse.yaml").read_text(encoding="utf-8")
    assert "password: ${CANAL_PASSWORD}" in written and "CANAL_PASSWORD" in result.output
    source = config.load(here / "lakehouse.yaml", {"CANAL_PASSWORD": PASSWORD}).feeds[0].canal
    assert (source.user, source.password, source.addresses) == (USER, PASSWORD, (canal.address,))


# --- Feeds ---

NOT_THE_SAME = ("p", "ge", "vi")
"""Geometries, and the column that is virtual."""
READER = "reader"
NO_KILLS: Final = itertools.repeat(None)


class CanalFeed:
    def __init__(self, new_lake: Callable[..., TestLake], writer: Writer, address: str, **source: Any) -> None:
        told = {"type": "canal", "addresses": [address], "destination": DESTINATION, "user": USER, "batch_size": 10}
        tables = {"include": ["d.*", "d2.*"]}
        self.lake = new_lake(source={**told, **source}, start_date="2020-01-01", tables=tables)
        self.writer = writer
        self.kills = 0
        self.root = Path(self.lake.lake.location(f"cdc_{self.lake.name}", "initial").removeprefix("file://"))
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

    def landed(self) -> list[dict[str, Any]]:
        return sorted(self.lake.machinery("records"), key=lambda row: row["offset"])

    def land_all(self, kills: Iterator[Kill | None] = NO_KILLS) -> None:
        mark = self.writer.mark()
        with pytest.MonkeyPatch.context() as patch:
            # What Canal has not read by then comes with the next landing.
            patch.setattr(client, "_WAIT_SECONDS", 0.2)
            for kill in kills:
                self.land(kill)
                if holds((row["value"] for row in self.landed()), mark):
                    return

    def run(self, **options: Any) -> Steps:
        return run_all(self.lake.run(**options))

    def catch_up(self) -> Steps:
        self.land_all()
        return self.run()

    def check(self, done: Steps, *, held: tuple[str, ...] = ()) -> None:
        assert {done.applied.lives[id].last.name.table for id in done.applied.held} == set(held), done.applied.held
        self.writer.check(self.lake, held=held, left_out=NOT_THE_SAME)
        keys = Counter(tuple(json.loads(row["key"])[:-1]) for row in self.landed())
        assert keys and max(keys.values()) == 1
        assert [row["offset"] for row in self.landed()] == list(range(len(keys)))

    def loaded(self) -> list[dict[str, Any]]:
        return [event for event in self.lake.machinery("events") if event["op"] == "R"]

    def cuts(self) -> list[int]:
        return sorted({row["checkpoint_ts"] for row in self.lake.machinery("checkpoints")})

    @property
    def store(self) -> ObjectStore:
        return open_store(self.root.as_uri(), StorageConfig())

    def read(self, number: int = 1) -> Dump:
        return read_database_dump(self.store, number)


def kills(chance: random.Random) -> Iterator[Kill | None]:
    """A few, then none."""
    return itertools.chain((kill_of_landing(chance) for _ in range(chance.randint(1, 3))), NO_KILLS)


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
    for number, step in enumerate(WORKLOAD["ddl among rows"]):
        writer.run(*step.split("; "))
        feed.land_all(*[kills(chance)] * (number % 2))
        if number % 6 == 5:
            with KillAtCommit(chance.randint(1, 5))(feed.lake) as killed:
                feed.run()
            assert killed.happened
    assert feed.kills > 6
    # The last run is one without an accident.
    feed.writer.run("INSERT INTO b VALUES (77, 'last', 1)")
    feed.check(feed.catch_up(), held=("nokey",))


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
    feed.land_all()
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
            # Canal may not have read it yet.
            kill, before = kill_of_landing(chance), feed.kills
            until(lambda kill=kill, before=before: feed.land(kill) or feed.kills > before)
    feed.configure(addresses=(server.address, other.address))
    feed.land_all(kills(chance))
    feed.check(feed.run())


def test_values_under_names_of_newer_columns_hold_a_table(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake]
) -> None:
    """Canal was behind with a statement after which a table has the same columns in another order."""
    server = start_canal()
    feed = CanalFeed(new_lake, writer, server.address)
    server.process.kill()
    server.process.wait()
    writer.begin()
    writer.run(*WORKLOAD["behind Canal"])
    start_canal(port=server.port)
    done = feed.catch_up()
    feed.check(done, held=("t",))
    (reason,) = done.applied.held.values()
    assert "rows have the columns in the order id, w, v, and the table has id, v, w" in reason and "tsdb" in reason


# --- Feeds that begin with a dump, or with the database ---


def dump(mysql: MySqlServer, root: Path) -> None:
    """A dump of database `d`, as mydumper writes it; bytes of all values as the server has them."""
    tables: list[DumpTable] = []
    lock, session = Session(mysql), Session(mysql, conv=pymysql.converters.encoders, use_unicode=False)
    lock.run("FLUSH TABLES WITH READ LOCK")
    session.run("SET NAMES binary", "SET time_zone = '+00:00'", "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    (file, offset), gtid = mysql.binlog_end(), mysql.executed()
    lock.run("UNLOCK TABLES")
    for name in [row[0].decode() for row in session.run("SHOW TABLES FROM d")]:
        of = f"d.{quoted(name)}"
        statement = session.run(f"SHOW CREATE TABLE {of}")[0][1].decode()
        shown = {row[0].decode(): row[5].decode() for row in session.run(f"SHOW COLUMNS FROM {of}")}
        columns = {column: "x AS (x)" if "GENERATED" in extra else "x" for column, extra in shown.items()}
        own = [quoted(column) for column, kind in columns.items() if kind == "x"]
        rows = session.run(f"SELECT {', '.join(own)} FROM {of}")
        tables.append(DumpTable("d", name, columns, rows, statement=statement))
    session.run("COMMIT")
    status = f"SHOW MASTER STATUS:\n\tLog: {file}\n\tPos: {offset}\n\tGTID:{gtid}\n"
    began, ended = "Started dump at: 2026-06-10 01:02:03", "Finished dump at: 2026-06-10 01:02:09"
    mydumper(root, tables, text_metadata=f"{began}\n{status}\n{ended}\n")


def of_database(writer: Writer) -> dict[str, Any]:
    """The database itself, of which a user reads that may do nothing else."""
    writer.run(
        f"DROP USER IF EXISTS {READER}@'%'", f"CREATE USER {READER}@'%'",
        f"GRANT SELECT ON *.* TO {READER}@'%'", f"GRANT REPLICATION CLIENT ON *.* TO {READER}@'%'",
    )  # fmt: skip
    url = f"mysql://{READER}@127.0.0.1:{writer.mysql.port}"
    return {"type": "database", "url": url, "chunk_rows": 30, "connections": 2}


@contextlib.contextmanager
def writes(writer: Writer, pause_seconds: float = 0) -> Iterator[list[int]]:
    """Goes on writing from beginning to end of the block."""
    own, end, done = Writer(writer.mysql, "d"), threading.Event(), list[int]()
    own.run("USE d")

    def write() -> None:
        chance = random.Random(7)
        while not end.wait(pause_seconds):
            change(own, chance, 1)
            done.append(1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()


@pytest.mark.in_turn
def test_dump_and_what_is_written_meanwhile_are_true(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    writer.begin()
    writer.run(*WORKLOAD["fill"])
    root = tmp_path / "snapshot"
    load = CanalFeed(new_lake, writer, start_canal().address, initial={"type": "mydumper", "uri": str(root)})
    writer.run(*WORKLOAD["before the dump"])
    with writes(writer) as written:
        dump(writer.mysql, root)
    assert written
    writer.run(*WORKLOAD["after the dump"])
    done = load.catch_up()
    load.check(done)
    assert done.loaded.commit_ts is not None and load.loaded()
    first, last = load.cuts()
    assert first == done.loaded.commit_ts < last
    load.lake.check_nothing_to_do()


@pytest.mark.in_turn
def test_canal_started_at_a_dump_is_known_by_gtids(
    writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    """A dump of another server, whose binlog files are called alike, is refused."""
    writer.begin()
    writer.run(*WORKLOAD["fill"])
    root = tmp_path / "snapshot"
    dump(writer.mysql, root)
    gtids = writer.mysql.executed()
    initial = {"type": "mydumper", "uri": str(root), "log_starts_at_dump": True}
    load = CanalFeed(new_lake, writer, start_canal(gtids=gtids).address, initial=initial)
    assert "the log is" not in (waits := load.run().loaded.waits or "") and "nothing of it has landed" in waits
    writer.run("INSERT INTO still VALUES (4, 'a')")
    uuid, _, last = gtids.partition(":1-")
    metadata, of_other = root / "metadata", f"{uuid}:1-{int(last) + 1}"
    whole = metadata.read_text()
    metadata.write_text(whole.replace(gtids, of_other))
    load.land_all()
    with pytest.raises(SourceError, match=f"transactions {of_other}, and the log has behind its place {uuid}:"):
        load.run()
    assert not load.lake.tables() and not load.loaded()
    metadata.write_text(whole)
    load.check(load.catch_up())


@pytest.fixture
def load(writer: Writer, start_canal: StartCanal, new_lake: Callable[..., TestLake]) -> CanalFeed:
    """With tables that Canal has not seen, but for one change; one has each type."""
    writer.begin()
    every_type(writer)
    writer.run(*WORKLOAD["fill"], *WORKLOAD["odd keys"])
    found = CanalFeed(new_lake, writer, start_canal().address, initial=of_database(writer))
    # Where the log begins is not known yet: nothing is read.
    assert "nothing of it has landed" in (found.run().loaded.waits or "") and not found.root.exists()
    writer.run("INSERT INTO still VALUES (7, 'a')")
    return found


@pytest.mark.in_turn
def test_table_that_cannot_be_read_is_held_alone(load: CanalFeed, writer: Writer) -> None:
    """With what the server said, until it is loaded by itself."""
    writer.run(f"REVOKE REPLICATION CLIENT ON *.* FROM {READER}@'%'", f"ALTER USER {READER}@'%' IDENTIFIED BY 'hush'")
    initial = load.lake.feed.canal.initial
    assert initial is not None and initial.url is not None
    load.configure(initial=initial.model_copy(update={"url": initial.url.replace("@", ":hush@")}))
    load.land_all()
    with pytest.raises(SourceError, match="grant the user REPLICATION CLIENT") as raised:
        load.run()
    assert "hush" not in str(raised.value) and "hush" not in repr(load.lake.config)
    assert not load.lake.tables() and not load.loaded()
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
    assert {name for _, name in load.lake.tables()} == writer.tables() - {"bytes"}
    writer.run(f"GRANT SELECT ON d.bytes TO {READER}@'%'", "INSERT INTO bytes VALUES (x'ff', 7)")
    load.land_all()
    load.run(reload_tables=frozenset({"d.bytes"}))
    writer.run("INSERT INTO bytes VALUES (x'fe', 8)")
    load.check(load.catch_up())


@pytest.mark.in_turn
def test_tables_that_change_are_loaded_true(
    load: CanalFeed, writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is dropped meanwhile is left out, and no other round of reading follows."""
    real, rounds = vars(DatabaseDump)["_read_ranges"], list[int]()

    def read(dump: DatabaseDump, *arguments: Any) -> None:
        real(dump, *arguments)
        rounds.append(1)
        writer.run("DROP TABLE IF EXISTS gone")

    monkeypatch.setattr(DatabaseDump, "_read_ranges", read)
    monkeypatch.setattr(database_load, "_REPORTED_SECONDS", 0.1)
    caplog.set_level("INFO", logger="cdc_lakehouse")
    load.land_all()
    with writes(writer, 0.05) as written:
        writer.run("UPDATE `ke%y` SET `a%` = CONCAT(`a%`, 'z') WHERE n % 4 = 0", "DELETE FROM bytes WHERE v < 9")
        first = load.run()
    assert written and first.loaded.waits is not None and not load.lake.tables()
    assert " of about " in caplog.text and " ranges" in caplog.text
    writer.run("INSERT INTO bare VALUES (1)")
    done = load.catch_up()
    load.check(done)
    assert rounds == [1]
    read = load.read()
    assert read.position != read.until and len(load.loaded()) == sum(each.rows or 0 for each in read.tables)
    assert all(len(each.files) > 2 for each in read.tables if each.name.table in ("t", "ke%y", "bytes"))
    assert min(event["commit_ts"] for event in load.loaded()) < load.cuts()[0] == done.loaded.commit_ts
    load.lake.check_nothing_to_do()
    # Once more, of a table alone.
    writer.run("UPDATE still SET e = 'b'", "DELETE FROM still WHERE id = 7")
    load.land_all()
    again = load.run(reload_tables=frozenset({"d.still"}))
    writer.run("INSERT INTO still VALUES (8, 'b')")
    load.land_all()
    if again.loaded.waits is not None:
        again = load.run(reload_tables=frozenset({"d.still"}))
    assert [each.name.table for each in load.read(2).tables] == ["still"] and again.loaded.commit_ts is not None
    load.check(load.run())


@pytest.mark.in_turn
def test_killed_load_goes_on_among_statements(load: CanalFeed, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no range again. Statements come after the rows of a round are there, and before it is known that the
    tables are the same."""
    load.land_all()
    with KillAtCall(DatabaseDump, "_end", 1, after=False)(load.lake) as killed:
        load.run()
    assert killed.happened and not load.loaded()
    # Of one range, what a task that died leaves.
    directory = load.root / directory_of(1, read_document(load.store, 1, Plan).tables["d.ke%y"].directory)
    lost = next(directory.glob("000000001-*.done"))
    lost.unlink()
    names = set(directory.glob("*.done"))
    writer.run("DELETE FROM t WHERE id % 2 = 0", "UPDATE t SET v = 'later'")
    real, rounds = vars(DatabaseDump)["_read_ranges"], iter((WORKLOAD["first round"], WORKLOAD["second round"]))

    def read(dump: DatabaseDump, *arguments: Any) -> None:
        real(dump, *arguments)
        writer.run(*next(rounds, ()))

    monkeypatch.setattr(DatabaseDump, "_read_ranges", read)
    load.land_all()
    load.run()
    at = {each.name.table: each.position for each in load.read().tables}
    positions = {name: position.log_offset or 0 for name, position in at.items() if position is not None}
    assert positions["bare"] < positions["t"] < positions["moved"] and "gone" not in positions
    (new,) = set(directory.glob("*.done")) - names
    assert new.name.startswith("000000001-") and new.name != lost.name
    writer.run("INSERT INTO bare VALUES (1)", "ALTER TABLE t DROP COLUMN v", "UPDATE moved SET w = 4")
    load.check(load.catch_up())


# --- The playground of deploy/ ---

PLAYGROUND: Final = Path(__file__).parents[2] / "deploy/playground"


def of_playground(name: str) -> list[str]:
    """A file's statements, without those of a user that the tests' Canal has already."""
    found = (PLAYGROUND / name).read_text(encoding="utf-8").split(";")
    return [each for each in found if each.strip() and "canal" not in each]


@pytest.mark.in_turn
def test_playground_has_the_rows_of_its_mysql(
    mysql: MySqlServer, start_canal: StartCanal, new_lake: Callable[..., TestLake]
) -> None:
    address, url = start_canal().address, f"mysql://reader:reader@127.0.0.1:{mysql.port}"
    shop = Writer(mysql, "shop")
    shop.run("DROP DATABASE IF EXISTS shop", f"DROP USER IF EXISTS {READER}", *of_playground("shop.sql"), "USE shop")
    load = CanalFeed(new_lake, shop, address, initial={"type": "database", "url": url.replace(":reader@", "@")})
    lake, own = load.lake, load.lake.feed
    unused = ("ICEBERG_PG_USERNAME", "ICEBERG_PG_PASSWORD", "ICEBERG_PG_HOST", "ICEBERG_PG_PORT", "ICEBERG_PG_DB",
              "S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY")  # fmt: skip
    environment = {**dict.fromkeys(unused, "http://x"), "MYSQL_URL": url, "CANAL_ADDRESS": address}
    (feed,) = config.load(PLAYGROUND / "lakehouse.yaml", {**environment, "CANAL_DESTINATION": DESTINATION}).feeds
    source = feed.canal.model_copy(update={"user": USER, "password": PASSWORD})
    changed = {"name": own.name, "namespace": own.namespace, "source": source}
    lake.config = lake.config.model_copy(update={"feeds": (feed.model_copy(update=changed),)})
    load.catch_up()
    for _ in range(3):
        shop.run(*of_playground("day.sql"))
    load.catch_up()
    assert shop.tables() == {"customers", "orders"} and len(load.loaded()) >= 110
    shop.check(lake)
