"""What the messages of a partition say together: halves of an update become one, what is sent again is left out.

For that a batch is read with the messages that came before it, as many as `Format.messages_before` says. They are in
the lake, so nothing has to be kept from batch to batch, and a batch that is decoded again gives the same."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.decoders.messages.format import Format
from cdc_lakehouse.decoders.messages.shareplex_json import image_after
from cdc_lakehouse.decoders.redelivery import RedeliveryFilter


class PartitionSequence:
    """The messages of one partition and batch, in order. `redelivered` counts those that were left out because they
    had been delivered before."""

    def __init__(self, message_format: Format) -> None:
        redelivery = message_format.redelivery
        self._filter = None if redelivery is None else RedeliveryFilter(redelivery)
        self._pairing = UpdatePairing() if message_format.pairs_updates else None
        self.redelivered = 0

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """The messages that are complete with one more message: 0, 1 or 2."""
        if self._filter is not None and isinstance(message, Message) and self._filter.is_redelivered(message):
            self.redelivered += 1
        elif self._pairing is None:
            yield message
        else:
            yield from self._pairing.next(message)


class UpdatePairing:
    """Makes one update of two halves as messages of one partition come: a change U without `after`, then one without
    `before`, of one table and one place `Origin.log_file`. `waiting` is the half that came last, if its other one is
    yet to come.

    What waits is read again together with what comes after it. So no half is kept anywhere but in the topic, and a
    restart changes nothing. The update stands where its second half was; a half whose other half is not next to it
    becomes an error."""

    def __init__(self) -> None:
        self.waiting: Message | None = None

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """What is known with one more message: of the half that waited first."""
        half, self.waiting = self.waiting, None
        whole = None if half is None else _joined(half, message)
        if half is not None:
            yield _unpaired("BEFORE", half) if whole is None else Message(half.origin)
        match whole or message:
            case Message(parts=(RowChange(op="U", after=None),)) as first:
                self.waiting = first
            case Message(parts=(RowChange(op="U", before=None),)) as second:
                yield _unpaired("AFTER", second)
            case other:
                yield other


def _joined(first: Message, second: Message | MessageError) -> Message | None:
    """The update that the two are the halves of, None where they are not."""
    match first, second:
        case (
            Message(parts=(RowChange(before=dict() as before) as old,)),
            Message(parts=(RowChange(op="U", before=None, after=dict() as after) as new,)),
        ):
            same = (old.database, old.table, first.origin.log_file) == (new.database, new.table, second.origin.log_file)
            change = RowChange(new.database, new.table, "U", before, image_after(after, before))
            return Message(second.origin, (change,)) if same else None
        case _:
            return None


def _unpaired(which: str, half: Message) -> MessageError:
    of = next((part.database, part.table) for part in half.parts if isinstance(part, RowChange))
    where = " that came before this message" if which == "BEFORE" else ""
    return MessageError(
        f"the UPDATE {which}{where} stands alone: its other half is not next to it",
        of=of,
        advice="let the DTS task write the table to one partition",
    )
