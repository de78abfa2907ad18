"""DTS's Canal JSON: messages as its documentation describes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange
from cdc_lakehouse.decoders.messages.registry import format_of

since = format_of("dts-canal-json").decoder({})
before = format_of("dts-canal-json").decoder({"before_2022_03_20": True})

TYPES = {"id": "bigint", "carrier": "varchar"}
COMMON = {
    "database": "shop", "es": 1709629811000, "id": 6, "isDdl": False, "mysqlType": TYPES, "pkNames": ["id"],
    "sql": "", "sqlType": {"id": -5, "carrier": 12}, "table": "parcels", "ts": 1709629811250,
}  # fmt: skip
ORIGIN = Origin(time_ms=1_709_629_811_000)


def message(**values: Any) -> bytes:
    return json.dumps({**COMMON, **values}).encode()


def _change(op: Any, old: Any, new: Any) -> RowChange:
    return RowChange("shop", "parcels", op, old, new, TYPES, ("id",))


def test_a_delete_of_before_2022() -> None:
    value = message(type="DELETE", old=[{"carrier": "post"}])
    assert before(None, value) == Message(ORIGIN, (_change("D", {"carrier": "post"}, None),))


def test_a_delete_since_2022() -> None:
    row = {"id": "41", "carrier": None}
    assert since(None, message(type="DELETE", data=[row])) == Message(ORIGIN, (_change("D", row, None),))


def test_a_ddl() -> None:
    value = json.dumps({
        "database": "shop", "es": 1709629811000, "id": 6, "isDdl": True, "sql": "CREATE TABLE parcels (id INT)",
        "table": "parcels", "ts": 1709629811250, "type": "DDL",
    })  # fmt: skip
    assert since(None, value.encode()) == Message(ORIGIN, (Ddl("shop", "parcels", "CREATE TABLE parcels (id INT)"),))


OLD, NEW = {"id": "1", "carrier": "a"}, {"id": "1", "carrier": "b"}


def test_an_update_has_the_new_row_in_data_since_2022_and_in_old_before() -> None:
    assert since(None, message(type="UPDATE", data=[NEW], old=[OLD])).parts == (_change("U", OLD, NEW),)
    assert before(None, message(type="UPDATE", data=[OLD], old=[NEW])).parts == (_change("U", OLD, NEW),)


def test_an_update_with_the_changed_columns_only() -> None:
    changed = {"carrier": "a"}
    assert since(None, message(type="UPDATE", data=[NEW], old=[changed])).parts == (_change("U", changed, NEW),)
    changed = {"carrier": "b"}
    assert before(None, message(type="UPDATE", data=[OLD], old=[changed])).parts == (_change("U", OLD, NEW),)


def test_an_update_that_changed_nothing() -> None:
    assert since(None, message(type="UPDATE", data=[NEW], old=[{}])).parts == (_change("U", {}, NEW),)


@pytest.mark.parametrize("old", [None, [], [None]])
def test_an_update_without_its_old_row(old: Any) -> None:
    assert since(None, message(type="UPDATE", data=[NEW], old=old)).parts == (_change("U", None, NEW),)


@pytest.mark.parametrize("type", ["INSERT", "INIT"])
def test_rows_of_the_full_load_and_inserts(type: str) -> None:
    rows = [{"id": str(number), "carrier": None} for number in range(3)]
    expected = tuple(_change("I", None, row) for row in rows)
    assert since(None, message(type=type, data=rows, old=None)).parts == expected
    assert before(None, message(type=type, data=rows)).parts == expected
    assert before(None, message(type=type, data=None, old=rows)).parts == expected


def test_all_rows_of_a_message_in_order() -> None:
    olds, news = [{"id": "1"}, {"id": "2"}], [{"id": "3"}, {"id": "4"}]
    expected = (_change("U", olds[0], news[0]), _change("U", olds[1], news[1]))
    assert since(None, message(type="UPDATE", data=news, old=olds)).parts == expected
    assert since(None, message(type="DELETE", data=olds)).parts == tuple(_change("D", row, None) for row in olds)


def test_values_are_text() -> None:
    row = '{"id":18446744073709551615,"n":1.10,"e":1E5,"t":true,"f":false,"s":"中\\u0000","z":null,"":"a"}'
    value = message(type="INSERT", data="DATA").replace(b'"DATA"', f"[{row}]".encode())
    (part,) = since(None, value).parts
    assert isinstance(part, RowChange) and part.after is not None
    assert part.after == {
        "id": "18446744073709551615", "n": "1.10", "e": "1E5", "t": "1", "f": "0", "s": "中\0", "z": None, "": "a",
    }  # fmt: skip
    assert all(text is None or type(text) is str for text in part.after.values())


@pytest.mark.parametrize(
    ("values", "key"),
    [({}, ("id",)), ({"pkNames": ["b", "a"]}, ("b", "a")), ({"pkNames": None}, ()), ({"pkNames": []}, ())],
)
def test_keys(values: dict[str, Any], key: tuple[str, ...]) -> None:
    (part,) = since(None, message(type="INSERT", data=[NEW], **values)).parts
    assert isinstance(part, RowChange) and part.key == key


def test_what_is_left_out_is_not_said() -> None:
    value = b'{"database":"d","table":"t","type":"INSERT","data":[{"id":"1"}]}'
    assert since(None, value) == Message(Origin(), (RowChange("d", "t", "I", None, {"id": "1"}, {}, None),))


def test_the_gtid() -> None:
    assert since(None, message(type="INSERT", data=[NEW], gtid="uuid:7")).origin.gtid == "uuid:7"
    assert since(None, message(type="INSERT", data=[NEW], gtid="")).origin.gtid is None


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"type": "QUERY"}, "type 'QUERY' is none of"),
        ({"type": None}, "does not say its type"),
        ({"type": 7}, "type is not text"),
        ({"type": "INSERT", "database": None}, "does not say its database"),
        ({"type": "INSERT", "table": ""}, "does not say its table"),
        ({"type": "INSERT"}, "has no row"),
        ({"type": "INSERT", "data": [{}]}, "without columns"),
        ({"type": "INSERT", "data": [NEW, None]}, "without columns"),
        ({"type": "INSERT", "data": [NEW], "old": [NEW]}, "both data and old"),
        ({"type": "DELETE", "data": [NEW], "old": [NEW]}, "both data and old"),
        ({"type": "INSERT", "data": NEW}, "data is no list"),
        ({"type": "INSERT", "data": ["x"]}, "data is no list"),
        ({"type": "INSERT", "data": [{"id": [1]}]}, "column 'id' is a list or an object"),
        ({"type": "UPDATE", "data": [], "old": []}, "no new row"),
        ({"type": "UPDATE", "data": [NEW, NEW], "old": [OLD]}, r"\d new rows for \d old ones"),
        ({"type": "INSERT", "data": [NEW], "mysqlType": {"id": 1.5e3, "v": ["x"]}}, "mysqlType"),
        ({"type": "INSERT", "data": [NEW], "mysqlType": "int"}, "mysqlType is not an object"),
        ({"type": "INSERT", "data": [NEW], "pkNames": "id"}, "pkNames"),
        ({"type": "INSERT", "data": [NEW], "pkNames": [1]}, "pkNames"),
        ({"type": "INSERT", "data": [NEW], "es": "soon"}, "es is not a whole number"),
        ({"type": "INSERT", "data": [NEW], "es": 1 << 63}, "es is not a whole number"),
        ({"type": "INSERT", "data": [NEW], "es": 1_709_629_811_000_000}, "es is no time"),
        ({"type": "INSERT", "data": [NEW], "isDdl": "no"}, "isDdl"),
        ({"type": "DDL", "sql": ""}, "no statement"),
        ({"type": "ALTER", "isDdl": True, "sql": None}, "no statement"),
    ],
)
def test_what_cannot_be_used_is_an_error(values: dict[str, Any], problem: str) -> None:
    for decode in (since, before):
        with pytest.raises(MessageError, match=problem):
            decode(None, message(**values))


def test_an_update_without_its_new_row_is_an_error() -> None:
    with pytest.raises(MessageError, match="no new row"):
        since(None, message(type="UPDATE", old=[OLD]))
    with pytest.raises(MessageError, match="no new row"):
        before(None, message(type="UPDATE", data=[OLD]))


def test_an_error_of_a_row_says_its_table() -> None:
    with pytest.raises(MessageError) as caught:
        since(None, message(type="INSERT"))
    assert caught.value.table == "shop.parcels"


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
)
def test_messages_that_contradict_the_option(values: dict[str, Any], says_before: bool | None) -> None:
    value = message(**values)
    without, with_option = since(None, value).option_conflict, before(None, value).option_conflict
    assert ("before 2022-03-20, set before_2022_03_20" in str(without)) == (says_before is True)
    assert ("do not set before_2022_03_20" in str(with_option)) == (says_before is False)
    assert (without is None) == (says_before is not True) and (with_option is None) == (says_before is not False)
