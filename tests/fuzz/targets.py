"""The decoders, each with inputs that it reads and what reads them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.changelog.history import History, schema_changes
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.changelog.stored import change_to_json, version_to_json
from cdc_lakehouse.decoders.topic_order import Summaries
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.tables import quarantine, source_metadata
from cdc_lakehouse.sample import sink_writer
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
from cdc_lakehouse.sources.object_store import LocalStore
from cdc_lakehouse.sources.sink.paths import SchemaFilePath, read_checkpoint
from cdc_lakehouse.sources.sink.schema_file import read_schema_file
from tests.changelog.ddl.test_fuzz import STATEMENTS, survives
from tests.decoders.messages.test_damaged_messages import DECODERS, check
from tests.decoders.test_file_properties import NAMES
from tests.decoders.ticdc_csv import DATABASE, TABLE, Bare, Change, Encoder
from tests.kit.decoding import (
    Reading,
    csv_context,
    csv_options,
    dump_context,
    eagerly,
    read_csv,
    read_dump,
    read_json,
    strictly,
)
from tests.kit.dumps import COLUMNS, InsertWriter, TextWriter
from tests.sources.canal.servers import DONE, HANDSHAKE, QUICK, batch, canal_source, frame, heard, serving
from tests.sources.dump.test_directories import KINDS, ODD, WRITERS, read

_NOW: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_TS: Final = 450_000_000_000_000_001


@dataclass(frozen=True)
class Variant:
    """`read` may raise a `CdcError`, and nothing else."""

    samples: Sequence[bytes]
    read: Callable[[bytes], object]


def survive(variant: Variant, value: bytes) -> None:
    with contextlib.suppress(CdcError):
        variant.read(value)


# --- Files of a sink ---


def _changes() -> list[sink_writer.SampleRowChange]:
    types = {
        "id": ColumnType.of("bigint"), "v": ColumnType.of("varchar", length=20), "t": ColumnType.of("datetime"),
        "d": ColumnType.of("decimal", length=12, scale=2), "e": ColumnType.of("enum", elements=("a", "b")),
        "b": ColumnType.of("blob"), "f": ColumnType.of("double"), "j": ColumnType.of("json"),
    }  # fmt: skip
    columns = tuple(
        SourceColumn(name, kind, nullable=name != "id", primary_key=name == "id", default=None)
        for name, kind in types.items()
    )
    table = sink_writer.Table(TableName(DATABASE, TABLE), _TS - 5, columns)
    texts = ("1", 'é"\\😀', "2026-01-01 10:00:00", "-1.50", "2", "\x00ÿ", "1e-7", '{"a": [1]}')
    row = dict(zip(types, texts, strict=True))
    nothing: dict[str, str | None] = {**dict.fromkeys(types), "id": "2"}
    return [
        sink_writer.SampleRowChange("INSERT", table, _TS, row),
        sink_writer.SampleRowChange("UPDATE", table, _TS + 1, {**row, "v": None}, row),
        sink_writer.SampleRowChange("INSERT", table, _TS + 2, nothing),
        sink_writer.SampleRowChange("DELETE", table, _TS + 3, row),
    ]


def _json_files() -> list[Variant]:
    lines = [sink_writer.canal_json(change, _NOW).encode() for change in _changes()]

    return [Variant([b"\r\n".join(lines) + b"\r\n", *lines, b"\n".join(lines * 3)], read_json)]


_CSV: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"output_old_value": True},
    {"delimiter": "|#|", "quote": "'", "null": "NULL"},
    {"quote": "", "delimiter": "\t"},
    {"output_field_header": True, "binary_encoding_method": "hex"},
)


def _csv_files() -> list[Variant]:
    first, second = (Bare("1"), "name", 'a,"b"\r\n'), (Bare("2"), None, "x\\N")
    changes = [Change(_TS, None, first), Change(_TS + 1, first, second), Change(_TS + 2, second, None)]
    made: list[Variant] = []
    for given in _CSV:
        options = csv_options(**given)
        plain = changes if options.quote else [Change(_TS, None, (Bare("1"), "a", "b"))] * 3
        content, context = Encoder(options, NAMES).file(plain), csv_context(options, NAMES)
        made += [
            Variant([content, content * 2], functools.partial(read_csv, context=context, piece=piece))
            for piece in (64, 1 << 20)
        ]
    return made


def _schema_files() -> list[Variant]:
    (change, *_) = _changes()
    whole = SchemaChange(_TS, DATABASE, TABLE, 3, "CREATE TABLE `parcels` (id INT)", change.table.columns, origin="")
    plain = SchemaChange(_TS, DATABASE, "", 1, "CREATE DATABASE `shop`", (), "")

    # Without a checksum, so that more than that is looked at.
    found = SchemaFilePath("schema", "", _TS, None, "")

    def read(content: bytes) -> None:
        change = asdict(read_schema_file(_stored({"schema": content}), found))
        json.dumps(change, ensure_ascii=False, default=str).encode()

    def read_metadata(content: bytes) -> None:
        read_checkpoint(_stored({"metadata": content}), utc_now())

    samples = [sink_writer.schema_document(each).encode() for each in (whole, plain)]
    return [Variant(samples, read), Variant([b'{"checkpoint-ts":450000000000000001}'], read_metadata)]


@functools.cache
def _place() -> Path:
    return Path(_PLACES.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))


_PLACES: Final = contextlib.ExitStack()


def _stored(files: dict[str, bytes]) -> LocalStore:
    for name, content in files.items():
        (_place() / name).write_bytes(content)
    return LocalStore(_place())


# --- Messages ---


def _messages(name: str, formats: Sequence[tuple[str, dict[str, Any]]]) -> list[Variant]:
    """Read by the decoder alone, and between sound ones as a task reads them."""
    decoders, samples = DECODERS[name]

    def read(value: bytes, format_name: str, options: dict[str, Any]) -> None:
        check(decoders, value)
        values = [samples[0], value, samples[-1]]
        reading = Reading(format_name, **options)
        reading.read([values], [len(values)])
        _store(reading.summaries)

    return [
        Variant(samples, functools.partial(read, format_name=format_name, options=options))
        for format_name, options in formats
    ]


def _store(found: Summaries) -> None:
    """What a run makes of it: rows of `quarantine` and `signals`, and the tables that there are then."""
    rejected = [each for summary in found.values() for bad in summary.bad.values() for each in bad]
    rows = [
        quarantine.Quarantined(**asdict(quarantine.storable(each)), state="open", quarantined_at=_NOW)
        for each in rejected
    ]
    pa.Table.from_pylist([asdict(row) for row in rows], schema=quarantine.SCHEMA)
    signals = source_metadata.signals_of(1, found)
    pa.Table.from_pylist([asdict(signal) for signal in signals], schema=source_metadata.SCHEMA)
    told = [each for summary in found.values() for _, each in (*summary.statements, *summary.observed.values())]
    changes = list(schema_changes(told, escapes=True))
    for text in (*map(change_to_json, changes), *map(version_to_json, History().apply(changes))):
        text.encode()


def _ticdc_messages() -> list[Variant]:
    (flat,) = _messages("canal json", [("ticdc-canal-json", {})])
    lines = [sink_writer.canal_json(change, _NOW).encode() for change in _changes()]
    return [replace(flat, samples=[*lines, _DDL_MESSAGE, _WATERMARK])]


_DDL_MESSAGE: Final = (
    b'{"id":0,"database":"shop","table":"parcels","pkNames":null,"isDdl":true,"type":"ALTER","es":1,"ts":2,'
    b'"sql":"ALTER TABLE parcels ADD a INT","sqlType":null,"mysqlType":null,"old":null,"data":null,'
    b'"_tidb":{"commitTs":450000000000000001}}'
)
_WATERMARK: Final = b'{"id":0,"type":"TIDB_WATERMARK","es":1,"ts":2,"_tidb":{"watermarkTs":450000000000000001}}'


# --- Canal's server ---


def _server() -> list[Variant]:
    """Each packet in its turn: one of them is another one, with the right length or with none."""
    packets = [HANDSHAKE, DONE, DONE, batch(1, *DECODERS["protobuf"][1][:2])]

    def converse(said: bytes, place: int, *, framed: bool) -> None:
        def handler(connected: socket.socket) -> None:
            for number, packet in enumerate(packets):
                given = packet if number != place else frame(said) if framed else said
                connected.sendall(given)
                if given != packet:
                    # The client may wait for more: then the server goes.
                    connected.settimeout(0.05)
                # The client rolls back before it asks.
                for _ in range(2 if number == 2 else 1):
                    heard(connected)

        with (
            serving(handler) as address,
            CanalClient(canal_source(address), timeouts=QUICK, patience_seconds=0) as client,
        ):
            found = client.get(wait_seconds=0)
            if found is not None:
                client.ack(found)

    return [
        Variant([packet[4:] if framed else packet], functools.partial(converse, place=place, framed=framed))
        for place, packet in enumerate(packets)
        for framed in (True, False)
    ]


# --- Dumps ---

_ROWS: Final = [
    (1, "it's", b"\xff'\"\\", b"\x00\x01", "small", "a,b", b"\x00\x01", "x\r\ny"),
    (2, None, None, None, None, None, None, None),
    (18446744073709551615, "é😀", b"", b"\xff\xff", "it's", "", b"\x01", "\\N"),
]


def _insert_rows() -> list[Variant]:
    made: list[Variant] = []
    for style, escapes in (("dumpling", True), ("mydumper", True), ("mysqldump", False)):
        notation = InsertNotation(tuple(COLUMNS), escapes)
        content = InsertWriter(notation, style, True, 2, True).file(_ROWS)
        made += [
            Variant([content, content * 2], functools.partial(_read_rows, notation, piece)) for piece in (64, 1 << 20)
        ]
    return made


def _text_rows() -> list[Variant]:
    made: list[Variant] = []
    for notation in (
        TextNotation(tuple(COLUMNS)),
        TextNotation(tuple(COLUMNS), b"\t", b"", terminator=b"\n"),
        TextNotation(tuple(COLUMNS), b"|#|", b"'", b"NULL", b"\n", False, True, "base64"),
    ):
        content = TextWriter(notation, True).file(_ROWS)
        made += [
            Variant([content, content * 2], functools.partial(_read_rows, notation, piece)) for piece in (64, 1 << 20)
        ]
    return made


def _read_rows(notation: InsertNotation | TextNotation, piece: int, content: bytes) -> None:
    for read_as in (eagerly, strictly):
        with read_as():
            read_dump(content, dump_context(notation, COLUMNS), piece)


_FORMS: Final[dict[str, dict[str, Any]]] = {
    "dumpling": {}, "mydumper": {"output": "CSV", "hex_blob": True}, "mysqlshell": {"rows_per_file": 2, "suffix": ""},
}  # fmt: skip


def _dump_metadata() -> list[Variant]:
    made: list[Variant] = []
    for tool, form in _FORMS.items():
        root = _place() / tool
        WRITERS[tool](root, [KINDS, ODD], **form)
        made += [
            Variant([path.read_bytes()], functools.partial(_read_dump, tool, path, path.read_bytes()))
            for path in sorted(root.iterdir())
            if path.suffix in ("", ".sql", ".json")
        ]
    return made


def _read_dump(tool: str, path: Path, sound: bytes, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read(path.parent, tool)
    finally:
        path.write_bytes(sound)


# --- Statements ---


def _statements() -> list[Variant]:
    return [
        Variant(
            [each.encode() for each in STATEMENTS], lambda value: survives(value.decode("utf-8", "surrogateescape"))
        )
    ]


TARGETS: Final[dict[str, Callable[[], list[Variant]]]] = {
    "canal-json files": _json_files,
    "csv files": _csv_files,
    "schema and metadata files": _schema_files,
    "TiCDC messages": _ticdc_messages,
    "Canal flat messages": lambda: _messages("canal json", [("canal-json", {})]),
    "Canal protobuf": lambda: _messages("protobuf", [("canal-protobuf", {}), ("canal-entries", {})]),
    "DTS Avro": lambda: _messages("avro", [("dts-avro", {})]),
    "DTS JSON": lambda: _messages(
        "dts json", [("dts-canal-json", {}), ("dts-canal-json", {"before_2022_03_20": True}), ("shareplex-json", {})]
    ),
    "Canal server": _server,
    "dumped INSERTs": _insert_rows,
    "dumped csv and tsv": _text_rows,
    "metadata of dumps": _dump_metadata,
    "DDL statements": _statements,
}

# Their minutes are those of the clock.
WAITING: Final = {"Canal server"}
