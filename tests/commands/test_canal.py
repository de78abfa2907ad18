"""`canal tail` as a script sees it, and `status` and `plan` of a feed of a Canal server, which disturb no run."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import Result

from cdc_lakehouse.assets.sensors import poll_source
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.lake.tables.lease import last_holder
from cdc_lakehouse.sources.canal.client import Connection, scrambled
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.canal_captures import capture
from tests.commands import call
from tests.kit.scripted_lake import before, publish
from tests.pipeline import lake_in
from tests.sources.canal import servers
from tests.sources.canal.servers import OPENING, HandMadeCanal, binlog_of, refusal, serving

ENTRIES = capture("mysql8.0.12").entries


def tail(address: str, *options: str) -> Result:
    host, _, port = address.rpartition(":")
    return call("canal", "tail", "--host", host, "--port", port, *options)


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_entries_are_lines() -> None:
    with serving(HandMadeCanal(ENTRIES)) as address:
        result = tail(address, "--limit", "6", "--batch-size", "4")
    assert result.exit_code == 0 and result.stderr == ""
    found = lines(result)
    assert [line["batch"] for line in found] == [2, 2, 2, 2, 3, 3]
    place = {"log_file": "mysql-bin.000001", "gtid": None}
    text = "create database if not exists cdc character set utf8mb4"
    ddl = {"kind": "ddl", "database": "cdc", "table": "", "sql": text}
    assert found[0] == {"batch": 2, **place, "log_offset": 6067, "time_ms": 1795227273000, "parts": [ddl]}
    assert [found[n]["parts"] for n in (3, 5)] == [[], [{"kind": "end"}]]
    (row,) = found[4]["parts"]
    assert (row["kind"], row["op"], row["table"], row["before"], row["key"]) == ("row", "I", "t_all", None, ["id"])
    assert row["after"]["c_varchar"] == 'vär 中文 😀 "q" \\ \n\t' and row["types"]["c_tiny"] == "tinyint(4)"


def test_nothing_is_acknowledged_without_ack() -> None:
    canal = HandMadeCanal(ENTRIES[:10])
    with serving(canal) as address:
        first, second = (tail(address, "--seconds", "1", "--batch-size", "4") for _ in range(2))
        assert [line["log_offset"] for line in lines(first)] == [line["log_offset"] for line in lines(second)]
        assert len(lines(first)) == 10 and canal.acked == 0
        assert len(lines(tail(address, "--limit", "6", "--batch-size", "4", "--ack"))) == 6
        assert canal.acked == 4, "a batch of which not all was printed"
        assert len(lines(tail(address, "--seconds", "1", "--ack"))) == 6
    assert canal.acked == 10


def test_unreadable_entry_is_shown() -> None:
    canal = HandMadeCanal([ENTRIES[0], b"\xff\xff", ENTRIES[1]])
    with serving(canal) as address:
        result = tail(address, "--limit", "3")
    assert result.exit_code == 1
    bad = lines(result)[1]
    assert "not an entry of Canal" in bad["error"] and base64.b64decode(bad["entry"]) == b"\xff\xff"
    assert len(lines(result)) == 3


def test_user_password_destination_and_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKEHOUSE_CANAL_PASSWORD", "hunter2")
    said: list[Any] = []

    def handler(connection: Any) -> None:
        connection.sendall(servers.HANDSHAKE)
        said.append(wire.ClientAuth.FromString(servers.heard(connection).body))
        connection.sendall(OPENING[2])
        said.append(wire.Sub.FromString(servers.heard(connection).body))
        connection.sendall(refusal("no more"))

    with serving(handler) as address:
        options = ["--user", "u", "--destination", "shop", "--filter", r"a\..*", "--seconds", "0.2"]
        result = tail(address, *options)
    assert result.exit_code == 1 and "no more" in result.stderr
    auth, sub = said
    assert (auth.username, auth.password) == ("u", scrambled("hunter2", servers.SEED))
    assert (sub.destination, sub.filter) == ("shop", r"a\..*")
    assert "hunter2" not in result.output + result.stderr


def test_server_that_is_not_there_is_3() -> None:
    result = tail(servers.closed_port(), "--seconds", "0.2")
    assert result.exit_code == 3 and "cannot be reached" in result.stderr


# --- A feed of a Canal server ---

LOG = binlog_of([{"kind": "mysql", "rows": 40, "seconds": 1, "rotated": False}]).entries


def test_status_and_plan_ask_nothing_of_the_destination(tmp_path: Path) -> None:
    server = HandMadeCanal(list(LOG))
    with serving(server) as address:
        source = {"type": "canal", "destination": "example", "addresses": [address]}
        lake = lake_in(tmp_path, source=source, start_date="2020-01-01")
        assert "reachable; 0 entries landed\n" in call("status", config=lake.config_path).output
        lake.run().source.land()
        server.heard.clear()
        told = call("status", "--json", config=lake.config_path)
        assert set(server.heard) == {wire.CLIENT_AUTHENTICATION}
        planned = call("plan", config=lake.config_path)
        assert planned.exit_code == 0 and set(server.heard) == {wire.CLIENT_AUTHENTICATION}
    (feed,) = json.loads(told.stdout)["feeds"]
    assert feed["landed_entries"] == len(LOG) and feed["landed_position"].startswith("bin.000001:")
    gone = call("status", config=lake.config_path)
    assert gone.exit_code == 3 and f"cannot be used; {len(LOG)} entries landed, the last one at" in gone.output


def test_run_asks_the_destination_only_with_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    held: list[bool] = []
    get = Connection.get

    def asked(connection: Connection, size: int, wait_seconds: float) -> wire.Messages:
        holder = last_holder(lake.lake, lake.name)
        held.append(holder is not None and not holder.released)
        return get(connection, size, wait_seconds)

    monkeypatch.setattr(Connection, "get", asked)
    with serving(HandMadeCanal([])) as address:
        source = {"type": "canal", "destination": "example", "addresses": [address]}
        lake = lake_in(tmp_path, source=source, start_date="2020-01-01")
        for _ in range(2):
            assert call("run", config=lake.config_path).exit_code == 0
    assert held and all(held)


def test_quiet_source_is_not_late(tmp_path: Path) -> None:
    """A server with nothing new shows no time: what counts is the last look that found nothing."""
    server = HandMadeCanal([])
    with serving(server) as address, dg.DagsterInstance.ephemeral() as instance:
        source = {"type": "canal", "destination": "example", "addresses": [address]}
        lake = lake_in(tmp_path, source=source, start_date="2020-01-01")
        publish(lake, {"a": 1}, at=before(utc_now(), 180))
        assert "the cut is 3.0 h old" in call("status", "--check", config=lake.config_path).output
        decision = poll_source(instance, lake.lake, lake.feed, None)
        assert decision.run_key is None and decision.state is not None and not decision.state.waiting
        quiet = call("status", "--check", config=lake.config_path)
        assert (quiet.exit_code, "all is well" in quiet.output) == (0, True), quiet.output
        server.entries = list(LOG)
        lake.run().source.land()
        assert "the cut is 3.0 h old" in call("status", "--check", config=lake.config_path).output
