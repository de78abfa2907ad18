"""Records of DTS Avro: those of the service's own SDK, and whatever one holds is read back."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import MessageError, RowChange
from cdc_lakehouse.decoders.formats.dts_avro import decode, read_record
from tests.decoders import records as dts
from tests.fuzz.targets import check
from tests.kit.waiting import memory_below

characters = st.characters(exclude_categories=["Cs"])
_DOT = "\\u002E"
OPERATIONS = {"INSERT": "I", "UPDATE": "U", "DELETE": "D", "INIT": "I"}
# Texts that each character set has, with its bytes by a codec that is not the decoder's own choice where it matters.
CHARSETS = {
    "utf8mb4": ("utf-8", characters),
    "utf8": ("utf-8", st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF)),
    "utf16": ("utf-16-be", characters),
    "utf32": ("utf-32-be", characters),
    "latin1": ("cp1252", st.sampled_from("aé€ÿŒ\x00\x7f ")),
    "gbk": ("gbk", st.sampled_from("a中文龙。")),
    "sjis": ("shift_jis", st.sampled_from("a日本ｱ。")),
    "ascii": ("ascii", st.characters(max_codepoint=0x7F)),
    "binary": ("latin-1", st.characters(max_codepoint=0xFF)),
}


@dataclass(frozen=True)
class Cell:
    """A value of a column as the source has it: the number of its type, what is sent, and MySQL's text of it."""

    number: int
    image: dts.Image
    text: str | None
    absent: bool = False


@st.composite
def texts(draw: st.DrawFn) -> Cell:
    charset = draw(st.sampled_from(sorted(CHARSETS)))
    codec, alphabet = CHARSETS[charset]
    text = draw(st.text(alphabet, max_size=20))
    return Cell(draw(st.sampled_from([15, 252, 253, 254])), dts.character(charset, text.encode(codec)), text)


@st.composite
def decimals(draw: st.DrawFn) -> Cell:
    scale = draw(st.integers(0, 30))
    unscaled = draw(st.integers(-(10**34), 10**34))
    number = Decimal(unscaled).scaleb(-scale, Context(prec=80))
    # Zeros at the end may be missing, as Java's stripTrailingZeros takes them.
    sent = number.normalize(Context(prec=80)) if draw(st.booleans()) else number
    sign, whole = ("-" if unscaled < 0 else ""), str(abs(unscaled)).rjust(scale + 1, "0")
    text = sign + (f"{whole[:-scale]}.{whole[-scale:]}" if scale else whole)
    written = str(sent) if draw(st.booleans()) else f"{sent:f}"
    return Cell(246, dts.decimal(written, scale), text)


@st.composite
def moments(draw: st.DrawFn) -> Cell:
    moment = draw(st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2038, 1, 19)))  # noqa: DTZ001
    text = moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{moment.microsecond:06d}" if moment.microsecond else "")
    if draw(st.booleans()):
        seconds = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(seconds=1)  # noqa: DTZ001
        return Cell(7, dts.timestamp(seconds, moment.microsecond), f"{text}+00:00")
    parts = {name: getattr(moment, name) for name in ("year", "month", "day", "hour", "minute", "second")}
    return Cell(12, dts.date_time(**parts, millis=moment.microsecond), text)


@st.composite
def durations(draw: st.DrawFn) -> Cell:
    size = draw(st.integers(0, 839 * 3_600_000_000 - 1))
    sign = draw(st.sampled_from([1, -1])) if size else 1
    seconds, micros = divmod(size, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    image = dts.date_time(hour=sign * hour, minute=sign * minute, second=sign * second, millis=sign * micros)
    text = f"{'-' if sign < 0 else ''}{hour:02d}:{minute:02d}:{second:02d}" + (f".{micros:06d}" if micros else "")
    return Cell(11, image, text)


integers = st.integers(-(1 << 63), (1 << 64) - 1).map(str).map(lambda digits: Cell(8, dts.integer(digits), digits))
floats = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Cell(5, dts.double(number), repr(number)))
blobs = st.binary(max_size=40).map(lambda value: Cell(252, dts.binary_object("blob", value), value.decode("latin-1")))
objects = st.text(characters, max_size=20).flatmap(
    lambda text: st.sampled_from([
        Cell(245, dts.text_object("json", text), text),
        Cell(247, dts.text_object("enum", text), text),
        Cell(255, ("TextGeometry", {"type": "wkt", "value": text}), text),
    ])
)  # fmt: skip
nulls = st.sampled_from([Cell(253, None, None), Cell(3, dts.NULL, None), Cell(252, dts.LEFT_OUT, None, absent=True)])
cells = st.one_of(texts(), decimals(), moments(), durations(), integers, floats, blobs, objects, nulls)
names = st.text(characters, max_size=8)
tables = st.text(characters, min_size=1, max_size=8)


def _row(columns: dict[str, Cell], places: list[Cell]) -> dict[str, str | None]:
    return {name: cell.text for name, cell in zip(columns, places, strict=True) if not cell.absent}


@pytest.mark.slow
@given(
    columns=st.dictionaries(names, cells, min_size=1, max_size=8),
    data=st.data(),
    operation=st.sampled_from(sorted(OPERATIONS)),
    database=tables,
    table=tables,
    born=st.none() | st.integers(0, (1 << 63) - 1),
    key=st.none() | st.lists(names, max_size=3),
)
def test_rows_are_read_back(
    columns: dict[str, Cell], data: st.DataObject, operation: str, database: str, table: str, born: int | None,
    key: list[str] | None,
) -> None:  # fmt: skip
    new = list(columns.values())
    old = [cell if data.draw(st.booleans()) else Cell(cell.number, None, None) for cell in new]
    value = dts.body(
        born=born,
        operation=operation,
        objectName=f"{database.replace('.', _DOT)}.{table.replace('.', _DOT)}",
        tags={} if key is None else {"pk_uk_info": json.dumps({"uk_1": ["other"], "PRIMARY": key})},
        fields=[{"name": name, "dataTypeNumber": cell.number} for name, cell in columns.items()],
        beforeImages=[cell.image for cell in old],
        afterImages=[cell.image for cell in new],
    )
    (change,) = decode(value).parts
    assert isinstance(change, RowChange)
    op = OPERATIONS[operation]
    assert (change.op, change.key) == (op, None if key is None else tuple(key))
    assert (change.database, change.table) == (database.replace(_DOT, "."), table.replace(_DOT, "."))
    assert change.before == (None if op == "I" else _row(columns, old))
    assert change.after == (None if op == "D" else _row(columns, new))


# Values of DTS Avro: any text, number and date in any branch, for a column of any type.
any_number = st.integers(-(1 << 31), (1 << 31) - 1)
any_long = st.integers(-(1 << 63), (1 << 63) - 1) | any_number
any_text = st.text(characters, max_size=12) | st.sampled_from(
    ["1e5", "-1", "1.5", "utf8mb4", "binary", "json", "enum", "+08:00", "1E-99", "NaN", "٣"]
)
short_bytes = st.binary(max_size=12)
any_part = st.none() | any_number | st.integers(-60, 60)
any_date_time = st.fixed_dictionaries(dict.fromkeys(dts.TIME_PARTS, any_part)).map(lambda parts: ("DateTime", parts))
any_image: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, dts.NULL, dts.LEFT_OUT]),
    st.builds(dts.integer, any_text),
    st.builds(dts.decimal, any_text, any_number, any_number),
    st.builds(dts.double, st.floats()),
    st.builds(dts.character, any_text, short_bytes),
    st.builds(dts.timestamp, any_long, any_number),
    any_date_time,
    st.builds(dts.zoned, any_date_time, any_text),
    st.builds(dts.text_object, any_text, any_text),
    st.builds(dts.binary_object, any_text, short_bytes),
    st.builds(lambda type, value: ("TextGeometry", {"type": type, "value": value}), any_text, any_text),
    st.builds(lambda type, value: ("BinaryGeometry", {"type": type, "value": value}), any_text, short_bytes),
)


@pytest.mark.slow
@given(st.integers(0, 20) | st.integers(240, 260) | any_number, any_image)
def test_any_value_of_any_branch(number: int, image: Any) -> None:
    check([decode], dts.row_body([("c", number, image)]))


# Bytes of records: both schemas, all of the body, and nothing but MessageError.


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
        parts: Any = value["value"]
        value["value"] = {part: parts[part] for part in dts.TIME_PARTS}
    return branch, value


@pytest.mark.parametrize("value", [value for value, _ in dts.sdk_records()], ids=map(str, range(24)))
def test_records_of_the_tests_are_written_by_the_sdks_schema(value: bytes) -> None:
    """The schema that tests write records with is not the product's: the SDK's records are its witnesses."""
    read: list[object] = []
    for schema in (dts.OLDER, dts.NEWER):
        content = io.BytesIO(value)
        with contextlib.suppress(EOFError, IndexError):
            record: Any = fastavro.schemaless_reader(content, schema, None, return_named_type=True)
            if content.tell() == len(value):
                read.append(record["operation"])
    assert len(read) == 1


@pytest.mark.parametrize(("value", "expected"), dts.sdk_records(), ids=map(str, range(24)))
def test_every_value_of_the_sdks_records(value: bytes, expected: dict[str, Any]) -> None:
    read = dict(read_record(value))
    assert {"len": len(value), **read["source"]}.items() >= {
        "len": expected["len"], "sourceType": expected["sourceType"], "version": expected["sourceVersion"],
    }.items()  # fmt: skip
    images = {name: expected[name] for name in ("beforeImages", "afterImages")}
    images = {name: [*map(_image, each)] if isinstance(each, list) else each for name, each in images.items()}
    assert read == {**{name: expected.get(name) for name in read}, "source": read["source"], **images}


def test_sdk_reads_names_and_keys_alike() -> None:
    """The records have every operation and branch: the test above compares something."""
    records = [expected for _, expected in dts.sdk_records()]
    assert len({record["operation"] for record in records}) == 17
    rows = [row for each in records for row in (each["beforeImages"], each["afterImages"]) if isinstance(row, list)]
    assert len({None if image is None else image["t"] for row in rows for image in row}) == 13
    views = [(value, view) for value, expected in dts.sdk_records() if isinstance(view := expected["sdkView"], dict)]
    assert len(views) > 5
    for value, view in views:
        part = dts.change(value)
        assert (view["db"], view["table"], view["pk"]) == (part.database, part.table, list(part.key or ()))
    keys = [json.loads(record["tags"].get("pk_uk_info", "null")) for _, record in dts.sdk_records()]
    assert {"PRIMARY": ["id"], "uk_1": ["c_int", "c_varchar"]} in keys and {} in keys


def test_unreadable_row_of_48_bytes_is_not_a_no_op() -> None:
    def of_version(version: str) -> bytes:
        source = {"sourceType": "MySQL", "version": version}
        texts = dict.fromkeys(("safeSourcePosition", "sourcePosition", "sourceTxid"), "")
        return dts.row_body([("c", 253, dts.character("x", b""))], born=None, source=source, **texts)

    value = of_version("8" * (48 - len(of_version(""))))
    assert len(value) == 48
    with pytest.raises(MessageError, match="character set 'x' is not known"):
        decode(value)


def test_no_end_of_a_record_is_one() -> None:
    value = dts.row_body([("id", 8, dts.integer("1"))], born=None)
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
        "tags": dts.body(born=None)[:-4] + _long(length) + b"\x02a\x02b",
        "fields": dts.body(born=None)[:-3] + _long(2) + _long(length) + b"\x02a\x02",
        "afterImages": dts.body(born=None)[:-1] + _long(2) + _long(length) + b"\x00\x00",
    }[at]
    with memory_below(1_000_000), pytest.raises(MessageError):
        read_record(value)


@pytest.mark.slow
def test_a_body_of_many_small_values_takes_bounded_memory() -> None:
    """Three bytes make a Character: the most objects that a body can hold."""
    value = dts.body(born=None)[:-1] + _long(2) + _long(100_000) + b"\x04\x00\x00" * 100_000 + b"\x00"
    with memory_below(200 * len(value)):
        images = read_record(value)["afterImages"]
        assert images is not None and len(images) == 100_000
