"""How TiCDC's csv is written, in bytes: what the options say of delimiters, quotes and escapes.

With a quote, every string stands in quotes, with its own quotes doubled and all else raw, line ends too. Without one
(`quote = ""`), strings are escaped with backslashes: `\\n`, `\\r`, `\\\\`, and the delimiter as a backslash before each
of its bytes. Numbers, booleans and NULL are bare in both. Format: TiCDC's `pkg/sink/codec/csv/csv_message.go`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from cdc_lakehouse.config import CsvOptions

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
