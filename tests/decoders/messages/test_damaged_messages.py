"""Whatever value stands in any place of a message: the answer is a message or an error. `tests/fuzz` spoils bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.decoders.format import Decode
from cdc_lakehouse.decoders.registry import format_of
from tests.canal_captures import SOURCES, capture
from tests.decoders.messages.dts_records import (
    LEFT_OUT,
    NULL,
    TIME_PARTS,
    binary_object,
    character,
    decimal,
    double,
    integer,
    row_body,
    sdk_records,
    text_object,
    timestamp,
    zoned,
)

characters = st.characters(exclude_categories=["Cs"])
FLAT = [each for source in SOURCES for each in capture(source).flat_messages if len(each) < 3000]
DTS_JSON = [
    b'{"database":"d","table":"t","type":"INSERT","es":1709629811000,"pkNames":["id"],"mysqlType":{"id":"int"},'
    b'"data":[{"id":"1","v":null}],"old":null,"isDdl":false,"gtid":"a:1"}',
    b'{"database":"d","table":"t","type":"UPDATE","es":1709629811000,"data":[{"id":"1"}],"old":[{"id":"2"}]}',
    b'{"database":"d","table":"t","type":"DDL","isDdl":true,"sql":"DROP TABLE t"}',
    b'{"meta":{"op":"upd","table":"d.t","time":"2024-03-05T09:10:11","scn":"20480004711","seq":1,"idx":"1/7"},'
    b'"data":{"v":"1"},"key":{"id":"1","v":"2"}}',
    b'{"meta":{"op":"truncate","table":"d.t"}}',
]
ENTRIES = [each for source in SOURCES for each in capture(source).entries if len(each) < 3000]
TOPIC = [each for source in SOURCES for each in capture(source).topic_values if len(each) < 3000]

# What reads the messages, and messages that it can read.
DECODERS = {
    "avro": ([format_of("dts-avro").decoder({})], [value for value, _ in sdk_records()]),
    "dts json": (
        [
            format_of("dts-canal-json").decoder({}),
            format_of("dts-canal-json").decoder({"before_2022_03_20": True}),
            format_of("shareplex-json").decoder({}),
        ],
        DTS_JSON,
    ),
    "canal json": ([format_of("canal-json").decoder({}), format_of("ticdc-canal-json").decoder({})], FLAT),
    "protobuf": ([format_of("canal-entries").decoder({}), format_of("canal-protobuf").decoder({})], ENTRIES + TOPIC),
}


def check(decoders: Sequence[Decode], value: bytes) -> None:
    """Values are text or None. Arrow and Spark take nothing but UTF-8, and numbers of 64 bits."""
    for decode in decoders:
        try:
            found = decode(None, value)
        except MessageError:
            continue
        for message in found if isinstance(found, list) else [found]:
            if isinstance(message, MessageError):
                continue
            assert isinstance(message, Message)
            # Not `repr`, which escapes half a surrogate pair.
            json.dumps(dataclasses.asdict(message), ensure_ascii=False, default=str).encode()
            for number in (message.origin.time_ms, message.origin.log_offset):
                assert number is None or 0 <= number < 1 << 63
            for part in message.parts:
                if isinstance(part, RowChange):
                    texts = [*(part.before or {}).values(), *(part.after or {}).values()]
                    assert all(text is None or type(text) is str for text in texts)
                    assert all(type(text) is str for text in part.types.values())


# Values of DTS Avro: any text, number and date in any branch, for a column of any type.
any_number = st.integers(-(1 << 31), (1 << 31) - 1)
any_long = st.integers(-(1 << 63), (1 << 63) - 1) | any_number
any_text = st.text(characters, max_size=12) | st.sampled_from(
    ["1e5", "-1", "1.5", "utf8mb4", "binary", "json", "enum", "+08:00", "1E-99", "NaN", "٣"]
)
short_bytes = st.binary(max_size=12)
any_part = st.none() | any_number | st.integers(-60, 60)
any_date_time = st.fixed_dictionaries(dict.fromkeys(TIME_PARTS, any_part)).map(lambda parts: ("DateTime", parts))
any_image: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, NULL, LEFT_OUT]),
    st.builds(integer, any_text),
    st.builds(decimal, any_text, any_number, any_number),
    st.builds(double, st.floats()),
    st.builds(character, any_text, short_bytes),
    st.builds(timestamp, any_long, any_number),
    any_date_time,
    st.builds(zoned, any_date_time, any_text),
    st.builds(text_object, any_text, any_text),
    st.builds(binary_object, any_text, short_bytes),
    st.builds(lambda type, value: ("TextGeometry", {"type": type, "value": value}), any_text, any_text),
    st.builds(lambda type, value: ("BinaryGeometry", {"type": type, "value": value}), any_text, short_bytes),
)


@pytest.mark.slow
@given(st.integers(0, 20) | st.integers(240, 260) | any_number, any_image)
def test_any_value_of_any_branch(number: int, image: Any) -> None:
    check(DECODERS["avro"][0], row_body([("c", number, image)]))
