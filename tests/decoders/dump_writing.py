"""Dumps' rows written again, by the rules of the notations, and what a reader should make of them.

It shares no code with the decoders."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
from tests.kit.decoding import TABLE

LABELS = ("small", "it's", "größe, xl")
MARKS = ("a", "b", "'", "ü")
COLUMNS = {
    "id": ColumnType.of("bigint unsigned"),
    "Name": ColumnType.of("varchar", length=80),
    "data": ColumnType.of("blob"),
    "flags": ColumnType.of("bit", length=16),
    "kind": ColumnType.of("enum", elements=LABELS),
    "marks": ColumnType.of("set", elements=MARKS),
    "shape": ColumnType.of("point"),
    "note": ColumnType.of("text"),
}

Value = None | int | float | str | bytes
"""A number is what numbers are; bytes are of binary columns, those of a BIT too."""
Row = tuple[Value, ...]

_LETTERS = {"\0": "0", "\b": "b", "\n": "n", "\r": "r", "\t": "t", "\x1a": "Z"}


def with_backslashes(text: bytes, also: bytes) -> bytes:
    """Each special byte as an escape."""
    escaped = bytearray()
    for byte in text:
        letter = _LETTERS.get(chr(byte))
        if letter is not None:
            escaped += b"\\" + letter.encode()
        elif byte in b"\\" + also:
            escaped += b"\\" + bytes([byte])
        else:
            escaped.append(byte)
    return bytes(escaped)


def plain(value: int | float | str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else str(value).encode()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "hex": lambda value: value.hex().encode(),
    "base64": base64.b64encode,
}


@dataclass(frozen=True)
class TextWriter:
    notation: TextNotation
    bare_text: bool = False
    """Text stands in quotes only where it has to."""

    def file(self, rows: Sequence[Row]) -> bytes:
        header = self._record(self.notation.columns) if self.notation.header and self.notation.columns else b""
        return header + b"".join(map(self.row, rows))

    def row(self, row: Row) -> bytes:
        notation = self.notation
        encoded = [
            ENCODERS[notation.encoded.get(name, notation.binary)](value) if isinstance(value, bytes) else value
            for name, value in zip(notation.columns, row, strict=True)
        ]
        return self._record(encoded)

    def _record(self, values: Sequence[Value]) -> bytes:
        return self.notation.separator.join(map(self._value, values)) + self.notation.terminator

    def _value(self, value: Value) -> bytes:
        notation = self.notation
        if value is None:
            return notation.null
        text = plain(value)
        if isinstance(value, int | float):
            return text
        if not notation.quote:
            return with_backslashes(text, notation.separator[:1])
        marks = [notation.separator, notation.quote, notation.null, notation.terminator]
        special = [*marks, b"\\", *(bytes([end]) for end in b"\r\n\0")]
        if self.bare_text and text and not any(part and part in text for part in special) and notation.null:
            return text
        if notation.backslash_escapes:
            return notation.quote + with_backslashes(text, notation.quote[:1]) + notation.quote
        return notation.quote + text.replace(notation.quote, notation.quote * 2) + notation.quote


@dataclass(frozen=True)
class InsertWriter:
    notation: InsertNotation
    style: str = "dumpling"
    """dumpling, mydumper (hexadecimal or not), mysqldump."""
    listed: bool = False
    per_statement: int = 3
    hexadecimal: bool = True

    def file(self, rows: Sequence[Row]) -> bytes:
        gap = {"dumpling": b",\n", "mydumper": b"\n,", "mysqldump": b","}[self.style]
        names = b"(" + b",".join(b"`%s`" % name.encode() for name in self.notation.columns) + b") " * self.listed
        content = self.preamble()
        for at in range(0, len(rows), self.per_statement):
            content += b"INSERT INTO `%s` %sVALUES" % (TABLE.encode(), names if self.listed else b"")
            content += b"\n" if self.style == "dumpling" else b" "
            content += gap.join(map(self.row, rows[at : at + self.per_statement])) + b";\n"
        return content + (b"/*!40000 ALTER TABLE `parcels` ENABLE KEYS */;\nUNLOCK TABLES;\n" * self._old_style)

    def preamble(self) -> bytes:
        if self.style == "dumpling":
            return b"/*!40101 SET NAMES binary*/;\n"
        if self.style == "mydumper":
            return b"/*!40101 SET NAMES binary*/;\n/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n"
        return (
            b"-- Dump of parcels; INSERT INTO\n--\n\nLOCK TABLES `parcels` WRITE;\n"
            b"/*!40000 ALTER TABLE `parcels` DISABLE KEYS */;\n"
        )

    @property
    def _old_style(self) -> bool:
        return self.style == "mysqldump"

    def row(self, row: Row) -> bytes:
        return b"(" + b",".join(map(self._value, row)) + b")"

    def _value(self, value: Value) -> bytes:
        if value is None:
            return b"NULL"
        text = plain(value)
        if isinstance(value, int | float):
            return text
        if isinstance(value, bytes) and self.hexadecimal:
            if self.style == "dumpling":
                return b"x'%s'" % text.hex().encode()
            return b"0x" + text.hex().encode() if text else b"''"
        quoted = with_backslashes(text, b"'\"") if self.notation.backslash_escapes else text.replace(b"'", b"''")
        if isinstance(value, bytes):
            return b"_binary '%s'" % quoted
        return b"CONVERT('%s' USING UTF8MB4)" % quoted if self.style == "mydumper" else b"'%s'" % quoted


def image(row: Row, names: Sequence[str], binary: str, labels: bool) -> dict[str, str | None]:
    """What the feed has of a row."""
    return {name: _text(name, value, binary, labels) for name, value in zip(names, row, strict=True)}


def _text(name: str, value: Value, binary: str, labels: bool) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        if name == "flags":
            return str(int.from_bytes(value, "big"))
        if name == "shape" or binary == "characters":
            return "".join(map(chr, value))
        return value.hex() if binary == "hex" else base64.b64encode(value).decode()
    if name == "kind" and not labels:
        return "0" if value == "" else str(LABELS.index(str(value)) + 1)
    if name == "marks" and not labels:
        return str(sum(2 ** MARKS.index(label) for label in str(value).split(",") if label))
    return str(value)
