"""Values of DTS Avro records as text, fact by fact. The expected texts are MySQL's."""

from __future__ import annotations

import struct

import pytest

from cdc_lakehouse.changelog.events import MessageError
from tests.decoders.messages.dts_records import Image, change, character, date_time, row_body, value_of

LATIN1_HIGH = "€\x81‚ƒ„…†‡ˆ‰Š‹Œ\x8dŽ\x8f\x90‘’“”•–—˜™š›œ\x9džŸ"


@pytest.mark.parametrize("digits", ["0", "-9223372036854775808", "18446744073709551615", "00042"])
def test_integers_keep_their_digits(digits: str) -> None:
    assert value_of(8, ("Integer", {"precision": 8, "value": digits})) == digits


@pytest.mark.parametrize("digits", ["", "1.5", "1e3", "+1", "0x1f", "١", "1" * 21, "NaN"])
def test_what_is_no_integer_is_an_error(digits: str) -> None:
    with pytest.raises(MessageError, match=r"column 'c': an integer"):
        value_of(3, ("Integer", {"precision": 4, "value": digits}))


@pytest.mark.parametrize(
    ("digits", "scale", "expected"),
    [
        ("-1234567890123456789012345678.0123456789", 10, "-1234567890123456789012345678.0123456789"),
        ("9" * 35 + "." + "9" * 30, 30, "9" * 35 + "." + "9" * 30),
        ("1.5", 4, "1.5000"),
        ("0", 10, "0.0000000000"),
        ("0E-7", 7, "0.0000000"),  # As Java writes a BigDecimal of small digits.
        ("1E+2", 2, "100.00"),
        ("1.25E-5", 7, "0.0000125"),
        ("-0.10", 2, "-0.10"),
        ("12", 0, "12"),
        ("1.55", 1, "1.55"),  # More digits than declared: none is lost.
        ("1.5", -2, "1.5"),
        ("1.5", 2_000_000_000, "1.5"),
    ],
)
def test_decimals_are_exact_at_their_scale(digits: str, scale: int, expected: str) -> None:
    assert value_of(246, ("Decimal", {"value": digits, "precision": 65, "scale": scale})) == expected


@pytest.mark.parametrize("digits", ["", "1e999999999", "NaN", "Infinity", "~", ".5", "1,5", "9" * 66, "1_0"])
def test_what_is_no_decimal_of_mysql_is_an_error(digits: str) -> None:
    with pytest.raises(MessageError, match="a decimal"):
        value_of(0, ("Decimal", {"value": digits, "precision": 10, "scale": 2}))


@pytest.mark.parametrize(
    ("number", "value", "expected"),
    [
        (5, 3.141592653589793, "3.141592653589793"),
        (5, 1.0, "1.0"),
        (5, 2.2250738585072014e-308, "2.2250738585072014e-308"),
        (5, -1.7976931348623157e308, "-1.7976931348623157e+308"),
        # A FLOAT of four bytes, as a double of eight: the digits are those of the four.
        (4, struct.unpack("<f", struct.pack("<f", 3.14))[0], "3.14"),
        (4, struct.unpack("<f", struct.pack("<f", 16777216.0))[0], "16777216.0"),
        (4, struct.unpack("<f", struct.pack("<f", -3.4028235e38))[0], "-3.4028235e+38"),
        (4, 3.14, "3.14"),
        (4, 1e300, "1e+300"),
        (4, 0.1 + 0.2, "0.30000000000000004"),
        (5, struct.unpack("<f", struct.pack("<f", 3.14))[0], "3.140000104904175"),
    ],
)
def test_floats(number: int, value: float, expected: str) -> None:
    assert value_of(number, ("Float", {"value": value, "precision": 8, "scale": 2})) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_no_float_of_mysql_is_is_an_error(value: float) -> None:
    with pytest.raises(MessageError, match="a float"):
        value_of(4, ("Float", {"value": value, "precision": 8, "scale": 2}))


@pytest.mark.parametrize(
    ("charset", "value", "expected"),
    [
        ("utf8mb4", "vär 中文 😀".encode(), "vär 中文 😀"),
        ("utf8mb3", b"aaas", "aaas"),
        ("utf8", "é".encode(), "é"),
        ("UTF8MB4", "é".encode(), "é"),
        ("latin1", b"caf\xe9 \x80", "café €"),
        ("latin1", bytes(range(0x80, 0xA0)), LATIN1_HIGH),
        ("gbk", b"\xd6\xd0\xce\xc4", "中文"),
        ("gb2312", b"\xa1\xa4", "・"),
        ("gb18030", b"\x94\x39\xfc\x36", "😀"),
        ("big5", b"\xa4\xa4\xf9\xd6", "中碁"),
        ("sjis", b"\x93\xfa\x81\x5f", "日\\"),
        ("cp932", b"\x87\x40\x81\x60", "①～"),
        ("ujis", b"\xc6\xfc", "日"),
        ("euckr", b"\xc7\xd1\x81\x41", "한갂"),
        ("ucs2", b"\x00\xe9", "é"),
        ("utf16", b"\xd8\x3d\xde\x00", "😀"),
        ("utf16le", b"\x3d\xd8\x00\xde", "😀"),
        ("utf32", b"\x00\x01\xf6\x00", "😀"),
        ("greek", b"\xa1\xa2\xe1", "ʽʼα"),
        ("koi8u", b"\x95", "•"),
        ("cp866", b"\x8f\xfc", "Пⁿ"),
        ("macce", b"\x8e", "é"),
        ("macroman", b"\x8e", "é"),
        ("hp8", b"\xc5", "é"),
        ("ascii", b"a", "a"),
        ("utf8mb4", b"", ""),
        ("binary", bytes(range(256)), "".join(map(chr, range(256)))),
    ],
)
def test_text_of_character_sets(charset: str, value: bytes, expected: str) -> None:
    assert value_of(253, character(charset, value)) == expected


@pytest.mark.parametrize("charset", ["armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7"])
def test_mysqls_character_sets_without_a_codec_are_named(charset: str) -> None:
    with pytest.raises(MessageError, match=f"column 'c': .*{charset} is MySQL's"):
        value_of(253, character(charset, b"a"))


@pytest.mark.parametrize("charset", ["", "klingon", "rot13", "zlib", "x" * 10_000])
def test_an_unknown_character_set_is_an_error_that_says_so(charset: str) -> None:
    with pytest.raises(MessageError, match=r"character set '.*' is not known") as caught:
        value_of(253, character(charset, b"a"))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("charset", "value"), [("utf8mb4", b"\xff"), ("ascii", b"\x80"), ("gbk", b"\xd6"), ("ucs2", b"a")]
)
def test_bytes_that_are_not_in_the_character_set_are_an_error(charset: str, value: bytes) -> None:
    with pytest.raises(MessageError, match=rf"byte 0 of {len(value)} is not {charset}|is not utf8"):
        value_of(253, character(charset, value))


@pytest.mark.parametrize(
    ("seconds", "micros", "expected"),
    [
        (1_732_156_800, 123_456, "2024-11-21 02:40:00.123456+00:00"),
        (1_732_156_800, 0, "2024-11-21 02:40:00+00:00"),
        (1_732_156_800, 500_000, "2024-11-21 02:40:00.500000+00:00"),
        (1, 0, "1970-01-01 00:00:01+00:00"),
        (0, 1, "1970-01-01 00:00:00.000001+00:00"),
        ((1 << 31) - 1, 999_999, "2038-01-19 03:14:07.999999+00:00"),
        # MySQL stores its zero value so; the first TIMESTAMP that is a moment is a second later.
        (0, 0, "0000-00-00 00:00:00"),
    ],
)
def test_timestamps_are_utc_with_their_offset(seconds: int, micros: int, expected: str) -> None:
    assert value_of(7, ("Timestamp", {"timestamp": seconds, "millis": micros})) == expected


@pytest.mark.parametrize(
    ("seconds", "micros"), [(1_732_156_800_789, 0), ((1 << 63) - 1, 0), (-(1 << 63), 0), (1, 1_000_000), (1, -1)]
)
def test_what_is_no_timestamp_is_an_error(seconds: int, micros: int) -> None:
    with pytest.raises(MessageError, match="timestamp"):
        value_of(7, ("Timestamp", {"timestamp": seconds, "millis": micros}))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (date_time(year=1000, month=1, day=1), "1000-01-01"),
        (date_time(year=0, month=0, day=0), "0000-00-00"),
        (date_time(year=2024, month=0, day=0), "2024-00-00"),
        (date_time(year=2024, month=2, day=29, hour=12, minute=3, second=5, millis=789), "2024-02-29 12:03:05.000789"),
        (date_time(year=2024, month=2, day=29, hour=1, minute=2, second=3, millis=4), "2024-02-29 01:02:03.000004"),
        (date_time(year=1, month=2, day=3, hour=0, minute=0, second=0), "0001-02-03 00:00:00"),
        (date_time(year=0, month=0, day=0, hour=0, minute=0, second=0, millis=0), "0000-00-00 00:00:00"),
        (date_time(hour=838, minute=59, second=59, millis=0), "838:59:59"),
        (date_time(hour=1, minute=2, second=3), "01:02:03"),
        (date_time(hour=-12, minute=-34, second=-56, millis=-500_000), "-12:34:56.500000"),
        (date_time(hour=-838, minute=-59, second=-59), "-838:59:59"),
        (date_time(hour=0, minute=0, second=0, millis=-1), "-00:00:00.000001"),
        (date_time(hour=0, minute=-1, second=0, millis=0), "-00:01:00"),
        (date_time(hour=0, minute=0, second=0, millis=0), "00:00:00"),
        (date_time(year=2155), "2155"),
        (date_time(year=0), "0000"),
    ],
)  # fmt: skip
def test_dates_times_and_years(image: Image, expected: str) -> None:
    assert value_of(12, image) == expected


@pytest.mark.parametrize(
    "image",
    [
        date_time(),
        date_time(year=2024, month=1),
        date_time(month=1, day=1),
        date_time(year=2024, month=1, day=1, hour=1),
        date_time(hour=1, minute=1),
        date_time(millis=1),
        date_time(year=2024, millis=0),
        date_time(year=10_000, month=1, day=1),
        date_time(year=-1, month=1, day=1),
        date_time(year=2024, month=13, day=1),
        date_time(year=2024, month=1, day=32),
        date_time(year=2024, month=1, day=1, hour=24, minute=0, second=0),
        date_time(year=2024, month=1, day=1, hour=0, minute=60, second=0),
        date_time(year=2024, month=1, day=1, hour=0, minute=0, second=0, millis=1_000_000),
        date_time(hour=839, minute=0, second=0),
        date_time(hour=-1, minute=1, second=0),
        date_time(hour=0, minute=0, second=60),
        date_time(hour=0, minute=0, second=0, millis=-1_000_000),
        date_time(year=(1 << 31) - 1),
    ],
)
def test_parts_that_make_no_date_or_time_are_an_error(image: Image) -> None:
    with pytest.raises(MessageError, match="column 'c': "):
        value_of(12, image)


def _zoned(image: Image, zone: str) -> Image:
    assert image is not None
    return "TimestampWithTimeZone", {"value": image[1], "timezone": zone}


LEAP_DAY = date_time(year=2024, month=2, day=29, hour=12, minute=34, second=56, millis=1)


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("+08:00", "2024-02-29 04:34:56.000001+00:00"),
        ("+8:00", "2024-02-29 04:34:56.000001+00:00"),
        ("GMT+08:00", "2024-02-29 04:34:56.000001+00:00"),
        ("-05:30", "2024-02-29 18:04:56.000001+00:00"),
        ("+14:00", "2024-02-28 22:34:56.000001+00:00"),
        ("UTC", "2024-02-29 12:34:56.000001+00:00"),
    ],
)
def test_times_with_a_zone_become_utc(zone: str, expected: str) -> None:
    assert value_of(7, _zoned(LEAP_DAY, zone)) == expected


@pytest.mark.parametrize(
    ("image", "zone"),
    [
        (LEAP_DAY, "Asia/Shanghai"),
        (LEAP_DAY, ""),
        (LEAP_DAY, "+99:00"),
        (LEAP_DAY, "+08:60"),
        (date_time(year=2024, month=2, day=30, hour=0, minute=0, second=0), "UTC"),
        (date_time(year=0, month=0, day=0, hour=0, minute=0, second=0), "UTC"),
        (date_time(year=1, month=1, day=1, hour=0, minute=0, second=0), "+08:00"),
        (date_time(year=9999, month=12, day=31, hour=23, minute=0, second=0), "-08:00"),
        (date_time(year=2024, month=2, day=29), "UTC"),
        (date_time(hour=1, minute=2, second=3), "UTC"),
        (date_time(year=2024), "UTC"),
    ],
)
def test_what_is_no_moment_in_a_zone_is_an_error(image: Image, zone: str) -> None:
    with pytest.raises(MessageError, match="column 'c': "):
        value_of(7, _zoned(image, zone))


ALL_BYTES = bytes(range(256))
POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")


@pytest.mark.parametrize(
    ("number", "image", "expected"),
    [
        (252, ("BinaryObject", {"type": "blob", "value": ALL_BYTES}), ALL_BYTES.decode("latin-1")),
        (252, ("BinaryObject", {"type": "blob", "value": b""}), ""),
        (255, ("BinaryGeometry", {"type": "wkb", "value": POINT}), POINT.decode("latin-1")),
        (255, ("TextGeometry", {"type": "wkt", "value": "POINT(1 2)"}), "POINT(1 2)"),
        (245, ("TextObject", {"type": "json", "value": '{"a": [1, null, "中"]}'}), '{"a": [1, null, "中"]}'),
        (247, ("TextObject", {"type": "enum", "value": "b"}), "b"),
        (248, ("TextObject", {"type": "set", "value": "x,y"}), "x,y"),
        (247, ("BinaryObject", {"type": "ENUM", "value": "ü".encode()}), "ü"),
        (245, ("BinaryObject", {"type": "json", "value": b"1"}), "1"),
        (252, ("BinaryObject", {"type": "text", "value": "ü".encode()}), "ü"),
        (253, None, None),
        (253, ("EmptyObject", "NULL"), None),
        (16, ("Integer", {"precision": 8, "value": "5"}), "5"),
    ],
)
def test_objects_geometries_and_null(number: int, image: Image, expected: str | None) -> None:
    assert value_of(number, image) == expected


def test_an_object_that_is_text_but_not_utf8_is_an_error() -> None:
    with pytest.raises(MessageError, match="not UTF-8"):
        value_of(247, ("BinaryObject", {"type": "enum", "value": b"\xff"}))


def test_a_column_that_is_left_out_is_not_null() -> None:
    after = change(row_body([("a", 253, ("EmptyObject", "NONE")), ("b", 253, ("EmptyObject", "NULL"))])).after
    assert after == {"b": None}


def test_an_error_shows_no_value() -> None:
    with pytest.raises(MessageError) as caught:
        value_of(253, character("ascii", "geheim ü".encode()))
    assert "geheim" not in str(caught.value)
    with pytest.raises(MessageError) as caught:
        value_of(3, ("Integer", {"precision": 4, "value": "geheim"}))
    assert "geheim" not in str(caught.value)
