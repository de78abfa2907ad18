"""What is read in one go is what the whole decoder reads: of the data sets' messages, and of such as are damaged."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.decoders.messages.ticdc_canal_json import FORMAT, PLAIN
from tests.decoders.messages.strategies import json_values
from tests.kit.data_sets import ARCHIVES

DECODE = FORMAT.decoder({})


@cache
def messages() -> list[bytes]:
    """Of all data sets of topics."""
    found: list[bytes] = []
    with tarfile.open(ARCHIVES / "ticdc-kafka.tar.xz") as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".jsonl") else None
            for line in file or ():
                value = json.loads(line)["value"]
                if value is not None:
                    found.append(value.encode())
    return found


def agrees(value: bytes) -> bool:
    """Whether the message was read in one go; then as by the whole decoder."""
    row = PLAIN.read(value)
    types_and_key = None if row is None else PLAIN.types_and_key(row.shape)
    if row is None or types_and_key is None:
        return False
    message = DECODE(None, value)
    types, key = types_and_key
    assert isinstance(message, Message)
    assert message.parts == (RowChange(row.database, row.table, row.op, row.before, row.after, types, key),)
    assert message.origin.commit_ts == row.commit_ts
    return True


def test_messages_of_the_data_sets() -> None:
    plain = sum(map(agrees, messages()))
    assert plain > len(messages()) // 2


ROW: dict[str, Any] = {
    "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "UPDATE", "es": 1, "ts": 2,
    "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int", "v": "varchar"}, "old": [{"id": "1", "v": None}],
    "data": [{"id": "1", "v": "x"}], "_tidb": {"commitTs": 5},
}  # fmt: skip
NAMES = [*ROW, "onlyHandleKey", "claimCheckLocation", "other"]


@given(st.data(), st.sampled_from(["INSERT", "UPDATE", "DELETE", "CREATE"]), st.booleans())
def test_messages_that_are_other(data: st.DataObject, kind: str, escaped: bool) -> None:
    message = json.loads(json.dumps({**ROW, "type": kind}))
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        inner = (
            data.draw(st.sampled_from([message, message["_tidb"]]))
            if isinstance(message.get("_tidb"), dict)
            else message
        )
        if data.draw(st.booleans()):
            inner.pop(name, None)
        else:
            inner[name] = data.draw(json_values)
    value = json.dumps(message, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        agrees(value)
    except MessageError as error:
        pytest.fail(f"read in one go, but the whole decoder says: {error}")


@given(st.integers(0, 400), st.binary(max_size=3))
def test_bytes_that_are_other(place: int, other: bytes) -> None:
    value = bytearray(json.dumps(ROW).encode())
    value[place : place + len(other)] = other
    try:
        agrees(bytes(value))
    except MessageError as error:
        pytest.fail(f"read in one go, but the whole decoder says: {error}")
