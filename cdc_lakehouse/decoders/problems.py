"""Rejected input: a value for each thing that cannot be used, and the possible problems of records, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RAW_LIMIT: Final = 64 * 1024  # The bytes of a rejected thing that are kept; the rest is still in the segment.

LISTED_PER_SEGMENT: Final = 1000
"""The number of rejected things of one segment that are listed one by one; one more stands for the others and counts
them."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """One thing that cannot be used, or `count` of them: a line, message, row, segment, schema file or directory.

    `segment`: path or name of the segment, or another path of the source. `line`: number of the line from 1, or the
    message's offset; None for the whole segment. `error_class`: the kind of fault, one word. `raw`: the first bytes of
    the thing. `database`, `table`: the table it belongs to, None where that is unknown.
    """

    segment: str
    line: int | None
    error_class: str
    message: str
    raw: bytes | None = None
    database: str | None = None
    table: str | None = None
    count: int = 1


BAD_MESSAGE: Final = "BadMessage"
"""A message that its format's decoder cannot read; the message of the `Rejected` says why."""
BAD_WATERMARK: Final = "BadWatermark"
"""A watermark that cannot be true. It holds no table: the next one replaces it."""
BAD_VALUE: Final = "BadValue"
"""A row that a current-state table could not take. It holds no table: the next run tries again."""
BAD_TABLE_OF_DUMP: Final = "BadTableOfDump"
"""A table of the initial dump of which rows, or values of a column, are missing."""
BAD_SCHEMA_FILE: Final = "BadSchemaFile"
"""A schema file that cannot be read, or is incomplete."""
MISSING_FILE: Final = "MissingFile"
"""A data file that the source should have and does not. `policy.index_gap` says whether it holds its table."""
UNREADABLE_INDEX: Final = "UnreadableIndex"
"""An index file that cannot be read, or names no data file: it is unknown whether the last one exists.
`policy.index_gap` says whether it holds its table."""
EXPIRED_FILES: Final = "ExpiredFiles"
"""Data files of a table that the source may have removed before they were read. `policy.index_gap` says whether it
holds its table."""
BAD_STATEMENT: Final = "BadStatement"
"""A statement that cannot be parsed, and whose text names no table of the feed. It holds no table."""
UNREADABLE_DIRECTORY: Final = "UnreadableDirectory"
"""A directory of the source that cannot be listed."""

NOT_UTF8: Final = "NotUtf8"
NOT_JSON: Final = "NotJson"
NOT_CSV: Final = "NotCsv"
FIELD_COUNT: Final = "FieldCount"
NO_COMMIT_TS: Final = "NoCommitTs"
NO_IS_UPDATE: Final = "NoIsUpdate"
NOT_A_ROW_CHANGE: Final = "NotARowChange"
NO_ROW: Final = "NoRow"
WRONG_TABLE: Final = "WrongTable"
NOT_A_DUMP_ROW: Final = "NotADumpRow"
NOT_A_VALUE: Final = "NotAValue"
NOT_IN_CHARSET: Final = "NotInCharset"
BEHIND_WATERMARK: Final = "BehindWatermark"

PROBLEMS: Final = {
    NOT_UTF8: "the record is not UTF-8",
    NOT_IN_CHARSET: "a text has bytes that are none in the character set of its column, or the set is not known",
    NOT_JSON: "the line is not one JSON object (garbage, cut short, or two messages run together)",
    NOT_CSV: "the record is not csv as TiCDC writes it (garbage, cut short, a quote that is never closed, text beside "
    "quotes, or a backslash that escapes nothing)",
    FIELD_COUNT: "the record has more or fewer fields than the table's columns and the options of its format give",
    NO_COMMIT_TS: "the record has no commit-ts, or one that is no time before 2100, or more than a day after its file "
    "landed (then a clock is wrong); set enable-tidb-extension=true (canal-json) or include-commit-ts=true (csv) in "
    "the changefeed",
    NO_IS_UPDATE: "the record does not say true or false where is-update stands (csv with output-old-value)",
    NOT_A_ROW_CHANGE: "the record is not an INSERT, UPDATE or DELETE",
    NO_ROW: "the message does not hold exactly one row of texts, with its types and key, as TiCDC writes it",
    WRONG_TABLE: "the record is of another table than its path",
    BEHIND_WATERMARK: "the row or statement is at or below a watermark of its partition, which promised that all such "
    "had been sent, and it has not come before: another changefeed writes to the topic, or this one began again at an "
    "earlier point; give each changefeed topics of its own, and load what is missing",
    NOT_A_DUMP_ROW: "the record is not written as rows of its dump are (garbage, cut short, a quote that is never "
    "closed, text beside quotes, a statement that is no INSERT, or longer than 512 MiB)",
    NOT_A_VALUE: "a value is not of its column's type (a label that the ENUM or SET does not have, too many bits, or "
    "what is neither hex nor base64 where it has to be)",
}
