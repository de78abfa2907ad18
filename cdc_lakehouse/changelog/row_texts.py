"""The text of a row, which is the same in the source database and in the lake, and from which checksums are computed.

Each value has a text, which both sides write in their own SQL (`sources.database.client`, `lake.current.row_texts`):

    integers, YEAR, BIT    decimal digits
    DECIMAL                all digits of its scale, one at least before the point
    FLOAT, DOUBLE          the shortest digits that read as the same double, without zeros at either end, `e`, and the
                           power of ten of the last digit: 1250 is `125e1`; zero is `0`
    DATE                   year-month-day
    DATETIME, TIMESTAMP    year-month-day hour:minute:second and six digits, TIMESTAMP in UTC. Where zero dates are kept
                           as text: as many digits as the column has
    TIME                   as the source prints it
    texts, ENUM, SET, JSON the text itself, as UTF-8; of ENUM and SET the labels
    binaries               the bytes

The row's text joins those of its columns with commas, with `N` for NULL. A text that can contain a comma has its length
in bytes and a colon before it; one that can be long is replaced by its MD5, and a short binary by its hexadecimal
digits. A row's hash is the first 16 digits of the text's MD5 as a number, and a bucket's checksum is the sum of its
rows' hashes, so that the order does not matter. A row's bucket is the first 8 digits of the MD5 of its key's text,
modulo the number of buckets.
"""

from __future__ import annotations

from typing import Final, Literal

from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, LABELS, TEMPORALS, TEXTS, ColumnType

Form = Literal["plain", "counted", "long", "hex", "long_bytes"]
"""The form of a value's text in a row's text: as it is, with its length before it, as its MD5; in hexadecimal, as the
MD5 of its bytes."""

_SHORT_TEXTS: Final = frozenset({"char", "varchar"})
_SHORT_BLOBS: Final = frozenset({"binary", "varbinary"})
_PLAIN: Final = INTEGERS | TEMPORALS | {"year", "bit", "decimal", "float", "double"}


def form_of(column: ColumnType) -> Form | None:
    """Return the form of a column in the text of a row; None where no text of it is known that both sides can write."""
    if column.name in _PLAIN:
        return "plain"
    if column.name in _SHORT_TEXTS | LABELS:
        return "counted"
    if column.name in TEXTS or column.name == "json":
        return "long"
    if column.name in BLOBS:
        return "hex" if column.name in _SHORT_BLOBS else "long_bytes"
    return None
