"""Topics: what becomes of messages one after the other (`cases/topics/*.txt`); usual ones give what the decoder
gives of each. `cases/files` and `cases/messages` say which are usual.

A line of a case is an expression, or several between semicolons, that makes a message or a list of them. Lines with `|`
are another partition's, and `---` ends a batch.
"""

import itertools
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_MS, END_TS, LOGICAL_BITS
from cdc_lakehouse.decoders import topic_reader
from cdc_lakehouse.decoders.format import RowShape
from cdc_lakehouse.decoders.formats import ticdc_canal_json
from cdc_lakehouse.decoders.formats.dts_avro import decode
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.decoders import records
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.data_sets import ARCHIVES
from tests.kit.decoding import Reading, image_of, usual_messages
from tests.kit.mishaps import mutated

TICDC, CANAL, DTS = FORMATS = ("ticdc-canal-json", "canal-json", "dts-canal-json")
ROW: dict[str, Any] = {
    "gtid": None, "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "UPDATE",
    "es": 1000, "ts": 2, "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int", "v": "varchar"},
    "old": [{"id": "1", "v": None}], "data": [{"id": "1", "v": "x"}], "_tidb": {"commitTs": 5},
}  # fmt: skip
NOW, DAY = 1_780_000_000_000, 24 * 60 * 60 * 1000
Values = Sequence[bytes | None]


def message(**parts: Any) -> bytes:
    return json.dumps({**ROW, **parts}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def ticdc(ts: int, **parts: Any) -> bytes:
    return message(_tidb={"commitTs": ts}, **parts)


def watermark(ts: int) -> bytes:
    return message(type="TIDB_WATERMARK", _tidb={"watermarkTs": ts})


def altered(ts: int, **parts: Any) -> bytes:
    return ticdc(ts, type="ALTER", isDdl=True, sql=f"ALTER {ts}", data=None, old=None, **parts)


def packed(value: bytes, codec: str) -> bytes:
    return pa.Codec(codec).compress(value, asbytes=True)


def shareplex(op: str, scn: int | str, seq: int, **parts: Any) -> bytes:
    return json.dumps({"meta": {"op": op, "table": "d.t", "scn": scn, "seq": seq}, **parts}).encode()


def dts(place: int, value: str = "x", **more: Any) -> bytes:
    columns = [("id", 253, records.character("utf8mb4", value.encode()))]
    return records.row_body(columns, sourcePosition=f"{place}@1", sourceTimestamp=more.get("time", 5))


# --- Cases ---

EXPRESSIONS: dict[str, Any] = {
    "message": message, "ticdc": ticdc, "watermark": watermark, "altered": altered, "packed": packed, "dts": dts,
    "END_MS": END_MS, "END_TS": END_TS, "NOW": NOW, "DAY": DAY, "body": records.body,
    "packet": records.packet, "NONE": [-1, END_TS, 1 << 61, (1 << 63) - 1, 10**30],
    "at": lambda ms: ticdc(ms << LOGICAL_BITS, type="INSERT", es=ms, old=None),
    "entry": lambda ms: wire.Entry(
        header=wire.Header(schema_name="d", table_name="t", execute_time=ms), entry_type=wire.TRANSACTION_END
    ).SerializeToString(),
    "gtid": lambda gtid, place: records.entry(
        wire.RowChange(event_type=wire.INSERT, row_datas=[
            wire.RowData(after_columns=[records.column("id", gtid, key=True)])
        ]), gtid=gtid, logfile_offset=place,
    ),
    "ddl": lambda place: records.body(
        operation="DDL", objectName="d.t", afterImages="TRUNCATE t", sourcePosition=f"{place}@1"
    ),
    "insert": shareplex("ins", 1, 9, data={"A": "1"}), "truncate": shareplex("truncate", 1, 9),
    "unplaced": json.dumps({"meta": {"op": "ins", "table": "d.t"}, "data": {"A": "1"}}).encode(),
    "whole": shareplex("upd", 1, 9, data={"A": "2"}, key={"A": "1"}),
    "before": shareplex("UPDATE BEFORE", 1, 1, data={"A": "1", "B": "x", "C": None}),
    "after": shareplex("UPDATE AFTER", 1, 2, data={"A": "2", "C": "c"}),
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


def shown(reading: Reading) -> Iterator[str]:
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


def results_of(case: Case) -> Iterator[str]:
    settings = case.settings
    formats, batches = settings.pop("formats"), [*batches_of(case)]
    found = dict[str, list[str]]()
    limit, window = settings.pop("limit", ticdc_canal_json.LIMIT), settings.pop("window", topic_reader.WINDOW)
    for name in formats:
        ways: list[dict[str, Any]] = [{}, {"is_strict": True}, {"least": 1000}, {"by_turns": True, "at_once": 2}]
        for how in ways:
            reading = Reading(name, **how)
            vars(reading).update(settings)
            with (
                patch.multiple(ticdc_canal_json, LIMIT=limit, AT_ONCE=limit // 10),
                patch.object(topic_reader, "WINDOW", window),
            ):
                for batch in batches:
                    reading.read(batch)
            lines = [text_of(re.sub(r"( not JSON): .*", r"\1", line)) for line in shown(reading)]
            assert found.setdefault(name, lines) == lines, how
    same = len({tuple(lines) for lines in found.values()}) == 1
    yield from found[formats[0]] if same else [f"{name}: {line}" for name in formats for line in found[name]]


@pytest.mark.parametrize("case", read_cases(*sorted(Path(__file__).parent.glob("cases/topics/*.txt"))), ids=str)
def test_messages_of_a_topic_become_events(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


# --- Usual messages as the decoder reads them ---


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
        found[number] = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    return found


def read(name: str, values: Values, **how: Any) -> tuple[list[Any], Any]:
    """The events in the order of their lines, and what else there is."""
    reading = Reading(name, **how)
    reading.read([values], [len(values)])
    events = [{**event, **{name: image_of(event[name]) for name in ("before", "after")}} for event in reading.events]
    return sorted(events, key=lambda event: event["line"]), reading.summaries


def check(name: str, values: Values) -> tuple[list[Any], Any]:
    found = read(name, values, is_strict=True)
    for least, at_once in ((1, 1000), (1, 2), (1000, 1000)):
        assert read(name, values, least=least, at_once=at_once) == found
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_messages_of_data_sets_are_read_alike(name: str) -> None:
    check(name, messages(name))
    assert usual_messages(name, messages(name)) > len(messages(name)) // 3


def test_messages_that_are_read_one_by_one_are_counted() -> None:
    """Those with rows, which others are read at once: no watermark, and nothing that cannot be used."""
    several = ticdc(6, type="INSERT", data=[{"id": "2"}, {"id": "3"}], old=None)
    _, summaries = read(TICDC, [ticdc(5), several, watermark(7), altered(8), ticdc(9, data=[{"id": 1}])])
    assert [summary.strict.total() for summary in summaries.values()] == [1]


characters = st.characters(exclude_categories=["Cs"])
texts = st.none() | st.text(characters, max_size=5) | st.sampled_from(["\ufffd", "<>&", "\\u003c", "-0"])
rows = st.dictionaries(st.text(characters, max_size=3) | st.sampled_from(["id", "v", "a``b"]), texts, max_size=3)
kinds = st.sampled_from(["INSERT", "UPDATE", "DELETE", "INIT"])


def html(as_go: bool, text: bytes) -> bytes:
    """With the characters of HTML as Go writes them."""
    return re.sub(b"[<>&]", lambda found: b"\\u%04x" % ord(found[0]), text) if as_go else text


valid = st.builds(
    lambda escaped, separators, as_go, parts: html(
        as_go, json.dumps({**ROW, **parts}, ensure_ascii=escaped, separators=separators).encode()
    ),
    st.booleans(),
    st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "type": kinds,
            "table": st.sampled_from(["t", "u", "表"]),
            "data": rows.map(lambda row: [{"id": "1", **row}]),
            "old": rows.map(lambda row: [row]) | st.none(),
            "mysqlType": st.dictionaries(
                st.sampled_from(["id", "v", "w"]), st.sampled_from(["int", "bigint", "", "set('<','>')"]), max_size=3
            ),
            "es": st.integers(0, 3) | st.none(),
            "_tidb": st.builds(lambda ts: {"commitTs": ts}, st.integers(1, 9)),
        }
    ),
)
statements = st.builds(
    lambda table: message(type="ALTER", isDdl=True, sql="ALTER TABLE t ADD x INT", table=table, data=None, old=None),
    st.sampled_from(["t", "u", ""]),
)


# A name twice, or one that no message has.
TWICE = (b'"id":"9",', b'"v":null,', b'"data":[],', b'"\\u0069d":"9",', b'"x":"\\u003c",')
odd = st.builds(
    lambda value, put, objects: value.replace(b"{", b"{" + put, objects),
    valid,
    st.sampled_from(TWICE),
    st.integers(1, 3),
)
spoilt = st.builds(
    lambda chance, value, other: mutated(chance, [value, other]),
    st.randoms(use_true_random=False),
    valid | statements | st.integers(1, 7).map(watermark),
    valid,
)


@pytest.mark.slow
@example(TICDC, [ticdc(5), ticdc(5).replace(b'"data":', b'"data": ')])  # One transaction, two readers.
@given(
    st.sampled_from(FORMATS),
    st.lists(valid | st.integers(1, 7).map(watermark) | statements | odd | spoilt | st.none(), max_size=12),
)
def test_any_messages_are_read_alike(name: str, values: Values) -> None:
    check(name, values)


@pytest.mark.parametrize("name", FORMATS)
def test_messages_of_any_depth_are_read_or_refused(name: str) -> None:
    """Up to where Python's own parser and others stop, one after the other."""
    check(name, [message(x=0).replace(b'"x":0', b'"x":' + b"[" * depth + b"]" * depth) for depth in range(900, 1100)])


def test_shapes_of_rows_are_at_most_as_many_as_rows() -> None:
    orders = [dict.fromkeys(order, "1") for order in itertools.permutations("abcd")]
    values = [ticdc(ts, type="INSERT", data=[row], old=None, mysqlType=row) for ts, row in enumerate(orders, 1)]
    with patch.object(ticdc_canal_json, "RowShape", wraps=RowShape) as made:
        read(TICDC, values)
    assert made.call_count == len(values)


def test_rows_that_wait_have_few_bytes() -> None:
    with patch.object(topic_reader, "_BYTES_AT_ONCE", 1000):
        reading = Reading(TICDC, least=10)
        reading.read([[ticdc(ts, data=[{"v": "x" * 250}], old=[{"v": "y" * 250}]) for ts in range(1, 6)]])
    assert reading.batch_rows == [2, 2, 1]


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_compressed_values_equal_plain_ones(codec: str, is_strict: bool) -> None:
    """From some message on, as when the changefeed is changed; with bad ones, which name their table all the same."""
    values = [*messages(), b'{"database":"d","table":"t","type":"INSERT","data":[],"_tidb":{"commitTs":7}}', None]
    mixed = [*values[:100], *(value and packed(value, codec) for value in values[100:])]
    assert read(TICDC, mixed, is_strict=is_strict, at_once=997) == read(TICDC, values)


# --- Messages that are sent again, cut into batches or interleaved with other partitions ---

PARTITIONS = 3
POISON = (b"\xff" * 7, b"garbage", b'{"a":1}', bytes(60))
Sent = tuple[list[bytes], list[int]]
"""A partition's messages, and at which of them a task may start again."""


def _operations(seed: int, ids: Sequence[int]) -> Iterator[tuple[records.Row | None, records.Row | None]]:
    """Rows of the partition's own ids come and go: each before and after it changes."""
    rows = dict[int, records.Row | None]()
    for step, id in enumerate(ids):
        old, new = rows.get(id), {"id": str(id), "v": None if step % 5 == 0 else f"vär 中文 {seed + step}"}
        rows[id] = new if old is None or step % 3 else None
        yield old, rows[id]


def _avro(seed: int, ids: Sequence[int]) -> Sent:
    """A statement is among the rows. A task starts with a transaction."""
    source, starts = records.DtsSource(), [0]
    source.statement("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "t")
    for step, (old, new) in enumerate(_operations(seed, ids)):
        if step % 4 == 0:
            starts.append(len(source.records))
            source.begin()
        of_another_id = [(None, {**new, "id": str(ids[step] + 3 * PARTITIONS)})] if new and old is None else []
        source.change("t", (old, new), *of_another_id)
        if step % 4 == 3:
            source.commit()
            source.beside()
        if step == 9:
            source.rotate()
            source.statement("ALTER TABLE t COMMENT 'later'", "t")
    return source.records, starts


def _shareplex(seed: int, ids: Sequence[int]) -> Sent:
    sent: list[bytes] = []
    for step, (old, new) in enumerate(_operations(seed, ids)):
        if old is None or new is None:
            images = {"ins" if new else "del": {"data": new or old}}
        elif step % 2:
            images = {"upd": {"data": {"v": new["v"]}, "key": old}}
        else:
            images = {"UPDATE BEFORE": {"data": old}, "UPDATE AFTER": {"data": new}}
        for op, parts in images.items():
            sent.append(shareplex(op, str(1000 + seed + step), len(sent) + 1, **parts))
    return sent, list(range(len(sent)))


SENDERS: dict[str, Callable[[int, Sequence[int]], Sent]] = {"dts-avro": _avro, "shareplex-json": _shareplex}


def _of_each(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=PARTITIONS, max_size=PARTITIONS)


def _with_again(once: Sent, again: list[tuple[int, int]]) -> list[bytes]:
    """A task that starts again at some places: it goes back, and on from there."""
    values, starts = once
    sent: list[bytes] = []
    done = 0
    for place, back in sorted(again):
        place = min(place, len(values))
        sent += values[done:place]
        back_to = max(0, max(place, done) - back)
        done = max((start for start in starts if start <= back_to), default=0)
    return sent + values[done:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SENDERS)
@given(
    ids=_of_each(st.lists(st.integers(0, 2), min_size=1, max_size=14)),
    # At an offset: so many of before.
    again=_of_each(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), max_size=3)),
    # Where batches end, in parts of a thousand.
    cuts=st.lists(st.integers(0, 1000), max_size=4).map(lambda cuts: [*sorted(cuts), 1000]),
    poison=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 80)), max_size=3),
)
@example_settings(max_examples=60)
def test_batches_and_what_is_sent_again_change_nothing(
    name: str, ids: list[list[int]], again: list[Any], cuts: list[int], poison: list[tuple[int, int]]
) -> None:
    once = [SENDERS[name](100 * n, [PARTITIONS * id + n for id in each]) for n, each in enumerate(ids)]
    expected = Reading(name)
    expected.read([values for values, _ in once], [len(values) for values, _ in once])
    sent = [_with_again(values, places) for values, places in zip(once, again, strict=True)]
    if name == "dts-avro":
        for n, place in poison:
            sent[n].insert(place, POISON[place % len(POISON)])
    found = Reading(name, by_turns=True, at_once=7)
    for cut in cuts:
        found.read(sent, [len(values) * cut // 1000 for values in sent])
    assert _changes(found) == _changes(expected)
    assert found.bad == (len(poison) if name == "dts-avro" else 0)
    assert _statements(found) == _statements(expected)
    told = sum(_has_place(value, name) for values in sent for value in values)
    once_told = sum(_has_place(value, name) for values, _ in once for value in values)
    assert sum(summary.replays for summary in found.summaries.values()) == told - once_told


def _has_place(value: bytes, name: str) -> bool:
    """Whether the message says something of its own: heartbeats and garbage do not."""
    return name != "dts-avro" or (value not in POISON and len(value) > 2 and bool(decode(value).parts))


def _changes(reading: Reading) -> dict[int, list[tuple[Any, ...]]]:
    """By partition, what happened in the order of the commit-ts."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for event in reading.changes:
        before, after = event["before"], event["after"]
        of = found.setdefault(int((after or before)["id"]) % PARTITIONS, [])
        of.append((event["op"], event["table_name"], before, after))
    return found


def _statements(reading: Reading) -> list[tuple[int, str]]:
    return sorted(
        (place[1], each.text) for place, summary in reading.summaries.items() for _, each in summary.statements
    )
