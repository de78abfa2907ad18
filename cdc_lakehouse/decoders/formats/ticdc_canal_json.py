"""TiCDC's Canal-JSON in files and topics: Canal's flat messages, with TiDB's extension.

    {"id":0,"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{"v":"1"}],"data":[{"id":"1","v":"2"}],"_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

All values are strings or null. An INSERT's and an UPDATE's new row is in `data`, an UPDATE's old values (all, or only
the changed ones) in `old`, a DELETE's row (all columns, or only the handle key's) in `data`. The extension has the
commit-ts, which gives the order; it exists only with enable-tidb-extension. TiCDC prints DDL without backslash escapes.

In a topic, a message that was too large has only its handle key (`onlyHandleKey`), or the location of the complete one
(`claimCheckLocation`). With `large-message-handle-compression` TiCDC compresses each value itself: rows, statements,
watermarks and claim checks alike. `lz4` writes a frame, which begins with a magic number. `snappy` writes a block,
which begins with the size of the text as a varint: one that began with `{`, as JSON does, would have 123 bytes, and
TiCDC's messages have more.

A file has one message of one row per line. Lines and messages have one strict reader; lines that equal one that was
read by it, except for their rows and the digits of their numbers, are read together (see `json.forms`).

Source of the facts: TiCDC's documentation of the protocol, its code, and the descriptions of both compressions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import pyarrow as pa

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.config import CsvOptions, KafkaSource, StorageConfig
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import batch_of, pc
from cdc_lakehouse.decoders.event_schema import BATCH_ROWS, DECODED, image_text
from cdc_lakehouse.decoders.format import Decode, FileContext, Format, Options, commit_ts_of, present
from cdc_lakehouse.decoders.formats.canal_json import origin_of, parts_of
from cdc_lakehouse.decoders.json.columns import OPS, FlatColumns
from cdc_lakehouse.decoders.json.forms import PIECE, Event, Form, FormEvents, Forms, Lines, lines_of
from cdc_lakehouse.decoders.json.object import JsonNumber, JsonObject, is_ddl, parse, read_message, utf8
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka.client import read_claim_check

# Values that TiCDC has compressed.

LIMIT: Final = 256 << 20
"""The most bytes of a message's text. Brokers accept 100 MB of TiCDC at most, compressed."""
_TOGETHER: Final = 32 << 20
AT_ONCE: Final = 64 << 10
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_SNAPPY_RATIO: Final = 22
"""An element of 3 bytes stands for 64 bytes at most."""
_ADVICE: Final = "see whether the message came whole; the changefeed has large-message-handle-compression"


def uncompressed(value: bytes) -> bytes:
    """Return the text of a value; one that is not compressed is returned unchanged. Raises MessageError where the text
    cannot be read, or is too long."""
    if value.startswith(b"{"):
        return value
    return _lz4(value) if value.startswith(LZ4_MAGIC) else _snappy(value) or value


def uncompressed_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of a batch with the texts of their column `value`, some megabytes at a time. Values that cannot
    be read are left as they are, for the decoder to report."""
    values = batch.column("value")
    if pc.all(pc.starts_with(values, "{")).as_py() is not False:
        yield batch
        return
    place, start, size, texts = batch.schema.get_field_index("value"), 0, 0, list[bytes | None]()
    for value in values:
        texts.append(text_or_value(value.as_py()))
        size += len(texts[-1] or b"")
        if size >= _TOGETHER or start + len(texts) == len(values):
            piece = batch.slice(start, len(texts))
            yield piece.set_column(place, batch.schema.field(place), pa.array(texts, values.type))
            start, size, texts = start + len(texts), 0, []


def text_or_value(value: bytes | None) -> bytes | None:
    """Return the text of a value as `uncompressed` does, or the value where that fails."""
    try:
        return None if value is None else uncompressed(value)
    except MessageError:
        return value


def _within_limit(size: int) -> None:
    if size > LIMIT:
        raise MessageError(f"the message has more than the {LIMIT >> 20} MiB that are read, once it is uncompressed")


def _lz4(value: bytes) -> bytes:
    text = bytearray()
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(value), "lz4")
        while part := stream.read(AT_ONCE):
            text += part
            _within_limit(len(text))
    except OSError as error:
        raise MessageError("the message is not a complete frame of LZ4", advice=_ADVICE) from error
    return bytes(text)


def _snappy(value: bytes) -> bytes | None:
    """Return the text of a block; None for what is not a block that holds an object in JSON."""
    size = 0
    for at, byte in enumerate(value[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            break
    if size > len(value) * _SNAPPY_RATIO:
        return None
    _within_limit(size)
    try:
        text: bytes = pa.Codec("snappy").decompress(value, decompressed_size=size, asbytes=True)
    except OSError:
        return None
    return text if text.startswith(b"{") else None


# Messages of topics.

_WATERMARK: Final = "TIDB_WATERMARK"


Claims = Callable[[str], bytes]
"""Returns the complete message of a claim check by its location. Raises `SourceError` where it cannot, with the segment
where only that file is at fault."""


def _decode(has_extension: bool, claims: Claims | None, key: bytes | None, value: bytes | None) -> Message:
    message = read_message(uncompressed(present(value)))
    if not has_extension:
        return (
            Message(Origin()) if message.get("type") == _WATERMARK else Message(origin_of(message), parts_of(message))
        )
    extension = _extension(message)
    location = extension.get("claimCheckLocation")
    if not location:
        return _decoded(message, extension)
    whole = read_message(uncompressed(_claimed(claims, location)))
    if _identity(whole) != _identity(message) or _extension(whole).get("claimCheckLocation"):
        raise MessageError("the claim-check file holds another message than the one that names it")
    return _decoded(whole, _extension(whole))


def _claimed(claims: Claims | None, location: object) -> bytes:
    if claims is None or not isinstance(location, str):
        raise MessageError(
            "the message was too large, and lies in a claim-check file",
            advice="set source.claim_check to the changefeed's claim-check-storage-uri, then decode the date again",
        )
    try:
        return claims(location)
    except SourceError as error:
        if error.segment is None:
            raise  # It is of the whole store: no message is to blame.
        raise MessageError(
            f"the claim-check file with the whole message cannot be used: {error}",
            advice="restore the file, then decode the date again",
        ) from error


def _has_extension(options: Options) -> bool:
    return options.get("tidb_extension") is not False


def _decoder(options: Options) -> Decode:
    """Return the decoder for the options `tidb_extension`, true (the default) or false, and `claims`, a `Claims` or
    None."""
    return functools.partial(_decode, _has_extension(options), cast("Claims | None", options.get("claims")))


def _configured(source: KafkaSource, storage: StorageConfig) -> Options:
    claims = None if source.claim_check is None else functools.partial(read_claim_check, source.claim_check, storage)
    return {"tidb_extension": source.tidb_extension, "claims": claims}


_COLUMNS: Final = FlatColumns(
    time="/_tidb/commitTs",
    unusual=("/_tidb/onlyHandleKey", "/_tidb/claimCheckLocation"),
)


FORMAT: Final = Format(
    name="ticdc-canal-json",
    make=_decoder,
    batches=uncompressed_batches,
    options=("tidb_extension", "claims"),
    configured=_configured,
    column_reader=lambda options: _COLUMNS if _has_extension(options) else None,
    watermarks=_has_extension,
    backslash_escapes=False,
    database="tidb",
)


def _identity(message: JsonObject) -> tuple[Any, ...]:
    return message.get("database"), message.get("table"), message.get("type"), _extension(message).get("commitTs")


def _extension(message: JsonObject) -> JsonObject:
    extension = message.get("_tidb")
    if not isinstance(extension, dict):
        raise MessageError(
            "the message has no commit-ts, without which the order over partitions is not known",
            advice="set enable-tidb-extension=true in the changefeed's sink URI; or, for a topic with one partition, "
            "tidb_extension: false in the feed's source",
        )
    return cast("JsonObject", extension)


def _decoded(message: JsonObject, extension: JsonObject) -> Message:
    if message.get("type") == _WATERMARK:
        return Message(Origin(), (Watermark(_timestamp(extension, "watermarkTs", is_watermark=True)),))
    parts = parts_of(message)
    origin = origin_of(message, _timestamp(extension, "commitTs"))
    if extension.get("onlyHandleKey") and any(isinstance(part, RowChange) and part.op != "D" for part in parts):
        raise MessageError(
            "the message was too large and has only its handle key: its other values are nowhere in the log",
            advice="raise max-message-bytes of the changefeed; the row is whole again with its next change",
        )
    return Message(origin, parts)


def _timestamp(extension: JsonObject, name: str, *, is_watermark: bool = False) -> int:
    number = extension.get(name)
    # A string with a number is no timestamp.
    found = commit_ts_of(number, END_TS) if isinstance(number, JsonNumber) else None
    if found is None:
        raise MessageError(
            f"_tidb.{name} is not a timestamp of TiDB of before the year 2100", is_watermark=is_watermark
        )
    return found


# Files.


def event_of(line: bytes, context: FileContext) -> Event | str:
    """Decode a line into its event, or return the problem with it: a key of `problems.PROBLEMS`."""
    problem = problems.NOT_UTF8
    try:
        text = utf8(line)
        problem = problems.NOT_JSON
        message = parse(text)
        problem = problems.NOT_A_ROW_CHANGE
        kind = message.get("type")
        if not isinstance(kind, str) or kind not in OPS or is_ddl(message):
            return problem
        if (message.get("database"), message.get("table")) != (context.database, context.table):
            return problems.WRONG_TABLE
        problem = problems.NO_COMMIT_TS
        extension = _extension(message)
        if _timestamp(extension, "commitTs") >= context.end_ts:
            return problem
        problem = problems.NO_ROW
        if extension.get("claimCheckLocation"):
            return problem
        decoded = _decoded(message, extension)
    except MessageError:
        return problem
    match decoded:
        case Message(Origin(commit_ts=int() as commit_ts), (RowChange(op=op, before=before, after=after),)):
            return Event(op, commit_ts, image_text(before), image_text(after))
        case _:
            return problem


def lacks_commit_ts(head: bytes) -> bool:
    """Whether the first line is a message without a commit-ts. `head` is the beginning of a file that is not empty;
    False for a bad line, or one that is longer."""
    try:
        message = read_message(head.splitlines()[0])
    except MessageError:
        return False
    return "type" in message and "_tidb" not in message


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


# Whether later files contain everything of a file that was cut off.

_SENT_AT: Final = b',"ts":'
_IMAGES: Final = re.compile(rb',"old":(?:null|\[)')


def redelivers_canal_json(cut: bytes, later: Sequence[bytes], csv: CsvOptions | None) -> bool:
    """Whether the later canal-json files of TiCDC contain the cut one: a message is the same whenever it was sent."""
    *whole, part = cut.split(b"\n")
    lines = b"".join(later).split(b"\n")[:-1]
    if not whole or not part.strip():
        return False
    wanted = [_digest(line) for line in whole]
    found = [_digest(line) for line in lines]
    count = len(wanted)
    return None not in wanted and any(
        found[at : at + count] == wanted and found[at + count] is not None and _begins_with(lines[at + count], part)
        for at in range(len(found) - count)
        if found[at] == wanted[0]
    )


def _digest(line: bytes) -> bytes | None:
    """Return the hash of a message without the time of sending and the order of its names; None where it is not a
    message."""
    try:
        message = read_message(line)
    except MessageError:
        return None
    message.pop("ts", None)
    return hashlib.sha256(json.dumps(message, sort_keys=True).encode()).digest()


def _begins_with(line: bytes, part: bytes) -> bool:
    """Whether a message that was cut off to `part` can be this one, comparing what two sendings have in common: the
    part up to the time of sending, and the row's images. Between them are the types, whose order changes."""
    sent_at = line.find(_SENT_AT)
    if sent_at < 0 or not line[:sent_at].startswith(part[:sent_at]):
        return False
    images, own = _IMAGES.search(line, sent_at), _IMAGES.search(part, sent_at)
    if images is None:
        return False
    return own is None or line.startswith(part[own.start() :], images.start())
