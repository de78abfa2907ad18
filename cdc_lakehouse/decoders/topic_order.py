"""Joining and filtering of a partition's messages: two halves of an update become one, redelivered messages are left
out.

For this, a batch is read together with the messages before it, as many as `Format.messages_before` says. They are in
the lake, so no state is kept between batches, and a batch that is decoded again gives the same result.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.changelog.history import ObservedColumns, Statement
from cdc_lakehouse.changelog.positions import LOGICAL_BITS, is_time_ms
from cdc_lakehouse.decoders.format import Format, Redelivery, Row
from cdc_lakehouse.decoders.problems import (
    BAD_MESSAGE,
    BAD_WATERMARK,
    BEHIND_WATERMARK,
    LISTED_PER_SEGMENT,
    PROBLEMS,
    RAW_LIMIT,
    Rejected,
)

WINDOW: Final = 20_000
"""The number of messages of a partition that are remembered. A redelivery from further back is treated as new, as a
whole and in order: at its end the rows are as before, but statements are applied twice, or hold their table."""


class PartitionSequence:
    """The messages of one partition and batch, in order."""

    def __init__(self, message_format: Format) -> None:
        redelivery = message_format.redelivery
        self._filter = None if redelivery is None else RedeliveryFilter(redelivery)
        join = message_format.joined_update
        self._pairing = None if join is None else UpdatePairing(join)

    def next(self, messages: Sequence[Message | MessageError]) -> tuple[Sequence[Message | MessageError], int]:
        """Return the messages that are complete after more messages, for each 0, 1 or 2; and the number of those that
        were left out because they had been delivered before."""
        new = messages
        if self._filter is not None:
            new = [each for each in messages if isinstance(each, MessageError) or not self._filter.is_redelivered(each)]
        redelivered = len(messages) - len(new)
        if self._pairing is not None:
            new = [whole for each in new for whole in self._pairing.next(each)]
        return new, redelivered


class UpdatePairing:
    """Joins the two halves of an update, as messages of one partition come: a change U without `after`, then one
    without `before`, of one table and one `Origin.log_file`. `waiting` is the last half, if its other half has not come
    yet.

    A waiting half is read again together with what comes after it. So no half is kept anywhere except in the topic, and
    a restart changes nothing. The update takes the position of its second half; a half that is not next to its other
    half becomes an error.
    """

    def __init__(self, join: Callable[[Row, Row], Row]) -> None:
        self._join = join
        self.waiting: Message | None = None

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """Yield the messages that are determined by one more message, that of the waiting half first."""
        half, self.waiting = self.waiting, None
        whole = None if half is None else self._joined(half, message)
        if half is not None:
            yield self._alone(half, is_first=True) if whole is None else Message(half.origin)
        match whole or message:
            case Message(parts=(RowChange(op="U", after=None),)) as first:
                self.waiting = first
            case Message(parts=(RowChange(op="U", before=None),)) as second:
                yield self._alone(second, is_first=False)
            case other:
                yield other

    def _joined(self, first: Message, second: Message | MessageError) -> Message | None:
        """Return the update of these two halves, None where they do not belong together."""
        match first, second:
            case (
                Message(parts=(RowChange(before=dict() as before) as old,)),
                Message(parts=(RowChange(op="U", before=None, after=dict() as after) as new,)),
            ):
                table, place = (new.database, new.table), second.origin.log_file
                change = RowChange(*table, "U", before, self._join(after, before))
                same = (old.database, old.table, first.origin.log_file) == (*table, place)
                return Message(second.origin, (change,)) if same else None
            case _:
                return None

    def _alone(self, half: Message, *, is_first: bool) -> MessageError:
        which = "BEFORE that came before this message" if is_first else "AFTER"
        return MessageError(
            f"the UPDATE {which} stands alone: its other half is not next to it",
            of=next((part.database, part.table) for part in half.parts if isinstance(part, RowChange)),
            advice="let the DTS task write the table to one partition",
        )


class RedeliveryFilter:
    """Recognises messages that a partition has delivered before: it remembers the last `window`.

    A DTS task that restarts goes back to a saved position of the source's log, and sends again what it has sent since.
    Each message has its position in the log, but a position before the last one need not be old: another server may
    have become the primary, whose log has other positions. So nothing is left out only because of its position. A
    message is left out if it equals an earlier one: the same position, the same time, the same rows. A message at an
    earlier position that is *not* equal begins something else, and everything before it is forgotten: otherwise newer
    rows could be left out because they equal older ones.

    With `shared_positions`, one row can change in the same way twice at a position (0 to 1, 1 to 0, 0 to 1): then the
    n-th time differs from the first. With `stale_positions`, only the GTID proves that two messages are the same.
    """

    def __init__(self, redelivery: Redelivery, window: int = WINDOW) -> None:
        self._window = window
        self._redelivery = redelivery
        # In the order of arrival.
        self._known: dict[bytes, None] = {}
        self._greatest = ("", -1)
        self._last: tuple[str, int] | None = None
        self._at_position: Counter[bytes] = Counter()

    def is_redelivered(self, message: Message) -> bool:
        """Whether the message, which is the next one of the partition, was delivered before."""
        origin = message.origin
        if not message.parts:
            return False
        if (
            origin.log_file is None
            or origin.log_offset is None
            or (self._redelivery.stale_positions and not origin.gtid)
        ):
            # Without a position it cannot be compared with others.
            self._forget()
            return False
        position = (origin.log_file.zfill(20), origin.log_offset)
        content = repr((position, origin.time_ms, origin.gtid, message.parts))
        identity = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if position != self._last:
            self._last = position
            self._at_position.clear()
        if self._redelivery.shared_positions and isinstance(message.parts[0], RowChange):
            self._at_position[identity] += 1
            identity += self._at_position[identity].to_bytes(8)
        if identity in self._known:
            return True
        if position < self._greatest:
            self._forget()
        self._greatest = position
        self._known[identity] = None
        if len(self._known) > self._window:
            del self._known[next(iter(self._known))]
        return False

    def _forget(self) -> None:
        self._known.clear()
        self._greatest = ("", -1)


# What a task finds in a partition besides the rows: statements, watermarks, observed columns, and problems.

PartitionBatch = tuple[str, int, int]
"""Topic, partition and batch."""


@dataclass(frozen=True)
class OptionConflict:
    """Messages of a partition and batch that contradict an option of the format: the offset and reason of the first,
    and their number."""

    topic: str
    partition: int
    offset: int
    reason: str
    count: int = 1


def origin_of(topic: str, partition: int, offset: int, commit_ts: int) -> str:
    """Return the position of a statement or row in the log, as text. A message of Canal's can hold several statements,
    each with its own commit-ts."""
    return f"{topic}/{partition}/{offset}@{commit_ts}"


@dataclass
class PartitionSummary:
    """What a task found in a partition and batch besides the rows. All times are TSO.

    `seed`: the greatest commit-ts of all batches before. `last_ts`: that of a row or statement of the partition.
    `late_before`: messages before this offset were waiting when an earlier batch landed without them, 0 for none.
    `ended_ts`: that of its last complete transaction, None where messages do not show where transactions end.
    `replays`: the number of messages that were left out because they had been delivered before. `statements`,
    `observed`: DDL, and the first row with some columns, each with the offset of its message. `lossy`: the number of
    changes with lossy text, by (database, table) and column. `sent_before`: rows at or below the partition's watermark,
    by (database, table, commit-ts) and segment, as rejected, for the case that `events` does not have them.
    `stated_before`: the same for statements and `signals`. `left_out`: tables, as (database, table), that had rows and
    are not wanted. `bad`: messages that cannot be used, by segment; `counted` gives, by segment, class, database and
    table, the entry that stands for those that are not listed. `others`: by segment, the number of records that are
    neither events nor bad, less the rows beyond a record's first. `strict`: by segment, records with events that were
    read by themselves though others are read at once.
    """

    seed: int
    last_ts: int
    watermark: int | None = None
    late_before: int = 0
    ended_ts: int | None = None
    others: Counter[str] = field(default_factory=Counter[str])
    tombstones: Counter[str] = field(default_factory=Counter[str])
    strict: Counter[str] = field(default_factory=Counter[str], compare=False)
    replays: int = 0
    statements: list[tuple[int, Statement]] = field(default_factory=list[tuple[int, Statement]])
    observed: dict[Any, tuple[int, ObservedColumns]] = field(default_factory=dict[Any, tuple[int, ObservedColumns]])
    lossy: dict[tuple[str, str], Counter[str]] = field(default_factory=dict[tuple[str, str], "Counter[str]"])
    sent_before: dict[tuple[tuple[str, str, int], str], Rejected] = field(
        default_factory=dict[tuple[tuple[str, str, int], str], "Rejected"]
    )
    stated_before: dict[tuple[str, str, int], Rejected] = field(default_factory=dict[tuple[str, str, int], "Rejected"])
    left_out: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    bad: dict[str, list[Rejected]] = field(default_factory=dict[str, list[Rejected]])
    counted: dict[tuple[str, str, str | None, str | None], int] = field(
        default_factory=dict[tuple[str, str, str | None, str | None], int]
    )
    option_conflict: OptionConflict | None = None

    def commit_ts(self, commit_ts: int | None, offset: int, *times_ms: int | None) -> int | None:
        """Return the commit-ts of the row or statement that comes next, at this offset; None if it was delivered
        before: at or below the partition's watermark. Where the message has none it is made from the first of some
        times (milliseconds) that is valid, and always exceeds the partition's last one. It also exceeds those of
        earlier batches, as what is sent after them comes after them whatever its time says: a statement's is when it
        began. A late message alone keeps its own time."""
        if commit_ts is None:
            moment = next((time for time in times_ms if time is not None and is_time_ms(time)), 0)
            if offset >= self.late_before or not (moment or self.last_ts):
                self.last_ts = max(self.last_ts, self.seed)
            self.last_ts = max(self.last_ts + 1, moment << LOGICAL_BITS)
        elif commit_ts <= (self.watermark or 0):
            self.replays += 1
            return None
        else:
            self.last_ts = max(self.last_ts, commit_ts)
        return self.last_ts if commit_ts is None else commit_ts

    def note_sent_before(self, database: str, table: str, commit_ts: int, segment: str, offset: int) -> None:
        place = (database, table, commit_ts), segment
        known = self.sent_before.get(place)
        if known is not None:
            self.sent_before[place] = replace(known, line=min(known.line or 0, offset), count=known.count + 1)
            return
        message = PROBLEMS[BEHIND_WATERMARK]
        self.sent_before[place] = Rejected(segment, offset, BEHIND_WATERMARK, message, None, database, table)

    def note_bad(self, segment: str, offset: int, error: MessageError, raw: bytes) -> None:
        listed = self.bad.setdefault(segment, [])
        message, error_class = str(error), BAD_WATERMARK if error.is_watermark else BAD_MESSAGE
        database, table = error.of or _table_of(raw)
        found = Rejected(segment, offset, error_class, message, raw[:RAW_LIMIT], database, table)
        if len(listed) < LISTED_PER_SEGMENT:
            listed.append(found)
            return
        # One entry for each table, so that no other table is held for them.
        at = self.counted.setdefault((segment, error_class, database, table), len(listed))
        if at == len(listed):
            listed.append(replace(found, raw=b"", count=0))
        listed[at] = replace(listed[at], message=message, count=listed[at].count + 1)

    def note_observed(self, offset: int, columns: ObservedColumns, *, in_order: bool) -> None:
        """Note the columns of a row. With `in_order`, where the positions of rows determine their commit-ts, the same
        columns are noted again after a statement."""
        statements = len(self.statements) if in_order else 0
        shape = (columns.database, columns.table, columns.columns, columns.key, statements)
        known = self.observed.get(shape)
        if known is None or (columns.commit_ts, offset) < (known[1].commit_ts, known[0]):
            self.observed[shape] = offset, columns


Summaries = dict[PartitionBatch, PartitionSummary]


def _table_of(raw: bytes) -> tuple[str | None, str | None]:
    """Return the table that a message in JSON names, although the rest of it cannot be used: only that table is held
    then."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    names = (message.get("database"), message.get("table")) if isinstance(message, dict) else (None, None)
    # Half of a surrogate pair, which JSON's escapes allow, cannot be written as UTF-8.
    is_storable = all(isinstance(of, str) and of and of.encode(errors="replace").decode() == of for of in names)
    return names if is_storable else (None, None)
