"""Shareplex JSON: statements name what the message names, and updates come in two halves."""

from __future__ import annotations

import json
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


MESSAGES = {
    "I": decode(None, message("ins", data={"A": "1"}, meta={"scn": 1, "seq": 9, "table": "d.t"})),
    "T": decode(None, message("truncate", meta={"table": "d.t"})),
    "W": decode(None, message("upd", data={"A": "2"}, key={"A": "1"})),
    "!": MessageError("garbage"),
    "b": _half("BEFORE", {"A": "1", "B": "x", "C": None}, seq=1),
    "a": _half("AFTER", {"A": "2", "C": "c"}, seq=2),
    "t": _half("AFTER", {"A": "2"}, table="d.other"),
    "d": _half("AFTER", {"A": "2"}, table="other.t"),
    "s": _half("AFTER", {"A": "2"}, scn=2),
}
ROW = RowChange("d", "t", "U", {"A": "1", "B": "x", "C": None}, {"A": "2", "B": "x", "C": "c"})


@pytest.mark.parametrize(
    ("sent", "known"),
    # A `-` is a half that says nothing of its own, `=` an update, `?` an error of a half that stands alone.
    [
        ("IbaI", "I-=I"), ("WT!", "WT!"), ("Ib", "I"), ("b", ""), ("", ""), ("bI", "?I"), ("b!", "?!"), ("bT", "?T"),
        ("bbI", "??I"), ("a", "?"), ("Ia", "I?"), ("aa", "??"), ("bt", "??"), ("bd", "??"), ("bs", "??"),
    ],
)  # fmt: skip
def test_halves_next_to_each_other_become_one_update(sent: str, known: str) -> None:
    assert FORMAT.update_halves is not None
    pairing = UpdatePairing(FORMAT.update_halves)
    found = [each for letter in sent for each in pairing.next(MESSAGES[letter])]
    assert (pairing.waiting is not None) == (len(known) < len(sent)) and len(found) == len(known)
    for each, letter in zip(found, known, strict=True):
        if letter in MESSAGES:
            assert each is MESSAGES[letter]
        elif letter == "?":
            assert isinstance(each, MessageError) and "stands alone" in str(each) and each.table is not None
        else:
            half = MESSAGES["b" if letter == "-" else "a"]
            assert isinstance(half, Message) and each == Message(half.origin, (ROW,) if letter == "=" else ())
