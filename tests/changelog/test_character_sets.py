"""Bytes of MySQL's character sets as text."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.character_sets import characters


@pytest.mark.parametrize(
    ("charset", "value", "text"),
    [
        ("utf8mb4", "\U0001f600é".encode(), "\U0001f600é"),
        ("utf8mb3", "中".encode(), "中"),
        ("latin1", b"caf\xe9 \x80 \x81", "café € \x81"),
        ("gbk", b"\xd6\xd0\x81\x5c", "中\u4e57"),
        ("big5", b"\xa4\xa4", "中"),
        ("cp1251", b"\xc6", "Ж"),
        ("ucs2", b"\x4e\x2d", "中"),
        ("geostd8", b"plain", "plain"),
    ],
)
def test_text_of_a_character_set(charset: str, value: bytes, text: str) -> None:
    assert characters(value, charset) == text


@pytest.mark.parametrize(("charset", "value"), [("utf8mb4", b"\xe9"), ("gbk", b"\xd6"), ("geostd8", b"\xe9")])
def test_bytes_that_are_no_text(charset: str, value: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        characters(value, charset)
