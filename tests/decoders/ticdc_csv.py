"""TiCDC's csv encoder again, by its rules (`pkg/sink/codec/csv/csv_message.go`), and what a reader should make of it.

It shares no code with the parser: it builds files from rows, byte by byte as TiCDC does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import problems

TABLE = "parcels"
DATABASE = "shop"
HEADER = ("operation", "table", "schema", "commit-ts")


@dataclass(frozen=True)
class Bare:
    """A value that is not a string: a number."""

    text: str


Value = str | Bare | None
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Change:
    """An INSERT has no row before, a DELETE none after."""

    commit_ts: int
    before: Row | None
    after: Row | None
    table: str = TABLE
    database: str = DATABASE
    handle: str = "1"

    @property
    def op(self) -> str:
        return "I" if self.before is None else "D" if self.after is None else "U"


class AmbiguousError(Exception):
    """TiCDC writes this so that nobody can read it back, or fails to write it."""


class Encoder:
    def __init__(self, options: CsvOptions, names: Sequence[str], handle_key: bool = False) -> None:
        self.options = options
        self.names = tuple(names)
        self.handle_key = handle_key

    def file(self, changes: Sequence[Change]) -> bytes:
        return self.header() + b"".join(record for change in changes for record in self.records(change))

    def header(self) -> bytes:
        if not self.options.output_field_header:
            return b""
        meta = HEADER + (("is-update",) if self.options.output_old_value else ())
        fields = [f"ticdc-meta${name}" for name in meta] + list(self.names)
        return (self.options.delimiter.join(fields) + self.options.terminator).encode()

    def records(self, change: Change) -> list[bytes]:
        old_and_new = change.op == "U" and self.options.output_old_value
        if old_and_new:
            assert change.before is not None and change.after is not None
            return [self._record(change, "D", change.before), self._record(change, "I", change.after)]
        row = change.before if change.after is None else change.after
        assert row is not None
        return [self._record(change, change.op, row)]

    def _record(self, change: Change, op: str, row: Row) -> bytes:
        fields: list[Value] = [op, change.table, change.database, Bare(str(change.commit_ts))]
        if self.options.output_old_value:
            fields.append(Bare("true" if change.op == "U" else "false"))
        if self.handle_key:
            fields.append(change.handle)
        return self.join([*fields, *row])

    def join(self, fields: Sequence[Value]) -> bytes:
        delimiter = self.options.delimiter.encode()
        return delimiter.join(map(self.field, fields)) + self.options.terminator.encode()

    def field(self, value: Value) -> bytes:
        if value is None:
            return self.options.null.encode()
        if isinstance(value, Bare):
            return value.text.encode()
        quote = self.options.quote
        if quote:
            return (quote + value.replace(quote, quote * 2) + quote).encode()
        return self._escaped(value.encode())

    def _escaped(self, value: bytes) -> bytes:
        delimiter = self.options.delimiter.encode()
        written = bytearray()
        last = 0
        for at, byte in enumerate(value):
            begins = value.startswith(delimiter, at)
            if byte in b"\r\n\\" or begins:
                if at < last:
                    raise AmbiguousError  # TiCDC panics: two delimiters overlap in the value.
                written += value[last:at]
                # Go's WriteRune: the byte's number is taken for a character's.
                written += b"\\" + chr({10: ord("n"), 13: ord("r")}.get(byte, byte)).encode()
                last = at + 1
                if begins:
                    for more in delimiter[1:]:
                        written += b"\\" + chr(more).encode()
                    last = at + len(delimiter)
        rest = value[last:]
        written += rest
        if (rest + delimiter).find(delimiter) < len(rest):
            raise AmbiguousError  # The value's end and the delimiter's beginning make a delimiter.
        return bytes(written)

    def read_as(self, value: Value, *, leading: bool = False) -> str | None:
        """What a reader can know of a value: without quotes, a text may be written as NULL is."""
        null = self.options.null
        if value is None:
            return None
        if isinstance(value, Bare):
            return value.text
        if not self.options.quote and self.field(value) == null.encode():
            return null if leading else None
        return value


def events(changes: Sequence[Change], encoder: Encoder) -> Iterator[dict[str, object]]:
    """What a parser should give for a file of `changes` of the table `TABLE`."""
    line = 2 if encoder.options.output_field_header else 1
    for change in changes:
        before = change.before if change.op == "D" or encoder.options.output_old_value else None
        images = {"before": _named(encoder, before), "after": _named(encoder, change.after)}
        of = [encoder.read_as(name, leading=True) for name in (change.database, change.table)]
        event = {"op": change.op, "commit_ts": change.commit_ts, **images, "problem": None, "value": None}
        if of != [DATABASE, TABLE]:
            event = dict.fromkeys(event) | {"problem": problems.WRONG_TABLE, "value": images}
        yield {"line": line, **event}
        line += len(encoder.records(change))


def _named(encoder: Encoder, row: Row | None) -> dict[str, str | None] | None:
    return None if row is None else {n: encoder.read_as(v) for n, v in zip(encoder.names, row, strict=True)}
