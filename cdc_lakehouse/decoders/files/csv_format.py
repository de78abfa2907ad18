"""How TiCDC's csv is written: what stands where in a row, and in bytes what the options say of delimiters, quotes and
escapes.

    op, table, schema, commit-ts, [is-update], [handle key], data columns

The table stands before its schema. `is-update` is there with output-old-value; the handle key, with output-handle-key,
only from classic TiCDC: the new architecture ignores that option.

With a quote, every string stands in quotes, with its own quotes doubled and all else raw, line ends too. Without one
(`quote = ""`), strings are escaped with backslashes: `\\n`, `\\r`, `\\\\`, and the delimiter as a backslash before each
of its bytes. Numbers, booleans and NULL are bare in both.

Format: TiCDC csv protocol documentation, and its `pkg/sink/codec/csv/csv_message.go`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa

from cdc_lakehouse.config import CsvOptions

OP: Final = 0
TABLE: Final = 1
DATABASE: Final = 2
COMMIT_TS: Final = 3
IS_UPDATE: Final = 4
"""Only with output-old-value."""

HEADER: Final = b"ticdc-meta$operation"
"""How the header of a file begins (output-field-header). Its names stand there bare, whatever they hold."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands in the rows of one file behind the leading columns."""

    names: tuple[str, ...]
    """The data columns, in the order of the row."""
    handle_key: bool = False
    """A column for the handle key stands before them."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields a row has, by the options and the layout."""

    old_value: bool
    handle_key: bool
    columns: int
    """How many data columns."""

    @classmethod
    def of(cls, options: CsvOptions, layout: Layout) -> Self:
        return cls(options.output_old_value, layout.handle_key, len(layout.names))

    @property
    def leading(self) -> int:
        """How many stand before the handle key and the data columns."""
        return IS_UPDATE + self.old_value

    @property
    def width(self) -> int:
        return self.leading + self.handle_key + self.columns

    @property
    def rows(self) -> pa.Schema:
        """The rows of a file as they are read: the leading fields, the data columns by number, without the handle key;
        then what is wrong with the row, and its bytes if something is. Of a bad row all else is null."""
        leading = [
            pa.field("op", pa.string()),
            pa.field("table_name", pa.string()),
            pa.field("schema_name", pa.string()),
            pa.field("commit_ts", pa.int64()),
            pa.field("is_update", pa.bool_()),
        ][: self.leading]
        data = [pa.field(str(number), pa.string()) for number in range(self.columns)]
        return pa.schema([*leading, *data, pa.field("problem", pa.string()), pa.field("value", pa.binary())])


BACKSLASH: Final = b"\\"
LINE_ENDS: Final = b"\r\n"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The options that say how a record falls into fields, and what each field's text is."""

    delimiter: bytes
    quote: bytes
    """Empty: values are escaped."""
    null: bytes
    escapes: dict[bytes, bytes] = field(repr=False)
    """Without a quote, what each escape stands for, in the order in which they are to be tried; else empty."""

    @classmethod
    def of(cls, options: CsvOptions) -> Self:
        quote = options.quote.encode()
        return cls(
            delimiter=options.delimiter.encode(),
            quote=quote,
            null=options.null.encode(),
            escapes={} if quote else _escapes(options.delimiter),
        )


def _escapes(delimiter: str) -> dict[bytes, bytes]:
    text = delimiter.encode()
    # TiCDC escapes the delimiter byte by byte, and writes each byte as the character of that number: `¦` (C2 A6)
    # becomes `\Â\¦` (5C C3 82 5C C2 A6). For ASCII this is what one would think.
    whole = b"".join(BACKSLASH + chr(byte).encode() for byte in text)
    single = {BACKSLASH + character.encode(): character.encode() for character in delimiter}
    return {rb"\\": BACKSLASH, whole: text} | {rb"\n": b"\n", rb"\r": b"\r"} | {
        escape: character for escape, character in single.items() if escape not in (rb"\\", rb"\n", rb"\r", whole)
    }  # fmt: skip
