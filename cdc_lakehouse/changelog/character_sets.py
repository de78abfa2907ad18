"""Bytes of MySQL's character sets as text."""

from __future__ import annotations

from typing import Final

UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_CODECS: Final = {
    **dict.fromkeys(UTF8, "utf-8"),
    "ascii": "ascii", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7",
    "hebrew": "iso8859-8", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8-r", "koi8u": "koi8-u", "macroman": "mac-roman",
    "macce": "mac-latin2", "tis620": "tis-620", "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5",
    "euckr": "cp949", "ujis": "euc-jp", "eucjpms": "euc-jp", "sjis": "shift-jis", "cp932": "cp932",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
}  # fmt: skip
# MySQL's latin1 is Windows' cp1252, and what that leaves out is the control character of the same number.
_LATIN1: Final = {
    byte: bytes((byte,)).decode("cp1252") for byte in range(0x80, 0xA0) if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


def characters(value: bytes, charset: str) -> str:
    """The text that bytes are in a character set, by its MySQL name. Of one that is not known, ASCII can be read.

    Raises UnicodeDecodeError."""
    if charset == "latin1":
        return value.decode("latin-1").translate(_LATIN1)
    return value.decode(_CODECS.get(charset, "ascii"))
