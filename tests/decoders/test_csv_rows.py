from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import patch

import pytest

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.format import FileContext, Layout
from cdc_lakehouse.decoders.formats import csv
from cdc_lakehouse.decoders.formats.csv import decode, first_row, header_names
from tests.decoders.csv_reading import NAMES, PIECES, at_once, options, read, strictly
from tests.decoders.ticdc_csv import Bare, Change, Encoder, Row, events
from tests.kit.duckdb_sql import connection

TS = 450000000000000001

# Records that cannot be used, one kind each, between two that can.

GOOD = [b'"I","parcels","shop",450000000000000001,1,"a","b"', b'"D","parcels","shop",450000000000000002,2,"c\r\n",\\N']


@pytest.mark.parametrize("quote", ['"', ""])
@pytest.mark.parametrize("ahead", [[], [10], list(range(19)), [0, 18]], ids=["none", "one", "all but one", "two"])
def test_a_commit_ts_far_beyond_the_time_of_landing_is_none(ahead: list[int], quote: str) -> None:
    end = 450000000000001000
    times = [end + number if number in ahead else end - 1 - number for number in range(20)]
    text = "".join(f'"I","parcels","shop",{ts},1,"a","b"\r\n' for ts in times).replace('"', quote)
    expected = [ts if ts < end else problems.NO_COMMIT_TS for ts in times]
    for reader in (at_once,) if not ahead else (contextlib.nullcontext, strictly):
        with reader():
            found = read(text.encode(), options(quote=quote), end_ts=end)
        assert [each["commit_ts"] or each["problem"] for each in found] == expected


@pytest.mark.slow
@pytest.mark.parametrize("bad", [b"garbage", b'"I","parcels","shop",5,1,"never closed,"b"'])
def test_one_bad_record_does_not_make_the_others_slow(bad: bytes) -> None:
    """Only what is near it is read record by record."""
    good = GOOD[0] + b"\r\n"
    content = good * 30_000 + bad + b"\r\n" + good * 30_000
    spans: list[int] = []
    rows = csv.strict_rows

    def seen(content: bytes, *of: Any) -> Any:
        spans.append(of[-1] - of[-2])
        return rows(content, *of)

    with patch.object(csv, "strict_rows", seen):
        found = read(content, options())
    assert found[30_000]["problem"] == problems.NOT_CSV
    assert [event["line"] for event in found] == list(range(1, 60_002))
    assert sum(spans) < 300_000 < len(content) / 8


@pytest.mark.parametrize("piece", PIECES)
def test_a_file_that_is_cut_anywhere(piece: int) -> None:
    changes = [Change(TS + n, None, (Bare(str(n)), 'say "hi"\r\n', None)) for n in range(3)]
    encoder = Encoder(options(), NAMES)
    content, whole = encoder.file(changes), list(events(changes, encoder))
    ends = [len(encoder.file(changes[:n])) for n in range(4)]
    for length in range(len(content)):
        found = read(content[:length], options(), piece=piece)
        done = sum(end <= length for end in ends) - 1
        assert found[:done] == whole[:done]
        rest = content[ends[done] : length]
        last = found[done:]
        assert len(last) == bool(rest)
        if rest.rstrip(b"\r\n").endswith(rb",\N"):
            assert last == [whole[done]]  # Only its line end is missing.
        elif rest.endswith((b'\r\n",', b'\r\n",\\')):
            # What is left of NULL is read as a text: nothing in the record shows that more was to come.
            cut = {**whole[done]["after"], "note": rest[rest.rindex(b",") + 1 :].decode()}
            assert last == [whole[done] | {"after": cut}]
        elif rest:
            assert last[0]["problem"] and last[0]["value"] in (rest, rest.rstrip(b"\r\n"))


def test_options_that_are_not_the_file_s() -> None:
    """Each line is a bad record: not the file one record, however long."""
    content = (GOOD[0] + b"\r\n") * 1000
    for wrong in ({"quote": "'"}, {"delimiter": "|"}, {"quote": ""}, {"output_old_value": True}):
        found = read(content, options(**wrong))
        assert len(found) == 1000
        assert all(event["problem"] and event["value"] == GOOD[0] for event in found)


def test_updates_of_two_rows() -> None:
    def row(op: str, is_update: str, number: int, stamp: int = 5, table: str = "t") -> bytes:
        return f'"{op}","{table}","d",{stamp},{is_update},{number}\n'.encode()

    content = b"".join([
        row("D", "true", 1), row("I", "true", 2),
        row("D", "true", 3), row("D", "true", 4), row("I", "true", 5), row("I", "true", 6),
        row("D", "false", 7), row("I", "true", 8), row("D", "true", 9), row("I", "false", 10),
        row("D", "true", 11), row("I", "true", 12, stamp=6), row("D", "true", 13), row("I", "true", 14, table="u"),
        row("D", "true", 15), b"garbage\n", row("I", "true", 16), row("U", "true", 17),
        row("I", "true", 18), row("D", "true", 19),
    ])  # fmt: skip
    for piece in (32, 64, 100, 1 << 20):
        found = read(content, options(output_old_value=True), ["n"], piece=piece, of=("d", "t"))
        assert [(e["line"], e["op"], (e["before"] or {}).get("n"), (e["after"] or {}).get("n")) for e in found] == [
            (1, "U", "1", "2"),
            (3, "D", "3", None), (4, "U", "4", "5"), (6, "I", None, "6"),
            (7, "D", "7", None), (8, "I", None, "8"), (9, "D", "9", None), (10, "I", None, "10"),
            (11, "D", "11", None), (12, "I", None, "12"), (13, "D", "13", None), (14, None, None, None),
            (15, "D", "15", None), (16, None, None, None), (17, "I", None, "16"), (18, "U", None, "17"),
            (19, "I", None, "18"), (20, "D", "19", None),
        ]  # fmt: skip


def test_records_of_another_table() -> None:
    def row(op: str, table: str, database: str, number: int) -> bytes:
        return f'"{op}","{table}","{database}",5,true,{number}\n'.encode()

    content = b"".join([
        row("I", "t", "d", 1), row("I", "u", "d", 2), row("D", "t", "e", 3), row("D", "T", "d", 4),
        row("I", "T", "d", 5), row("U", "t", "d", 6),
    ])  # fmt: skip
    wrong = dict.fromkeys(DECODED.names) | {"problem": problems.WRONG_TABLE}
    found = read(content, options(output_old_value=True), ["n"], of=("d", "t"))
    assert [each["after"] for each in found] == [{"n": "1"}, None, None, None, {"n": "6"}]
    assert found[1:4] == [
        wrong | {"line": 2, "value": {"before": None, "after": {"n": "2"}}},
        wrong | {"line": 3, "value": {"before": {"n": "3"}, "after": None}},
        wrong | {"line": 4, "value": {"before": {"n": "4"}, "after": {"n": "5"}}},
    ]


def test_images_say_what_the_fields_say() -> None:
    controls = "".join(map(chr, range(0x20))) + "\x7f"
    texts = ["", '"', "\\", "/", "a\0b", controls, "😀é\u2028", "null", "1", "{}", '"x"', None]
    names = ["a", 'q"uote', "d.ot", "sl/ash", "ap'os", "back\\", " ", "$", "\x01", "n\0ul", "é😀", "0", "op"]
    rows: list[Row] = [tuple(texts[(row + at) % len(texts)] for at in range(len(names))) for row in range(len(texts))]
    changes = [Change(TS, None, row) for row in rows]
    encoder = Encoder(options(), names)
    assert read(encoder.file(changes), options(), names) == list(events(changes, encoder))


# Every delimiter, and every quote with a delimiter of one byte and one of several.
@pytest.mark.parametrize(
    ("quote", "delimiter"), [('"', ","), ('"', "|#|"), ("'", " "), ("'", "¦"), ("", "\x00"), ("", "€;"), ("", ",")]
)
def test_sound_files_are_read_at_once(quote: str, delimiter: str) -> None:
    encoder = Encoder(options(quote=quote, delimiter=delimiter, output_field_header=True), NAMES)
    nasty: list[Row] = [
        (Bare("1"), 'say "hi"', "two\r\nlines\\"), (None, delimiter, ""), (Bare("-2"), "\\N", '"'),
        (Bare("3"), "日本語\x00\x1f", delimiter + "\n" + '""'), (Bare("4"), "x" * 300_000, None),
    ]  # fmt: skip
    changes = [Change(TS, None, row) for row in nasty * 3]
    with at_once():
        assert read(encoder.file(changes), encoder.options) == list(events(changes, encoder))


def test_batches_are_bounded() -> None:
    tiny = b'"I","t","d",1,2\n' * 200_000
    batches = list(decode(connection(), tiny, FileContext("d", "t", options(), Layout(("n",)))))
    assert sum(batch.num_rows for batch in batches) == 200_000
    assert max(batch.num_rows for batch in batches) <= 65_536
    names = tuple(f"column_{number}_of_a_wide_table" for number in range(1000))
    wide = (b'"I","t","d",1' + b",\\N" * 1000 + b"\n") * 5000
    batches = list(decode(connection(), wide, FileContext("d", "t", options(), Layout(names))))
    assert sum(batch.num_rows for batch in batches) == 5000
    assert max(batch.nbytes for batch in batches) < 64 * 1024 * 1024


def test_files_with_nothing_in_them() -> None:
    assert read(b"", options()) == read(b"\r\n\n\r\r\n", options()) == []
    header = Encoder(options(output_field_header=True), ['q"uote', "b"]).header()
    assert read(header, options()) == read(header.rstrip(), options()) == []
    assert [e["line"] for e in read(b"\n\n" + GOOD[0] + b"\n\r\n\n" + GOOD[1], options())] == [1, 2]


def test_a_header_is_skipped_whatever_the_options_say() -> None:
    content = Encoder(options(output_field_header=True), ['q"uote', "b\\", "c"]).header() + GOOD[0]
    for quote in ('"', ""):
        found = read(content, options(quote=quote))
        assert [(event["line"], event["problem"] is None) for event in found] == [(2, quote == '"')]


def test_first_row() -> None:
    header = Encoder(options(output_field_header=True), NAMES).header()
    fields = ["D", "parcels", "shop", "450000000000000002", "2", "c\r\n", None]
    content = header + GOOD[1] + b"\r\n" + GOOD[0] + b"\r\n"
    assert first_row(content, options(), whole=True) == fields
    assert first_row(header + GOOD[1], options(), whole=True) == fields
    end = len(header + GOOD[1])
    for length in range(len(content)):
        assert first_row(content[:length], options(), whole=False) == (fields if length > end else None)
    assert first_row(header, options(), whole=True) is None
    assert first_row(b"", options(), whole=True) is None


def test_header_names() -> None:
    header = Encoder(options(output_field_header=True, delimiter="|#|"), ["id", 'q"']).header()
    names = ["ticdc-meta$operation", "ticdc-meta$table", "ticdc-meta$schema", "ticdc-meta$commit-ts", "id", 'q"']
    assert header_names(header + GOOD[0], options(delimiter="|#|")) == names
    assert header_names(GOOD[0], options()) is None
    # What has only been read in part, or is not UTF-8.
    assert header_names(header.rstrip(), options(delimiter="|#|")) is None
    assert header_names(header.replace(b"id", b"\xff") + GOOD[0], options(delimiter="|#|")) is None


def test_first_row_passes_over_what_is_not_a_row() -> None:
    bad = b'"I","parcels","never closed\r\n"I","a\xff",1\r\n'
    assert first_row(bad + b'"I",1\r\n', options(), whole=False) == ["I", "1"]
    assert first_row(bad, options(), whole=True) is None
    assert first_row(b"I,a\\,b,\\N,\\\\N\n", options(quote=""), whole=False) == ["I", "a,b", None, "\\N"]
