"""Values of a dump's rows in the notation of the feed that goes on after it.

A cell is what a value's notation stands for: the text of the dump, or the bytes of a binary value where its row has
them raw or as a literal. What comes out is text, as `lake.current.value_parsing` says. Geometry is MySQL's bytes, a
character each (ISO-8859-1), as Canal has it: no other feed that goes on after a dump has any."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import pyarrow as pa

from cdc_lakehouse.changelog import charsets
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, LABELS, TEMPORALS, ColumnType
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.duckdb_sql import at_zone, matches, text_in_zone, try_cast, when
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.notation import BinaryNotation, InsertNotation, Notation

Kind = Literal["text", "enum", "set", "bit", "characters", "base64", "hex"]

_NUMBERS: Final = INTEGERS | {"decimal", "float", "double", "year"}
_BASE64: Final = re.compile(rb"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_BIT_BYTES: Final = 8
"""MySQL's BIT has 64 bits at most."""
_MOMENT: Final = r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?"


@dataclass(frozen=True)
class DumpContext:
    """What a decoder needs to know of one data file: whose it is, how it is written, and how the feed writes values.

    `commit_ts`: of every event. `columns`: types by column name, as in the CREATE TABLE. `labels`: the feed's ENUM and
    SET are labels, else numbers (an ENUM's 1-based index, a SET's bit mask). `binary`: the feed's notation of binary
    values, where `characters` has a character a byte (ISO-8859-1). TIMESTAMP text is in `zone`, that of events in
    `feed_zone`."""

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
        """The names as the CREATE TABLE has them. Raises SourceError for those of no column."""
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
    """The digits of a number of SQL, which were not in quotes."""


class Octets(bytes):
    """What SQL's hexadecimal or bit literal stands for."""


class CellError(Exception):
    """A cell is no value of its column. `problem` is a key of `problems.PROBLEMS`."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True)
class DumpColumn:
    """How the cells of one column become texts."""

    name: str
    kind: Kind
    encoding: BinaryNotation
    """What has to be undone first."""
    number: bool
    labels: dict[str, int]
    """Of an ENUM or SET whose labels become numbers: each one's."""
    zones: tuple[str, str] | None
    """Of a TIMESTAMP that has to be converted: from, to."""
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
            # Of equal labels, which a server takes with a warning, the first.
            {label: place for place, label in reversed([*enumerate(of.elements)])} if numbered else {},
            (context.zone, context.feed_zone) if of.name == "timestamp" and context.zone != context.feed_zone else None,
            own_charset or "utf8mb4",
        )

    @property
    def binary(self) -> bool:
        """Whether the cells are bytes, not text."""
        return self.kind in ("bit", "characters", "base64", "hex")

    def text(self, cell: bytes) -> str:
        """Raises CellError."""
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
            # ASCII can be read in any.
            text = charsets.text(value, self.charset if charsets.has_codec(self.charset) else "ascii")
        except charsets.CharsetError:
            raise CellError(problems.NOT_UTF8 if self.charset in charsets.UTF8 else problems.NOT_IN_CHARSET) from None
        return text if self.kind == "text" else self._label_number(text)

    def texts(self, cells: pa.Array, cell: Callable[[bytes], bytes] | None = None) -> pa.Array:
        """The same of an array of bytes, each of which `cell` makes the cell of first. Raises CellError and
        ArrowInvalid."""
        if self.kind == "text" and self.encoding == "raw" and cell is None and self.charset in charsets.UTF8:
            return cells.cast(pa.string())
        if self.kind in ("enum", "set", "bit"):
            known = cells.dictionary_encode()
            return self._each(known.dictionary, cell).take(known.indices)
        return self._each(cells, cell)

    def expression(self, text: str) -> str:
        """What an image has, as an expression of DuckDB of the text. A text that is no moment stays: zero dates, and
        what readers of the value have to report."""
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
            # TO_BASE64 of MySQL breaks lines.
            digits = cell.translate(None, b" \t\r\n")
            if _BASE64.fullmatch(digits):
                return binascii.a2b_base64(digits)
        except binascii.Error:
            pass
        raise CellError(problems.NOT_A_VALUE)

    def _label_number(self, text: str) -> str:
        if self.kind == "enum":
            # The empty text is an ENUM's error value where it is no label.
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


def columns_of(names: Sequence[str], context: DumpContext) -> list[DumpColumn]:
    """Of names as the CREATE TABLE has them."""
    return [DumpColumn.of(name, context.columns[name], context) for name in names]


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
