"""Shareplex JSON: statements name what the message names, and updates come in two halves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.ddl import statements
from cdc_lakehouse.changelog.ddl.clauses import DropColumn, TableRef, TruncateTable
from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, RowChange
from cdc_lakehouse.decoders.formats.shareplex_json import FORMAT, decode
from cdc_lakehouse.decoders.topic_order import UpdatePairing


def message(op: str, **values: Any) -> bytes:
    meta = {"op": op, "table": "SALES.PARCELS", **values.pop("meta", {})}
    return json.dumps({"meta": meta, **values}).encode()


identifiers = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("`'\";-#/*\\ "), min_size=1, max_size=8
)


@given(identifiers.filter(lambda name: "." not in name), identifiers, st.lists(identifiers, min_size=1, max_size=3))
def test_statements_name_what_the_message_names(database: str, table: str, columns: list[str]) -> None:
    meta = {"table": f"{database}.{table}"}
    named = TableRef(database, table)
    (truncate,) = decode(None, message("truncate", meta=meta)).parts
    assert isinstance(truncate, Ddl)
    assert statements.parse(truncate.sql) == (TruncateTable(named),)
    (drop,) = decode(None, message("drop column", meta=meta, data=dict.fromkeys(columns))).parts
    assert isinstance(drop, Ddl)
    assert statements.parse(drop.sql) == tuple(DropColumn(named, name) for name in dict.fromkeys(columns))


# Updates in two halves.


def _half(which: str, row: dict[str, str | None], *, scn: int = 1, seq: int = 1, table: str = "d.t") -> Message:
    return decode(None, message(f"UPDATE {which}", data=row, meta={"scn": scn, "seq": seq, "table": table}))


INSERT = decode(None, message("ins", data={"A": "1"}, meta={"scn": 1, "seq": 9, "table": "d.t"}))
TRUNCATE = decode(None, message("truncate", meta={"table": "d.t"}))
BEFORE, AFTER = _half("BEFORE", {"A": "1", "B": "x", "C": None}, seq=1), _half("AFTER", {"A": "2", "C": "c"}, seq=2)
BAD = MessageError("garbage")


def paired(messages: Sequence[Message | MessageError]) -> tuple[list[Message | MessageError], int]:
    """What is known of a partition's messages, and how many at the end wait for the next one."""
    assert FORMAT.update_halves is not None
    pairing = UpdatePairing(FORMAT.update_halves)
    done = [found for message in messages for found in pairing.next(message)]
    return done, 0 if pairing.waiting is None else 1


WHOLE = decode(None, message("upd", data={"A": "2"}, key={"A": "1"}))
PAIRED = Message(
    AFTER.origin, (RowChange("d", "t", "U", {"A": "1", "B": "x", "C": None}, {"A": "2", "B": "x", "C": "c"}),)
)


@pytest.mark.parametrize(
    ("messages", "done", "waiting"),
    [
        ([INSERT, BEFORE, AFTER, INSERT], [INSERT, Message(BEFORE.origin), PAIRED, INSERT], 0),
        ([WHOLE, TRUNCATE, BAD], [WHOLE, TRUNCATE, BAD], 0),
        ([INSERT, BEFORE], [INSERT], 1),
        ([BEFORE], [], 1),
        ([], [], 0),
    ],
    ids=["two halves", "nothing to pair", "a half at the end", "one half", "nothing"],
)
def test_halves_become_one_update(
    messages: list[Message | MessageError], done: list[Message | MessageError], waiting: int
) -> None:
    assert paired(messages) == (done, waiting)


@pytest.mark.parametrize(
    "messages",
    [
        *([BEFORE, INSERT], [BEFORE, BAD], [BEFORE, TRUNCATE], [BEFORE, BEFORE, INSERT]),
        *([AFTER], [INSERT, AFTER], [AFTER, AFTER]),
        [BEFORE, _half("AFTER", {"A": "2"}, table="d.other")],
        [BEFORE, _half("AFTER", {"A": "2"}, table="other.t")],
        [BEFORE, _half("AFTER", {"A": "2"}, scn=2)],
    ],
)
def test_a_half_alone_is_an_error_and_the_others_stay(messages: list[Message | MessageError]) -> None:
    done, waiting = paired(messages)
    assert waiting == 0 and len(done) == len(messages)
    for given_, found in zip(messages, done, strict=True):
        if given_ in (INSERT, BAD, TRUNCATE):
            assert found is given_
        else:
            assert isinstance(found, MessageError) and "stands alone" in str(found) and found.table is not None
