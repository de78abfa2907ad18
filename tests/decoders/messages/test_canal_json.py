"""Flat messages made by hand, of what the captures lack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange
from cdc_lakehouse.decoders.formats import canal_json
from tests.kit.cases import shown

INSERT: dict[str, Any] = {
    "data": [{"id": "1", "v": None}, {"id": "2", "v": ""}],
    "database": "d", "es": 5000, "gtid": "u:1-3", "id": 4, "isDdl": False, "mysqlType": {"id": "int(11)", "v": "text"},
    "old": None, "pkNames": ["id"], "sql": "", "sqlType": {"id": 4, "v": 2005}, "table": "t", "ts": 6000,
    "type": "INSERT",
}  # fmt: skip


def decode(**other: Any) -> Message:
    """`...` leaves a name out."""
    said = {name: value for name, value in {**INSERT, **other}.items() if value is not ...}
    return canal_json.decode(None, json.dumps(said).encode())


def row(op: Any, before: Any, after: Any, key: tuple[str, ...] | None = ("id",)) -> RowChange:
    return RowChange("d", "t", op, before, after, {"id": "int(11)", "v": "text"}, key)


ONE, TWO = INSERT["data"]
QUOTED = {"mysqlType": {"a``b": "x"}, "pkNames": ["a``b"], "data": [{"a``b": "1"}], "old": [{"a``b": "``"}]}


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ({}, (row("I", None, ONE), row("I", None, TWO))),
        ({"data": [{"id": "😀"}]}, (row("I", None, {"id": "😀"}),)),
        # Old values stand beside their rows; nothing that is shown has changed; the same without any old values.
        ({"type": "UPDATE", "old": [{"v": "a"}, {}]}, (row("U", {"v": "a"}, ONE), row("U", {}, TWO))),
        ({"type": "UPDATE", "old": None}, (row("U", {}, ONE), row("U", {}, TWO))),
        # No key, and a key that is not told.
        ({"pkNames": None}, (row("I", None, ONE, ()), row("I", None, TWO, ()))),
        ({"pkNames": ...}, (row("I", None, ONE, None), row("I", None, TWO, None))),
        # A backquote in a name is written twice, in a value it is not.
        (
            {"type": "UPDATE", **QUOTED},
            (RowChange("d", "t", "U", {"a`b": "``"}, {"a`b": "1"}, {"a`b": "x"}, ("a`b",)),),
        ),
        (
            {
                "type": "ERASE",
                "isDdl": True,
                "sql": "DROP TABLE a, b",
                "data": None,
                "mysqlType": None,
                "pkNames": None,
            },
            (Ddl("d", "t", "DROP TABLE a, b"),),
        ),
        # Messages that change nothing by themselves.
        *(
            ({"type": kind, "data": None, "sql": "update t set v = 1"}, ())
            for kind in ("QUERY", "GTID", "XACOMMIT", "MHEARTBEAT")
        ),
    ],
    ids=shown,
)
def test_what_a_message_says(other: dict[str, Any], parts: tuple[RowChange | Ddl, ...]) -> None:
    assert decode(**other) == Message(Origin(time_ms=5000, gtid="u:1-3"), parts)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"type": None}, "type is not a text"),
        ({"type": "INSURT"}, "type 'INSURT'"),
        ({"type": "XAROLLBACK"}, "rolled back after XA PREPARE"),
        ({"data": None}, "binlog_format=ROW"),
        ({"data": []}, "binlog_format=ROW"),
        ({"data": [{}]}, "binlog_row_image=FULL"),
        ({"data": {"id": "1"}}, "data is not a list of rows"),
        ({"data": [{"id": 1}]}, "data is not a list of rows"),
        ({"data": [{"id": ["1"]}]}, "data is not a list of rows"),
        ({"type": "UPDATE", "old": [{"v": "1"}]}, "old has not as many rows as data, 2"),
        ({"type": "UPDATE", "old": [{"v": True}, {}]}, "old is not a list of rows"),
        ({"mysqlType": ["int"]}, "mysqlType is not"),
        ({"pkNames": "id"}, "pkNames is no list of names"),
        ({"database": None}, "database is not a text"),
        ({"table": 7}, "table is not a text"),
        ({"type": "CREATE", "isDdl": True, "sql": None}, "sql is not a text"),
        ({"data": [{"id": "\ud800"}]}, "half of a surrogate pair"),
    ],
    ids=shown,
)
def test_a_message_that_cannot_be_used(other: dict[str, Any], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(**other)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not JSON"),
        (b"\x08\x11", "not JSON"),
        (b"[]", "JSON, but not an object"),
        (b'{"type": "\xff"}', "not UTF-8: see byte 10"),
        (b"[" * 200_000, "nested too deep to be JSON"),
        (b'{"es": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
    ids=shown,
)
def test_a_value_that_is_no_message(value: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        canal_json.decode(None, value)
