"""Bytes of MySQL's character sets as text; `tests/servers/test_charsets.py` has all of them."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.mysql_types import CharsetError, has_codec, text


@pytest.mark.parametrize(
    ("charset", "value", "expected"),
    [
        ("utf8mb4", "\U0001f600é".encode(), "\U0001f600é"),
        ("utf8mb3", "中".encode(), "中"),
        ("latin1", b"caf\xe9 \x80 \x81", "café € \x81"),
        ("gbk", b"\xd6\xd0\x81\x5c", "中\u4e57"),
        ("greek", b"\xe1\xa1", "α\u02bd"),
        ("cp1251", b"\xc6", "Ж"),
        ("ucs2", b"\x4e\x2d", "中"),
    ],
)
def test_text_of_a_character_set(charset: str, value: bytes, expected: str) -> None:
    assert has_codec(charset) and text(value, charset) == expected


@pytest.mark.parametrize(("charset", "value"), [("utf8mb4", b"\xe9"), ("gbk", b"\xd6"), ("geostd8", b"a"), ("x", b"a")])
def test_bytes_that_are_no_text(charset: str, value: bytes) -> None:
    with pytest.raises(CharsetError):
        text(value, charset)
    assert has_codec(charset) == (value != b"a")
