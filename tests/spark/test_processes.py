"""Runs in processes of their own that are killed or come together, and a run that comes at a moment which `beside` of
the scenarios does not choose. The lease keeps runs apart; where it is not asked, it is seen that no commit is blind.
Two feeds in one catalog are parts of one change log in one namespace: whatever one does between two commits of the
other, or at the same time, every table is right, and neither waits for the other."""

import datetime
import itertools
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.events import Events
from cdc_lakehouse.lake.tables.lease import LEASE, Lease, last_holder
from tests import TURN
from tests.kit.changefeed import Changefeed
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, PARTITIONED, T0, HandSink
from tests.kit.kills import before_commit, hold_commit, open_catalog
from tests.kit.lakes import NewLake, TestLake, check_events, run_all
from tests.kit.log import Column, Ddl, RowChange, fold, seen
from tests.kit.processes import command_of, descendants, in_session, started, state_of
from tests.kit.waiting import until

pytestmark = pytest.mark.spark

RUN = [str(Path(sys.executable).with_name("cdc-lakehouse")), "run"]

ROWS = {"p": [(1, 1, "p3"), (2, 2, "p5"), (3, 3, "p7")], "u": [(1, 1, "u4"), (2, 2, "u6"), (3, 3, "u8")]}


@pytest.mark.parametrize("made", ["events", "p"])
def test_a_table_that_another_run_makes_meanwhile_is_there_once(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """The table is about to be made when the other run makes all."""
    lake = new_lake(source=CSV)
    HandSink(lake.sink).begin("p", "u", rows=3)
    real, calls = IcebergJavaApi.create, list[str]()

    def create(api: IcebergJavaApi, identifier: Identifier, *others: Any) -> None:
        calls.append(identifier.name)
        if identifier.name == made and calls.count(made) == 1:
            lake.go_through()
        real(api, identifier, *others)

    monkeypatch.setattr(IcebergJavaApi, "create", create)
    with pytest.raises(ConcurrentRunError):
        run_all(lake.run())
    assert sorted(calls) == sorted([made, "events", "p", "u"])
    assert len([name for name in lake.metadata() if not name.startswith("cdc_")]) == 2
    lake.go_through()
    assert lake.all_rows() == ROWS


def stop_between_commits(lake: TestLake, process: subprocess.Popen[str]) -> None:
    """Stopped in a commit, it would keep the catalog's database locked."""
    with open_catalog(lake, timeout=0) as catalog:
        while True:
            process.send_signal(signal.SIGSTOP)
            until(lambda: state_of(process.pid) == "T" or process.poll() is not None)
            try:
                catalog.executescript("BEGIN IMMEDIATE; ROLLBACK")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                time.sleep(0.05)
            else:
                return


@pytest.mark.in_turn
def test_two_processes_at_once(new_lake: NewLake, tmp_path: Path) -> None:
    """Two command lines with homes of their own: neither knows of the other but by the lake."""

    def start(lake: TestLake) -> subprocess.Popen[str]:
        places = {"CDC_LAKEHOUSE_CONFIG": str(lake.config_path), "DAGSTER_HOME": f"{tmp_path}/{next(homes)}"}
        output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        return subprocess.Popen(RUN, env={**os.environ, **places}, **output)

    homes = itertools.count()
    for _ in range(10):
        lake = new_lake(source=CSV)
        HandSink(lake.sink).begin("p", "u", rows=3)
        one = start(lake)
        until(lambda: last_holder(lake.lake, lake.name) is not None or one.poll() is not None)  # noqa: B023
        stop_between_commits(lake, one)  # So that it has not ended before the other asks.
        if one.poll() is None:
            break
        assert "published" in one.communicate()[0], "it was too fast for a busy machine, not wrong"
    else:
        pytest.fail("the first process was never stopped before its end")
    other = start(lake)
    refused = other.communicate()[0]
    one.send_signal(signal.SIGCONT)
    published = one.communicate()[0]
    assert (one.returncode, other.returncode) == (0, 1), published + refused
    assert "is not finished" in refused
    assert lake.all_rows() == ROWS
    with lake.without_changes():
        lake.go_through()


@pytest.mark.parametrize("asks", [True, False], ids=["it asks for its lease", "it does not"])
@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_run_that_outlives_its_lease_appends_nothing(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch, policy: str, asks: bool
) -> None:
    """It stands still before it commits a batch. Meanwhile another run cannot read one of the batch's files, decodes
    the other one in a later batch, and publishes."""
    lake = new_lake(source=CSV, policy={"quarantine": policy})
    (sink := HandSink(lake.sink)).begin("p", "u", rows=3)
    lake.go_through()
    unreadable = sink.put("p", 1, ("U", 11, 1, 10), index=2)
    sink.put("u", 2, ("U", 12, 1, 11), index=2)
    sink.checkpoint(19)
    real, over, calls = Events.commit, datetime.timedelta(), itertools.count()

    def now() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + over

    def commit(*arguments: Any) -> None:
        if next(calls) == 0:
            nonlocal over
            over = LEASE + datetime.timedelta(seconds=10)
            away = unreadable.rename(lake.sink.with_name("away"))
            unreadable.symlink_to(unreadable)
            run_all(lake.run())
            unreadable.unlink()
            away.rename(unreadable)
        real(*arguments)

    monkeypatch.setattr(Events, "commit", commit)
    lease = Lease(lake.lake, lake.name, "stopped", now)
    lease.take()
    with pytest.raises(ConcurrentRunError):
        run_all(lake.run(require_lease=lease.require) if asks else lake.run())
    lease.release()
    assert len(lake.machinery("events")) == 7
    lake.go_through()
    assert lake.all_rows() == {"p": [(1, 10, "p11"), *ROWS["p"][1:]], "u": [(1, 11, "u12"), *ROWS["u"][1:]]}
    places = [(event["segment"], event["line"]) for event in lake.machinery("events")]
    assert len(set(places)) == len(places) == 8


@pytest.mark.in_turn
def test_follow_continues_after_its_jvm_dies_and_ends_with_its_group(new_lake: NewLake, tmp_path: Path) -> None:
    """The JVM dies between two passes, then while one makes a commit. SIGTERM comes to the whole group in a pass."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)

    def write(number: int) -> None:
        sink.put("p", 1, ("I", 10 * number, number, number), index=number)
        sink.checkpoint(10 * number)

    def published(number: int) -> bool:
        return process.poll() is not None or lake.run().checkpoints.last().checkpoint_ts == T0 + 10 * number

    def kill_jvm() -> None:
        (jvm,) = [each for each in descendants(process.pid) if "SparkSubmit" in command_of(each)]
        os.kill(jvm, signal.SIGKILL)

    write(1)
    words = ["run", "--follow", "--interval", "0.5"]
    with started(lake.config_path, tmp_path / "home", *words) as process:
        until(lambda: published(1))
        kill_jvm()
        write(2)
        until(lambda: published(2))
        with hold_commit(lake, 3) as is_there:
            write(3)
            until(lambda: is_there() or process.poll() is not None)
            kill_jvm()
        write(4)
        until(lambda: published(4))
        assert lake.all_rows() == {"p": [(number, number, f"p{10 * number}") for number in (1, 2, 3, 4)]}
        with hold_commit(lake, 3) as is_there:
            write(5)
            until(lambda: is_there() or process.poll() is not None)
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(300) == 0, (tmp_path / "home.log").read_text()
        assert published(5) and lake.run().checkpoints.last().checkpoint_ts == T0 + 50, "the pass is whole"
        until(lambda: not in_session(process.pid))
        assert not in_session(process.pid), "the JVM outlives its run"


_FULL = """
mount -t tmpfs -o size=200k tmpfs lake && cdc-lakehouse run; echo "ended with $?"
cdc-lakehouse status
"""


@pytest.mark.in_turn
def test_full_disk_is_one_sentence_and_a_true_status(tmp_path: Path) -> None:
    """A file system of 200 KiB in a namespace of its own: the kernel refuses the write. That runs go on once there is
    room is played by chaos ("disk full")."""
    bin_directory = Path(sys.executable).parent
    places = {"CDC_LAKEHOUSE_CONFIG": str(tmp_path / "lakehouse.yaml"), "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    sample = ["cdc-lakehouse", "sample", "--directory", ".", "--days", "1", "--transactions", "60"]
    in_namespace: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, **places}, "text": True}
    subprocess.run(sample, **in_namespace, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "lake").mkdir()
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which(command[0]) is None or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("this user may not make a namespace of mounts")
    done = subprocess.run([*command, _FULL], **in_namespace, check=False, capture_output=True)
    said, _, status = done.stdout.partition("ended with ")
    assert re.fullmatch(
        r"feed shop\n  failed: lake\.warehouse is full: .*No space left.*: make room there \(CDC-\d+\)\n", said
    )
    assert status.startswith("1\nfeed shop: the last run failed\n"), done.stdout + done.stderr[-3000:]
    assert "No space left on device" in status and "published  none" in status
    assert "killed" not in status and "tries it again" not in status


TS = 450_000_000_000_000_000
NAMES = ("a", "b", "c", "d")


class Parts:
    """A change log of four tables, two to each feed. `advance` writes changes, DDL among them, for both."""

    def __init__(self, new_lake: NewLake, number: int) -> None:
        namespace = f"parts{number}__{{database}}"
        self.first = new_lake(namespace=namespace, tables={"include": ["shop.a*", "shop.b*"]})
        self.second = new_lake(
            namespace=namespace,
            tables={"include": ["*.*"], "exclude": ["shop.a*", "shop.b*"]},
            source={"uri": str(self.first.sink)},
        )
        self.feed, self._at = Changefeed(self.first.sink), TS
        for name in NAMES:
            self._send(Ddl, name, "create", (Column("id", "int"), Column("v", "int")), ("id",))

    def _send(self, kind: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._at += 1
        self.feed.send(kind(self._at, *arguments, **named))

    def advance(self) -> None:
        for name, table in list(self.feed.tables.items()):
            rows = [row for row, _ in table.rows.values()]
            for row in rows[::2]:
                self._send(RowChange, name, row, {**row, "v": str(self._at % 1000)})
            for row in rows[1::4]:
                self._send(RowChange, name, row, None)
            new = {column.name: None for column in table.columns} | {"id": str(self._at % 100_000)}
            self._send(RowChange, name, None, new)
        for name in [name for name in self.feed.tables if name[0] in "ac"]:
            self._send(Ddl, name, "rename table", new_name=name[0] if len(name) > 1 else f"{name}_renamed")
        self.feed.checkpoint(self._at)

    def check(self) -> None:
        wanted = {name: table.typed() for name, table in fold(self.feed.entries, self.feed.checkpoint_ts).items()}
        for lake, initials in ((self.first, "ab"), (self.second, "cd")):
            found = {name: seen(table.schema(), table.scan()) for (_, name), table in lake.tables().items()}
            assert found == {name: table for name, table in wanted.items() if name[0] in initials}
            check_events(lake)


def test_feed_between_any_two_commits_of_another(new_lake: NewLake) -> None:
    parts = Parts(new_lake, 1)
    for number in itertools.count(1) if TURN is None else itertools.count(1 + TURN % 3, 3):
        parts.advance()
        others: list[object] = []
        with before_commit(number, lambda: others.append(parts.second.go_through())) as begun:  # noqa: B023
            parts.first.go_through()
        if not others:
            break
        parts.check()
    assert number > 8 and len(begun) < number
    parts.second.go_through()
    parts.check()


def test_feeds_run_at_the_same_time(new_lake: NewLake) -> None:
    parts = Parts(new_lake, 2)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            parts.advance()
            done = list(pool.map(lambda lake: run_all(lake.run()), (parts.first, parts.second)))
            assert [each.applied.held for each in done] == [{}, {}]
            parts.check()
