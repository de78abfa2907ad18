"""The content of one message of a topic, or one entry of a Canal server: the output of all message decoders.

Values are the source's text in Canal-JSON's notation, in whatever format they came: numbers plain or with an exponent,
times as MySQL prints them, BIT as an unsigned number, one character for each byte of a binary value (ISO-8859-1), None
for NULL. A column that a message leaves out is not in the map: absent is not NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from cdc_lakehouse.changelog.positions import LOGICAL_BITS, commit_time, is_time_ms, physical_ms
from cdc_lakehouse.errors import PermanentError


class MessageError(PermanentError):
    """A message cannot be used: it goes to quarantine, and the others are processed.

    `of` is the database and table that the message names, as far as they could be read: only they are held then. A
    table of None means any table of the database. A watermark (`is_watermark`) holds no table: without it no row and no
    statement is missing.
    """

    def __init__(
        self, message: str, *, of: tuple[str, str | None] | None = None, is_watermark: bool = False, **places: Any
    ) -> None:
        if of is not None and of[1] is not None:
            places["table"] = places.get("table") or f"{of[0]}.{of[1]}"
        super().__init__(message, **places)
        self.of = of
        self.is_watermark = is_watermark

    def within(self, database: str, table: str | None) -> MessageError:
        """Return this error for a message that names this table; a table that is known already stays."""
        return self if self.of is not None else MessageError(self.message, of=(database, table), advice=self.advice)


class RowChange(msgspec.Struct, frozen=True):
    """A row change. `before` holds, for an update, at least the columns that changed, for a delete the row or its key;
    `after` the new row, or those of its columns that the message carries. Raises `MessageError` without a database or
    table."""

    database: str
    table: str
    op: Literal["I", "U", "D"]
    before: Mapping[str, str | None] | None
    after: Mapping[str, str | None] | None
    types: Mapping[str, str] = {}
    """Column types from the message, such as `bigint unsigned` or `enum('a','b')`; empty when it has none."""
    key: tuple[str, ...] | None = None
    """Columns of the primary key; empty when the message says that there is none, None when it does not say."""

    def __post_init__(self) -> None:
        if not self.database or not self.table:
            raise MessageError(f"the row does not say of which {'table' if self.database else 'database'} it is")


class Ddl(msgspec.Struct, frozen=True):
    """A statement. `database` is the session's, for names without one; `table` is the one that the message names, if
    any."""

    database: str
    table: str
    sql: str


class Watermark(msgspec.Struct, frozen=True):
    """All changes with a commit-ts at or below `commit_ts` have been sent (TiCDC)."""

    commit_ts: int


class TransactionEnd(msgspec.Struct, frozen=True):
    """A transaction is complete: its changes may be applied."""


MessagePart = RowChange | Ddl | Watermark | TransactionEnd


class Origin(msgspec.Struct, frozen=True):
    """The position of a message in the source's log, as far as it is given. `log_offset` is the byte offset in the
    binlog file `log_file`; `time_ms` is the time of execution at the source, in milliseconds since 1970 (UTC).

    Raises `MessageError` where `time_ms` is out of range.
    """

    time_ms: int | None = None
    log_file: str | None = None
    log_offset: int | None = None
    gtid: str | None = None
    commit_ts: int | None = None
    """TiDB's commit-ts, where the message has one."""

    def __post_init__(self) -> None:
        if self.time_ms is not None and not is_time_ms(self.time_ms):
            raise MessageError(f"the time of its execution is not between the years 1970 and 2100: {self.time_ms} ms")


class Message(msgspec.Struct, frozen=True):
    """A message and its parts in order; it has none where there is nothing to apply, such as for a heartbeat."""

    origin: Origin
    parts: tuple[MessagePart, ...] = ()
    option_conflict: str | None = None
    """Why an option of the format cannot be right for this message, where that shows."""

    def not_after(self, latest_ms: int) -> Message | MessageError:
        """Return the message, or its error where its commit-ts, its watermark, or without these its time of execution,
        is after `latest_ms` (milliseconds since 1970): taken as the feed's clock, it would stay there."""
        origin = self.origin
        if origin.commit_ts is not None:
            last = physical_ms(origin.commit_ts)
        elif origin.time_ms is not None:
            last = origin.time_ms
        else:
            marks = (physical_ms(part.commit_ts) for part in self.parts if isinstance(part, Watermark))
            last = max(marks, default=0)
        if last <= latest_ms:
            return self
        changes = (part for part in self.parts if isinstance(part, RowChange | Ddl))
        watermarks = bool(self.parts) and all(isinstance(part, Watermark) for part in self.parts)
        next_step = (
            "the next watermark takes its place" if watermarks
            else "if it is that of the machine which reads, replay the message then (`cdc-lakehouse quarantine "
            "replay`), else discard it and load the row again"
        )  # fmt: skip
        return MessageError(
            f"its time is {commit_time(last << LOGICAL_BITS):%Y-%m-%d %H:%M:%S} UTC, more than a day after it was read",
            of=next(((part.database, part.table or None) for part in changes), None),
            is_watermark=watermarks,
            advice=f"set right the clock that is wrong; {next_step}",
        )
