"""Entries that come again, and places of a dump among entries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.boundaries.sources import (
    BinlogPosition,
    BinlogSearch,
    DumpPosition,
    EntryStream,
    contradiction,
    entries_pb2,
    placed,
)
from tests.canal_captures import SOURCES, capture
from tests.kit.case_files import Case, evaluated, read_cases
from tests.sources.canal.binlogs import Binlog, binlogs, number_of

WIRE = Path("cdc_lakehouse/sources/canal/wire")
ROOT = Path(__file__).parents[3]

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
        new = list(stream.new(connection, map(placed, entries[acked:end]), list(keys)))
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
    keys = [key for _, key in EntryStream().new(1, map(placed, [*entries, entries[0]]), [])]
    assert len(keys) == len(set(keys)) == len(entries)
    assert not list(EntryStream().new(2, map(placed, entries), keys))


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
