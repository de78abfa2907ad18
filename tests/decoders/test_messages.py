"""Messages of topics and entries of Canal: one by one (`cases/messages/*.txt`), and one after the other as a topic has
them (`cases/topics/*.txt`). `cases/files` and `cases/messages` say which are usual: they give what the decoder gives.

A case is an expression of Python that makes a message's bytes, of the names below for its file. The results are what
each of the file's decoders gives: the origin, where it is not the file's usual one, changes and statements, or the
error. A line of a topic has expressions, divided by semicolons, each a message or a list of them. Lines with `|` are
another partition's, and `---` ends a batch.
"""

import io
import itertools
import json
import pickle
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdc_lakehouse.changelog.ddl import statements
from cdc_lakehouse.changelog.ddl.clauses import DropColumn, TableRef, TruncateTable
from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange, TransactionEnd
from cdc_lakehouse.changelog.positions import END_MS, END_TS, LOGICAL_BITS
from cdc_lakehouse.decoders import format as message_format
from cdc_lakehouse.decoders import topic_reader
from cdc_lakehouse.decoders.format import Decode, Options, RowShape
from cdc_lakehouse.decoders.formats import canal_entries, canal_json, dts_avro, ticdc_canal_json
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.canal.wire import packets_pb2 as packets
from tests.canal_captures import SOURCES, capture
from tests.decoders import records
from tests.kit.case_files import Case, edited, read_cases, text_of
from tests.kit.data_sets import ARCHIVES
from tests.kit.decoding import Reading, read_alike, usual_messages
from tests.kit.mishaps import mutated
from tests.kit.waiting import memory_below

CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/messages/*.txt")))
SECRET = "geheim"  # A value that no error may show.


def flat(base: Mapping[str, Any]) -> Callable[..., bytes]:
    """Makes JSON of a message with other values; `...` leaves a name out."""

    def message(**other: Any) -> bytes:
        said = {name: value for name, value in {**base, **other}.items() if value is not ...}
        return json.dumps(said, separators=(",", ":")).encode()

    return message


def shareplex(op: str | None = "ins", meta: Mapping[str, Any] | None = None, **parts: Any) -> bytes:
    return json.dumps({"meta": {"op": op, "table": "SALES.PARCELS", **(meta or {})}, **parts}).encode()


def insert(**values: Any) -> bytes:
    return records.row_body([("id", 8, records.IMAGES["integer"]("1"))], **values)


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
        {**vars(records), **records.IMAGES, "insert": insert, "cell": cell},
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
    read_alike(name, [[USUAL, value, USUAL]], **options)
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
                images = [row for row in (before, after) if row is not None or op == "U"]
                rows = [json.dumps(row, ensure_ascii=False, sort_keys=True) for row in images]
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


@pytest.mark.parametrize("source", SOURCES)
def test_forms_of_captured_entries_say_the_same(source: str) -> None:
    of = capture(source)
    entries = [canal_entries.decode(entry) for entry in of.entries]
    assert len(entries) > 100
    # Canal's producer leaves out where transactions begin and end.
    kept = [wire.Entry.FromString(entry).entry_type == wire.ROW_DATA for entry in of.entries]
    topic = [message for value in of.topic_values for message in canal_entries.decode_packet(value)]
    assert topic == list(itertools.compress(entries, kept))
    # Flat messages have nothing of a message's place in the binlog. So the rest is read from entries.
    flat = [message for value in of.flat_messages if (message := canal_json.decode(value)).parts]
    assert len(flat) > 50
    told = [each for each in entries if each.parts not in ((), (TransactionEnd(),))]
    assert flat == [replace(m, origin=Origin(time_ms=m.origin.time_ms, gtid=m.origin.gtid)) for m in told]
    # Transactions end as often as the source committed; rows are never outside of one, and a DDL never within one.
    parts = [part for message in entries for part in message.parts]
    assert parts.count(TransactionEnd()) == {"mysql8.0.12": 24, "mariadb10.11": 25}[source]
    followers = {type(after) for before, after in itertools.pairwise(parts) if isinstance(before, RowChange)}
    assert followers == {RowChange, TransactionEnd} and not isinstance(parts[-1], RowChange)
    # latin1 and gbk; nothing else of the capture is damaged.
    changes = [part for part in parts if isinstance(part, RowChange)]
    damaged = {(change.table, name) for change in changes for name in canal_json.lossy_columns(change)}
    assert damaged == {("t_all", "c_latin"), ("t_all", "c_gbk")}


# --- Bytes of DTS Avro: records of the service's own SDK; all of the body, and nothing but MessageError ---


def sdk_image(expected: Any) -> records.Image:
    """An image as `records.jsonl` writes it, in the form of `read_record`."""
    if expected is None or expected["t"] == "EmptyObject":
        return expected and ("EmptyObject", expected["symbol"])
    value = {name: part for name, part in expected.items() if name != "t"}
    if "hex" in value:
        value["value"] = bytes.fromhex(value.pop("hex"))
    if isinstance(parts := value.get("value"), dict):
        value["value"] = {part: parts[part] for part in records.TIME_PARTS}
    return expected["t"], value


@pytest.mark.parametrize(("value", "expected"), records.sdk_records(), ids=map(str, range(24)))
def test_every_value_of_the_sdks_records(value: bytes, expected: dict[str, Any]) -> None:
    read = dict(dts_avro.read_record(value))
    assert {"len": len(value), **read["source"]}.items() >= {
        "len": expected["len"], "sourceType": expected["sourceType"], "version": expected["sourceVersion"],
    }.items()  # fmt: skip
    images = {name: expected[name] for name in ("beforeImages", "afterImages")}
    images = {name: [*map(sdk_image, each)] if isinstance(each, list) else each for name, each in images.items()}
    assert read == {**{name: expected.get(name) for name in read}, "source": read["source"], **images}


def test_sdk_reads_names_and_keys_alike() -> None:
    """The records have every operation and branch: the test above compares something."""
    written = [expected for _, expected in records.sdk_records()]
    assert len({record["operation"] for record in written}) == 17
    rows = [row for each in written for row in (each["beforeImages"], each["afterImages"]) if isinstance(row, list)]
    assert len({None if image is None else image["t"] for row in rows for image in row}) == 13
    views = [(value, view) for value, each in records.sdk_records() if isinstance(view := each["sdkView"], dict)]
    assert len(views) > 5
    for value, view in views:
        (part,) = dts_avro.decode(value).parts
        assert isinstance(part, RowChange)
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
    value = insert(born=None)
    for end in range(len(value)):
        with pytest.raises(MessageError, match=r"cut short: see byte \d+ of"):
            dts_avro.read_record(value[:end])


def _long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


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


# --- Messages one after the other ---

TICDC, CANAL, DTS_JSON = FLAT = ("ticdc-canal-json", "canal-json", "dts-canal-json")
ROW: dict[str, Any] = {
    "gtid": None, "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "UPDATE",
    "es": 1000, "ts": 2, "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int", "v": "varchar"},
    "old": [{"id": "1", "v": None}], "data": [{"id": "1", "v": "x"}], "_tidb": {"commitTs": 5},
}  # fmt: skip
NOW, DAY = 1_780_000_000_000, 24 * 60 * 60 * 1000


def message(**parts: Any) -> bytes:
    return edited({**ROW, **parts}, [])


def ticdc(ts: int, **parts: Any) -> bytes:
    return message(_tidb={"commitTs": ts}, **parts)


def watermark(ts: int) -> bytes:
    return message(type="TIDB_WATERMARK", _tidb={"watermarkTs": ts})


def altered(ts: int, **parts: Any) -> bytes:
    return ticdc(ts, type="ALTER", isDdl=True, sql=f"ALTER {ts}", data=None, old=None, **parts)


def packed(value: bytes, codec: str) -> bytes:
    return pa.Codec(codec).compress(value, asbytes=True)


def operation(op: str, scn: int, seq: int, table: str = "d.t", **parts: Any) -> bytes:
    return shareplex(op, {"table": table, "scn": scn, "seq": seq}, **parts)


def dts(place: int, value: str = "x", **more: Any) -> bytes:
    columns = [("id", 253, records.character("utf8mb4", value.encode()))]
    return records.row_body(columns, sourcePosition=f"{place}@1", sourceTimestamp=more.get("time", 5))


EXPRESSIONS: dict[str, Any] = {
    "message": message, "ticdc": ticdc, "watermark": watermark, "altered": altered, "packed": packed, "dts": dts,
    "END_MS": END_MS, "END_TS": END_TS, "NOW": NOW, "DAY": DAY, "body": records.body,
    "packet": records.packet, "NONE": [-1, END_TS, 1 << 61, (1 << 63) - 1, 10**30],
    "at": lambda ms: ticdc(ms << LOGICAL_BITS, type="INSERT", es=ms, old=None),
    "entry": lambda ms: wire.Entry(
        header=wire.Header(schema_name="d", table_name="t", execute_time=ms), entry_type=wire.TRANSACTION_END
    ).SerializeToString(),
    "gtid": lambda gtid, place: change(
        wire.INSERT, ((), [records.column("id", gtid, key=True)]), header={"gtid": gtid, "logfile_offset": place}
    ),
    "ddl": lambda place: records.body(
        operation="DDL", objectName="d.t", afterImages="TRUNCATE t", sourcePosition=f"{place}@1"
    ),
    "insert": operation("ins", 1, 9, data={"A": "1"}), "truncate": operation("truncate", 1, 9),
    "unplaced": shareplex("ins", {"table": "d.t"}, data={"A": "1"}),
    "whole": operation("upd", 1, 9, data={"A": "2"}, key={"A": "1"}),
    "before": operation("UPDATE BEFORE", 1, 1, data={"A": "1", "B": "x", "C": None}),
    "after": operation("UPDATE AFTER", 1, 2, data={"A": "2", "C": "c"}),
    "replace": lambda value, old, new: value.replace(old.encode(), new.encode()),
}  # fmt: skip


def batches_of(case: Case) -> Iterator[list[list[bytes | None]]]:
    """The partitions' messages up to the end of each batch."""
    partitions: list[list[bytes | None]] = [[]]
    for line in case.own:
        if line == "---":
            yield [[*values] for values in partitions]
            continue
        if line.startswith("| ") and len(partitions) == 1:
            partitions.append([])
        for expression in line.removeprefix("| ").split("; "):
            made = eval(expression, dict(EXPRESSIONS))
            partitions[line.startswith("| ")] += made if isinstance(made, list) else [made]
    yield partitions


def shown_ts(ts: int | None) -> str:
    return f"{ts >> LOGICAL_BITS} ms + {ts % (1 << LOGICAL_BITS)}" if ts and ts >> LOGICAL_BITS else str(ts)


def topic_shown(reading: Reading) -> Iterator[str]:
    several = len(reading.summaries) > 1
    for event in reading.changes:
        rows = json.dumps([event["before"], event["after"]])
        yield f"{event['line']}: {event['op']} {event['table_name']} {rows} at {shown_ts(event['commit_ts'])}"
    for place, summary in sorted(reading.summaries.items()):
        of = f"partition {place[1]} of batch {place[2]}: " if several else ""
        yield from (
            f"{of}{line}: statement {each.text} at {shown_ts(each.commit_ts)}, its time {each.time_ms}"
            for line, each in summary.statements
        )
        if len(summary.observed) > 1:
            yield from (f"{of}{line}: columns {dict(each.columns or ())}" for line, each in summary.observed.values())
        yield from (
            f"{of}{each.line}: {each.raw!r} of {each.database}.{each.table} at {shown_ts(ts)} may have come before"
            for (*_, ts), each in summary.stated_before.items()
        )
        yield from (
            f"{of}{each.line}: {each.error_class} of {each.database}.{each.table}: {each.message}"
            for listed in summary.bad.values()
            for each in listed
        )
        yield (
            f"{of}last {shown_ts(summary.last_ts)}, watermark {shown_ts(summary.watermark)}, {summary.replays} sent "
            f"before, {sum(summary.others.values())} others"
        )


@pytest.mark.parametrize("case", read_cases(*sorted(Path(__file__).parent.glob("cases/topics/*.txt"))), ids=str)
def test_messages_of_a_topic_become_events(case: Case, update: bool) -> None:
    given = case.settings
    formats, batches, found = given.pop("formats"), [*batches_of(case)], dict[str, list[str]]()
    limit, window = given.pop("limit", ticdc_canal_json.LIMIT), given.pop("window", topic_reader.WINDOW)
    small = patch.multiple(ticdc_canal_json, LIMIT=limit, AT_ONCE=limit // 10)
    with small, patch.object(topic_reader, "WINDOW", window):
        for name in formats:
            lines = topic_shown(read_alike(name, *batches, given=given))
            found[name] = [text_of(re.sub(r"( not JSON): .*", r"\1", line)) for line in lines]
    same = all(lines == found[formats[0]] for lines in found.values())
    shown = found[formats[0]] if same else [f"{name}: {line}" for name in formats for line in found[name]]
    case.compare(shown, update=update)


@cache
def messages(name: str = TICDC) -> list[bytes]:
    """Of all data sets of topics; without a commit-ts and with the changed values alone, as Canal has them."""
    found: list[bytes] = []
    with tarfile.open(ARCHIVES / "ticdc-kafka.tar.xz") as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".jsonl") else None
            values = (json.loads(line)["value"] for line in file or ())
            found += [value.encode() for value in values if value is not None]
    for number, value in enumerate(found if name != TICDC else ()):
        said = json.loads(value)
        del said["_tidb"]
        if not said["isDdl"] and said["old"] is not None:
            said["old"] = [{k: v for k, v in said["old"][0].items() if v != said["data"][0].get(k)}]
        found[number] = edited(said, [])
    return found


@pytest.mark.parametrize("name", FLAT)
def test_messages_of_data_sets_are_read_alike(name: str) -> None:
    read_alike(name, [messages(name)])
    assert usual_messages(name, messages(name)) > len(messages(name)) // 3


def test_messages_that_are_read_one_by_one_are_counted() -> None:
    """Those with rows, which others are read at once: no watermark, and nothing that cannot be used."""
    several = ticdc(6, type="INSERT", data=[{"id": "2"}, {"id": "3"}], old=None)
    reading = read_alike(TICDC, [[ticdc(5), several, watermark(7), altered(8), ticdc(9, data=[{"id": 1}])]])
    assert [summary.strict.total() for summary in reading.summaries.values()] == [1]


# Rows of any operation, with columns and types in any order, written in any way.
SAMPLES: Sequence[bytes] = [
    message(), message().replace(b'"data":', b'"data": '), ticdc(6, type="INSERT", old=None), ticdc(5, type="INIT"),
    ticdc(7, type="DELETE", old=[{"v": "y"}]), ticdc(7, old=[{"id": "2", "v": "\ufffd"}]),
    *(ticdc(7, table="w", data=[{"v": "z"}], old=[old]) for old in ({"v": "y"}, {"id": "1", "v": "y"})),
    ticdc(8, mysqlType={"v": "varchar", "id": "int"}), ticdc(8, data=[{"v": "\ufffd", "id": "1"}], old=[{"v": "-0"}]),
    ticdc(9, table="u", mysqlType={"id": "bigint", "w": ""}, data=[{"id": "1", "w": "<>&\\u003c", "a``b": None}]),
    ticdc(9, table="u", type="INSERT", data=[{"id": "1", "w": "表"}], mysqlType={"id": "bigint", "v": "set('<','>')"}),
    *(json.dumps(ROW, ensure_ascii=False, separators=marks).encode() for marks in ((", ", ":"), (",", ": "))),
    ticdc(4, data=[{"id": "2", "v": "<>&"}]).replace(b"<", rb"\u003c").replace(b">", rb"\u003e"),
    message(pkNames=[]), edited(ROW, ["pkNames -"]),
    # Where one has what follows the operation, the other's row has it.
    *(ticdc(9, table="t" * of, data=[{"id": "1", "es": "2"}], old=[{"id": "1", "es": "1"}]) for of in (2, 103)),
    # A name twice.
    *(message().replace(of, of + b'"id":4,') for of in (b'"sqlType":{', b'"mysqlType":{', b'"data":[{')),
    watermark(3), watermark(7), altered(6), altered(7, table="u"), altered(8, table=""),
]  # fmt: skip


@pytest.mark.slow
@example(TICDC, SAMPLES)
@example(CANAL, SAMPLES)
@example(DTS_JSON, SAMPLES)
@given(
    st.sampled_from(FLAT),
    st.lists(
        st.randoms(use_true_random=False).map(
            lambda chance: mutated(chance, SAMPLES) if chance.random() < 0.5 else chance.choice([*SAMPLES, None])
        ),
        max_size=12,
    ),
)
def test_any_messages_are_read_alike(name: str, values: Sequence[bytes | None]) -> None:
    read_alike(name, [values])


@pytest.mark.parametrize("name", FLAT)
def test_messages_of_any_depth_are_read_or_refused(name: str) -> None:
    """Up to where Python's own parser and others stop, one after the other."""
    deep = (b"[" * depth + b"]" * depth for depth in range(900, 1100))
    read_alike(name, [[message(x=0).replace(b'"x":0', b'"x":' + part) for part in deep]])


def test_shapes_of_rows_are_at_most_as_many_as_rows() -> None:
    orders = [dict.fromkeys(order, "1") for order in itertools.permutations("abcd")]
    values = [ticdc(ts, type="INSERT", data=[row], old=None, mysqlType=row) for ts, row in enumerate(orders, 1)]
    with patch.object(ticdc_canal_json, "RowShape", wraps=RowShape) as made:
        Reading(TICDC).read([values])
    assert made.call_count == len(values)


@pytest.mark.parametrize(("lengths", "odd"), [(80, []), (0, [10, 13])])
def test_large_table_is_read_by_columns_after_and_among_others(lengths: int, odd: Sequence[int]) -> None:
    columns = ticdc_canal_json.MessageColumns()
    with patch.object(ticdc_canal_json, "LEAST", 10):
        for length in range(1, lengths):
            others = [ticdc(ts, table="t" * length) for ts in range(1, 21)]
            assert sum(len(rows.places) for rows in columns(pa.array(others, pa.binary()), END_TS)) == len(others)
        values = [ticdc(ts + 1, table="t" * 99) if all(ts % of for of in odd) else b"{}" for ts in range(100)]
        found = [*columns(pa.array(values, pa.binary()), END_TS)]
    assert sum(len(rows.places) for rows in found) == sum(value != b"{}" for value in values)


def test_rows_that_wait_have_few_bytes() -> None:
    with patch.object(topic_reader, "_BYTES_AT_ONCE", 1000):
        reading = Reading(TICDC, least=10)
        reading.read([[ticdc(ts, data=[{"v": "x" * 250}], old=[{"v": "y" * 250}]) for ts in range(1, 6)]])
    assert reading.batch_rows == [2, 2, 1]


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_compressed_values_equal_plain_ones(codec: str) -> None:
    """From some message on, as when the changefeed is changed; with bad ones, which name their table all the same."""
    values = [*messages(), b'{"database":"d","table":"t","type":"INSERT","data":[],"_tidb":{"commitTs":7}}', None]
    mixed = [*values[:100], *(value and packed(value, codec) for value in values[100:])]
    for how in ({"is_strict": True}, {}):
        plain, compressed = Reading(TICDC), Reading(TICDC, **how, at_once=997)
        plain.read([values])
        compressed.read([mixed])
        assert (compressed.changes, compressed.summaries) == (plain.changes, plain.summaries)


# --- Messages that are sent again, cut into batches or interleaved with other partitions ---

PARTITIONS = 3
Sent = tuple[list[bytes], list[int]]  # A partition's messages, and at which of them a task may start again.


def operations(ids: Sequence[int]) -> Iterator[tuple[records.Row | None, records.Row | None]]:
    """Rows come and go: each before and after it changes."""
    rows = dict[int, records.Row | None]()
    for step, id in enumerate(ids):
        old, new = rows.get(id), {"id": str(id), "v": None if step % 5 == 0 else f"vär 中文 {step}"}
        rows[id] = new if old is None or step % 3 else None
        yield old, rows[id]


def sent_avro(table: str, ids: Sequence[int]) -> Sent:
    """A statement is among the rows. A task starts with a transaction."""
    source, starts = records.DtsSource(), [0]
    source.statement("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", table)
    for step, (old, new) in enumerate(operations(ids)):
        if step % 4 == 0:
            starts.append(len(source.records))
            source.say("BEGIN")
        of_another_id = [(None, {**new, "id": "9"})] if new and old is None else []
        source.change(table, (old, new), *of_another_id)
        if step % 4 == 3:
            source.say("COMMIT", "HEARTBEAT", "CHECKPOINT")
            source.records.append(b"\0")
        if step == 9:
            source.rotate()
            source.statement("ALTER TABLE t COMMENT 'later'", table)
    return source.records, starts


def sent_shareplex(table: str, ids: Sequence[int]) -> Sent:
    sent: list[bytes] = []
    for step, (old, new) in enumerate(operations(ids)):
        if old is None or new is None:
            images = {"ins" if new else "del": {"data": new or old}}
        elif step % 2:
            images = {"upd": {"data": {"v": new["v"]}, "key": old}}
        else:
            images = {"UPDATE BEFORE": {"data": old}, "UPDATE AFTER": {"data": new}}
        numbered = enumerate(images.items(), len(sent) + 1)
        sent += [operation(op, 1000 + step, at, f"shop.{table}", **parts) for at, (op, parts) in numbered]
    return sent, [*range(len(sent))]


SENDERS: Mapping[str, Callable[[str, Sequence[int]], Sent]] = {"dts-avro": sent_avro, "shareplex-json": sent_shareplex}


def with_again(once: Sent, again: Sequence[tuple[int, int]]) -> list[bytes]:
    """A task that starts again at some places: it goes back, and on from there."""
    values, starts = once
    sent: list[bytes] = []
    done = 0
    for place, back in sorted(again):
        place = min(place, len(values))
        sent += values[done:place]
        done = max(start for start in starts if start <= max(0, max(place, done) - back))
    return sent + values[done:]


def of_tables(reading: Reading) -> tuple[list[Any], list[Any]]:
    """What happened to each table in the order of the commit-ts, and its statements."""
    statements = [(each.table, each.text) for found in reading.summaries.values() for _, each in found.statements]
    changes = [(each["table_name"], each["op"], each["before"], each["after"]) for each in reading.changes]
    return sorted(changes, key=lambda change: change[0]), sorted(statements)


@pytest.mark.slow
@pytest.mark.parametrize("name", SENDERS)
@given(
    partitions=st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=14),
            # At an offset: so many of before.
            st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), max_size=3),
        ),
        min_size=PARTITIONS,
        max_size=PARTITIONS,
    ),
    # Where batches end, in parts of a thousand.
    cuts=st.lists(st.integers(0, 1000), max_size=4).map(lambda cuts: [*sorted(cuts), 1000]),
    # Of DTS, whose messages need no neighbour.
    garbage=st.lists(
        st.tuples(
            st.integers(0, PARTITIONS - 1),
            st.integers(0, 80),
            st.sampled_from([b"\xff" * 7, b"garbage", b'{"a":1}', bytes(60)]),
        ),
        max_size=3,
    ),
)
@example_settings(max_examples=60)
def test_batches_and_what_is_sent_again_change_nothing(
    name: str, partitions: Any, cuts: Sequence[int], garbage: Sequence[tuple[int, int, bytes]]
) -> None:
    once = [SENDERS[name](f"t{number}", ids) for number, (ids, _) in enumerate(partitions)]
    sent = [with_again(values, again) for values, (_, again) in zip(once, partitions, strict=True)]
    expected, found = Reading(name), Reading(name, by_turns=True, at_once=7)
    decode: Any = format_of(name).make(Options())
    # Of those that say something: heartbeats do not.
    counted = sent, [values for values, _ in once]
    told, of_once = (sum(bool(decode(value).parts) for values in of for value in values) for of in counted)
    garbage = garbage if name == "dts-avro" else []
    for number, place, value in garbage:
        sent[number].insert(place, value)
    expected.read([values for values, _ in once])
    for cut in cuts:
        found.read(sent, [len(values) * cut // 1000 for values in sent])
    assert of_tables(found) == of_tables(expected) and found.bad == len(garbage)
    assert sum(summary.replays for summary in found.summaries.values()) == told - of_once
