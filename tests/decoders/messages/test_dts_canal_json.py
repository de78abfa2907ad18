"""DTS's Canal JSON: messages as its documentation describes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange
from cdc_lakehouse.decoders.format import Decode
from cdc_lakehouse.decoders.registry import format_of
from tests.kit.cases import shown

since = format_of("dts-canal-json").decoder({})
before = format_of("dts-canal-json").decoder({"before_2022_03_20": True})

TYPES = {"id": "bigint", "carrier": "varchar"}
COMMON = {
    "database": "shop", "es": 1709629811000, "id": 6, "isDdl": False, "mysqlType": TYPES, "pkNames": ["id"],
    "sql": "", "sqlType": {"id": -5, "carrier": 12}, "table": "parcels", "ts": 1709629811250,
}  # fmt: skip
ORIGIN = Origin(time_ms=1_709_629_811_000)
OLD, NEW = {"id": "1", "carrier": "a"}, {"id": "1", "carrier": "b"}
ONE, TWO, THREE, FOUR = ({"id": number} for number in "1234")


def message(**values: Any) -> bytes:
    return json.dumps({**COMMON, **values}).encode()


def change(op: Any, old: Any, new: Any, key: tuple[str, ...] = ("id",)) -> RowChange:
    return RowChange("shop", "parcels", op, old, new, TYPES, key)


MESSAGES = [
    (since, {"type": "INSERT", "data": [ONE, TWO]}, [change("I", None, ONE), change("I", None, TWO)]),
    (since, {"type": "INIT", "data": [NEW], "old": None}, [change("I", None, NEW)]),
    (before, {"type": "INSERT", "data": [ONE, TWO]}, [change("I", None, ONE), change("I", None, TWO)]),
    (before, {"type": "INIT", "data": [NEW]}, [change("I", None, NEW)]),
    (before, {"type": "INSERT", "data": None, "old": [ONE, TWO]}, [change("I", None, ONE), change("I", None, TWO)]),
    (before, {"type": "INIT", "data": None, "old": [NEW]}, [change("I", None, NEW)]),
    # A deleted row is in `data` since 2022, and was in `old` before.
    (since, {"type": "DELETE", "data": [ONE, TWO]}, [change("D", ONE, None), change("D", TWO, None)]),
    (since, {"type": "DELETE", "data": [{**ONE, "carrier": None}]}, [change("D", {**ONE, "carrier": None}, None)]),
    (before, {"type": "DELETE", "old": [{"carrier": "post"}]}, [change("D", {"carrier": "post"}, None)]),
    # An updated row, whole or with the changed columns only, is in `old` since 2022, and was in `data` before.
    (since, {"type": "UPDATE", "data": [NEW], "old": [OLD]}, [change("U", OLD, NEW)]),
    (before, {"type": "UPDATE", "data": [OLD], "old": [NEW]}, [change("U", OLD, NEW)]),
    (since, {"type": "UPDATE", "data": [NEW], "old": [{"carrier": "a"}]}, [change("U", {"carrier": "a"}, NEW)]),
    (before, {"type": "UPDATE", "data": [OLD], "old": [{"carrier": "b"}]}, [change("U", OLD, NEW)]),
    (since, {"type": "UPDATE", "data": [NEW], "old": [{}]}, [change("U", {}, NEW)]),
    *((since, {"type": "UPDATE", "data": [NEW], "old": old}, [change("U", None, NEW)]) for old in (None, [], [None])),
    (
        since,
        {"type": "UPDATE", "data": [THREE, FOUR], "old": [ONE, TWO]},
        [change("U", ONE, THREE), change("U", TWO, FOUR)],
    ),
    (since, {"type": "INSERT", "data": [NEW], "pkNames": ["b", "a"]}, [change("I", None, NEW, ("b", "a"))]),
    (since, {"type": "INSERT", "data": [NEW], "pkNames": None}, [change("I", None, NEW, ())]),
    (since, {"type": "INSERT", "data": [NEW], "pkNames": []}, [change("I", None, NEW, ())]),
]


def described(value: object) -> str:
    """The decoders have no names, and what stands for one in a report differs between processes."""
    if isinstance(value, list | tuple):
        return " and ".join(map(described, value))
    if callable(value):
        return "before 2022-03-20" if value is before else "since 2022-03-20"
    return shown(value)


@pytest.mark.parametrize(("decode", "values", "changes"), MESSAGES, ids=described)
def test_changes(decode: Decode, values: dict[str, Any], changes: list[RowChange]) -> None:
    assert decode(None, message(**values)) == Message(ORIGIN, tuple(changes))


def test_a_ddl() -> None:
    value = json.dumps({
        "database": "shop", "es": 1709629811000, "id": 6, "isDdl": True, "sql": "CREATE TABLE parcels (id INT)",
        "table": "parcels", "ts": 1709629811250, "type": "DDL",
    })  # fmt: skip
    assert since(None, value.encode()) == Message(ORIGIN, (Ddl("shop", "parcels", "CREATE TABLE parcels (id INT)"),))


def test_what_is_left_out_is_not_said() -> None:
    value = b'{"database":"d","table":"t","type":"INSERT","data":[{"id":"1"}]}'
    assert since(None, value) == Message(Origin(), (RowChange("d", "t", "I", None, {"id": "1"}, {}, None),))


def test_values_are_text() -> None:
    row = '{"id":18446744073709551615,"n":1.10,"e":1E5,"t":true,"f":false,"s":"中\\u0000","z":null,"":"a"}'
    texts = {"id": "18446744073709551615", "n": "1.10", "e": "1E5", "t": "1", "f": "0", "s": "中\0", "z": None, "": "a"}
    found = since(None, message(type="INSERT", data="DATA").replace(b'"DATA"', f"[{row}]".encode()))
    assert found == Message(ORIGIN, (change("I", None, texts),))
    assert all(text is None or type(text) is str for text in found.parts[0].after.values())


def test_the_gtid() -> None:
    assert since(None, message(type="INSERT", data=[NEW], gtid="uuid:7")).origin.gtid == "uuid:7"
    assert since(None, message(type="INSERT", data=[NEW], gtid="")).origin.gtid is None


BOTH = (since, before)
ERRORS = [
    (BOTH, {"type": "QUERY"}, "type 'QUERY' is none of"),
    (BOTH, {"type": None}, "does not say its type"),
    (BOTH, {"type": 7}, "type is not text"),
    (BOTH, {"type": "INSERT", "database": None}, "does not say its database"),
    (BOTH, {"type": "INSERT", "table": ""}, "does not say its table"),
    (BOTH, {"type": "INSERT"}, r"has no row.*\[table shop\.parcels\]"),
    (BOTH, {"type": "INSERT", "data": [{}]}, "without columns"),
    (BOTH, {"type": "INSERT", "data": [NEW, None]}, "without columns"),
    (BOTH, {"type": "INSERT", "data": [NEW], "old": [NEW]}, "both data and old"),
    (BOTH, {"type": "DELETE", "data": [NEW], "old": [NEW]}, "both data and old"),
    (BOTH, {"type": "INSERT", "data": NEW}, "data is no list"),
    (BOTH, {"type": "INSERT", "data": ["x"]}, "data is no list"),
    (BOTH, {"type": "INSERT", "data": [{"id": [1]}]}, "column 'id' is a list or an object"),
    (BOTH, {"type": "UPDATE", "data": [], "old": []}, "no new row"),
    ([since], {"type": "UPDATE", "old": [OLD]}, "no new row"),
    ([before], {"type": "UPDATE", "data": [OLD]}, "no new row"),
    (BOTH, {"type": "UPDATE", "data": [NEW, NEW], "old": [OLD]}, r"\d new rows for \d old ones"),
    (BOTH, {"type": "INSERT", "data": [NEW], "mysqlType": {"id": 1.5e3, "v": ["x"]}}, "mysqlType"),
    (BOTH, {"type": "INSERT", "data": [NEW], "mysqlType": "int"}, "mysqlType is not an object"),
    (BOTH, {"type": "INSERT", "data": [NEW], "pkNames": "id"}, "pkNames"),
    (BOTH, {"type": "INSERT", "data": [NEW], "pkNames": [1]}, "pkNames"),
    (BOTH, {"type": "INSERT", "data": [NEW], "es": "soon"}, "es is not a whole number"),
    (BOTH, {"type": "INSERT", "data": [NEW], "es": 1 << 63}, "es is not a whole number"),
    (BOTH, {"type": "INSERT", "data": [NEW], "es": 1_709_629_811_000_000}, "not between the years"),
    (BOTH, {"type": "INSERT", "data": [NEW], "isDdl": "no"}, "isDdl"),
    (BOTH, {"type": "DDL", "sql": ""}, "no statement"),
    (BOTH, {"type": "ALTER", "isDdl": True, "sql": None}, "no statement"),
]


@pytest.mark.parametrize(("decoders", "values", "problem"), ERRORS, ids=described)
def test_what_cannot_be_used_is_an_error(decoders: list[Decode], values: dict[str, Any], problem: str) -> None:
    for decode in decoders:
        with pytest.raises(MessageError, match=problem):
            decode(None, message(**values))


@pytest.mark.parametrize(
    ("values", "says_before"),
    [
        ({"type": "DELETE", "old": [OLD]}, True),
        ({"type": "INSERT", "old": [OLD]}, True),
        ({"type": "INIT", "old": [OLD]}, True),
        ({"type": "DELETE", "data": [OLD]}, False),
        # These do not tell.
        ({"type": "INSERT", "data": [OLD]}, None),
        ({"type": "UPDATE", "data": [NEW], "old": [OLD]}, None),
        ({"type": "UPDATE", "data": [NEW], "old": [{"id": "1"}]}, None),
        ({"type": "DDL", "isDdl": True, "sql": "DROP TABLE t", "data": None}, None),
    ],
    ids=described,
)
def test_messages_that_contradict_the_option(values: dict[str, Any], says_before: bool | None) -> None:
    value = message(**values)
    without, with_option = since(None, value).option_conflict, before(None, value).option_conflict
    assert ("before 2022-03-20, set before_2022_03_20" in str(without)) == (says_before is True)
    assert ("do not set before_2022_03_20" in str(with_option)) == (says_before is False)
    assert (without is None) == (says_before is not True) and (with_option is None) == (says_before is not False)
