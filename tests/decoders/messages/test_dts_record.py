"""The bytes of DTS Avro records: both schemas, all of the body, and nothing but MessageError."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import fastavro
import pytest

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders import format as message_format
from cdc_lakehouse.decoders.formats.dts_avro import DtsRecord, decode, read_record
from tests.decoders.messages.dts_records import (
    NEWER,
    OLDER,
    TIME_PARTS,
    body,
    change,
    character,
    integer,
    row_body,
    sdk_records,
)
from tests.kit.memory import memory_below


def _image(expected: dict[str, Any] | None) -> tuple[str, Any] | None:
    """An image as `records.jsonl` writes it, in the form of `read_record`."""
    if expected is None:
        return None
    branch = expected["t"]
    if branch == "EmptyObject":
        return branch, expected["symbol"]
    value = {name: part for name, part in expected.items() if name != "t"}
    if "hex" in value:
        value["value"] = bytes.fromhex(value.pop("hex"))
    if branch == "TimestampWithTimeZone":
        value["value"] = {part: value["value"][part] for part in TIME_PARTS}
    return branch, value


def _images(expected: list[dict[str, Any] | None] | str | None) -> object:
    return [_image(image) for image in expected] if isinstance(expected, list) else expected


@pytest.mark.parametrize("value", [value for value, _ in sdk_records()], ids=map(str, range(24)))
def test_records_of_the_tests_are_written_by_the_sdks_schema(value: bytes) -> None:
    """The schema that tests write records with is not the product's: the SDK's records are its witnesses."""
    read: list[object] = []
    for schema in (OLDER, NEWER):
        content = io.BytesIO(value)
        with contextlib.suppress(EOFError, IndexError):
            record = fastavro.schemaless_reader(content, schema, None, return_named_type=True)
            if content.tell() == len(value):
                read.append(record["operation"])
    assert len(read) == 1


@pytest.mark.parametrize(("value", "expected"), sdk_records(), ids=map(str, range(24)))
def test_every_value_of_the_sdks_records(value: bytes, expected: dict[str, Any]) -> None:
    assert len(value) == expected["len"]
    assert read_record(value) == DtsRecord(
        expected["sourceTimestamp"],
        expected["sourcePosition"],
        expected["sourceType"],
        expected["operation"],
        expected["objectName"],
        expected["tags"],
        expected["fields"],
        _images(expected["beforeImages"]),
        _images(expected["afterImages"]),
    )


def test_sdk_reads_names_and_keys_alike() -> None:
    """The records have every operation and branch: the test above compares something."""
    records = [expected for _, expected in sdk_records()]
    assert len({record["operation"] for record in records}) == 17
    rows = [row for each in records for row in (each["beforeImages"], each["afterImages"]) if isinstance(row, list)]
    assert len({None if image is None else image["t"] for row in rows for image in row}) == 13
    views = [(value, view) for value, expected in sdk_records() if isinstance(view := expected["sdkView"], dict)]
    assert len(views) > 5
    for value, view in views:
        part = change(value)
        assert (view["db"], view["table"], view["pk"]) == (part.database, part.table, list(part.key or ()))
    keys = [json.loads(record["tags"].get("pk_uk_info", "null")) for _, record in sdk_records()]
    assert {"PRIMARY": ["id"], "uk_1": ["c_int", "c_varchar"]} in keys and {} in keys


def test_unreadable_row_of_48_bytes_is_not_a_no_op() -> None:
    def of_version(version: str) -> bytes:
        source = {"sourceType": "MySQL", "version": version}
        texts = dict.fromkeys(("safeSourcePosition", "sourcePosition", "sourceTxid"), "")
        return row_body([("c", 253, character("x", b""))], born=None, source=source, **texts)

    value = of_version("8" * (48 - len(of_version(""))))
    assert len(value) == 48
    with pytest.raises(MessageError, match="character set 'x' is not known"):
        decode(None, value)


@pytest.mark.parametrize("rest", [b"\x00", b"\x02\x00", b"\x80", b"\xff" * 9, b"\x00" * 11])
def test_the_whole_body_is_consumed(rest: bytes) -> None:
    with pytest.raises(MessageError, match=r"left over|is not a record"):
        read_record(body() + rest)


def test_fields_as_text() -> None:
    assert read_record(body(fields="id,v")).fields == "id,v"


def test_no_end_of_a_record_is_one() -> None:
    value = row_body([("id", 8, integer("1"))], born=None)
    for end in range(len(value)):
        with pytest.raises(MessageError, match=r"cut short: see byte \d+ of"):
            read_record(value[:end])


def _long(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


@pytest.mark.parametrize("length", [1 << 31, 1 << 40, (1 << 62) - 1, -1, -(1 << 62)])
@pytest.mark.parametrize("at", ["sourcePosition", "tags", "fields", "afterImages"])
def test_a_length_that_is_not_there_takes_no_memory(length: int, at: str) -> None:
    value = {
        "sourcePosition": b"\x00\x02\x02" + _long(length),
        "tags": body(born=None)[:-4] + _long(length) + b"\x02a\x02b",
        "fields": body(born=None)[:-3] + _long(2) + _long(length) + b"\x02a\x02",
        "afterImages": body(born=None)[:-1] + _long(2) + _long(length) + b"\x00\x00",
    }[at]
    with memory_below(1_000_000), pytest.raises(MessageError):
        read_record(value)


@pytest.mark.slow
def test_a_body_of_many_small_values_takes_bounded_memory() -> None:
    """Three bytes make a Character: the most objects that a body can hold."""
    value = body(born=None)[:-1] + _long(2) + _long(100_000) + b"\x04\x00\x00" * 100_000 + b"\x00"
    with memory_below(200 * len(value)):
        images = read_record(value).after_images
        assert images is not None and len(images) == 100_000


def test_a_body_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    value = body()
    monkeypatch.setattr(message_format, "MAX_BYTES", len(value))
    assert read_record(value).operation == "HEARTBEAT"
    monkeypatch.setattr(message_format, "MAX_BYTES", len(value) - 1)
    with pytest.raises(MessageError, match=f"has {len(value)} bytes"):
        read_record(value)
