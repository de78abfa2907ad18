"""The notation of a dump's rows, which decoders need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

BinaryNotation = Literal["raw", "hex", "base64"]


@dataclass(frozen=True)
class InsertNotation:
    """INSERT statements of MySQL.

    `backslash_escapes`: a backslash in a string begins an escape; a quote in a string may be doubled in any case.
    `columns`: the columns of a row, in order, where the statements do not list them. `own_charsets`: text is in the
    character set of its column, else in UTF-8.
    """

    columns: tuple[str, ...]
    backslash_escapes: bool = True
    own_charsets: bool = False


@dataclass(frozen=True)
class TextNotation:
    """Delimited text.

    `columns`: the columns of a row, in order, even where a header repeats them. `quote`: empty for none; otherwise
    values may be quoted or not. `null`: the text of NULL, without quotes. `backslash_escapes`: a backslash begins an
    escape, else a quote within quotes is doubled and line ends in quotes are raw. `binary`: the notation of values of
    binary columns (BINARY, VARBINARY, BLOBs, BIT, geometry); `encoded`: that of single columns, by name.
    `own_charsets`: as in `InsertNotation`.
    """

    columns: tuple[str, ...]
    separator: bytes = b","
    quote: bytes = b'"'
    null: bytes = rb"\N"
    terminator: bytes = b"\r\n"
    backslash_escapes: bool = True
    header: bool = False
    binary: BinaryNotation = "raw"
    encoded: Mapping[str, BinaryNotation] = field(default_factory=dict[str, BinaryNotation])
    own_charsets: bool = False


Notation = InsertNotation | TextNotation
