"""Detection of the options with which files of TiCDC's csv were written, from their content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from cdc_lakehouse.decoders.files.csv_format import HEADER
from cdc_lakehouse.decoders.files.file_format import DetectedFiles, Sample
from cdc_lakehouse.errors import SourceError

_ENDS: Final = (b"\r\n", b"\n", b"\r")
_NUMBER: Final = re.compile(rb"[+-]?[\d.]+(?:[eE][+-]?\d+)?")


def detect_csv(samples: Sequence[Sample]) -> DetectedFiles:
    """Combine the options that the samples show, in order: what does not show in one may show in the next.

    Raises `SourceError` for rows without a commit-ts.
    """
    options: dict[str, Any] = {}
    for sample in samples:
        found = options_of(sample.head, sample.table, sample.database)
        if found is not None and not found["include-commit-ts"]:
            raise SourceError(
                "the csv rows have no commit-ts, and so no order",
                segment=sample.path,
                advice="set include-commit-ts = true under [sink.csv] in the changefeed, and start it afresh",
            )
        options = {**(found or {}), **options}
    unsure = ["csv: binary-encoding-method does not show; it is base64, if the changefeed does not say hex"]
    if not options:
        unsure.insert(0, "the csv options do not show in its files: write those of the changefeed's [sink.csv]")
    return DetectedFiles({"csv": options or {"include-commit-ts": True}}, unsure=tuple(unsure))


def options_of(content: bytes, table: str | None = None, database: str | None = None) -> dict[str, Any] | None:
    """Return the options that differ from TiCDC's defaults, by TiCDC's names; None where the content is not TiCDC's
    csv.

    `content` is a file's beginning, or all of it. `table` and `database` are those of its rows, None where the path
    does not give them. `binary-encoding-method` and `output-handle-key` cannot be detected.
    """
    # A value may contain another line end: the one at the end of the content is preferred.
    ends = [end for end in _ENDS if content.endswith(end)] + [end for end in _ENDS if end in content]
    end = next(iter(ends), None)
    if end is None:
        return None
    options: dict[str, Any] = {} if end == b"\r\n" else {"terminator": end.decode()}
    if content.startswith((HEADER, b'"' + HEADER)):
        options["output-field-header"] = True
        content = content[content.index(end) + len(end) :]
    row = _first_columns(table, database).match(content)
    if row is None:
        return None
    quote, delimiter = row["quote"], row["delimiter"]
    options["include-commit-ts"] = row["commit_ts"] is not None
    if quote != b'"':
        options["quote"] = quote.decode()
    if delimiter != b",":
        options["delimiter"] = delimiter.decode("utf-8", "replace")
    if row["is_update"] is not None:
        options["output-old-value"] = True
    null = _null(content, quote, delimiter, end)
    if null is not None and null != b"\\N":
        options["null"] = null.decode("utf-8", "replace")
    return options


def _first_columns(table: str | None, database: str | None) -> re.Pattern[bytes]:
    """Compile the pattern of a row's first columns: op, table, schema, commit-ts, is-update."""

    def named(name: str | None) -> bytes:
        return rb".*?" if name is None else re.escape(name.encode())

    between = rb"(?P=quote)(?P=delimiter)(?P=quote)"
    return re.compile(
        rb"(?P<quote>[^\w\s]?)[IUD](?P=quote)(?P<delimiter>[^\r\n]{1,3}?)(?P=quote)" + named(table) + between
        + named(database) + rb"(?P=quote)(?P=delimiter)(?P<commit_ts>\d{15,20}(?=(?P=delimiter)))?"
        rb"(?:(?P=delimiter)(?P<is_update>true|false)(?=(?P=delimiter)))?",
        re.DOTALL,
    )  # fmt: skip


def _null(content: bytes, quote: bytes, delimiter: bytes, end: bytes) -> bytes | None:
    """Return the text of NULL: the most frequent value without quotes that is not a number. None where there is none,
    and without a quote character, where NULL cannot be distinguished from text."""
    if not quote:
        return None
    q = re.escape(quote)
    quoted = re.compile(q + rb"(?:[^" + q + rb"]|" + q + q + rb")*" + q)
    bare = Counter(
        value
        for row in quoted.sub(quote, content).split(end)[:-1]
        for value in row.split(delimiter)
        if value != quote and value not in (b"true", b"false") and not _NUMBER.fullmatch(value)
    )
    return bare.most_common(1)[0][0] if bare else None
