"""DTS's Shareplex JSON: messages as its documentation describes them, and updates in two halves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.ddl import statements
from cdc_lakehouse.changelog.ddl.clauses import DropColumn, TableRef, TruncateTable
from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange
from cdc_lakehouse.decoders.formats.shareplex_json import FORMAT, decode
from cdc_lakehouse.decoders.topic_order import UpdatePairing
from tests.kit.cases import shown


def message(op: str | None, **values: Any) -> bytes:
    meta = {"op": op, "table": "SALES.PARCELS", **values.pop("meta", {})}
    return json.dumps({"meta": meta, **values}).encode()


def _change(op: Any, before: Any, after: Any) -> RowChange:
    return RowChange("SALES", "PARCELS", op, before, after)


def _ddl(sql: str) -> Ddl:
    return Ddl("SALES", "PARCELS", sql)


def test_a_whole_message() -> None:
    meta = {
        "op": "ins", "table": "SALES.PARCELS", "time": "2024-03-05T09:10:11", "scn": "20480004711", "seq": 3, "size": 7,
        "idx": "3/7", "trans": "3.1.20", "rowid": "AAAQ01AAEAAB7cAAAK", "userid": 9, "posttime": "2024-03-05T09:10:15",
    }  # fmt: skip
    value = json.dumps({"meta": meta, "data": {"ID": "7"}}).encode()
    origin = Origin(time_ms=1_709_629_811_000, log_file="00000000020480004711", log_offset=3)
    assert decode(None, value) == Message(origin, (_change("I", None, {"ID": "7"}),))


ONE: dict[str, str | None] = {"A": "1"}
TWO: dict[str, str | None] = {"A": "2"}
KEY = {"ID": "7", "ROUTE": "12", "NOTE": None, "WEIGHT": None, "CODE": "old"}


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        *((op, {"data": ONE}, _change("I", None, ONE)) for op in ("ins", "INSERT", "insert", "Ins")),
        ("UPDATE", {"data": TWO, "key": ONE}, _change("U", ONE, TWO)),
        ("upd", {"data": {"B": None}, "key": {**ONE, "B": "x"}}, _change("U", {**ONE, "B": "x"}, {**ONE, "B": None})),
        # A NULL beside the key may be a value that was not sent: it does not become one of the new row.
        ("upd", {"data": {"CODE": "new"}, "key": KEY}, _change("U", KEY, {"ID": "7", "ROUTE": "12", "CODE": "new"})),
        ("del", {"data": KEY}, _change("D", KEY, None)),
        ("DELETE", {"key": ONE}, _change("D", ONE, None)),
        ("del", {"data": {"B": "2"}, "key": ONE}, _change("D", {**ONE, "B": "2"}, None)),
        ("UPDATE BEFORE", {"data": ONE}, _change("U", ONE, None)),
        ("update  after", {"data": TWO}, _change("U", None, TWO)),
        ("TRUNCATE", {}, _ddl("TRUNCATE TABLE `SALES`.`PARCELS`")),
        ("drop column", {"key": {"A": None}}, _ddl("ALTER TABLE `SALES`.`PARCELS` DROP COLUMN `A`")),
        (
            "DROP COLUMN",
            {"data": {"A": None, "b`c": None}},
            _ddl("ALTER TABLE `SALES`.`PARCELS` DROP COLUMN `A`, DROP COLUMN `b``c`"),
        ),
    ],
    ids=shown,
)
def test_operations(op: str, values: dict[str, Any], expected: RowChange | Ddl) -> None:
    assert decode(None, message(op, **values)).parts == (expected,)


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


@pytest.mark.parametrize(
    ("meta", "origin"),
    [
        ({}, Origin()),
        ({"scn": "7", "seq": 2}, Origin(log_file="00000000000000000007", log_offset=2)),
        ({"scn": 7, "seq": "2"}, Origin(log_file="00000000000000000007", log_offset=2)),
        ({"scn": "7", "idx": "3/11"}, Origin(log_file="00000000000000000007", log_offset=3)),
        ({"scn": "7", "seq": 1, "idx": "3/11"}, Origin(log_file="00000000000000000007", log_offset=1)),
        ({"scn": "7"}, Origin(log_file="00000000000000000007")),
        # A number in a transaction that is not known is no order.
        ({"seq": 2, "idx": "2/3"}, Origin()),
        ({"time": "2024-03-05T09:10:11Z"}, Origin(time_ms=1_709_629_811_000)),
        ({"time": "2024-03-05T09:10:11.5"}, Origin(time_ms=1_709_629_811_500)),
        ({"time": "2024-03-05T09:10:11.123456789Z"}, Origin(time_ms=1_709_629_811_123)),
        ({"time": ""}, Origin()),
    ],
)
def test_origins(meta: dict[str, Any], origin: Origin) -> None:
    assert decode(None, message("ins", data={"A": "1"}, meta=meta)).origin == origin


def test_scn_and_seq_are_the_order() -> None:
    order = [(9, 2), (10, 1), (10, 2), (10, 11), (99_999_999_999, 1)]
    origins = [
        decode(None, message("ins", data={"A": "1"}, meta={"scn": str(scn), "seq": seq})).origin for scn, seq in order
    ]
    found = [(origin.log_file or "", origin.log_offset or 0) for origin in origins]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("op", "values", "problem"),
    [
        (None, {}, "op '' is none of"),
        ("merge", {}, "op 'merge' is none of"),
        ("x" * 10_000, {}, "op 'x"),
        ("ins", {}, "insert lacks what it needs"),
        ("ins", {"data": {}}, "insert lacks"),
        ("upd", {"data": ONE}, "update lacks"),
        ("upd", {"key": ONE}, "update lacks"),
        ("del", {}, "delete lacks"),
        ("update before", {}, "update before lacks"),
        ("update after", {"key": ONE}, "update after lacks"),
        ("drop column", {}, "drop column lacks"),
        ("ins", {"data": [1]}, "data is not an object"),
        ("ins", {"data": {"A": {}}}, "column 'A'"),
        ("ins", {"data": ONE, "meta": {"table": None}}, "table '' is not written as"),
        ("ins", {"data": ONE, "meta": {"table": "t"}}, "table 't' is not written as"),
        ("ins", {"data": ONE, "meta": {"table": ".t"}}, "table"),
        ("ins", {"data": ONE, "meta": {"scn": "x"}}, "scn is not a whole number"),
        ("ins", {"data": ONE, "meta": {"time": "yesterday"}}, "time 'yesterday'"),
        ("ins", {"data": ONE, "meta": {"time": "2023-02-30T00:00:00"}}, "time"),
        ("ins", {"data": ONE, "meta": {"time": "0000-01-01T00:00:00Z"}}, "time"),
    ],
    ids=shown,
)
def test_what_cannot_be_used_is_an_error(op: str | None, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(MessageError, match=problem) as caught:
        decode(None, message(op, **values))
    assert len(str(caught.value)) < 400


def test_a_message_without_meta_is_an_error() -> None:
    with pytest.raises(MessageError, match="no meta"):
        decode(None, b'{"data":{"A":"1"}}')


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


WHOLE = decode(None, message("upd", data=TWO, key=ONE))
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
        [BEFORE, _half("AFTER", TWO, table="d.other")],
        [BEFORE, _half("AFTER", TWO, table="other.t")],
        [BEFORE, _half("AFTER", TWO, scn=2)],
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


stream = st.lists(
    st.sampled_from(
        [[INSERT], [BEFORE], [AFTER], [BEFORE, AFTER], [BAD], [TRUNCATE], [_half("AFTER", {"A": "3"}, scn=2)]]
    ),
    max_size=12,
).map(lambda pieces: [message for piece in pieces for message in piece])


@pytest.mark.slow
@given(stream, st.lists(st.integers(1, 4), min_size=1, max_size=20))
def test_batches_and_restarts_change_nothing(messages: list[Message | MessageError], sizes: list[int]) -> None:
    """The reader starts each batch where the last one ended, less what waits: that is all it has to remember."""
    whole, rest = paired(messages)
    done: list[Message | MessageError] = []
    start, size = 0, iter([*sizes, *[len(messages) + 1] * (len(messages) + 1)])
    end = 0
    while end < len(messages):
        end = min(end + next(size), len(messages))
        some, waiting = paired(messages[start:end])
        done += some
        start = end - waiting
    assert len(done) + rest == len(messages)
    assert [_shown(each) for each in done] == [_shown(each) for each in whole]


def _shown(message: Message | MessageError) -> object:
    return str(message) if isinstance(message, MessageError) else message
