"""Decoding of the bytes of MySQL's character sets to text."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.errors import PermanentError

UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_SYNONYMS: Final = {"utf8mb3": "utf8"}
_CODECS: Final = {
    "latin1": "cp1252", "utf8": "utf-8", "utf8mb4": "utf-8", "ascii": "ascii", "gbk": "gbk", "gb2312": "gb2312",
    "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp",
    "eucjpms": "euc_jp", "euckr": "cp949", "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le",
    "utf32": "utf-32-be", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7",
    "hebrew": "iso8859-8", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8_r", "koi8u": "koi8_u", "tis620": "tis_620",
    "hp8": "hp_roman8", "macce": "mac_latin2", "macroman": "mac_roman",
}  # fmt: skip
# Python has no codec for these character sets of MySQL; its codec for eucjpms decodes some characters differently.
_WITHOUT_CODEC: Final = frozenset({"armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7"})
# Codecs for decoding where another codec is used for encoding: these decode every byte that MySQL does.
_READING: Final = {"latin1": "latin-1", "big5": "cp950", "binary": "latin-1"}
# Bytes that are undefined in Windows code page 1252; MySQL's latin1 maps each to the code point of the same number.
_GAPS: Final = b"\x81\x8d\x8f\x90\x9d"
# Characters that MySQL (observed with 8.0.12) and Python's codec decode differently from the same bytes.
_CORRECTIONS: Final[dict[str, dict[int, int]]] = {
    "latin1": {byte: ord(bytes([byte]).decode("cp1252")) for byte in range(0x80, 0xA0) if byte not in _GAPS},
    "big5": {
        0x2027: 0x2022, 0xFE51: 0xFF64, 0xAF: 0x203E, 0xFF5E: 0x223C, 0x2295: 0x2641, 0x2299: 0x2609, 0x2215: 0xFF0F,
        0xFE68: 0xFF3C, 0xFFE5: 0xA5, 0xFFE0: 0xA2, 0xFFE1: 0xA3,
    },
    "cp866": {0x2116: 0x207F, 0xA4: 0xB2},
    "gb18030": {0xE7C7: 0x1E3F, 0x1E3F: 0xE7C7},
    "greek": {0x2018: 0x2BD, 0x2019: 0x2BC},
    "hebrew": {0xAF: 0x203E},
    "koi8u": {0x2219: 0x2022},
    "sjis": {0xFF3C: 0x5C},
    "ujis": {0xFF3C: 0x5C},
}  # fmt: skip


class CharsetError(PermanentError):
    """Bytes cannot be decoded in the character set that is declared for them."""


def has_codec(charset: str) -> bool:
    """Whether text in a character set can be decoded."""
    return charset not in _WITHOUT_CODEC and (charset in _CODECS or charset in _READING or charset in _SYNONYMS)


def codec_of(charset: str | None) -> tuple[str, dict[int, int]]:
    """Return Python's codec for a character set, UTF-8 where it is not known, and the characters that MySQL decodes
    differently. Raises CharsetError where there is no codec."""
    name = "utf8mb4" if charset is None else charset.lower()
    name = _SYNONYMS.get(name, name)
    codec = _READING.get(name, _CODECS.get(name))
    if name in _WITHOUT_CODEC:
        raise CharsetError(f"character set {name} is MySQL's, but there is no codec for it here")
    if codec is None:
        raise CharsetError(f"character set {name[:64]!r} is not known")
    return codec, _CORRECTIONS.get(name, {})


def text(value: bytes, charset: str) -> str:
    """Decode a column's bytes to the text that MySQL prints; `binary` gives one character for each byte (ISO-8859-1).

    Raises CharsetError where the character set is unknown, has no codec here, or does not contain these bytes.
    """
    codec, corrections = codec_of(charset)
    try:
        read = value.decode(codec)
    except UnicodeDecodeError as error:
        raise CharsetError(f"byte {error.start} of {len(value)} is not {charset.lower()}") from error
    return read if not corrections or read.isascii() else read.translate(corrections)
