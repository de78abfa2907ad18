"""A dump of another server than the one whose binlog Canal reads."""

from __future__ import annotations

import re

import pytest

from cdc_lakehouse.sources.canal.dumped_server import contradiction
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.dump.contents import DumpPosition

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fb58-71ca-11e1-9e33-c80aa9429563"


def entry(gtid: str = "", own: str = "") -> bytes:
    props = [wire.Pair(key="curtGtid", value=own)] if own else []
    return wire.Entry(header=wire.Header(gtid=gtid, props=props)).SerializeToString()


@pytest.mark.parametrize(
    ("executed", "before", "beyond", "words"),
    [
        # The same server; entries of other transactions may have been filtered.
        (f"{A}:1-100", entry(f"{A}:1-100", f"{A}:100"), entry(f"{A}:1-101", f"{A}:101"), None),
        (f"{A}:1-100", entry(f"{A}:1-90", f"{A}:90"), entry(f"{A}:1-130", f"{A}:130"), None),
        (f"{A.upper()}:1-3:5-9,{B}:1", entry(f"{B}:1,{A}:1-2:6-8"), None, None),
        (f"{A}:1-50:51-100", entry(f"{A}:40-60"), None, None),
        (f"{A}:1-9:tag:1-4", entry(f"{A}:1-9:tag:1-3"), entry(own=f"{A}:tag:5"), None),
        # Without GTIDs in the log nothing is known.
        (f"{A}:1-100", entry(), entry(), None),
        (f"{A}:1-100", None, None, None),
        # Another server.
        (f"{A}:1-100", entry(f"{B}:1-7"), None, f"has the transactions {A}:1-100, .* before its place {B}:1-7"),
        # A replica that was behind, and one that was before.
        (f"{A}:1-100", entry(f"{A}:1-200"), None, f"before its place {A}:1-200"),
        (f"{A}:1-100", entry(f"{A}:1-20"), entry(f"{A}:1-21", f"{A}:21"), f"behind its place {A}:21"),
        (f"{A}:1-9:tag:1-4", entry(f"{A}:1-9"), entry(own=f"{A}:tag:4"), f"behind its place {A}:tag:4"),
        # MariaDB.
        ("0-1-100,1-2-7", entry("0-1-100"), entry("0-1-101,1-2-7", "0-1-101"), None),
        ("0-1-100", entry("0-1-200"), None, "before its place 0-1-200"),
    ],
)
def test_gtids(executed: str, before: bytes | None, beyond: bytes | None, words: str | None) -> None:
    found = contradiction(DumpPosition(None, "bin.000001", 4, executed), before, beyond, [])
    assert found is None if words is None else re.search(words, found or "")


@pytest.mark.parametrize(
    ("position", "seen", "expected"),
    [
        (DumpPosition(server_id=1), {1}, None),
        (DumpPosition(server_id=2), {1, 2}, None),
        (DumpPosition(server_id=2), set(), None),
        (DumpPosition(), {1}, None),
        (DumpPosition(server_id=2), {1}, "the dump is of the server_id 2, and the log of 1"),
        (DumpPosition(gtid="0-2-100,1-7-3"), {1, 4}, "the dump is of the server_id 2, 7, and the log of 1, 4"),
        (DumpPosition(gtid="0-2-100,1-7-3"), {1, 7}, None),
    ],
)
def test_the_servers_that_wrote_entries(position: DumpPosition, seen: set[int], expected: str | None) -> None:
    assert contradiction(position, entry(), entry(), seen) == expected
    # Until the log has reached the dump's place, an entry of the server may come.
    assert contradiction(position, entry(), None, seen) is None
