"""TiCDC's Canal-JSON in files: one message per line, one row per message.

    {"id":0,"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{"v":"1"}],"data":[{"id":"1","v":"2"}],"_tidb":{"commitTs":…}}

All values are strings or null. An INSERT's and an UPDATE's new row is in `data`, an UPDATE's old values (all, or only
the changed ones) in `old`, a DELETE's row (all columns, or only the handle key's) in `data`. The commit-ts is in
`_tidb`, which the sink writes only with enable-tidb-extension. Format: TiCDC Canal-JSON protocol documentation.

The strict reader reads one line and determines its problem, if any. Many lines are read together if they equal a line
that was read strictly except for their rows and the digits of their numbers (see `json.forms`); all others are left to
the strict reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import batch_of, pc
from cdc_lakehouse.decoders.event_schema import BATCH_ROWS, DECODED, image_text
from cdc_lakehouse.decoders.format import FileContext, commit_ts_of
from cdc_lakehouse.decoders.json.forms import PIECE, Event, Form, FormEvents, Forms, Lines, lines_of
from cdc_lakehouse.decoders.json.object import JsonNumber, parse

# Strict reading of one line of Canal-JSON: slower than many together, and correct for any bytes.

_OPERATIONS: Final = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}

Image = dict[str, str | None]


def event_of(line: bytes, context: FileContext) -> Event | str:
    """Decode a line into its event, or return the problem with it: a key of `problems.PROBLEMS`."""
    try:
        message = parse(line.decode())
    except UnicodeDecodeError:
        return problems.NOT_UTF8
    except MessageError:
        return problems.NOT_JSON
    return _judged(message, context)


def lacks_commit_ts(head: bytes) -> bool:
    """Whether the first line is a message without a commit-ts. `head` is the beginning of a file that is not empty;
    False for a bad line, or one that is longer."""
    try:
        message: Any = json.loads(head.splitlines()[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and "type" in message and "_tidb" not in message


def _judged(message: Mapping[str, Any], context: FileContext) -> Event | str:
    kind, tidb = message.get("type"), message.get("_tidb")
    # The parser returns numbers as text, and no number is an operation.
    op = _OPERATIONS.get(kind) if isinstance(kind, str) else None
    if op is None or message.get("isDdl") not in (None, False):
        return problems.NOT_A_ROW_CHANGE
    row, old = _only_row(message.get("data")), None
    if op == "U" and message.get("old") not in (None, []):
        old = _only_row(message["old"])
        if old is None:
            return problems.NO_ROW
    if row is None:
        return problems.NO_ROW
    # A string with a number is no commit-ts.
    number = tidb.get("commitTs") if isinstance(tidb, dict) else None
    commit_ts = commit_ts_of(number, context.end_ts) if isinstance(number, JsonNumber) else None
    if commit_ts is None:
        return problems.NO_COMMIT_TS
    if (message.get("database"), message.get("table")) != (context.database, context.table):
        return problems.WRONG_TABLE
    before, after = (row, None) if op == "D" else (old, row)
    return Event(op, commit_ts, image_text(before), image_text(after))


def _only_row(rows: Any) -> Image | None:
    """Return the only row; None when there is not exactly one, or it has nested values."""
    match rows:
        case [dict() as row] if not any(isinstance(value, dict | list) for value in row.values()):
            return {name: _text(value) for name, value in row.items()}
        case _:
            return None


def _text(value: str | bool | None) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case _:
            return None if value is None else str(value)


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
