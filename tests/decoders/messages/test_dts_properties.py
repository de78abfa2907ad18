"""Whatever a DTS Avro record holds is read back; whatever befalls its bytes, the answer is a message or an error."""

from __future__ import annotations

import datetime
import decimal
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.decoders.messages.dts_avro import decode
from tests.decoders.messages.dts_records import Image, body, character, date_time, row_body, sdk_records

SDK_BODIES = [value for value, _ in sdk_records()]
_DOT = "\\u002E"
OPERATIONS = {"INSERT": "I", "UPDATE": "U", "DELETE": "D", "INIT": "I"}
# Texts that each character set has, with its bytes by a codec that is not the decoder's own choice where it matters.
CHARSETS = {
    "utf8mb4": ("utf-8", st.characters(exclude_categories=["Cs"])),
    "utf8": ("utf-8", st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF)),
    "utf16": ("utf-16-be", st.characters(exclude_categories=["Cs"])),
    "utf32": ("utf-32-be", st.characters(exclude_categories=["Cs"])),
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
    image: Image
    text: str | None
    absent: bool = False


@st.composite
def texts(draw: st.DrawFn) -> Cell:
    charset = draw(st.sampled_from(sorted(CHARSETS)))
    codec, alphabet = CHARSETS[charset]
    text = draw(st.text(alphabet, max_size=20))
    return Cell(draw(st.sampled_from([15, 252, 253, 254])), character(charset, text.encode(codec)), text)


@st.composite
def decimals(draw: st.DrawFn) -> Cell:
    scale = draw(st.integers(0, 30))
    unscaled = draw(st.integers(-(10**34), 10**34))
    number = decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=80))
    # Zeros at the end may be missing, as Java's stripTrailingZeros takes them.
    sent = number.normalize(decimal.Context(prec=80)) if draw(st.booleans()) else number
    sign, whole = ("-" if unscaled < 0 else ""), str(abs(unscaled)).rjust(scale + 1, "0")
    text = sign + (f"{whole[:-scale]}.{whole[-scale:]}" if scale else whole)
    written = str(sent) if draw(st.booleans()) else f"{sent:f}"
    return Cell(246, ("Decimal", {"value": written, "precision": 65, "scale": scale}), text)


@st.composite
def moments(draw: st.DrawFn) -> Cell:
    moment = draw(st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2038, 1, 19)))  # noqa: DTZ001
    text = moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{moment.microsecond:06d}" if moment.microsecond else "")
    if draw(st.booleans()):
        seconds = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(seconds=1)  # noqa: DTZ001
        return Cell(7, ("Timestamp", {"timestamp": seconds, "millis": moment.microsecond}), f"{text}+00:00")
    parts = {name: getattr(moment, name) for name in ("year", "month", "day", "hour", "minute", "second")}
    return Cell(12, date_time(**parts, millis=moment.microsecond), text)


@st.composite
def durations(draw: st.DrawFn) -> Cell:
    size = draw(st.integers(0, 839 * 3_600_000_000 - 1))
    sign = draw(st.sampled_from([1, -1])) if size else 1
    seconds, micros = divmod(size, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    image = date_time(hour=sign * hour, minute=sign * minute, second=sign * second, millis=sign * micros)
    text = f"{'-' if sign < 0 else ''}{hour:02d}:{minute:02d}:{second:02d}" + (f".{micros:06d}" if micros else "")
    return Cell(11, image, text)


integers = st.integers(-(1 << 63), (1 << 64) - 1).map(
    lambda number: Cell(8, ("Integer", {"precision": 8, "value": str(number)}), str(number))
)
floats = st.floats(allow_nan=False, allow_infinity=False).map(
    lambda number: Cell(5, ("Float", {"value": number, "precision": 22, "scale": 31}), repr(number))
)
blobs = st.binary(max_size=40).map(
    lambda value: Cell(252, ("BinaryObject", {"type": "blob", "value": value}), value.decode("latin-1"))
)
objects = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).flatmap(
    lambda text: st.sampled_from(
        [
            Cell(245, ("TextObject", {"type": "json", "value": text}), text),
            Cell(247, ("TextObject", {"type": "enum", "value": text}), text),
            Cell(255, ("TextGeometry", {"type": "wkt", "value": text}), text),
        ]
    )
)
nulls = st.sampled_from(
    [
        Cell(253, None, None),
        Cell(3, ("EmptyObject", "NULL"), None),
        Cell(252, ("EmptyObject", "NONE"), None, absent=True),
    ]
)
cells = st.one_of(texts(), decimals(), moments(), durations(), integers, floats, blobs, objects, nulls)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
tables = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


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
    columns: dict[str, Cell],
    data: st.DataObject,
    operation: str,
    database: str,
    table: str,
    born: int | None,
    key: list[str] | None,
) -> None:
    new = list(columns.values())
    old = [cell if data.draw(st.booleans()) else Cell(cell.number, None, None) for cell in new]
    value = body(
        born=born,
        operation=operation,
        objectName=f"{database.replace('.', _DOT)}.{table.replace('.', _DOT)}",
        tags={} if key is None else {"pk_uk_info": _json_of_key(key)},
        fields=[{"name": name, "dataTypeNumber": cell.number} for name, cell in columns.items()],
        beforeImages=[cell.image for cell in old],
        afterImages=[cell.image for cell in new],
    )
    (change,) = decode(None, value).parts
    assert isinstance(change, RowChange)
    op = OPERATIONS[operation]
    assert (change.op, change.key) == (op, None if key is None else tuple(key))
    assert (change.database, change.table) == (database.replace(_DOT, "."), table.replace(_DOT, "."))
    assert change.before == (None if op == "I" else _row(columns, old))
    assert change.after == (None if op == "D" else _row(columns, new))


def _json_of_key(key: list[str]) -> str:
    return json.dumps({"uk_1": ["other"], "PRIMARY": key})


def _check(value: bytes) -> None:
    """What holds of any bytes: a message whose values are text or None, or a MessageError."""
    try:
        message = decode(None, value)
    except MessageError:
        return
    assert isinstance(message, Message)
    for part in message.parts:
        if isinstance(part, RowChange):
            for row in (part.before, part.after):
                assert row is None or all(text is None or type(text) is str for text in row.values())
            assert all(type(text) is str for text in part.types.values())
        # Arrow and Spark take nothing but UTF-8, and numbers of 64 bits.
        repr(message).encode("utf-8")
    for number in (message.origin.time_ms, message.origin.log_offset):
        assert number is None or 0 <= number < 1 << 63


@pytest.mark.slow
@given(st.binary(max_size=200))
@example(b"\xff" * 100)
@example(b"\x80" * 10_000)
def test_any_bytes(value: bytes) -> None:
    _check(value)


@pytest.mark.slow
@given(st.sampled_from(SDK_BODIES), st.data())
def test_any_change_of_a_records_bytes(value: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 12)))
    _check(value[:start] + data.draw(st.binary(max_size=12)) + value[end:])


@given(st.sampled_from(SDK_BODIES), st.data())
def test_any_beginning_of_a_record(value: bytes, data: st.DataObject) -> None:
    _check(value[: data.draw(st.integers(0, len(value)))])


any_number = st.integers(-(1 << 31), (1 << 31) - 1)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["1e5", "-1", "1.5", "utf8mb4", "binary", "json", "enum", "+08:00", "1E-99", "NaN", "٣"]
)
any_parts = st.fixed_dictionaries(
    {part: st.none() | any_number | st.integers(-60, 60) for part in
     ("year", "month", "day", "hour", "minute", "second", "millis")}
)  # fmt: skip
any_long = st.integers(-(1 << 63), (1 << 63) - 1) | any_number
any_image: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.builds(lambda value, n: ("Integer", {"precision": n, "value": value}), any_text, any_number),
    st.builds(lambda charset, b: ("Character", {"charset": charset, "value": b}), any_text, st.binary(max_size=12)),
    st.builds(lambda v, n, m: ("Decimal", {"value": v, "precision": n, "scale": m}), any_text, any_number, any_number),
    st.builds(lambda v, n, m: ("Float", {"value": v, "precision": n, "scale": m}), st.floats(), any_number, any_number),
    st.builds(lambda s, n: ("Timestamp", {"timestamp": s, "millis": n}), any_long, any_number),
    any_parts.map(lambda parts: ("DateTime", parts)),
    st.builds(lambda p, zone: ("TimestampWithTimeZone", {"value": p, "timezone": zone}), any_parts, any_text),
    st.builds(lambda t, b: ("BinaryGeometry", {"type": t, "value": b}), any_text, st.binary(max_size=12)),
    st.builds(lambda t, v: ("TextGeometry", {"type": t, "value": v}), any_text, any_text),
    st.builds(lambda t, b: ("BinaryObject", {"type": t, "value": b}), any_text, st.binary(max_size=12)),
    st.builds(lambda t, v: ("TextObject", {"type": t, "value": v}), any_text, any_text),
    st.sampled_from([("EmptyObject", "NULL"), ("EmptyObject", "NONE")]),
)


@pytest.mark.slow
@given(st.integers(0, 20) | st.integers(240, 260) | any_number, any_image)
def test_any_value_of_any_branch(number: int, image: Any) -> None:
    _check(row_body([("c", number, image)]))
