"""Values of a dump's rows in the notation of the feed that continues after it.

A cell is a value without its notation: the text of the dump, or the bytes of a binary value where its row has them raw
or as a literal. The result is text, as `lake.current.value_parsing` describes it. Geometry is MySQL's bytes, one
character for each (ISO-8859-1), as Canal writes it: no other feed that continues after a dump has any.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import pyarrow as pa

from cdc_lakehouse.changelog import mysql_types
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, LABELS, TEMPORALS, ColumnType
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.text import CellError, Cells
from cdc_lakehouse.duckdb_sql import at_zone, matches, text_in_zone, try_cast, when
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import BinaryNotation, InsertNotation, Notation

Kind = Literal["text", "enum", "set", "bit", "characters", "base64", "hex"]

_NUMBERS: Final = INTEGERS | {"decimal", "float", "double", "year"}
_BASE64: Final = re.compile(rb"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_BIT_BYTES: Final = 8
"""MySQL's BIT has at most 64 bits."""
_MOMENT: Final = r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?"


@dataclass(frozen=True)
class DumpContext:
    """The facts that a decoder needs of one data file: its table, how it is written, and how the feed writes values.

    `commit_ts` is that of every event. `columns` are types by column name, as in the CREATE TABLE. With `labels` the
    feed's ENUM and SET are labels, else numbers (an ENUM's 1-based index, a SET's bit mask). `binary` is the feed's
    notation of binary values; `characters` has one character for each byte (ISO-8859-1). TIMESTAMP text of the file is
    in the time zone `zone`, that of events in `feed_zone`.
    """

    database: str
    table: str
    commit_ts: int
    notation: Notation
    columns: Mapping[str, ColumnType]
    labels: bool
    binary: Literal["characters", "base64", "hex"]
    zone: str
    feed_zone: str

    def own_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names as the CREATE TABLE has them. Raises SourceError for names of no column."""
        own = {name.lower(): name for name in self.columns}
        try:
            return tuple(own[name.lower()] for name in names)
        except KeyError:
            raise self.other_columns("the file's rows have", names, "the table has", tuple(self.columns)) from None

    def other_columns(self, who: str, names: Sequence[str], other: str, others: Sequence[str]) -> SourceError:
        return SourceError(
            f"{who} the columns {', '.join(names)}; {other} {', '.join(others)}",
            table=f"{self.database}.{self.table}",
            advice="take the dump again, or give the options that it was taken with",
        )


class SqlNumber(bytes):
    """The digits of an SQL number, which were not in quotes."""


class Octets(bytes):
    """The value of SQL's hexadecimal or bit literal."""


@dataclass(frozen=True)
class DumpColumn:
    """Converts the cells of one column to texts."""

    name: str
    kind: Kind
    encoding: BinaryNotation
    """The encoding that is decoded first."""
    number: bool
    labels: dict[str, int]
    """The number of each label, for an ENUM or SET whose labels become numbers."""
    zones: tuple[str, str] | None
    """The source and target time zone, for a TIMESTAMP that must be converted."""
    charset: str = "utf8mb4"
    """MySQL's name for the character set of a text."""

    @classmethod
    def of(cls, name: str, of: ColumnType, context: DumpContext) -> Self:
        numbered = of.name in LABELS and not context.labels
        own_charset = of.charset if context.notation.own_charsets else None
        return cls(
            name,
            _kind(of, context),
            _encoding(name, of, context),
            of.name in _NUMBERS or of.name in TEMPORALS,
            # Of equal labels, which a server accepts with a warning, use the first.
            {label: place for place, label in reversed([*enumerate(of.elements)])} if numbered else {},
            (context.zone, context.feed_zone) if of.name == "timestamp" and context.zone != context.feed_zone else None,
            own_charset or "utf8mb4",
        )

    @property
    def binary(self) -> bool:
        """Whether the cells are bytes, not text."""
        return self.kind in ("bit", "characters", "base64", "hex")

    def text(self, cell: bytes) -> str:
        """Convert a cell to text. Raises CellError."""
        if isinstance(cell, Octets) and self.number:
            raise CellError(problems.NOT_A_VALUE)
        if self.kind == "bit" and isinstance(cell, SqlNumber):
            return cell.decode()
        value = self._decoded(cell)
        match self.kind:
            case "characters":
                return value.decode("latin-1")
            case "base64":
                return binascii.b2a_base64(value, newline=False).decode()
            case "hex":
                return value.hex()
            case "bit":
                if len(value) > _BIT_BYTES:
                    raise CellError(problems.NOT_A_VALUE)
                return str(int.from_bytes(value, "big"))
            case _:
                pass
        try:
            # ASCII can be decoded in any character set.
            text = mysql_types.text(value, self.charset if mysql_types.has_codec(self.charset) else "ascii")
        except mysql_types.CharsetError:
            kind = problems.NOT_UTF8 if self.charset in mysql_types.UTF8 else problems.NOT_IN_CHARSET
            raise CellError(kind) from None
        return text if self.kind == "text" else self._label_number(text)

    def texts(self, cells: pa.Array, cell: Callable[[bytes], bytes] | None = None) -> pa.Array:
        """Convert an array of bytes to texts; `cell`, if given, converts each value to a cell first. Raises CellError
        and ArrowInvalid."""
        if self.kind == "text" and self.encoding == "raw" and cell is None and self.charset in mysql_types.UTF8:
            return cells.cast(pa.string())
        if self.kind in ("enum", "set", "bit"):
            known = cells.dictionary_encode()
            return self._each(known.dictionary, cell).take(known.indices)
        return self._each(cells, cell)

    def expression(self, text: str) -> str:
        """Return the DuckDB expression that converts the text to an image's value. Text that is not a timestamp stays:
        zero dates, and values that the readers must report."""
        if self.zones is None:
            return text
        zone, feed_zone = self.zones
        local = try_cast(text, "timestamp")
        known = f"{matches(text, _MOMENT)} AND {text} >= '0001' AND {local} IS NOT NULL"
        return when(known, text_in_zone(at_zone(local, zone), feed_zone, f"length({text})"), text)

    def _each(self, cells: pa.Array, cell: Callable[[bytes], bytes] | None) -> pa.Array:
        values: list[bytes | None] = cells.to_pylist()
        if cell is not None:
            values = [None if value is None else cell(value) for value in values]
        return pa.array([None if value is None else self.text(value) for value in values], pa.string())

    def _decoded(self, cell: bytes) -> bytes:
        if self.encoding == "raw":
            return cell
        try:
            if self.encoding == "hex":
                return binascii.unhexlify(cell)
            # MySQL's TO_BASE64 breaks lines.
            digits = cell.translate(None, b" \t\r\n")
            if _BASE64.fullmatch(digits):
                return binascii.a2b_base64(digits)
        except binascii.Error:
            pass
        raise CellError(problems.NOT_A_VALUE)

    def _label_number(self, text: str) -> str:
        if self.kind == "enum":
            # The empty text is an ENUM's error value where no label is empty.
            place = self.labels.get(text, -1 if text == "" else None)
            if place is not None:
                return str(place + 1)
        elif text == "":
            return "0"
        else:
            places = {self.labels.get(label) for label in text.split(",")}
            if None not in places:
                return str(sum(1 << place for place in places if place is not None))
        raise CellError(problems.NOT_A_VALUE)


def _kind(of: ColumnType, context: DumpContext) -> Kind:
    if of.name in BLOBS:
        return context.binary
    if of.name in GEOMETRIES:
        return "characters"
    if of.name == "bit":
        return "bit"
    if context.labels:
        return "text"
    return "enum" if of.name == "enum" else "set" if of.name == "set" else "text"


def _encoding(name: str, of: ColumnType, context: DumpContext) -> BinaryNotation:
    notation = context.notation
    if isinstance(notation, InsertNotation):
        return "raw"
    encoded: dict[str, BinaryNotation] = {column.lower(): each for column, each in notation.encoded.items()}
    binary = of.name in BLOBS or of.name in GEOMETRIES or of.name == "bit"
    return encoded.get(name.lower(), notation.binary if binary else "raw")


class DumpTable:
    """A `text.Table` of a dump's columns, whose rows have their texts in columns named `0`, `1`, …"""

    def __init__(self, names: Sequence[str], context: DumpContext) -> None:
        """`names` are as the CREATE TABLE has them."""
        self.dump_columns = [DumpColumn.of(name, context.columns[name], context) for name in names]
        self.width = len(names)
        texts = [(str(number), pa.string()) for number in range(self.width)]
        self.schema = pa.schema([*texts, ("problem", pa.string()), ("value", pa.binary())])

    def row(self, cells: Cells) -> tuple[object, ...] | str:
        if len(cells) != self.width:
            return problems.FIELD_COUNT
        pairs = zip(self.dump_columns, cells, strict=True)
        try:
            return tuple(None if cell is None else column.text(cell) for column, cell in pairs)
        except CellError as error:
            return error.problem

    def columns(self, cells: list[Any]) -> list[Any]:
        return [column.texts(cell) for column, cell in zip(self.dump_columns, cells, strict=True)]
