"""The format of TiCDC's csv: the fields of a row, and the options for delimiters, quotes and escapes as bytes.

    op, table, schema, commit-ts, [is-update], [handle key], data columns

The table comes before its schema. `is-update` exists with output-old-value; the handle key, with output-handle-key,
only from classic TiCDC: the new architecture ignores that option.

With a quote, every string is quoted, with its own quotes doubled and everything else raw, including line ends. Without
one (`quote = ""`), strings are escaped with backslashes: `\\n`, `\\r`, `\\\\`, and the delimiter as a backslash before
each of its bytes. Numbers, booleans and NULL are not quoted in either case.

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
"""The beginning of a file's header (output-field-header). Its names are not quoted, whatever they contain."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one file's rows after the leading ones."""

    names: tuple[str, ...]
    """The data columns, in the order of the row."""
    handle_key: bool = False
    """Whether a column for the handle key comes before them."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a row, by the options and the layout."""

    old_value: bool
    handle_key: bool
    columns: int
    """The number of data columns."""

    @classmethod
    def of(cls, options: CsvOptions, layout: Layout) -> Self:
        return cls(options.output_old_value, layout.handle_key, len(layout.names))

    @property
    def leading(self) -> int:
        """The number of fields before the handle key and the data columns."""
        return IS_UPDATE + self.old_value

    @property
    def width(self) -> int:
        return self.leading + self.handle_key + self.columns

    @property
    def rows(self) -> pa.Schema:
        """The schema of a file's rows as they are read: the leading fields, the data columns by number, without the
        handle key; then the problem with the row, and its bytes if there is one. In a bad row all other columns are
        null."""
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
    """The options that decide how a record is split into fields, and the text of each field."""

    delimiter: bytes
    quote: bytes
    """Empty: values are escaped."""
    null: bytes
    escapes: dict[bytes, bytes] = field(repr=False)
    """Without a quote, the text of each escape, in the order in which they must be tried; else empty."""

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
    # becomes `\Â\¦` (5C C3 82 5C C2 A6). For an ASCII delimiter this is simply a backslash before it.
    whole = b"".join(BACKSLASH + chr(byte).encode() for byte in text)
    single = {BACKSLASH + character.encode(): character.encode() for character in delimiter}
    return {rb"\\": BACKSLASH, whole: text} | {rb"\n": b"\n", rb"\r": b"\r"} | {
        escape: character for escape, character in single.items() if escape not in (rb"\\", rb"\n", rb"\r", whole)
    }  # fmt: skip
