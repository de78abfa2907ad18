"""JSON as the formats of messages need it: nothing of a number or a name is lost, and nothing but MessageError."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders import format as message_format
from cdc_lakehouse.decoders.json.object import JsonNumber, integer_of, parse, parse_value, row_of, text_of
from cdc_lakehouse.decoders.registry import format_of
from tests.kit.memory import memory_below

FORMATS = [
    format_of("dts-canal-json").decoder({}),
    format_of("dts-canal-json").decoder({"before_2022_03_20": True}),
    format_of("shareplex-json").decoder({}),
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
    assert [isinstance(parsed[name], JsonNumber) for name in "abcd"] == [True, True, True, False]
    assert {name: type(text) for name, text in row_of(parsed).items()} == dict.fromkeys("abcd", str)


def test_numbers_and_text_are_not_the_same() -> None:
    assert text_of({"a": "1"}, "a") == "1"
    with pytest.raises(MessageError, match="a is not text"):
        text_of({"a": JsonNumber("1")}, "a")


@pytest.mark.parametrize("value", [JsonNumber("0"), "007", JsonNumber(str((1 << 63) - 1))])
def test_whole_numbers(value: str) -> None:
    assert integer_of({"a": value}, "a") == int(value)


@pytest.mark.parametrize(
    "value", [JsonNumber("-1"), JsonNumber("1.0"), "", "1 ", "٣", str(1 << 63), "9" * 10_000, True, [], {}]
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
    with memory_below(60 * len(value)):
        for decode in FORMATS:
            with pytest.raises(MessageError):
                decode(None, value)
