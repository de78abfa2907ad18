"""Messages of known forms are read as the other reader reads each of them alone."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.decoders.messages.format import UsualRows
from cdc_lakehouse.decoders.messages.known_forms import KnownForms
from cdc_lakehouse.decoders.messages.ticdc_canal_json import FORMAT
from tests.decoders.messages import test_ticdc_canal_json as ticdc
from tests.decoders.messages.strategies import characters
from tests.kit.duckdb_sql import connection

TS = 450000000000000001


def reader() -> KnownForms:
    found = FORMAT.column_reader({})
    assert isinstance(found, KnownForms)
    return found


def message(**parts: Any) -> bytes:
    said = {**ticdc.ROW, "es": 1768435200001, "ts": 1768435200128, "_tidb": {"commitTs": TS}} | parts
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def rows(found: UsualRows) -> dict[int, Any]:
    """By place, in their order."""
    columns = (found.places.tolist(), found.times.tolist(), found.shape_of.tolist())
    images = (found.before.to_pylist(), found.after.to_pylist())
    assert columns[0] == sorted(columns[0])
    return {
        place: (time, found.shapes[shape], *(image and json.loads(image) for image in pair))
        for place, time, shape, *pair in zip(*columns, *images, strict=True)
    }


texts = st.none() | st.text(characters, max_size=3) | st.sampled_from(["", '"', "\\", '}],"data":[{', "\ufffd"])
row = st.fixed_dictionaries({"id": st.sampled_from(["1", "22"]), "v": texts}, optional={"w": texts, "a``b": texts})
types = st.permutations(["id", "v", "w"]).map(lambda names: dict.fromkeys(names, "int")) | st.just({"id": "bigint"})
sound = st.builds(
    lambda kind, new, old, of, ts, more: message(
        type=kind, data=[new], old=old, mysqlType=of, sqlType=dict.fromkeys(of, 4), _tidb={"commitTs": ts, **more}
    ),
    st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
    row,
    row.map(lambda old: [old]) | st.none(),
    types,
    st.sampled_from([TS, TS + 1, TS + 10**9, 5, END_TS, END_TS - 1]),
    st.sampled_from([{}, {}, {}, {"onlyHandleKey": True}]),
)
watermarks = st.just(message(type="TIDB_WATERMARK", data=None, old=None, _tidb={"watermarkTs": TS}))


@pytest.mark.slow
@given(st.lists(st.lists(sound | sound.flatmap(ticdc.damaged) | watermarks | st.none(), max_size=12), max_size=3))
def test_each_is_read_as_alone(batches: list[list[bytes | None]]) -> None:
    read = reader()
    for values in batches:
        # As a part of what was read.
        array = pa.array([b"before", *values], pa.binary()).slice(1)
        assert rows(read(connection(), array)) == rows(read.others(connection(), array))
    flat = [value for values in batches for value in values]
    ticdc.check(flat, at_once=5)


def test_one_of_each_kind_is_read_otherwise() -> None:
    kinds = [
        {"type": "INSERT", "old": None},
        {"type": "INSERT", "old": None, "mysqlType": {"v": "varchar", "id": "int"}},
        {"type": "UPDATE", "old": [{"id": "1", "v": None}]},
        {"type": "UPDATE", "old": [{"id": "1", "v": "y"}]},
        {"type": "DELETE", "old": None, "table": "u"},
    ]
    values = [
        message(**kinds[n % len(kinds)], data=[{"id": str(n), "v": f"é{n}"}], _tidb={"commitTs": TS + n})
        for n in range(1000)
    ]
    read, asked = reader(), 0
    others = read.others

    def count(connection: Any, values: pa.Array) -> UsualRows:
        nonlocal asked
        asked += len(values)
        return others(connection, values)

    read.others = count
    found = rows(read(connection(), pa.array(values, pa.binary())))
    assert asked < 20
    assert found == rows(others(connection(), pa.array(values, pa.binary())))
    assert len(found) == 1000
    asked = 0
    read(connection(), pa.array(values, pa.binary()))
    assert asked == 0


def test_columns_that_come_in_ever_another_order_are_left_to_the_other_reader() -> None:
    names = [f"c{n}" for n in range(9)]
    values = [
        message(
            type="INSERT",
            old=None,
            data=[dict.fromkeys(names, "1")],
            mysqlType=dict.fromkeys([*names[n % 9 :], *names[: n % 9][:: 1 if n % 2 else -1]], "int"),
            sqlType=dict.fromkeys([*names[n // 9 % 9 :], *names[: n // 9 % 9]], 4),
        )
        for n in range(500)
    ]
    read = reader()
    found = rows(read(connection(), pa.array(values, pa.binary())))
    assert found == rows(read.others(connection(), pa.array(values, pa.binary())))
    assert len(found) == 500
