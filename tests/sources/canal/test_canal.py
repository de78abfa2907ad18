"""How the client connects to Canal servers of any kind, and takes each batch once, whatever is cut; entries that come
again, and places of a dump among entries."""

import contextlib
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.errors import CdcError, SourceUnreachableError, TransientError
from tests.boundaries import sources
from tests.boundaries.sources import packets_pb2 as wire
from tests.canal_captures import SOURCES, capture
from tests.kit.case_files import Case, evaluated, read_cases, text_of
from tests.kit.waiting import memory_below
from tests.sources.canal import servers

ENTRIES = [b"entry %d" % number for number in range(30)]
OPENED = len(servers.HANDSHAKE + servers.DONE + servers.DONE)


def error_of(handler: servers.Handler, reply: float = 30) -> CdcError:
    caught = pytest.raises(CdcError)
    with servers.serving(handler) as address, servers.client_of(address, reply=reply) as client, caught as error:
        client.get(wait_seconds=0)
    return error.value


# --- Connections ---


def test_unreachable_server_is_tried_until_patience_ends(caplog: pytest.LogCaptureFixture) -> None:
    address = servers.closed_port()
    with (
        caplog.at_level(logging.WARNING, "cdc_lakehouse"),
        servers.client_of(address, patience=0.3) as client,
        pytest.raises(SourceUnreachableError, match=f"{address} cannot be reached: Connection refused") as caught,
    ):
        client.get()
    assert isinstance(caught.value, TransientError)
    assert f"{address} cannot be reached" in caplog.text and "trying again in" in caplog.text


@pytest.mark.usefixtures("interruptible")
def test_interrupted_client_continues() -> None:
    def handler(connection: socket.socket) -> None:
        servers.converse(connection, *servers.OPENING, wire.GET)
        # To the thread that waits: another one's signal would not wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        connection.recv(1)

    canal = servers.HandMadeCanal(ENTRIES)
    with servers.serving(handler, canal) as address, servers.client_of(address, batch_size=1, patience=60) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get(wait_seconds=5)
        assert client.get(wait_seconds=0) == sources.Batch(2, (ENTRIES[0],), 2)


# --- Batches ---


def test_failed_acknowledgement_stops_the_next_request() -> None:
    def handler(connection: socket.socket) -> None:
        servers.converse(
            connection, *servers.OPENING, *servers.first_batch(b"a"), wire.CLIENT_ACK, servers.refusal("no such batch")
        )
        has_come.set()
        requests.append(connection.recv(1))

    has_come, requests = threading.Event(), list[bytes]()
    with servers.serving(handler) as address, servers.client_of(address) as client:
        batch = client.get(wait_seconds=0)
        assert batch is not None
        client.ack(batch)
        assert has_come.wait(60)
        with pytest.raises(sources.CanalRedeliveryError, match="no such batch"):
            client.get(wait_seconds=0)
    assert requests == [b""], "a request was sent although an error had come"


# --- Conversations ---

NAMES = {
    **vars(servers), "ENTRIES": ENTRIES, "OPENED": OPENED,
    "ELSEWHERE": (*servers.OPENING[:4], servers.refusal("destination:example should start first")),
    "beat": servers.packet(wire.HEARTBEAT_PACKET, wire.HeartBeat(send_timestamp=1)),
    "LATE": servers.refusal("something goes wrong, batchId:2 is not exist\nat com.alibaba.otter"),
    "raw": lambda **parts: servers.frame(wire.Packet(**parts).SerializeToString()),
}  # fmt: skip


def results_of(case: Case) -> Iterator[str]:
    """A line is what the server says and hears on a connection, the last one on all that follow; `canal(ENTRIES, cuts)`
    is a server with Canal's rules. `client` are the calls of one client, `|` begins the next one's; `look` is another
    client that takes a batch meanwhile. `before` are the servers whose addresses it has before."""
    canals = list[servers.HandMadeCanal]()

    def canal(entries: Sequence[bytes] = ENTRIES, cuts: Iterable[int] = ()) -> servers.HandMadeCanal:
        canals.append(canals[0] if canals else servers.HandMadeCanal(list(entries), cuts))
        return canals[-1]

    def handler(line: str) -> servers.Handler:
        turns = eval(f"({line},)", NAMES | {"canal": canal})
        return turns[0] if isinstance(turns[0], servers.HandMadeCanal) else servers.conversation(*turns)

    with contextlib.ExitStack() as stack:
        addresses = [
            servers.closed_port() if lines == ["closed"] else stack.enter_context(servers.serving(*map(handler, lines)))
            for lines in (*([each] for each in case.settings.get("before", [])), case.own)
        ]
        options = {"batch_size": 2, **case.settings.get("options", {})}
        options |= {name: case.settings[name] for name in ("patience", "reply") if name in case.settings}
        for calls in str(case.settings.get("client", "get")).split(" | "):
            with servers.client_of(*addresses, **options) as client:
                batches = list[sources.Batch]()
                for call in calls.split():
                    if call == "look":
                        with servers.client_of(*addresses, batch_size=2) as other:
                            assert other.get(wait_seconds=0)
                        continue
                    for line in _outcome(client, call, batches):
                        yield text_of(re.sub("|".join(addresses), "ADDRESS", line))
    if canals:
        yield f"{canals[0].acked} acknowledged, {canals[0].connections} connections"


def _outcome(client: sources.CanalClient, call: str, batches: list[sources.Batch]) -> Iterator[str]:
    name, _, number = call.partition(":")
    try:
        match name:
            case "ack":
                client.ack(batches[int(number) - 1])
            case "get":
                got = client.get(wait_seconds=0)
                batches += [got] if got else []
                said = "nothing" if got is None else f"batch {got.id} of connection {got.connection}: "
                yield f"get: {said}{', '.join(entry.decode() for entry in (got.entries if got else ()))}"
            case _:
                getattr(client, name)()
    except CdcError as error:
        advice = f": {error.advice}" if error.advice else ""
        yield f"{call}: {type(error).__name__}: {str(error).removesuffix(advice)}{advice}"


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases/canal.txt"), ids=str)
def test_client_converses_with_server(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


# --- Servers that are not Canal ---


def test_announced_packet_takes_no_memory_until_it_comes() -> None:
    too_long, long = (2**31 - 1).to_bytes(4, "big"), (200 * 1024 * 1024).to_bytes(4, "big")
    long_batch = servers.conversation(*servers.OPENING, wire.GET, long + b"x" * 1000)

    def then_gone(connection: socket.socket) -> None:
        connection.settimeout(1)
        long_batch(connection)

    with memory_below(2_000_000):
        assert isinstance(
            error_of(servers.conversation(*servers.OPENING, wire.GET, too_long)), sources.CanalProtocolError
        )
        assert isinstance(error_of(servers.conversation(long)), sources.CanalProtocolError)
        error = error_of(then_gone)
    assert isinstance(error, SourceUnreachableError) and "has closed the connection" in str(error)


def test_server_that_drips_is_given_up() -> None:
    content = servers.frame(b"x" * 2000)
    dripped: list[int] = []

    def handler(connection: socket.socket) -> None:
        dripped.append(0)
        for byte in content:
            connection.sendall(bytes([byte]))
            dripped[-1] += 1
            time.sleep(0.05)

    assert "does not answer in time" in str(error_of(handler, servers.QUICK))
    assert len(dripped) == 2 and max(dripped) < len(content), "the client waited for the whole packet"


def test_wait_of_a_get_adds_to_the_time_for_its_answer() -> None:
    def handler(connection: socket.socket) -> None:
        servers.converse(connection, *servers.OPENING, wire.GET)
        time.sleep(3.5)  # Longer than the client waits for an answer to begin.
        servers.converse(connection, *servers.first_batch(b"entry")[1:])

    with servers.serving(handler) as address, servers.client_of(address, reply=3) as client:
        assert client.get(wait_seconds=30) is not None


PROTOS = Path("cdc_lakehouse/sources/canal/wire")
ROOT = Path(__file__).parents[3]

# --- Entries that come again ---

steps = st.fixed_dictionaries({
    "before": st.sampled_from(["on", "on", "another connection", "another run", "a restart"]),
    "back": st.integers(0, 7),
    "size": st.integers(1, 9),
    "lost": st.booleans(),
})  # fmt: skip


@pytest.mark.slow
@given(servers.binlogs, st.lists(steps, max_size=25))
def test_each_entry_is_new_once_and_in_order(log: servers.Binlog, steps: list[dict[str, Any]]) -> None:
    keys: list[bytes] = []
    taken: list[int] = []
    entries, acked = list(log.entries), 0
    stream, connection = sources.EntryStream(), 0
    for step in [*steps, {"before": "another run", "size": len(entries), "lost": False}]:
        match step["before"]:
            case "another connection":
                connection += 1
            case "another run":
                stream = sources.EntryStream()
            case "a restart":
                connection += 1
                acked = [start for start in log.starts if start <= acked][-1 - step["back"] :][0]
                entries[acked:] = map(log.told_anew, entries[acked:])
            case _:
                pass
        end = acked + step["size"]
        # As in a run, what is kept is known from the lake alone.
        new = list(stream.new(connection, map(sources.placed, entries[acked:end]), list(keys)))
        keys += [key for _, key in new]
        taken += [servers.number_of(entry.value) for entry, _ in new]
        if step["lost"]:
            connection += 1
        else:
            acked = min(end, len(entries))
    assert taken == list(range(len(log.entries)))


@pytest.mark.parametrize("entries", [capture(source).entries for source in SOURCES] + [[b"\xff", b"\xfe"]])
def test_key_of_an_entry_recognizes_it(entries: list[bytes]) -> None:
    """Of captured entries, and of bytes that are not entries."""
    keys = [key for _, key in sources.EntryStream().new(1, map(sources.placed, [*entries, entries[0]]), [])]
    assert len(keys) == len(set(keys)) == len(entries)
    assert not list(sources.EntryStream().new(2, map(sources.placed, entries), keys))


# --- Places of a dump ---

IDS = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fb58-71ca-11e1-9e33-c80aa9429563"


def _found(sought: str, places: str) -> str:
    """Entries at `file:offset` before and beyond the sought place."""

    def key(place: str) -> bytes:
        file, _, offset = place.partition(":")
        return json.dumps([1, f"bin.{file}" if file else "", int(offset), 0, 2, 1, "d", "t", 0, "00"]).encode()

    file, _, offset = sought.partition(":")
    search = sources.BinlogSearch(sources.BinlogPosition.of(f"bin.{file}", int(offset)))
    search.add((number, key(place)) for number, place in enumerate(places.split()))
    return f"{search.before} {search.beyond}"


def _named(text: str) -> str:
    """With the UUIDs of servers; `a` is that of `A` in capitals."""
    uuids = {"A": IDS[0], "B": IDS[1], "a": IDS[0].upper()}
    return re.sub(r"\b[ABa](?=:)", lambda found: uuids[found[0]], text)


def _entry(of: str) -> bytes:
    """`GTIDs` before, and ` / ` the transaction's own."""
    gtid, _, own = _named(of).partition(" / ")
    props = [sources.entries_pb2.Pair(key="curtGtid", value=own)] if own else []
    return sources.entries_pb2.Entry(header=sources.entries_pb2.Header(gtid=gtid, props=props)).SerializeToString()


def _by_gtids(executed: str, before: str | None, beyond: str | None = None) -> str | None:
    position = sources.DumpPosition(None, "bin.000001", 4, _named(executed))
    first, second = (None if each is None else _entry(each) for each in (before, beyond))
    return sources.contradiction(position, first, second, [])


def _by_ids(position: sources.DumpPosition, *seen: int) -> str | None:
    # Until the log has reached the dump's place, an entry of the server can still come.
    assert sources.contradiction(position, _entry(""), None, seen) is None
    return sources.contradiction(position, _entry(""), _entry(""), seen)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases/dump_places.txt"), ids=str)
def test_place_of_a_dump_among_entries_is_found(case: Case, update: bool) -> None:
    names = {"found": _found, "by_gtids": _by_gtids, "by_ids": _by_ids, "DumpPosition": sources.DumpPosition}
    found = evaluated(case, names)
    case.compare([line.replace(IDS[0], "A").replace(IDS[1], "B") for line in found], update=update)


@pytest.mark.parametrize("name", ["entries", "packets"])
def test_generated_code_is_that_of_the_proto_file(name: str, tmp_path: Path) -> None:
    options = ["-I", ".", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(PROTOS / f"{name}.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], cwd=ROOT, check=True)
    for suffix in ("py", "pyi"):
        file = PROTOS / f"{name}_pb2.{suffix}"
        assert (ROOT / file).read_text() == (tmp_path / file).read_text(), "run `make proto`"
