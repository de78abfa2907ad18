"""Captured sessions, played back byte for byte; entries that come again; places of a dump among entries."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from tests.boundaries.sources import (
    BinlogPosition,
    BinlogSearch,
    CanalClient,
    DumpPosition,
    EntryStream,
    KnownEntries,
    contradiction,
    entries_pb2,
    placed,
)
from tests.boundaries.sources import packets_pb2 as wire
from tests.canal_captures import SOURCES, Capture, capture
from tests.kit.case_files import Case, evaluated, read_cases
from tests.sources.canal.binlogs import Binlog, binlogs, number_of
from tests.sources.canal.servers import Handler, canal_source, heard, serving

PASSWORD, FILTER = "canal", r"cdc\..*,other\..*"
BODIES = {
    wire.CLIENT_AUTHENTICATION: wire.ClientAuth, wire.SUBSCRIPTION: wire.Sub, wire.UNSUBSCRIPTION: wire.Unsub,
    wire.GET: wire.Get, wire.CLIENT_ACK: wire.ClientAck, wire.CLIENT_ROLLBACK: wire.ClientRollback,
}  # fmt: skip
WIRE = Path("cdc_lakehouse/sources/canal/wire")
ROOT = Path(__file__).parents[3]

# --- Captured sessions: the client says what Canal's own client said ---


def _meaning(packet: wire.Packet) -> dict[str, Any]:
    body: Any = BODIES[packet.type].FromString(packet.body)
    if isinstance(body, wire.Get) and body.unit == 3:
        body.timeout, body.unit = body.timeout * 1000, 2
    fields = {"type": packet.type, **MessageToDict(body)}
    if packet.type == wire.CLIENT_ROLLBACK:
        fields.pop("batchId", None)  # Canal's client named the only one that was open.
    return fields


def _script(of: Capture, number: int) -> Iterator[wire.Packet | bytes]:
    """Packets that the client must say, and bytes that it hears, in order."""
    part, subscribed = b"", False
    for side, content in of.connection(number):
        if side == "s2c":
            yield content
            continue
        part += content
        while len(part) >= 4 and len(part) >= (end := 4 + int.from_bytes(part[:4], "big")):
            packet, part = wire.Packet.FromString(part[4:end]), part[end:]
            subscribed |= packet.type == wire.SUBSCRIPTION
            # Canal's client rolls back before it subscribes, too.
            if packet.type != wire.CLIENT_ROLLBACK or subscribed:
                yield packet
    assert not part


def replay(source: str, number: int, *, leaving_out: str = "") -> Handler:
    """Compare all but one key of the client's packets."""

    def handler(connection: socket.socket) -> None:
        for turn in _script(capture(source), number):
            if isinstance(turn, bytes):
                connection.sendall(turn)
                continue
            found, expected = _meaning(heard(connection)), _meaning(turn)
            assert found.keys() == expected.keys()
            assert {**found, leaving_out: ""} == {**expected, leaving_out: ""}

    return handler


@pytest.mark.parametrize("source", SOURCES)
def test_main_session_is_that_of_canals_client(source: str) -> None:
    """The password is scrambled with the same seed, too."""
    of = capture(source)
    with serving(replay(source, 1)) as address:
        options = canal_source(address, user="canal", password=PASSWORD, filter=FILTER, batch_size=7)
        with CanalClient(options) as client:
            assert client.get(batch_size=100, wait_seconds=0) is None
            first = client.get(batch_size=5, wait_seconds=2)
            client.rollback()
            again = client.get(batch_size=5, wait_seconds=2)
            assert first is not None and again is not None and first.entries == again.entries
            assert (first.id, again.id) == (1, 2) and len(first.entries) >= 5
            assert client.get(batch_size=3, wait_seconds=0) is not None
            client.rollback()
            found: list[wire.Messages] = []
            while (batch := client.get(wait_seconds=0.5)) is not None:
                found.append(wire.Messages(batch_id=batch.id, messages=batch.entries))
                client.ack(batch)
    assert found == of.batches


# --- Entries that come again ---

steps = st.fixed_dictionaries({
    "before": st.sampled_from(["on", "on", "another connection", "another run", "a restart"]),
    "back": st.integers(0, 7),
    "size": st.integers(1, 9),
    "lost": st.booleans(),
})  # fmt: skip


@pytest.mark.slow
@given(binlogs, st.lists(steps, max_size=25))
def test_each_entry_is_new_once_and_in_order(log: Binlog, steps: list[dict[str, Any]]) -> None:
    keys: list[bytes] = []
    taken: list[int] = []
    entries, acked = list(log.entries), 0
    stream, connection = EntryStream(), 0
    for step in [*steps, {"before": "another run", "size": len(entries), "lost": False}]:
        match step["before"]:
            case "another connection":
                connection += 1
            case "another run":
                stream = EntryStream()
            case "a restart":
                connection += 1
                acked = [start for start in log.starts if start <= acked][-1 - step["back"] :][0]
                entries[acked:] = map(log.told_anew, entries[acked:])
            case _:
                pass
        end = acked + step["size"]
        # As in a run, what is kept is known from the lake alone.
        new = list(stream.new(connection, map(placed, entries[acked:end]), KnownEntries.of(keys)))
        keys += [key for _, key in new]
        taken += [number_of(entry.value) for entry, _ in new]
        if step["lost"]:
            connection += 1
        else:
            acked = min(end, len(entries))
    assert taken == list(range(len(log.entries)))


@pytest.mark.parametrize("entries", [capture(source).entries for source in SOURCES] + [[b"\xff", b"\xfe"]])
def test_key_of_an_entry_recognizes_it(entries: list[bytes]) -> None:
    """Of captured entries, and of bytes that are not entries."""
    known = KnownEntries()
    keys = [key for _, key in EntryStream().new(1, map(placed, [*entries, entries[0]]), known)]
    assert len(keys) == len(set(keys)) == len(entries)
    assert KnownEntries.of(keys) == known
    assert not list(EntryStream().new(2, map(placed, entries), KnownEntries.of(keys)))


# --- Places of a dump ---

IDS = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fb58-71ca-11e1-9e33-c80aa9429563"


def _found(sought: str, places: str) -> str:
    """Entries at `file:offset` before and beyond the sought place."""

    def key(place: str) -> bytes:
        file, _, offset = place.partition(":")
        return json.dumps([1, f"bin.{file}" if file else "", int(offset), 0, 2, 1, "d", "t", 0, "00"]).encode()

    file, _, offset = sought.partition(":")
    search = BinlogSearch(BinlogPosition.of(f"bin.{file}", int(offset)))
    search.add((number, key(place)) for number, place in enumerate(places.split()))
    return f"{search.before} {search.beyond}"


def _named(text: str) -> str:
    """With the UUIDs of servers; `a` is that of `A` in capitals."""
    uuids = {"A": IDS[0], "B": IDS[1], "a": IDS[0].upper()}
    return re.sub(r"\b[ABa](?=:)", lambda found: uuids[found[0]], text)


def _entry(of: str) -> bytes:
    """`GTIDs` before, and ` / ` the transaction's own."""
    gtid, _, own = _named(of).partition(" / ")
    props = [entries_pb2.Pair(key="curtGtid", value=own)] if own else []
    return entries_pb2.Entry(header=entries_pb2.Header(gtid=gtid, props=props)).SerializeToString()


def _by_gtids(executed: str, before: str | None, beyond: str | None = None) -> str | None:
    position = DumpPosition(None, "bin.000001", 4, _named(executed))
    first, second = (None if each is None else _entry(each) for each in (before, beyond))
    return contradiction(position, first, second, [])


def _by_ids(position: DumpPosition, *seen: int) -> str | None:
    # Until the log has reached the dump's place, an entry of the server can still come.
    assert contradiction(position, _entry(""), None, seen) is None
    return contradiction(position, _entry(""), _entry(""), seen)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases/dump_places.txt"), ids=str)
def test_place_of_a_dump_among_entries_is_found(case: Case, update: bool) -> None:
    names = {"found": _found, "by_gtids": _by_gtids, "by_ids": _by_ids, "DumpPosition": DumpPosition}
    found = evaluated(case, names)
    case.compare([line.replace(IDS[0], "A").replace(IDS[1], "B") for line in found], update=update)


@pytest.mark.parametrize("name", ["entries", "packets"])
def test_generated_code_is_that_of_the_proto_file(name: str, tmp_path: Path) -> None:
    options = ["-I", ".", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(WIRE / f"{name}.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], cwd=ROOT, check=True)
    for suffix in ("py", "pyi"):
        file = WIRE / f"{name}_pb2.{suffix}"
        assert (ROOT / file).read_text() == (tmp_path / file).read_text(), "run `make proto`"
