"""TiCDC's Canal-JSON in files: one message per line, one row per message.

    {"id":0,"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{"v":"1"}],"data":[{"id":"1","v":"2"}],"_tidb":{"commitTs":…}}

All values are strings or null. An INSERT's and an UPDATE's new row is in `data`, an UPDATE's old values (all, or only
the changed ones) in `old`, a DELETE's row (all columns, or only the handle key's) in `data`. The commit-ts is in
`_tidb`, which the sink writes only with enable-tidb-extension. Format: TiCDC Canal-JSON protocol documentation.

`canal_json_strict` reads one line and determines its problem, if any. This module reads many lines together, if they
equal a line that was read strictly except for their rows and the digits of their numbers (see `canal_json_form`); all
others are left to the strict reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.decoders.arrow import batch_of, pc
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.files.canal_json_form import Event, Form, FormEvents, Forms
from cdc_lakehouse.decoders.files.canal_json_strict import event_of
from cdc_lakehouse.decoders.files.file_format import FileContext
from cdc_lakehouse.decoders.files.lines import PIECE, Lines, lines_of
from cdc_lakehouse.decoders.row_images import BATCH_ROWS


def decode(
    connection: Any, parts: Iterable[bytes], context: FileContext, *, piece: int = PIECE
) -> Iterator[pa.RecordBatch]:
    """Decode a file, which comes in parts, into batches with the columns of `DECODED`. `piece` is the number of
    bytes that are read at a time."""
    forms = Forms()
    for lines in lines_of(parts, piece):
        found = list(_events(connection, lines, context, forms))
        if len(found) > 1:
            found = [pa.concat_batches(found)]
            found[0] = found[0].take(pc.sort_indices(found[0].column("line")))
        for events in found:
            yield from (events.slice(at, BATCH_ROWS) for at in range(0, events.num_rows, BATCH_ROWS))


def _events(connection: Any, lines: Lines, context: FileContext, forms: Forms) -> Iterator[pa.RecordBatch]:
    """Yield the events of the lines, in no order."""

    # A form is tested with other digits, which may give any commit-ts.
    at_any_time = replace(context, end_ts=END_TS)

    def read(line: bytes) -> Event | None:
        event = event_of(line, at_any_time)
        return None if isinstance(event, str) else event

    for form, part in forms.parts(lines, read):
        others = part
        if form is not None:
            events = form.events(connection, part, context.end_ts)
            yield _of_form(form, part.taken(events.read), events)
            others = part.taken(~events.read)
        if len(others.numbers):
            yield read_strictly(others, context)


def _of_form(form: Form, lines: Lines, events: FormEvents) -> pa.RecordBatch:
    count = len(lines.numbers)
    columns = [
        pa.array(lines.numbers), pa.repeat(form.op, count), pa.array(events.commit_ts), events.before, events.after,
        pa.nulls(count, pa.string()), pa.nulls(count, pa.binary()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=DECODED)


def read_strictly(lines: Lines, context: FileContext) -> pa.RecordBatch:
    rows: list[tuple[object, ...]] = []
    for which, number in enumerate(lines.numbers.tolist()):
        line = lines.line(which)
        event = event_of(line, context)
        rows.append((number, *(None,) * 4, event, line) if isinstance(event, str) else (number, *event, None, None))
    return batch_of(rows, DECODED)
