"""Messages of TiCDC's Canal-JSON that are written as one that was read before, read together.

A topic has the same few kinds of message over and over (see `canal_json_form`). One of each kind is read by another
reader, whose word is taken for the others of its kind; what is of no kind is left to that reader."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Mask, Positions
from cdc_lakehouse.decoders.canal_json_form import Event, Form, FormEvents, Forms
from cdc_lakehouse.decoders.lines import Lines
from cdc_lakehouse.decoders.messages.format import ColumnReader, RowShape, UsualRows

_KINDS: Final = 64
"""How many kinds of message are told apart in those of a form. Where columns come in ever another order there are more,
and to read one of each would take longer than to read all of them otherwise."""
_KNOWN: Final = 10_000

Kind = tuple[int, tuple[bytes, ...], tuple[int, ...]]
"""The number of the form, the objects of types, and the numbers of the rows' forms."""


@dataclass
class KnownForms:
    """A `ColumnReader` of messages that have a commit-ts. `others` reads those that are not of a known kind."""

    others: ColumnReader
    _forms: Forms = field(default_factory=Forms)
    _numbers: dict[int, int] = field(default_factory=dict[int, int])
    """Of a form, by its identity."""
    _shapes: list[RowShape | None] = field(default_factory=list[RowShape | None])
    _kinds: dict[Kind, int] = field(default_factory=dict[Kind, int])
    """The number of the shape, -1 where messages of the kind are not usual."""

    def __call__(self, connection: Any, values: pa.Array) -> UsualRows:
        lines = _lines(values)
        is_left: Mask = np.ones(len(values), bool)
        parts: list[tuple[Positions, Positions, Positions, pa.Array, pa.Array]] = []
        for form, part in self._forms.parts(lines, functools.partial(self._event, connection)):
            if form is None:
                continue
            events = form.events(connection, part)
            read = part.taken(events.read)
            shape_of = self._shapes_of(connection, form, read, events)
            known, which = shape_of >= 0, pa.array(np.flatnonzero(shape_of >= 0))
            is_left[read.numbers[known]] = False
            columns = (events.before, events.after)
            if not known.all():
                columns = tuple(column.take(which) for column in columns)
            parts.append((read.numbers[known], events.commit_ts[known], shape_of[known], *columns))
        shapes = [*self._shapes]
        left = np.flatnonzero(is_left)
        if len(left):
            rest = self.others(connection, values if len(left) == len(values) else values.take(pa.array(left)))
            numbers = (left[rest.places], rest.times, rest.shape_of + len(shapes))
            parts.append((*numbers, rest.before, rest.after))
            shapes += rest.shapes
        return _together(parts, shapes)

    def _event(self, connection: Any, message: bytes) -> Event | None:
        """What the other reader makes of a message."""
        found = self.others(connection, pa.array([message], pa.binary()))
        shape = found.shapes[int(found.shape_of[0])] if len(found.places) else None
        if shape is None:
            return None
        return Event(shape.op, int(found.times[0]), found.before[0].as_py(), found.after[0].as_py())

    def _shapes_of(self, connection: Any, form: Form, messages: Lines, events: FormEvents) -> Positions:
        """The number of each message's shape, -1 where it is not known."""
        none: Positions = np.full(len(messages.numbers), -1)
        number = self._numbers.setdefault(id(form), len(self._numbers))
        parts = np.stack([events.types, *events.row_forms], axis=1)
        _, first, kind_of = np.unique(parts, axis=0, return_index=True, return_inverse=True)
        if len(first) > _KINDS:
            return none
        shapes = [
            self._shape(
                connection, (number, form.types_of(messages, at), tuple(parts[at, 1:].tolist())), messages.line(at)
            )
            for at in first.tolist()
        ]
        return np.array(shapes, np.int64)[kind_of.ravel()] if len(first) else none

    def _shape(self, connection: Any, kind: Kind, message: bytes) -> int:
        """The number of the shape of a kind of messages, of which this is one."""
        if min(kind[2]) < 0:
            return -1
        if kind not in self._kinds:
            if len(self._kinds) == _KNOWN:
                return -1
            found = self.others(connection, pa.array([message], pa.binary()))
            self._kinds[kind] = len(self._shapes) if len(found.places) else -1
            if len(found.places):
                self._shapes.append(found.shapes[int(found.shape_of[0])])
        return self._kinds[kind]


def _lines(values: pa.Array) -> Lines:
    """The messages; their numbers are those of their rows."""
    _, offsets, content = values.buffers()
    numbers = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    if content is None or not len(numbers):
        nothing: Positions = np.zeros(0, np.int64)
        return Lines(np.zeros(0, np.uint8), nothing, nothing, nothing)
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return Lines(np.frombuffer(content, np.uint8), places[:-1][numbers], places[1:][numbers], numbers)


def _together(
    parts: Sequence[tuple[Positions, Positions, Positions, pa.Array, pa.Array]], shapes: Sequence[RowShape | None]
) -> UsualRows:
    """The rows of all parts, in the order of their messages."""
    if not parts:
        nothing: Positions = np.zeros(0, np.int64)
        parts = [(nothing, nothing, nothing, pa.nulls(0, pa.string()), pa.nulls(0, pa.string()))]
    places, times, shape_of = (np.concatenate([part[number] for part in parts]) for number in range(3))
    before, after = (pa.concat_arrays([part[number] for part in parts]) for number in (3, 4))
    order = np.argsort(places, kind="stable")
    if len(parts) > 1:
        before, after = before.take(pa.array(order)), after.take(pa.array(order))
    return UsualRows(places[order], times[order], False, shape_of[order], shapes, before, after)
