"""What a format of messages is: a value `Format`, with every fact that the rest of the product needs of it.

Every module of a format has a row `FORMAT`; `registry.FORMATS` lists them. No module outside `config` and this package
asks for a format by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.errors import ConfigurationError

MAX_BYTES: Final = 64 * 1024 * 1024
"""Size of the largest message that is read, in bytes. Brokers take 1 MB by default; few are set to as much as this."""

_SHOWN: Final = 100

Row = dict[str, str | None]
"""The texts of a row's values by column, None for NULL."""

Options = Mapping[str, object]
"""Values of a format's options by name."""

Decode = Callable[[bytes | None, bytes | None], Message | list[Message | MessageError]]
"""Reads a message's key and value. It gives a list where a message holds several entries, of which some may be
unusable. It can be pickled, so that tasks can take it along.

Raises MessageError for a message that cannot be used."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """What rows have in common: the table, the op, and of a row its columns in order. `types` by column and `key`, the
    columns of the primary key, are as `RowChange` has them."""

    database: str
    table: str
    op: Literal["I", "U", "D"]
    names: tuple[str, ...]
    types: Mapping[str, str]
    key: tuple[str, ...] | None


@dataclass(frozen=True)
class UsualRows:
    """The messages of a batch that have one row and nothing unusual: all columns are in their order. `places` are the
    messages' in the batch; `times` are their commit-ts (TSO), or, with `in_order`, when the source executed them, in
    milliseconds: then their order makes their commit-ts; `shape_of` is each row's number in `shapes`; images are JSON
    objects, as events have them."""

    places: np.ndarray[Any, Any]
    times: np.ndarray[Any, Any]
    in_order: bool
    shape_of: np.ndarray[Any, Any]
    shapes: Sequence[RowShape | None]
    before: pa.Array
    after: pa.Array

    @property
    def times_ms(self) -> np.ndarray[Any, Any]:
        return self.times if self.in_order else self.times >> LOGICAL_BITS


ColumnReader = Callable[[Any, pa.Array], UsualRows]
"""Reads a batch of messages' values (binary) in a connection to DuckDB, faster than the decoder does. What it leaves
out is left to the decoder: it never says that a message is bad."""


@dataclass(frozen=True)
class Redelivery:
    """How messages that were delivered before are known again, by `Origin.log_file` and `log_offset`.

    `messages_before` is how many messages before a batch are read for that. `shared_positions`: rows of one binlog
    event have one position, so that equal messages at one position can be different changes. `stale_positions`: a
    position may name an earlier binlog file, so that only messages with a GTID can be compared."""

    messages_before: int
    shared_positions: bool = False
    stale_positions: bool = False


@dataclass(frozen=True)
class UpdateHalves:
    """An update may come as two messages, one after the other. `join` makes the row after the update, of what the
    second half says of it and what the first says of the row before. `alone` makes the error of a half of a table that
    stands alone, by whether it is the first one."""

    join: Callable[[Row, Row], Row]
    alone: Callable[[tuple[str, str], bool], MessageError]


def _no_options(source: KafkaSource, storage: StorageConfig) -> Options:
    return {}


def _never(options: Options) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of messages. `make` builds its decoder of checked options."""

    name: str
    """As the configuration has it."""
    make: Callable[[Options], Decode]
    options: tuple[str, ...] = ()
    """Names of the options that `make` knows."""
    configured: Callable[[KafkaSource, StorageConfig], Options] = _no_options
    """The options as the configuration of a feed has them."""
    column_reader: Callable[[Options], ColumnReader | None] = lambda options: None
    """Only a format can have one that needs no messages before."""
    labels: Literal["numbers", "labels", "uncertain"] = "numbers"
    """What values of ENUM and SET are; `uncertain`: the format's source does not say."""
    trailing_zeros_cut: bool = False
    """A DECIMAL's fraction can lack zeros at its end."""
    in_table_order: bool = False
    """Columns of a row stand in the order of the table; of an UPDATE those of `RowChange.types` do."""
    lossy_columns: Callable[[RowChange], Sequence[str]] | None = None
    """Finds the columns whose text may have been damaged before it came into the log; None where none can have been."""
    watermarks: Callable[[Options], bool] = _never
    """Whether messages have TiDB's commit-ts, with watermarks between them."""
    transactions: Literal["all", "some", "none"] = "none"
    """Which transactions have their end in the log."""
    redelivery: Redelivery | None = None
    """None where messages are not sent twice, or have a commit-ts to know them by."""
    update_halves: UpdateHalves | None = None
    """None where an update is one message."""
    can_contradict_options: bool = False
    """A message can show that an option is wrong: then it has an `option_conflict`."""
    backslash_escapes: bool = True
    """Strings in DDL statements have backslash escapes."""
    database: Literal["mysql", "tidb"] = "mysql"
    """What the messages' changes were made in."""

    def decoder(self, options: Options) -> Decode:
        """Raises ConfigurationError for an option that the format does not have, or a value that it cannot have."""
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            raise ConfigurationError(
                f"format {self.name} has no option {', '.join(unknown)}",
                advice=f"its options are: {', '.join(sorted(self.options))}" if self.options else "it has none",
            )
        return self.make(options)

    def messages_before(self, partitions: int = 1) -> int:
        """How many offsets before a batch are read with it, in each of the `partitions` that it has messages of; 0
        where the format needs none."""
        if self.redelivery is None:
            return 0
        return max(_LEAST_BEFORE, self.redelivery.messages_before // partitions)


_LEAST_BEFORE: Final = 100


def sized(value: bytes) -> bytes:
    """The value itself. Raises MessageError where it has more than MAX_BYTES."""
    if len(value) > MAX_BYTES:
        raise MessageError(f"the message has {len(value)} bytes, more than the {MAX_BYTES} that are read")
    return value


def shown(text: str) -> str:
    """A name or word of a message as an error shows it: quoted, and cut where it is long. Not for values of rows, which
    may be secret."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
