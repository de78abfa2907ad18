"""Files and topics read to plain values: by all readers, or by one of them alone."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import END_MS, END_TS
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import batch_of
from cdc_lakehouse.decoders.event_schema import DECODED, TEXT_OF
from cdc_lakehouse.decoders.format import FileContext, Options
from cdc_lakehouse.decoders.formats import csv, dump, ticdc_canal_json
from cdc_lakehouse.decoders.formats.dump import DumpContext, InsertReader, decode_rows
from cdc_lakehouse.decoders.formats.ticdc_canal_json import Form
from cdc_lakehouse.decoders.json_object import JsonReader
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.decoders.text import TextReader
from cdc_lakehouse.decoders.topic_reader import RECORDS, Summaries, TopicReader
from cdc_lakehouse.sources.dump.contents import Notation

DATABASE, TABLE = "shop", "parcels"
TS = 450000000000000001
PIECES = (32, 250, 1500, 1 << 20)  # Bytes read at a time.

Events = list[dict[str, Any]]

# --- Files ---


def csv_options(**given: object) -> CsvOptions:
    return CsvOptions.model_validate({"include-commit-ts": True} | {k.replace("_", "-"): v for k, v in given.items()})


def json_context(database: str = DATABASE, table: str = TABLE, end_ts: int = END_TS) -> FileContext:
    return FileContext(database, table, end_ts=end_ts)


def read_json(content: bytes | Sequence[bytes], piece: int = 1 << 20, context: FileContext | None = None) -> Events:
    events = _events(ticdc_canal_json.decode(_parts(content), context or json_context(), piece=piece))
    return sorted(events, key=lambda event: event["line"])  # A piece has those of each operation together.


def csv_context(
    options: CsvOptions, names: Sequence[str], handle_key: bool = False, of: tuple[str, str] = (DATABASE, TABLE),
    end_ts: int = END_TS,
) -> FileContext:  # fmt: skip
    options = options.model_copy(update={"output_handle_key": handle_key})
    return FileContext(*of, options, tuple(names), end_ts)


def read_csv(content: bytes | Sequence[bytes], context: FileContext, piece: int = 1 << 20) -> Events:
    return _events(csv.decode(_parts(content), context, piece=piece))


def dump_context(
    notation: Notation, columns: Mapping[str, ColumnType], labels: bool = False,
    binary: Literal["characters", "base64", "hex"] = "characters", zones: Sequence[str] = ("UTC", "UTC"),
    table: str = TABLE,
) -> DumpContext:  # fmt: skip
    return DumpContext(DATABASE, table, TS, notation, columns, labels, binary, *zones)


def read_dump(parts: bytes | Iterable[bytes], context: DumpContext, piece: int = 1 << 20) -> Events:
    return _events(decode_rows(iter(_parts(parts)), context, piece=piece))


def _parts(content: Any) -> Any:
    return [content] if isinstance(content, bytes) else content


def _events(batches: Iterator[pa.RecordBatch]) -> Events:
    """The events, with their images parsed."""
    found: Events = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.select(DECODED.names).schema == DECODED
        assert (lines := batch.column("line").to_pylist()) == sorted(set(lines))
        for event in batch.to_pylist():
            parsed = event | {name: event[name] and json.loads(event[name]) for name in ("before", "after")}
            del parsed["strict"]  # It says who read it.
            texts = {name.removeprefix(TEXT_OF): parsed.pop(name) for name in event if name.startswith(TEXT_OF)}
            assert not texts or event["problem"] or texts == parsed["after"]
            if event["problem"] == problems.WRONG_TABLE and event["value"].startswith(b'{"before":'):
                parsed["value"] = json.loads(event["value"])
            found.append(parsed)
    assert (bad := [event["line"] for event in found if event["problem"]]) == sorted(bad)
    return found


def images(events: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Of valid rows of dumps; of others, their problem."""
    return [event["problem"] or event["after"] for event in events]


@contextmanager
def strictly() -> Iterator[None]:
    """Only the readers that go record by record."""
    with ExitStack() as stack:
        for owner, name in ((Form, "of"), (TextReader, "fast"), (InsertReader, "fast")):
            stack.enter_context(patch.object(owner, name, lambda *_: None))
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """Only the readers of many records, for files that have no header."""

    def refuse(*_: object) -> Any:
        raise AssertionError("the file is not as usual")

    with eagerly(), ExitStack() as stack:
        for owner, name in (
            (ticdc_canal_json, "read_strictly"), (TextReader, "strict"), (InsertReader, "strict"),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, refuse))
        yield


@contextmanager
def eagerly() -> Iterator[None]:
    """The readers of many records also where those are few."""
    with patch.object(dump, "LEAST", 0), patch.object(ticdc_canal_json, "_FEW_TYPES", 0):
        yield


def agreed(read: Callable[[int], Events], pieces: Sequence[int] = PIECES) -> Events:
    """The events that every reader finds, at any size of pieces."""
    with strictly():
        expected = read(1 << 20)
    with eagerly():
        for piece in pieces:
            assert read(piece) == expected, piece
    return expected


# --- Topics ---

Partitions = Sequence[Sequence[bytes | None]]


def image_of(text: str | None) -> dict[str, str | None] | None:
    return None if text is None else json.loads(text)


class Reading:
    """A topic's partitions, read in batches: a batch goes, in each partition, up to an offset of its own.

    Commit-ts go on from batch to batch as in a lake. `at_once` records are handed over together, those of partitions
    one after the other or `by_turns`; with `is_strict` the decoder reads each of them. `least` of them are read by
    columns.
    """

    def __init__(
        self, name: str, *, is_strict: bool = False, by_turns: bool = False, at_once: int = 1000, least: int = 1,
        **options: Any,
    ) -> None:  # fmt: skip
        self._name, self._options = name, Options(**options)
        self._is_strict, self._by_turns, self._at_once, self._least = is_strict, by_turns, at_once, least
        self.events: Events = []
        self.batch_rows: list[int] = []
        self.summaries: Summaries = {}
        self._ends: list[int] = []
        self._batch, self._last_ts, self._last_of = 0, 0, dict[int, int]()
        self.landed_ms, self.record_ms, self.has_record_times = END_MS, 0, True
        self.late_before: list[int] = []

    def read(self, partitions: Partitions, ends: Sequence[int] | None = None) -> None:
        ends = ends or [len(values) for values in partitions]
        starts = self._ends or [0] * len(partitions)
        self._batch += 1
        first = {("t", n, self._batch): self._start(n) for n in range(len(partitions))}
        found = format_of(self._name)
        if self._is_strict:
            found = replace(found, row_reader=lambda options: None, column_reader=lambda options: None)
        with patch("cdc_lakehouse.decoders.topic_reader.format_of", lambda name: found):
            reader = TopicReader(
                self._name, self._options, first, lambda *_: True, {self._batch: self.landed_ms},
                has_record_times=self.has_record_times, ignores_tombstones=True,
            )  # fmt: skip
        window = found.messages_before()
        rows = [
            ("2026-01-01", "t", number, offset, self.record_ms, None, values[offset], "s", self._batch, offset < start)
            for number, (values, start, end) in enumerate(zip(partitions, starts, ends, strict=True))
            for offset in range(max(0, start - window), end)
        ]
        if self._by_turns:
            rows.sort(key=lambda row: row[RECORDS.get_field_index("offset")])
        # Nor does a decoder that is strict take what is written as usual for valid.
        strict = patch.object(JsonReader, "usual", lambda *_: None) if self._is_strict else nullcontext()
        with strict, patch.object(ticdc_canal_json, "LEAST", self._least):
            parts = (batch_of(rows[at : at + self._at_once], RECORDS) for at in range(0, len(rows), self._at_once))
            for batch in itertools.chain(*map(reader.read, parts), reader.rest()):
                self.batch_rows.append(batch.num_rows)
                self.events += batch.to_pylist()
        self.summaries |= reader.summaries
        self._last_of |= {number: summary.last_ts for (_, number, _), summary in reader.summaries.items()}
        self._last_ts = max([self._last_ts, *self._last_of.values()])
        self._ends = list(ends)

    def _start(self, number: int) -> tuple[int, int, int | None, int]:
        last_ts = self._last_ts if format_of(self._name).transactions == "all" else self._last_of.get(number, 0)
        return self._last_ts, last_ts, None, self.late_before[number] if number < len(self.late_before) else 0

    @property
    def changes(self) -> Events:
        parsed = [event | {name: image_of(event[name]) for name in ("before", "after")} for event in self.events]
        return sorted(parsed, key=lambda event: (event["commit_ts"], event["segment"], event["line"]))

    @property
    def rejected(self) -> list[Any]:
        return [each for found in self.summaries.values() for listed in found.bad.values() for each in listed]

    @property
    def bad(self) -> int:
        return sum(each.count for each in self.rejected)


WAYS: Sequence[Mapping[str, Any]] = ({}, {"is_strict": True}, {"least": 1000}, {"by_turns": True, "at_once": 2})


def read_alike(name: str, *batches: Partitions, given: Mapping[str, Any] | None = None, **options: Any) -> Reading:
    """Batches read in every way, which has to find the same; `given` are attributes of the reading."""
    readings = [Reading(name, **way, **options) for way in WAYS]
    for way, reading in zip(WAYS, readings, strict=True):
        vars(reading).update(given or {})
        for batch in batches:
            reading.read(batch)
        assert (reading.changes, reading.summaries) == (readings[0].changes, readings[0].summaries), way
    return readings[0]


def usual_messages(name: str, values: Sequence[bytes | None], **options: Any) -> int:
    """How many messages of these are read without the decoder."""
    usual = format_of(name).row_reader(Options(**options))
    assert usual is not None
    return sum(usual(value) is not None for value in values)
