"""The decoders, each with inputs that it reads and what reads them; a few examples of each decoder, the same each time.
`make fuzz` goes on."""

import contextlib
import functools
import json
import random
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.events import MessageError, RowChange
from cdc_lakehouse.changelog.history import History, schema_changes
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.changelog.stored import to_json
from cdc_lakehouse.decoders.format import Options
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.decoders.topic_reader import Summaries
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.tables import quarantine, source_metadata
from cdc_lakehouse.sample import sink_writer
from cdc_lakehouse.sources.object_store import LocalStore
from cdc_lakehouse.sources.sink.paths import SchemaFilePath, read_checkpoint, read_schema_file
from tests.canal_captures import SOURCES, capture
from tests.changelog.statements import cases, columns
from tests.changelog.test_statements import survives
from tests.decoders.records import sdk_records
from tests.decoders.test_files import CASES as FILE_CASES
from tests.decoders.test_files import Read, framed, readers, record_of, shared
from tests.decoders.test_messages import CASES as MESSAGE_CASES
from tests.decoders.test_messages import FORMATS_OF, value_of
from tests.kit.decoding import DATABASE, TABLE, agreed, read_alike
from tests.kit.mishaps import mutated
from tests.sources.canal.servers import DONE, HANDSHAKE, QUICK, batch, client_of, frame, heard, serving
from tests.sources.dump.test_dumps import KINDS, ODD, WRITERS, read

_TS: Final = 450_000_000_000_000_001
_MOST: Final = 3000
_ROUND: Final = 50


@dataclass(frozen=True)
class Variant:
    """`read` may raise a `CdcError`, and nothing else."""

    samples: Sequence[bytes]
    read: Callable[[bytes], object]


# --- Files: the cases of tests/decoders, read at once and strictly ---


def _files(stem: str) -> list[Variant]:
    variants = dict[str, Variant]()
    for case in FILE_CASES:
        record, settings = record_of(case)
        # What says that it has other columns is never sound.
        if case.file.stem != stem or len(record) > _MOST or "the file's rows have" in "".join(case.results):
            continue

        def read(content: bytes, reads: Sequence[Read] = tuple(readers(case, settings))) -> None:
            for each in reads:
                agreed(lambda piece, each=each: each(content, piece), (64, 1 << 20))

        known = variants.get(shared(settings), Variant([], read))
        variants[shared(settings)] = Variant([*known.samples, framed([record], settings)], known.read)
    return [*variants.values()]


def _schema_files() -> list[Variant]:
    of = columns("id:bigint:pk v:varchar(20) t:datetime d:decimal(12,2) e:enum('a','b') b:blob f:double j:json")
    whole = SchemaChange(_TS, DATABASE, TABLE, 3, "CREATE TABLE `parcels` (id INT)", of, origin="")
    plain = SchemaChange(_TS, DATABASE, "", 1, "CREATE DATABASE `shop`", (), "")

    def read(content: bytes) -> None:
        # Without a checksum, so that more than that is looked at.
        change = asdict(read_schema_file(_stored("schema", content), SchemaFilePath("schema", "", _TS, None)))
        json.dumps(change, ensure_ascii=False, default=str).encode()

    return [
        Variant([sink_writer.schema_file(each)[1].encode() for each in (whole, plain)], read),
        Variant([b'{"checkpoint-ts":%d}' % _TS], lambda said: read_checkpoint(_stored("metadata", said), utc_now())),
    ]


_directory = functools.cache(functools.partial(tempfile.TemporaryDirectory[str], prefix="fuzz-"))


def _place() -> Path:
    return Path(_directory().name)


def _stored(name: str, content: bytes) -> LocalStore:
    (_place() / name).write_bytes(content)
    return LocalStore(_place())


# --- Messages ---


def _check(name: str, value: bytes, options: dict[str, Any]) -> None:
    """Values and types are texts, as Arrow and Spark take them, and numbers have 63 bits."""
    try:
        found = format_of(name).make(Options(**options))(value)
    except MessageError:
        return
    for message in found if isinstance(found, list) else [found]:
        if isinstance(message, MessageError):
            continue
        # Not `repr`, which escapes half a surrogate pair.
        msgspec.json.encode(message)
        numbers = (message.origin.time_ms, message.origin.log_offset)
        assert all(number is None or 0 <= number < 1 << 63 for number in numbers)
        for row in (part for part in message.parts if isinstance(part, RowChange)):
            texts = [*(row.before or {}).values(), *(row.after or {}).values()]
            assert all(text is None or type(text) is str for text in texts)
            assert all(type(text) is str for text in row.types.values())


def _messages(stem: str, others: Sequence[bytes] = (), name: str | None = None) -> list[Variant]:
    """The cases of tests/decoders and others, read between two of them in every way; those of one format may be read as
    another one."""
    cases = [value_of(case) for case in MESSAGE_CASES if case.file.stem == stem]
    samples = [value for value in (*cases, *others) if value is not None and len(value) < _MOST]

    def read(value: bytes, name: str, options: dict[str, Any]) -> None:
        _check(name, value, options)
        _store(read_alike(name, [[samples[0], value, samples[-1]]], **options).summaries)

    formats = [(name, {})] if name else FORMATS_OF[stem][0].values()
    return [Variant(samples, functools.partial(read, name=name, options=options)) for name, options in formats]


def _store(found: Summaries) -> None:
    """What a run makes of it: rows of `quarantine` and `signals`, and the tables that there are then. Arrow takes only
    UTF-8, and numbers of 64 bits."""
    rejected = [each for summary in found.values() for bad in summary.bad.values() for each in bad]
    rows = [
        quarantine.Quarantined(**asdict(quarantine.storable(each)), state="open", quarantined_at=utc_now())
        for each in rejected
    ]
    pa.Table.from_pylist([asdict(row) for row in rows], schema=quarantine.SCHEMA)
    signals = source_metadata.signals_of(1, found)
    pa.Table.from_pylist([asdict(signal) for signal in signals], schema=source_metadata.SCHEMA)
    told = [each for summary in found.values() for _, each in (*summary.statements, *summary.observed.values())]
    changes = list(schema_changes(told, escapes=True))
    for text in map(to_json, (*changes, *History().apply(changes))):
        text.encode()


# --- Canal's server ---


def _server() -> list[Variant]:
    """Each packet in its turn: one of them is another one, with the right length or with none."""
    entries = capture(SOURCES[0]).entries[:2]
    packets = [HANDSHAKE, DONE, DONE, batch(1, *entries), batch(2, *entries)]

    def converse(said: bytes, place: int, *, framed: bool) -> None:
        def handler(connected: socket.socket) -> None:
            for number, packet in enumerate(packets):
                given = packet if number != place else frame(said) if framed else said
                connected.sendall(given)
                if given != packet:
                    # The client may wait for more: then the server goes.
                    connected.settimeout(0.05)
                # The client rolls back before it asks, and after the first batch.
                for _ in range(2 if number in (2, 3) else 1):
                    heard(connected)

        with serving(handler) as address, client_of(address, reply=QUICK) as client:
            found = client.get(wait_seconds=0)
            if found is not None:
                client.ack(found)

    return [
        Variant([packet[4:] if framed else packet], functools.partial(converse, place=place, framed=framed))
        for place, packet in enumerate(packets)
        for framed in (True, False)
    ]


# --- Dumps ---

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
    found = [text.encode() for name in ("columns", "keys", "partitions", "others", "tables") for text, _ in cases(name)]
    return [Variant(found, lambda value: survives(value.decode("utf-8", "surrogateescape")))]


TARGETS: Final[dict[str, Callable[[], list[Variant]]]] = {
    "canal-json files": lambda: _files("canal_json"),
    "csv files": lambda: _files("csv"),
    "schema and metadata files": _schema_files,
    "TiCDC messages": lambda: _messages(
        "canal_json", [record_of(case)[0] for case in FILE_CASES if case.file.stem == "canal_json"], "ticdc-canal-json"
    ),
    "Canal flat messages": lambda: _messages("canal_json", _captured("flat_messages")),
    "Canal protobuf": lambda: [
        *_messages("canal_entries", _captured("entries")), *_messages("canal_protobuf", _captured("topic_values")),
    ],
    "DTS Avro": lambda: _messages("dts_avro", [value for value, _ in sdk_records()]),
    "DTS JSON": lambda: [*_messages("dts_canal_json"), *_messages("shareplex_json")],
    "Canal server": _server,
    "dumped INSERTs": lambda: _files("insert"),
    "dumped csv and tsv": lambda: _files("dump_text"),
    "metadata of dumps": _dump_metadata,
    "DDL statements": _statements,
}  # fmt: skip


def _captured(form: str) -> list[bytes]:
    return [value for source in SOURCES for value in getattr(capture(source), form)]


# Their minutes are those of the clock.
WAITING: Final = {"Canal server"}


def try_examples(name: str, first: int, count: int, last: Path | None = None) -> None:
    """So many examples of a seed; hypothesis makes what fails smaller. `last` has the bytes that are read, in case the
    process dies of them. Raises what the decoder raises and must not."""
    variants = TARGETS[name]()

    @seed(first)
    @settings(
        max_examples=count, deadline=None, database=None, derandomize=False, print_blob=False,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(st.integers(0, len(variants) - 1), st.randoms(use_true_random=False))
    def one(number: int, chance: random.Random) -> None:
        value = mutated(chance, variants[number].samples)
        if last is not None:
            last.write_bytes(value)
        try:
            variants[number].read(value)
        except CdcError:
            pass
        except Exception as error:
            error.add_note(f"{name}, variant {number}, seed {first}: {value!r}")
            raise

    one()


def go_on(name: str, first: int, minutes: float, last: Path) -> None:
    """Try examples for so many minutes of CPU, or of the clock where a target waits. It ends the process with 1 where
    one is wrong."""
    clock = time.monotonic if name in WAITING else time.process_time
    began, number = clock(), first
    while clock() < began + minutes * 60:
        try:
            try_examples(name, number, _ROUND, last)
        except Exception:  # noqa: BLE001 - Whatever it is, it is wrong.
            click.echo(f"{name}, seed {number}:\n{traceback.format_exc()}")
            sys.exit(1)
        number += 1
    click.echo(
        f"{name}: {(number - first) * _ROUND} examples in {(clock() - began) / 60:.1f} minutes"
        f" of {'the clock' if name in WAITING else 'CPU'}, seeds {first} to {number - 1}"
    )


EXAMPLES = {"metadata of dumps": 500, "Canal flat messages": 150, "DTS JSON": 300}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_bytes_are_read_or_an_error_of_the_project_s(name: str) -> None:
    try_examples(name, 1, EXAMPLES.get(name, 40) * settings.default.max_examples // 50)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_are_spoilt_are_sound_ones(name: str) -> None:
    def is_read(variant: Variant, sample: bytes) -> bool:
        with contextlib.suppress(CdcError):
            variant.read(sample)
            return True
        return False

    for number, variant in enumerate(TARGETS[name]()):
        read = (is_read(variant, sample) for sample in variant.samples)  # All of them, but in `make quick`.
        assert any(read if settings.default.max_examples < 50 else [*read]), f"variant {number}"
