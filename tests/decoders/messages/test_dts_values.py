"""Values of DTS Avro records as text, fact by fact. The expected texts are MySQL's."""

from __future__ import annotations

import struct

import pytest

from cdc_lakehouse.changelog.events import MessageError
from tests.decoders.messages.dts_records import (
    LEFT_OUT,
    NULL,
    Image,
    binary_object,
    change,
    character,
    date_time,
    decimal,
    double,
    integer,
    row_body,
    text_object,
    timestamp,
    value_of,
    zoned,
)
from tests.kit.cases import shown

LATIN1_HIGH = "€\x81‚ƒ„…†‡ˆ‰Š‹Œ\x8dŽ\x8f\x90‘’“”•–—˜™š›œ\x9džŸ"
ALL_BYTES = bytes(range(256))
POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")
LEAP_DAY = date_time(year=2024, month=2, day=29, hour=12, minute=34, second=56, millis=1)
NOW = 1_732_156_800


def of_four_bytes(value: float) -> Image:
    """A FLOAT of four bytes, as a double of eight: the digits are those of the four."""
    return double(struct.unpack("<f", struct.pack("<f", value))[0])


# The number of the column's type, what is sent, MySQL's text.
VALUES: list[tuple[int, Image, str | None]] = [
    # Integers keep their digits.
    *((8, integer(each), each) for each in ("0", "-9223372036854775808", "18446744073709551615", "00042")),
    (16, integer("5"), "5"),
    # Decimals are exact at their scale.
    (246, decimal("-1234567890123456789012345678.0123456789", 10), "-1234567890123456789012345678.0123456789"),
    (246, decimal("9" * 35 + "." + "9" * 30, 30), "9" * 35 + "." + "9" * 30),
    (246, decimal("1.5", 4), "1.5000"),
    (246, decimal("0", 10), "0.0000000000"),
    (246, decimal("0E-7", 7), "0.0000000"),  # As Java writes a BigDecimal of small digits.
    (246, decimal("1E+2", 2), "100.00"),
    (246, decimal("1.25E-5", 7), "0.0000125"),
    (246, decimal("-0.10", 2), "-0.10"),
    (246, decimal("12", 0), "12"),
    (246, decimal("1.55", 1), "1.55"),  # More digits than declared: none is lost.
    (246, decimal("1.5", -2), "1.5"),
    (246, decimal("1.5", 2_000_000_000), "1.5"),
    # Doubles (5) and floats (4).
    (5, double(3.141592653589793), "3.141592653589793"),
    (5, double(1.0), "1.0"),
    (5, double(2.2250738585072014e-308), "2.2250738585072014e-308"),
    (5, double(-1.7976931348623157e308), "-1.7976931348623157e+308"),
    (5, of_four_bytes(3.14), "3.140000104904175"),
    (4, of_four_bytes(3.14), "3.14"),
    (4, of_four_bytes(16777216.0), "16777216.0"),
    (4, of_four_bytes(-3.4028235e38), "-3.4028235e+38"),
    (4, double(3.14), "3.14"),
    (4, double(1e300), "1e+300"),
    (4, double(0.1 + 0.2), "0.30000000000000004"),
    # Character sets.
    (253, character("utf8mb4", "vär 中文 😀".encode()), "vär 中文 😀"),
    (253, character("utf8mb4", b""), ""),
    (253, character("utf8mb3", b"aaas"), "aaas"),
    (253, character("utf8", "é".encode()), "é"),
    (253, character("UTF8MB4", "é".encode()), "é"),
    (253, character("latin1", b"caf\xe9 \x80"), "café €"),
    (253, character("latin1", bytes(range(0x80, 0xA0))), LATIN1_HIGH),
    (253, character("gbk", b"\xd6\xd0\xce\xc4"), "中文"),
    (253, character("gb2312", b"\xa1\xa4"), "・"),
    (253, character("gb18030", b"\x94\x39\xfc\x36"), "😀"),
    (253, character("big5", b"\xa4\xa4\xf9\xd6"), "中碁"),
    (253, character("sjis", b"\x93\xfa\x81\x5f"), "日\\"),
    (253, character("cp932", b"\x87\x40\x81\x60"), "①～"),
    (253, character("ujis", b"\xc6\xfc"), "日"),
    (253, character("euckr", b"\xc7\xd1\x81\x41"), "한갂"),
    (253, character("ucs2", b"\x00\xe9"), "é"),
    (253, character("utf16", b"\xd8\x3d\xde\x00"), "😀"),
    (253, character("utf16le", b"\x3d\xd8\x00\xde"), "😀"),
    (253, character("utf32", b"\x00\x01\xf6\x00"), "😀"),
    (253, character("greek", b"\xa1\xa2\xe1"), "ʽʼα"),
    (253, character("koi8u", b"\x95"), "•"),
    (253, character("cp866", b"\x8f\xfc"), "Пⁿ"),
    (253, character("macce", b"\x8e"), "é"),
    (253, character("macroman", b"\x8e"), "é"),
    (253, character("hp8", b"\xc5"), "é"),
    (253, character("ascii", b"a"), "a"),
    (253, character("binary", ALL_BYTES), "".join(map(chr, range(256)))),
    # Timestamps are UTC with their offset.
    (7, timestamp(NOW, 123_456), "2024-11-21 02:40:00.123456+00:00"),
    (7, timestamp(NOW), "2024-11-21 02:40:00+00:00"),
    (7, timestamp(NOW, 500_000), "2024-11-21 02:40:00.500000+00:00"),
    (7, timestamp(1), "1970-01-01 00:00:01+00:00"),
    (7, timestamp(0, 1), "1970-01-01 00:00:00.000001+00:00"),
    (7, timestamp((1 << 31) - 1, 999_999), "2038-01-19 03:14:07.999999+00:00"),
    # MySQL stores its zero value so; the first TIMESTAMP that is a moment is a second later.
    (7, timestamp(0), "0000-00-00 00:00:00"),
    # Times with a zone become UTC.
    (7, zoned(LEAP_DAY, "+08:00"), "2024-02-29 04:34:56.000001+00:00"),
    (7, zoned(LEAP_DAY, "+8:00"), "2024-02-29 04:34:56.000001+00:00"),
    (7, zoned(LEAP_DAY, "GMT+08:00"), "2024-02-29 04:34:56.000001+00:00"),
    (7, zoned(LEAP_DAY, "-05:30"), "2024-02-29 18:04:56.000001+00:00"),
    (7, zoned(LEAP_DAY, "+14:00"), "2024-02-28 22:34:56.000001+00:00"),
    (7, zoned(LEAP_DAY, "UTC"), "2024-02-29 12:34:56.000001+00:00"),
    # Dates, datetimes, times and years.
    (12, date_time(year=1000, month=1, day=1), "1000-01-01"),
    (12, date_time(year=0, month=0, day=0), "0000-00-00"),
    (12, date_time(year=2024, month=0, day=0), "2024-00-00"),
    (12, date_time(year=2024, month=2, day=29, hour=12, minute=3, second=5, millis=789), "2024-02-29 12:03:05.000789"),
    (12, date_time(year=2024, month=2, day=29, hour=1, minute=2, second=3, millis=4), "2024-02-29 01:02:03.000004"),
    (12, date_time(year=1, month=2, day=3, hour=0, minute=0, second=0), "0001-02-03 00:00:00"),
    (12, date_time(year=0, month=0, day=0, hour=0, minute=0, second=0, millis=0), "0000-00-00 00:00:00"),
    (12, date_time(hour=838, minute=59, second=59, millis=0), "838:59:59"),
    (12, date_time(hour=1, minute=2, second=3), "01:02:03"),
    (12, date_time(hour=-12, minute=-34, second=-56, millis=-500_000), "-12:34:56.500000"),
    (12, date_time(hour=-838, minute=-59, second=-59), "-838:59:59"),
    (12, date_time(hour=0, minute=0, second=0, millis=-1), "-00:00:00.000001"),
    (12, date_time(hour=0, minute=-1, second=0, millis=0), "-00:01:00"),
    (12, date_time(hour=0, minute=0, second=0, millis=0), "00:00:00"),
    (12, date_time(year=2155), "2155"),
    (12, date_time(year=0), "0000"),
    # Objects, geometries and NULL.
    (252, binary_object("blob", ALL_BYTES), ALL_BYTES.decode("latin-1")),
    (252, binary_object("blob", b""), ""),
    (247, binary_object("ENUM", "ü".encode()), "ü"),
    (245, binary_object("json", b"1"), "1"),
    (252, binary_object("text", "ü".encode()), "ü"),
    (245, text_object("json", '{"a": [1, null, "中"]}'), '{"a": [1, null, "中"]}'),
    (247, text_object("enum", "b"), "b"),
    (248, text_object("set", "x,y"), "x,y"),
    (255, ("BinaryGeometry", {"type": "wkb", "value": POINT}), POINT.decode("latin-1")),
    (255, ("TextGeometry", {"type": "wkt", "value": "POINT(1 2)"}), "POINT(1 2)"),
    (253, None, None),
    (253, NULL, None),
]


@pytest.mark.parametrize(("number", "image", "text"), VALUES, ids=shown)
def test_a_value_is_the_text_that_mysql_gives_it(number: int, image: Image, text: str | None) -> None:
    assert value_of(number, image) == text


NOT_KNOWN = "character set '.*' is not known"
NO_VALUES = [
    *((3, integer(each), "an integer") for each in ("", "1.5", "1e3", "+1", "0x1f", "١", "1" * 21, "NaN", "geheim")),
    *(
        (0, decimal(each, 2, 10), "a decimal")
        for each in ("", "1e999999999", "NaN", "Infinity", "~", ".5", "1,5", "9" * 66, "1_0", "geheim")
    ),
    *((4, double(float(each)), "a float") for each in ("nan", "inf", "-inf")),
    # Of MySQL, but without a codec.
    *(
        (253, character(each, b"a"), f"{each} is MySQL's")
        for each in ("armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7")
    ),
    *((253, character(each, b"a"), NOT_KNOWN) for each in ("", "klingon", "rot13", "zlib", "x" * 10_000)),
    (253, character("utf8mb4", b"\xff"), "byte 0 of 1 is not utf8mb4|is not utf8"),
    (253, character("ascii", b"\x80"), "byte 0 of 1 is not ascii"),
    (253, character("ascii", "geheim ü".encode()), "is not ascii"),
    (253, character("gbk", b"\xd6"), "byte 0 of 1 is not gbk"),
    (253, character("ucs2", b"a"), "byte 0 of 1 is not ucs2"),
    (247, binary_object("enum", b"\xff"), "not UTF-8"),
    (7, timestamp(1_732_156_800_789), "timestamp"),
    (7, timestamp((1 << 63) - 1), "timestamp"),
    (7, timestamp(-(1 << 63)), "timestamp"),
    (7, timestamp(1, 1_000_000), "timestamp"),
    (7, timestamp(1, -1), "timestamp"),
    # Parts that make no date and no time.
    (12, date_time(), ""),
    (12, date_time(year=2024, month=1), ""),
    (12, date_time(month=1, day=1), ""),
    (12, date_time(year=2024, month=1, day=1, hour=1), ""),
    (12, date_time(hour=1, minute=1), ""),
    (12, date_time(millis=1), ""),
    (12, date_time(year=2024, millis=0), ""),
    (12, date_time(year=10_000, month=1, day=1), ""),
    (12, date_time(year=-1, month=1, day=1), ""),
    (12, date_time(year=2024, month=13, day=1), ""),
    (12, date_time(year=2024, month=1, day=32), ""),
    (12, date_time(year=2024, month=1, day=1, hour=24, minute=0, second=0), ""),
    (12, date_time(year=2024, month=1, day=1, hour=0, minute=60, second=0), ""),
    (12, date_time(year=2024, month=1, day=1, hour=0, minute=0, second=0, millis=1_000_000), ""),
    (12, date_time(hour=839, minute=0, second=0), ""),
    (12, date_time(hour=-1, minute=1, second=0), ""),
    (12, date_time(hour=0, minute=0, second=60), ""),
    (12, date_time(hour=0, minute=0, second=0, millis=-1_000_000), ""),
    (12, date_time(year=(1 << 31) - 1), ""),
    # No moment in a zone.
    *((7, zoned(LEAP_DAY, zone), "") for zone in ("Asia/Shanghai", "", "+99:00", "+08:60")),
    (7, zoned(date_time(year=2024, month=2, day=30, hour=0, minute=0, second=0), "UTC"), ""),
    (7, zoned(date_time(year=0, month=0, day=0, hour=0, minute=0, second=0), "UTC"), ""),
    (7, zoned(date_time(year=1, month=1, day=1, hour=0, minute=0, second=0), "+08:00"), ""),
    (7, zoned(date_time(year=9999, month=12, day=31, hour=23, minute=0, second=0), "-08:00"), ""),
    (7, zoned(date_time(year=2024, month=2, day=29), "UTC"), ""),
    (7, zoned(date_time(hour=1, minute=2, second=3), "UTC"), ""),
    (7, zoned(date_time(year=2024), "UTC"), ""),
]


@pytest.mark.parametrize(("number", "image", "problem"), NO_VALUES, ids=shown)
def test_what_is_no_value_of_mysql_is_an_error_that_does_not_show_it(number: int, image: Image, problem: str) -> None:
    with pytest.raises(MessageError, match=rf"column 'c': .*{problem}") as caught:
        value_of(number, image)
    assert len(str(caught.value)) < 300 and "geheim" not in str(caught.value)


def test_a_column_that_is_left_out_is_not_null() -> None:
    assert change(row_body([("a", 253, LEFT_OUT), ("b", 253, NULL)])).after == {"b": None}
