"""Messages of topics and entries of Canal, one by one: `cases/messages/*.txt` say what the decoders make of each.

A case is an expression of Python that makes the message's bytes, of the names below for its file. The results are what
each of the file's decoders gives: the origin, where it is not the file's usual one, changes and statements, or the
error.
"""

import itertools
import json
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdc_lakehouse.changelog.ddl import statements
from cdc_lakehouse.changelog.ddl.clauses import DropColumn, TableRef, TruncateTable
from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders import format as message_format
from cdc_lakehouse.decoders.format import Decode, Options
from cdc_lakehouse.decoders.formats import canal_entries, canal_json, dts_avro
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.canal.wire import packets_pb2 as packets
from tests.canal_captures import SOURCES, capture
from tests.decoders import records
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.decoding import Reading, usual_messages
from tests.kit.waiting import memory_below

CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/messages/*.txt")))
SECRET = "geheim"
"""A value that no error may show."""


def flat(base: Mapping[str, Any]) -> Callable[..., bytes]:
    """Makes JSON of a message with other values; `...` leaves a name out."""

    def message(**other: Any) -> bytes:
        said = {name: value for name, value in {**base, **other}.items() if value is not ...}
        return json.dumps(said, separators=(",", ":")).encode()

    return message


def shareplex(op: str | None = "ins", meta: Mapping[str, Any] | None = None, **parts: Any) -> bytes:
    return json.dumps({"meta": {"op": op, "table": "SALES.PARCELS", **(meta or {})}, **parts}).encode()


def four_bytes(value: float) -> records.Image:
    """A FLOAT of four bytes, as a double of eight: the digits are those of the four."""
    return records.double(struct.unpack("<f", struct.pack("<f", value))[0])


def insert(**values: Any) -> bytes:
    return records.row_body([("id", 8, records.integer("1"))], **values)


def cell(number: int, image: records.Image) -> bytes:
    return records.row_body([("c", number, image)])


def change(kind: int, *rows: tuple[Any, Any], header: Mapping[str, Any] | None = None, **said: Any) -> bytes:
    """An entry of Canal; `rows` are pairs of the columns before and after."""
    datas = [wire.RowData(before_columns=before, after_columns=after) for before, after in rows]
    made = wire.RowChange(event_type=kind, row_datas=datas, **said)  # pyright: ignore[reportArgumentType]
    return records.entry(made, **(header or {}))


DTS = {
    "database": "shop", "es": 1709629811000, "id": 6, "isDdl": False, "mysqlType": {"id": "bigint", "v": "varchar"},
    "pkNames": ["id"], "sql": "", "sqlType": {"id": -5, "v": 12}, "table": "parcels", "ts": 1709629811250,
}  # fmt: skip
CANAL = {
    "data": [{"id": "1", "v": None}, {"id": "2", "v": ""}], "database": "d", "es": 5000, "gtid": "u:1-3", "id": 4,
    "isDdl": False, "mysqlType": {"id": "int(11)", "v": "text"}, "old": None, "pkNames": ["id"], "sql": "",
    "sqlType": {"id": 4, "v": 2005}, "table": "t", "ts": 6000, "type": "INSERT",
}  # fmt: skip
UPDATE = {"type": "UPDATE", "data": [{"id": "1", "v": "x"}], "old": [{"id": "1", "v": None}]}
USUAL = flat(CANAL | UPDATE)()
# Of each file the formats that read it, with their options and the beginning of their results; the names in its
# expressions; and the origin that its messages have where none is shown.
FORMATS_OF: Mapping[str, tuple[Mapping[str, tuple[str, dict[str, Any]]], Mapping[str, Any], Origin]] = {
    "dts_avro": (
        {"": ("dts-avro", {})},
        {**vars(records), "insert": insert, "cell": cell, "four_bytes": four_bytes},
        Origin(time_ms=1_709_629_810_000, log_file="000012", log_offset=4711),
    ),
    "dts_canal_json": (
        {
            "since 2022-03-20: ": ("dts-canal-json", {}),
            "before 2022-03-20: ": ("dts-canal-json", {"before_2022_03_20": True}),
        },
        {"message": flat(DTS), "one": flat(DTS | UPDATE)},
        Origin(time_ms=1_709_629_811_000),
    ),
    "shareplex_json": ({"": ("shareplex-json", {})}, {"message": shareplex}, Origin()),
    "canal_json": (
        {"": ("canal-json", {})},
        {"message": flat(CANAL), "one": flat(CANAL | UPDATE)},
        Origin(time_ms=5000, gtid="u:1-3"),
    ),
    "canal_entries": (
        {"": ("canal-entries", {})},
        {**vars(records), "wire": wire, "change": change},
        Origin(time_ms=5000, log_file="bin.1", log_offset=0),
    ),
    "canal_protobuf": ({"": ("canal-protobuf", {})}, {**vars(records), "packets": packets}, Origin()),
}


def value_of(case: Case) -> bytes | None:
    return eval(" ".join(case.own), dict(FORMATS_OF[case.file.stem][1]))


def results_of(case: Case) -> Iterator[str]:
    formats, _, usual = FORMATS_OF[case.file.stem]
    value = value_of(case)
    found = dict[str, list[str]]()
    for prefix, (name, options) in formats.items():
        # As a task takes a decoder along.
        decode: Decode = pickle.loads(pickle.dumps(format_of(name).make(Options(**options))))
        found[prefix] = [*shown(decode, value, usual)]
    if len({tuple(lines) for lines in found.values()}) == 1:
        found = {"": next(iter(found.values()))}
    yield from (name + line for name, lines in found.items() for line in lines)
    yield from ("usual" for name, options in formats.values() if is_usual(name, options, value))


def is_usual(name: str, options: dict[str, Any], value: bytes | None) -> bool:
    """Between two usual ones it is the same, however it is read."""
    if format_of(name).row_reader(Options(**options)) is None:
        return False
    results = list[object]()
    for is_strict in (False, True):
        reading = Reading(name, is_strict=is_strict, **options)
        reading.read([[USUAL, value, USUAL]])
        results.append((reading.changes, reading.summaries))
    assert results[0] == results[1]
    return bool(usual_messages(name, [value], **options))


def shown(decode: Decode, value: bytes | None, usual: Origin) -> Iterator[str]:
    try:
        found = decode(value)
    except MessageError as error:
        found = error
    for message in found if isinstance(found, list) else [found]:
        if isinstance(message, MessageError):
            text = re.sub(r"( not JSON): .*", r"\1", str(message))  # Python's own words differ between its versions.
            assert SECRET not in text and len(text) < 400
            of = "" if message.of is None else f"{'.'.join(name or '*' for name in message.of)} "
            yield text_of(f"error: {of}{text}")
        else:
            yield from map(text_of, said(message, usual))


def named(database: str, table: str) -> str:
    return f"{database!r}.{table!r}" if "." in database + table else f"{database}.{table}"


def said(message: Message, usual: Origin) -> Iterator[str]:
    origin = message.origin
    if origin != usual:
        place = "" if origin.log_file is None else f" {origin.log_file}:{origin.log_offset}"
        yield f"at {origin.time_ms}{place}{'' if origin.gtid is None else f' gtid {origin.gtid}'}"
    for part in message.parts:
        match part:
            case RowChange(database, table, op, before, after, types, key):
                assert {type(text) for row in (before, after) for text in (row or {}).values()} <= {str, type(None)}
                rows = [
                    json.dumps(row, ensure_ascii=False, sort_keys=True)
                    for row in (before, after)
                    if row is not None or op == "U"
                ]
                of = "" if key is None else f" key {json.dumps(key)}"
                typed = f" types {json.dumps(types, ensure_ascii=False)}" if types else ""
                yield f"{op} {named(database, table)}{of} {' -> '.join(rows)}{typed}"
            case Ddl(database, table, sql):
                yield f"statement {named(database, table)}: {sql}"
            case _:
                yield type(part).__name__
    if message.option_conflict is not None:
        yield f"conflict: {message.option_conflict}"
    if not message.parts:
        yield "nothing"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_message_is_decoded(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


@pytest.mark.parametrize("name", ["dts-canal-json", "dts-avro", "shareplex-json"])
def test_message_above_limit_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (message_format, canal_json):
        monkeypatch.setattr(module, "MAX_BYTES", 100, raising=False)
    decode = format_of(name).make(Options())
    for size, reason in ((100, r"^((?!more than).)*$"), (101, "has 101 bytes")):
        with pytest.raises(MessageError, match=reason):
            decode(b"?" * size)
    reading = Reading(name)
    reading.read([[USUAL]])
    assert [each.message.startswith("the message has") for each in reading.rejected] == [True]


@pytest.mark.parametrize("name", ["dts-canal-json", "shareplex-json"])
def test_memory_of_decoding_is_bounded_by_message(name: str) -> None:
    value = b'{"data":[' + b"[]," * 30_000 + b"[]]}"
    with memory_below(60 * len(value)), pytest.raises(MessageError):
        format_of(name).make(Options())(value)


def test_lossy_text_is_found_by_column() -> None:
    change = RowChange("d", "t", "U", {"a": "\ufffd", "b": None}, {"a": "x", "b": "y\ufffd", "c": "z"})
    assert canal_json.lossy_columns(change) == ("b", "a")
    assert canal_json.lossy_columns(RowChange("d", "t", "D", {"a": None}, None)) == ()
    assert canal_json.lossy_columns(RowChange("d", "t", "I", None, {"a": "é"})) == ()


IDENTIFIERS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("`'\";-#/*\\ "), min_size=1, max_size=8
)


@given(IDENTIFIERS.filter(lambda name: "." not in name), IDENTIFIERS, st.lists(IDENTIFIERS, min_size=1, max_size=3))
def test_statements_name_what_the_message_names(database: str, table: str, columns: list[str]) -> None:
    decode: Any = format_of("shareplex-json").make(Options())
    meta = {"table": f"{database}.{table}"}
    named = TableRef(database, table)
    (truncate,) = decode(shareplex("truncate", meta)).parts
    assert isinstance(truncate, Ddl)
    assert statements.parse(truncate.sql) == (TruncateTable(named),)
    (drop,) = decode(shareplex("drop column", meta, data=dict.fromkeys(columns))).parts
    assert isinstance(drop, Ddl)
    assert statements.parse(drop.sql) == tuple(DropColumn(named, name) for name in dict.fromkeys(columns))


# --- The same entries in three forms of real servers. Their tables: tests/spark/test_canal_feed.py ---


@cache
def from_server(source: str) -> list[Message]:
    return [canal_entries.decode(entry) for entry in capture(source).entries]


def parts_of(source: str) -> list[Any]:
    return [part for message in from_server(source) for part in message.parts]


each_source = pytest.mark.parametrize("source", SOURCES)


@each_source
def test_entries_in_topics_are_those_of_the_server(source: str) -> None:
    of, entries = capture(source), from_server(source)
    topic = [message for value in of.topic_values for message in canal_entries.decode_packet(value)]
    assert len(entries) > 100
    # Canal's producer leaves out where transactions begin and end.
    kept = [wire.Entry.FromString(entry).entry_type == wire.ROW_DATA for entry in of.entries]
    assert topic == list(itertools.compress(entries, kept))


@each_source
def test_flat_messages_say_the_same(source: str) -> None:
    """But nothing of a message's place in the binlog. So the rest is read from entries."""
    flat = [message for value in capture(source).flat_messages if (message := canal_json.decode(value)).parts]
    assert len(flat) > 50
    told = [each for each in from_server(source) if each.parts not in ((), (TransactionEnd(),))]
    assert flat == [replace(m, origin=Origin(time_ms=m.origin.time_ms, gtid=m.origin.gtid)) for m in told]


@each_source
def test_transactions_end_as_often_as_the_source_committed(source: str) -> None:
    ends = [message for message in from_server(source) if message.parts == (TransactionEnd(),)]
    assert len(ends) == {"mysql8.0.12": 24, "mariadb10.11": 25}[source]
    # Rows are never outside of a transaction, and a DDL never within one.
    parts = parts_of(source)
    followers = {type(after) for before, after in itertools.pairwise(parts) if isinstance(before, RowChange)}
    assert followers == {RowChange, TransactionEnd} and not isinstance(parts[-1], RowChange)


@each_source
def test_text_that_is_not_utf8_is_told(source: str) -> None:
    """latin1 and gbk; nothing else of the capture is damaged."""
    changes = [part for part in parts_of(source) if isinstance(part, RowChange)]
    damaged = {(change.table, name) for change in changes for name in canal_json.lossy_columns(change)}
    assert damaged == {("t_all", "c_latin"), ("t_all", "c_gbk")}


# --- Records of DTS Avro: those of the service's own SDK, and whatever one holds is read back ---

# Bytes of records: both schemas, all of the body, and nothing but MessageError.


def _image(expected: dict[str, Any] | None) -> tuple[str, Any] | None:
    """An image as `records.jsonl` writes it, in the form of `read_record`."""
    if expected is None:
        return None
    branch = expected["t"]
    if branch == "EmptyObject":
        return branch, expected["symbol"]
    value = {name: part for name, part in expected.items() if name != "t"}
    if "hex" in value:
        value["value"] = bytes.fromhex(value.pop("hex"))
    if branch == "TimestampWithTimeZone":
        parts: Any = value["value"]
        value["value"] = {part: parts[part] for part in records.TIME_PARTS}
    return branch, value


@pytest.mark.parametrize(("value", "expected"), records.sdk_records(), ids=map(str, range(24)))
def test_every_value_of_the_sdks_records(value: bytes, expected: dict[str, Any]) -> None:
    read = dict(dts_avro.read_record(value))
    assert {"len": len(value), **read["source"]}.items() >= {
        "len": expected["len"], "sourceType": expected["sourceType"], "version": expected["sourceVersion"],
    }.items()  # fmt: skip
    images = {name: expected[name] for name in ("beforeImages", "afterImages")}
    images = {name: [*map(_image, each)] if isinstance(each, list) else each for name, each in images.items()}
    assert read == {**{name: expected.get(name) for name in read}, "source": read["source"], **images}


def test_sdk_reads_names_and_keys_alike() -> None:
    """The records have every operation and branch: the test above compares something."""
    written = [expected for _, expected in records.sdk_records()]
    assert len({record["operation"] for record in written}) == 17
    rows = [row for each in written for row in (each["beforeImages"], each["afterImages"]) if isinstance(row, list)]
    assert len({None if image is None else image["t"] for row in rows for image in row}) == 13
    views = [
        (value, view) for value, expected in records.sdk_records() if isinstance(view := expected["sdkView"], dict)
    ]
    assert len(views) > 5
    for value, view in views:
        part = records.change(value)
        assert (view["db"], view["table"], view["pk"]) == (part.database, part.table, list(part.key or ()))
    keys = [json.loads(record["tags"].get("pk_uk_info", "null")) for _, record in records.sdk_records()]
    assert {"PRIMARY": ["id"], "uk_1": ["c_int", "c_varchar"]} in keys and {} in keys


def test_unreadable_row_of_48_bytes_is_not_a_no_op() -> None:
    def of_version(version: str) -> bytes:
        source = {"sourceType": "MySQL", "version": version}
        texts = dict.fromkeys(("safeSourcePosition", "sourcePosition", "sourceTxid"), "")
        return records.row_body([("c", 253, records.character("x", b""))], born=None, source=source, **texts)

    value = of_version("8" * (48 - len(of_version(""))))
    assert len(value) == 48
    with pytest.raises(MessageError, match="character set 'x' is not known"):
        dts_avro.decode(value)


def test_no_end_of_a_record_is_one() -> None:
    value = records.row_body([("id", 8, records.integer("1"))], born=None)
    for end in range(len(value)):
        with pytest.raises(MessageError, match=r"cut short: see byte \d+ of"):
            dts_avro.read_record(value[:end])


def _long(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


@pytest.mark.parametrize("length", [1 << 31, 1 << 40, (1 << 62) - 1, -1, -(1 << 62)])
@pytest.mark.parametrize("at", ["sourcePosition", "tags", "fields", "afterImages"])
def test_a_length_that_is_not_there_takes_no_memory(length: int, at: str) -> None:
    value = {
        "sourcePosition": b"\x00\x02\x02" + _long(length),
        "tags": records.body(born=None)[:-4] + _long(length) + b"\x02a\x02b",
        "fields": records.body(born=None)[:-3] + _long(2) + _long(length) + b"\x02a\x02",
        "afterImages": records.body(born=None)[:-1] + _long(2) + _long(length) + b"\x00\x00",
    }[at]
    with memory_below(1_000_000), pytest.raises(MessageError):
        dts_avro.read_record(value)


@pytest.mark.slow
def test_a_body_of_many_small_values_takes_bounded_memory() -> None:
    """Three bytes make a Character: the most objects that a body can hold."""
    value = records.body(born=None)[:-1] + _long(2) + _long(100_000) + b"\x04\x00\x00" * 100_000 + b"\x00"
    with memory_below(200 * len(value)):
        images = dts_avro.read_record(value)["afterImages"]
        assert images is not None and len(images) == 100_000
