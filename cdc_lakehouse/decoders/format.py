"""The type `Format` of message formats, with every fact that the rest of the product needs about one.

Each format is a `Format` in its module; `registry.FORMATS` lists them. No module outside `config` and this package
asks for a format by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec
import pyarrow as pa

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.arrow import Positions

MAX_BYTES: Final = 64 * 1024 * 1024
"""The size of the largest message that is read, in bytes. Brokers accept 1 MB by default; few are set to as much as
this."""

PIECE: Final = 8 * 1024 * 1024
"""In bytes: shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""

Row = dict[str, str | None]  # The texts of a row's values by column, None for NULL.


@dataclass(frozen=True)
class Options:
    """How the messages of a feed are written, where a format has to be told.

    `tidb_extension`: whether TiCDC's have TiDB's extension. `claims`: returns the complete message of a claim check by
    its location, or raises `SourceError`, with the segment where only that file is at fault; None where the feed has
    none. `before_2022_03_20`: whether the DTS task is that old.
    """

    tidb_extension: bool = True
    claims: Callable[[str], bytes] | None = None
    before_2022_03_20: bool = False


Decode = Callable[[bytes | None], Message | list[Message | MessageError]]
"""Decodes a message's value. It returns a list where a message holds several entries, some of which may be
unusable. It can be pickled, so that tasks can use it.

Raises MessageError for a message that cannot be used.
"""


class RowShape(msgspec.Struct, frozen=True, eq=False):
    """The common part of rows: the table, the op, and a row's columns in order. `types` by column and `key`, the
    columns of the primary key, are as in `RowChange`."""

    database: str
    table: str
    op: Literal["I", "U", "D"]
    names: tuple[str, ...]
    types: Mapping[str, str]
    key: tuple[str, ...] | None

    @classmethod
    def of(cls, change: RowChange) -> Self:
        names = tuple(change.after or change.before or ())
        return cls(change.database, change.table, change.op, names, change.types, change.key)


class UsualRow(msgspec.Struct, frozen=True, eq=False):
    """A row change: `time_ms` is that of its commit-ts or, where messages have none, of its execution at the source;
    then their order determines their commit-ts. Images are JSON objects, as in events."""

    shape: RowShape
    commit_ts: int | None
    time_ms: int
    before: str | None
    after: str | None


RowReader = Callable[[bytes | None], UsualRow | None]
"""Reads the value of a message of one row faster than the decoder does. What it leaves out (None) is left to the
decoder: it never judges a message as bad."""


class UsualRows(NamedTuple):
    """Row changes of one table and operation, those of `change`, by columns."""

    change: RowChange
    places: Positions
    """The numbers of their lines, or of their messages among the values that were read, in order."""
    commit_ts: Positions
    before: pa.Array
    after: pa.Array
    shapes: Callable[[], tuple[Sequence[RowShape], Positions]]
    """Finds the rows' shapes, and the number of each row's."""


ColumnReader = Callable[[pa.Array, int], Iterator[UsualRows]]
"""Reads many values (binary) faster than a `RowReader`, and none with a commit-ts at or above a limit. It too leaves
out what it does not read."""


@dataclass(frozen=True)
class Redelivery:
    """How messages that were delivered before are recognised, by `Origin.log_file` and `log_offset`.

    `messages_before` is the number of messages before a batch that are read for this. `shared_positions`: rows of one
    binlog event have one position, so that equal messages at one position can be different changes. `stale_positions`:
    a position may name an earlier binlog file, so that only messages with a GTID can be compared.
    """

    messages_before: int
    shared_positions: bool = False
    stale_positions: bool = False


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of messages."""

    make: Callable[[Options], Decode]
    """Returns its decoder."""
    text_of: Callable[[bytes | None], bytes | None] = lambda value: value
    """Returns the text of a value, which may be compressed; or the value, for the decoder to report."""

    row_reader: Callable[[Options], RowReader | None] = lambda options: None
    """Returns the reader of usual messages. Only a format that needs no earlier messages can have one."""
    column_reader: Callable[[Options], ColumnReader | None] = lambda options: None
    """Returns the reader of many usual messages, for formats whose messages have a commit-ts."""
    labels: Literal["numbers", "labels", "uncertain"] = "numbers"
    """The notation of ENUM and SET values; `uncertain`: the format's source does not say."""
    trailing_zeros_cut: bool = False
    """Whether a DECIMAL's fraction may lack zeros at its end."""
    in_table_order: bool = False
    """Whether columns of a row are in the order of the table; for an UPDATE those of `RowChange.types` are."""
    lossy_columns: Callable[[RowChange], Sequence[str]] | None = None
    """Finds the columns whose text may have been damaged before it reached the log; None where none can have been."""
    watermarks: Callable[[Options], bool] = lambda options: False
    """Whether messages have TiDB's commit-ts, with watermarks between them."""
    transactions: Literal["all", "some", "none"] = "none"
    """The transactions whose end is in the log."""
    redelivery: Redelivery | None = None
    """None where messages are not sent twice, or are recognised by a commit-ts."""
    joined_update: Callable[[Row, Row], Row] | None = None
    """For formats in which an update may come as two consecutive messages: builds the row after it, from the second
    half and the first half's row before."""
    can_contradict_options: bool = False
    """Whether a message can show that an option is wrong: then it has an `option_conflict`."""
    backslash_escapes: bool = True
    """Whether strings in DDL statements have backslash escapes."""
    database: Literal["mysql", "tidb"] = "mysql"
    """The kind of database that made the changes."""

    def messages_before(self, partitions: int = 1) -> int:
        """Return how many offsets before a batch are read with it in each of its `partitions`, 0 for none."""
        if self.redelivery is None:
            return 0
        return max(100, self.redelivery.messages_before // partitions)


def present(value: bytes | None) -> bytes:
    """Return the value of a message. Raises MessageError where it has none."""
    if value is None:
        raise MessageError("the message has no value", advice="this format has none without one: check the topic")
    return value


def sized(value: bytes) -> bytes:
    """Return the value unchanged. Raises MessageError where it has more than MAX_BYTES."""
    if len(value) > MAX_BYTES:
        raise MessageError(f"the message has {len(value)} bytes, more than the {MAX_BYTES} that are read")
    return value


def shown(text: str) -> str:
    """Quote and shorten a name or word of a message for an error. Not for values of rows, which may be secret."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}…"


# The interface of file decoders: their input and output.


@dataclass(frozen=True)
class FileContext:
    """The facts that a decoder needs of one file: its table, from its path, and with csv its options
    and the names of the data columns, in the order of a row."""

    database: str
    table: str
    csv: CsvOptions | None = None
    columns: tuple[str, ...] | None = None
    end_ts: int = END_TS
    """The value of `positions.end_ts_at` when the file landed: so a file that is decoded again gives the same result.
    """
    pieces: tuple[int, int | None] = 0, None
    """The first of its pieces to decode, and the one to stop before: others are another task's."""


@dataclass(frozen=True)
class Sample:
    """The beginning of a data file. `database` and `table` are None where its path does not give them."""

    path: str
    database: str | None
    table: str | None
    head: bytes


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A protocol of files, with every fact that the rest of the product needs."""

    decode: Callable[[Iterable[bytes], FileContext], Iterator[pa.RecordBatch]]
    """Decodes a file, which comes in parts that are cut anywhere, into batches of `event_schema.DECODED`. Each batch is
    in the order of its lines, and lines that cannot be used are so in all of them."""
    redelivers: Callable[[bytes, Sequence[bytes], CsvOptions | None], bool]
    """Whether later files contain everything of a file that was cut off: all of its records, and the incomplete one.
    Called with the contents, those of the later files in their order.

    A changefeed that restarts sends again, in the same order, what it has not promised; its files may end at other
    rows. So where the records of the cut file follow one another in later files, read as one sequence, and these
    continue after them, nothing is lost with the rest of the cut file. What cannot be compared is not considered equal.
    A file without a complete record before the cut is never found again: there would be nothing to search for."""
    detect: Callable[[Sequence[Sample]], tuple[dict[str, Any], list[str]]] = lambda samples: ({}, [])
    """Detects the options that files were written with: keys of the configuration's `source`, and sentences about
    settings that do not show. Raises `SourceError` for options that can never be used."""
    piece: int | None = None
    """The bytes of a piece; None where a file cannot be decoded in pieces."""
    lacks_commit_ts: Callable[[bytes], bool] | None = None
    """Whether the beginning of a file shows that the sink is configured to write no commit-ts; None where an option
    says so."""
    has_labels: bool = False
    """Whether values of ENUM and SET are labels, not the source's numbers."""
