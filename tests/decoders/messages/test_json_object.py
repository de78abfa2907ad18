"""JSON as the formats of messages need it: nothing of a number or a name is lost, and nothing but MessageError."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import MessageError, RowChange
from cdc_lakehouse.decoders.messages import format as message_format
from cdc_lakehouse.decoders.messages.json_object import Number, integer_of, parse, parse_value, row_of, text_of
from cdc_lakehouse.decoders.messages.registry import format_of

FORMATS = [
    format_of("dts-canal-json").decoder({}),
    format_of("dts-canal-json").decoder({"before_2022_03_20": True}),
    format_of("shareplex-json").decoder({}),
]
SAMPLES = [
    b'{"database":"d","table":"t","type":"INSERT","es":1709629811000,"pkNames":["id"],"mysqlType":{"id":"int"},'
    b'"data":[{"id":"1","v":null}],"old":null,"isDdl":false,"gtid":"a:1"}',
    b'{"database":"d","table":"t","type":"UPDATE","es":1709629811000,"data":[{"id":"1"}],"old":[{"id":"2"}]}',
    b'{"database":"d","table":"t","type":"DDL","isDdl":true,"sql":"DROP TABLE t"}',
    b'{"meta":{"op":"upd","table":"d.t","time":"2024-03-05T09:10:11","scn":"20480004711","seq":1,"idx":"1/7"},'
    b'"data":{"v":"1"},"key":{"id":"1","v":"2"}}',
    b'{"meta":{"op":"truncate","table":"d.t"}}',
]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON: Expecting property name .* at character 1"),
        ('{"a":1}{"b":2}', "not JSON: Extra data at character 7"),
        ("[]", "not an object"),
        ("1", "not an object"),
        ("null", "not an object"),
        ('{"a":NaN}', "NaN is no JSON number"),
        ('{"a":-Infinity}', "no JSON number"),
        ('{"a":1,"a":2}', "the name 'a' twice"),
        ('{"x":{"a":1,"b":2,"a":3}}', "the name 'a' twice"),
        ('{"a":"\\ud800"}', "surrogate"),
        ('{"\\uDFFF":1}', "surrogate"),
        ("[" * 1_000_000, "nested too deep"),
        ('{"a":' * 1_000_000, "nested too deep"),
    ],
)
def test_what_is_no_object_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(MessageError, match=problem) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse('{"a":"\\ud83d\\ude00"}') == {"a": "😀"}


def test_many_names_of_which_the_last_comes_twice() -> None:
    names = [f'"{number}":0' for number in range(100_000)]
    with pytest.raises(MessageError, match="the name '99999' twice"):
        parse("{" + ",".join([*names, names[-1]]) + "}")


def test_numbers_keep_their_digits() -> None:
    digits = "9" * 10_000
    parsed = parse(f'{{"a":{digits},"b":-0.10,"c":1e999999,"d":"1"}}')
    assert parsed == {"a": digits, "b": "-0.10", "c": "1e999999", "d": "1"}
    assert [isinstance(parsed[name], Number) for name in "abcd"] == [True, True, True, False]
    assert {name: type(text) for name, text in row_of(parsed).items()} == dict.fromkeys("abcd", str)


def test_numbers_and_text_are_not_the_same() -> None:
    assert text_of({"a": "1"}, "a") == "1"
    with pytest.raises(MessageError, match="a is not text"):
        text_of({"a": Number("1")}, "a")


@pytest.mark.parametrize("value", [Number("0"), "007", Number(str((1 << 63) - 1))])
def test_whole_numbers(value: str) -> None:
    assert integer_of({"a": value}, "a") == int(value)


@pytest.mark.parametrize(
    "value", [Number("-1"), Number("1.0"), "", "1 ", "٣", str(1 << 63), "9" * 10_000, True, [], {}]
)
def test_what_is_no_whole_number_is_an_error(value: object) -> None:
    with pytest.raises(MessageError, match="a is not a whole number"):
        integer_of({"a": value}, "a")


@pytest.mark.parametrize("value", [b"\xff{}", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\x00"])
def test_bytes_that_are_not_utf8_json(value: bytes) -> None:
    with pytest.raises(MessageError, match=r"not UTF-8|not JSON"):
        parse_value(value)


def test_a_message_without_a_value() -> None:
    for decode in FORMATS:
        with pytest.raises(MessageError, match="no value"):
            decode(b"key", None)


def test_a_message_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_format, "MAX_BYTES", 10)
    assert parse_value(b'{"a":null}') == {"a": None}
    with pytest.raises(MessageError, match="has 11 bytes"):
        parse_value(b'{"a":null} ')


def test_memory_is_bounded_by_the_message() -> None:
    value = b'{"data":[' + b"[]," * 30_000 + b"[]]}"
    tracemalloc.start()
    try:
        for decode in FORMATS:
            with pytest.raises(MessageError):
                decode(None, value)
        assert tracemalloc.get_traced_memory()[1] < 60 * len(value)
    finally:
        tracemalloc.stop()


def check(value: bytes) -> None:
    """What holds of any bytes: a message whose values are text or None, or a MessageError."""
    for decode in FORMATS:
        try:
            message = decode(None, value)
        except MessageError:
            continue
        repr(message).encode("utf-8")
        for part in message.parts:
            if isinstance(part, RowChange):
                for row in (part.before, part.after):
                    assert row is None or all(text is None or type(text) is str for text in row.values())


@given(st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"{}")
def test_any_bytes(value: bytes) -> None:
    check(value)


@pytest.mark.slow
@given(st.sampled_from(SAMPLES), st.data())
def test_any_change_of_a_messages_bytes(value: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 12)))
    middle = data.draw(
        st.binary(max_size=6)
        | st.sampled_from([b"[]", b"{}", b"null", b"1", b'"', b'"\\ud800"', b'"\\udfff"', b"true"])
    )
    check(value[:start] + middle + value[end:])


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@pytest.mark.slow
@given(st.sampled_from([json.loads(sample) for sample in SAMPLES]), st.data())
def test_any_value_in_any_place(message: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(message)))
    changed = {**message, name: data.draw(trees)}
    if isinstance(message[name], dict) and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(sorted(message[name])))
        changed = {**message, name: {**message[name], inner: data.draw(trees)}}
    check(json.dumps(changed).encode())
