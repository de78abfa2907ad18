"""Flat messages made by hand, of what the captures lack."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange
from cdc_lakehouse.decoders.messages import canal_json
from tests.canal_captures import SOURCES, capture

INSERT: dict[str, Any] = {
    "data": [{"id": "1", "v": None}, {"id": "2", "v": ""}],
    "database": "d", "es": 5000, "gtid": "u:1-3", "id": 4, "isDdl": False, "mysqlType": {"id": "int(11)", "v": "text"},
    "old": None, "pkNames": ["id"], "sql": "", "sqlType": {"id": 4, "v": 2005}, "table": "t", "ts": 6000,
    "type": "INSERT",
}  # fmt: skip


def decode(**other: Any) -> Message:
    return canal_json.decode(None, json.dumps({**INSERT, **other}).encode())


def test_rows_of_one_message() -> None:
    types = {"id": "int(11)", "v": "text"}
    assert decode() == Message(
        Origin(time_ms=5000, gtid="u:1-3"),
        (
            RowChange("d", "t", "I", None, {"id": "1", "v": None}, types, ("id",)),
            RowChange("d", "t", "I", None, {"id": "2", "v": ""}, types, ("id",)),
        ),
    )


def test_old_values_stand_beside_their_rows() -> None:
    first, second = decode(type="UPDATE", old=[{"v": "a"}, {}]).parts
    assert isinstance(first, RowChange) and isinstance(second, RowChange)
    assert (first.before, second.before) == ({"v": "a"}, {})


def test_an_update_that_changed_nothing_that_is_shown() -> None:
    assert [part.before for part in decode(type="UPDATE", old=None).parts if isinstance(part, RowChange)] == [{}, {}]


def test_a_key_that_is_not_told_is_not_no_key() -> None:
    said = {name: value for name, value in INSERT.items() if name != "pkNames"}
    parts = canal_json.decode(None, json.dumps(said).encode()).parts
    assert {part.key for part in parts if isinstance(part, RowChange)} == {None}
    assert {part.key for part in decode(pkNames=None).parts if isinstance(part, RowChange)} == {()}


def test_a_backquote_in_a_name() -> None:
    name = "a``b"
    (part,) = decode(type="UPDATE", data=[{name: "1"}], old=[{name: "``"}], pkNames=[name], mysqlType={name: "x"}).parts
    assert part == RowChange("d", "t", "U", {"a`b": "``"}, {"a`b": "1"}, {"a`b": "x"}, ("a`b",))


def test_a_ddl() -> None:
    message = decode(type="ERASE", isDdl=True, sql="DROP TABLE a, b", data=None, mysqlType=None, pkNames=None)
    assert message.parts == (Ddl("d", "t", "DROP TABLE a, b"),)


@pytest.mark.parametrize("kind", ["QUERY", "GTID", "XACOMMIT", "MHEARTBEAT"])
def test_messages_that_change_nothing_by_themselves(kind: str) -> None:
    assert decode(type=kind, data=None, sql="update t set v = 1").parts == ()


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
)
def test_a_value_that_is_no_message(value: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        canal_json.decode(None, value)


def test_a_whole_pair_is_a_character() -> None:
    (part,) = decode(data=[{"id": "😀"}]).parts
    assert isinstance(part, RowChange) and part.after == {"id": "😀"}


CAPTURED = [each for source in SOURCES for each in capture(source).flat_messages if len(each) < 3000]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "v"]), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(CAPTURED), st.sampled_from(sorted(INSERT)), VALUES)
def test_what_is_spoilt_is_a_message_or_a_message_error(content: bytes, name: str, value: object) -> None:
    with contextlib.suppress(MessageError):
        assert isinstance(canal_json.decode(None, json.dumps({**json.loads(content), name: value}).encode()), Message)
