"""A real Canal 1.1.7 before a real MySQL 8.0: what it gives (`cases/canal.txt`), and what it refuses. That tables
become what the server shows, whatever is sent again, is in test_canal_feed.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.sources.canal.client import CanalClient, CanalRedeliveryError, CanalRefusedError
from tests.kit.case_files import Case, read_cases
from tests.servers.canal import CanalServer, Reader, StartCanal, Writer, binlog_end, canal_server, executed
from tests.servers.mysql import MySqlServer

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def canal(mysql: MySqlServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    with canal_server(tmp_path_factory.mktemp("canal"), mysql, binlog_end(mysql)) as server:
        yield server


@pytest.mark.in_turn
@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/canal.txt"), ids=str)
def test_rows_are_given_as_written(case: Case, canal: CanalServer, writer: Writer, update: bool) -> None:
    reader = Reader()
    with CanalClient(canal.source()) as client:
        writer.begin()
        writer.run(*case.given)
        reader.read(client, writer.mark())
    try:
        changes = reader.changes("t")
        images = [[each.op, *filter(None, (each.before, each.after))] for each in changes]
        found = [" ".join(each if isinstance(each, str) else json.dumps(each) for each in parts) for parts in images]
        assert all(each.key == ("id",) for each in changes)
    except MessageError as error:
        found = [f"error: {error}"]
    case.compare(found, update=update)


def test_canals_own_options_count(writer: Writer, start_canal: StartCanal) -> None:
    """Its time zone for TIMESTAMP, the whole set of GTIDs that are executed, and a filter."""
    uuid, _, last = executed(writer.mysql).partition(":1-")
    reader = Reader()
    server = start_canal(zone="Asia/Shanghai", gtids=f"{uuid}:1-{last}")
    with CanalClient(server.source(filter=r"d\.t,marks\..*")) as client:
        writer.begin()
        writer.run(
            "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, dt DATETIME)", "CREATE TABLE left_out (a INT)",
            "INSERT INTO left_out VALUES (1)", "SET time_zone = '-05:00'",
            "INSERT INTO t VALUES (1, '2024-06-30 12:00:00', '2024-06-30 12:00:00')",
        )  # fmt: skip
        reader.read(client, writer.mark())
    (change,) = reader.changes("t")
    assert change.after == {"id": "1", "ts": "2024-07-01 01:00:00", "dt": "2024-06-30 12:00:00"}
    assert not reader.changes("left_out")
    (gtid,) = {message.origin.gtid for message in reader.messages() if change in message.parts}
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
        Reader().read(client, writer.mark())


def test_refusals_are_reported_without_a_secret(canal: CanalServer) -> None:
    for other, words in (
        ({"password": "wrong-secret"}, r"refuses the user: error 400, auth failed for user:reader"),
        ({"user": None, "password": None}, r"refuses the user: error 400"),
        ({"destination": "nosuch"}, r"refuses the destination nosuch: error 400"),
    ):
        with CanalClient(canal.source(**other)) as client, pytest.raises(CanalRefusedError, match=words) as caught:
            client.get()
        assert "secret" not in str(caught.value)
