"""Delimited text of dumps, rule by rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.files import dump_records
from cdc_lakehouse.decoders.files.dump_rows import decode_rows
from cdc_lakehouse.decoders.files.dump_text_strict import TextRecordReader
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.notation import TextNotation
from tests.decoders.dump_reading import PIECES, at_once, context, images, read, strictly
from tests.kit.cases import shown
from tests.kit.duckdb_sql import connection

TWO = {"id": ColumnType.of("int"), "name": ColumnType.of("varchar", length=20)}
CSV = TextNotation(tuple(TWO))
RAW = replace(CSV, backslash_escapes=False)
TABS = replace(CSV, separator=b"\t", quote=b"", terminator=b"\n")

SOUND: list[tuple[TextNotation, bytes, list[str | None]]] = [
    (CSV, b'1,"lamp"\r\n', ["1", "lamp"]),
    (CSV, b'1,"lamp"', ["1", "lamp"]),
    (CSV, b"1,lamp\r\n", ["1", "lamp"]),
    (CSV, b'1,""\r\n', ["1", ""]),
    (CSV, b"1,\r\n", ["1", ""]),
    (CSV, rb"1,\N" + b"\r\n", ["1", None]),
    (CSV, rb'1,"\\N"' + b"\r\n", ["1", r"\N"]),
    (CSV, rb"1,\\N" + b"\r\n", ["1", r"\N"]),
    (CSV, rb'1,"\N"' + b"\r\n", ["1", "N"]),
    (CSV, rb'1,"\0\b\n\r\t\Z\\\"\'\q"' + b"\r\n", ["1", "\0\b\n\r\t\x1a\\\"'q"]),
    (CSV, b'1,"a\nb"\r\n', ["1", "a\nb"]),
    (CSV, b"1,a\nb\r\n", ["1", "a\nb"]),
    (CSV, rb"1,a\,b" + b"\r\n", ["1", "a,b"]),
    (CSV, b'1,"a\\\r\nb"\r\n', ["1", "a\r\nb"]),
    (CSV, '1,"größe 日本"\r\n'.encode(), ["1", "größe 日本"]),
    (CSV, b'\xef\xbb\xbf1,"a"\r\n', ["\ufeff1", "a"]),
    (RAW, rb'1,"\N"' + b"\r\n", ["1", r"\N"]),
    (RAW, rb"1,\N" + b"\r\n", ["1", None]),
    (RAW, b'1,"say ""hi""\r\nto\rall\n"\r\n', ["1", 'say "hi"\r\nto\rall\n']),
    (RAW, b'1,"a\\"\r\n', ["1", "a\\"]),
    (replace(RAW, terminator=b"\n"), b"1,a\r\n", ["1", "a\r"]),
    (replace(RAW, null=b""), b'1,\r\n2,""\r\n', ["1", None, "2", ""]),
    (replace(CSV, null=b"NULL"), b'1,NULL\r\n2,"NULL"\r\n', ["1", None, "2", "NULL"]),
    (replace(CSV, separator=b"|#|"), rb'1|#|"a|#|b"' + b"\r\n", ["1", "a|#|b"]),
    (replace(CSV, separator=b"|#|", quote=b""), rb"1|#|a\|#|b" + b"\r\n", ["1", "a|#|b"]),
    (replace(CSV, separator="¦".encode(), quote=b"''"), "1¦''it's''\r\n".encode(), ["1", "it's"]),
    (replace(CSV, terminator=b"|"), b'1,"a|b"|2,"c"|', ["1", "a|b", "2", "c"]),
    (replace(CSV, terminator=b"|#"), rb'1,"a|#\"b|"|#2,"#"|#', ["1", 'a|#"b|', "2", "#"]),
    (replace(RAW, terminator=b"|"), b'1,"a|""b"|2,"c"|', ["1", 'a|"b', "2", "c"]),
    (TABS, rb"1	a\tb\\n\n\	" + b"\n", ["1", "a\tb\\n\n\t"]),
    (TABS, b'1\t"a"\n2\t\\N\n', ["1", '"a"', "2", None]),
    (TABS, b"1\ta\\\nb\n", ["1", "a\nb"]),
    (TABS, b"1\ta\rb\n", ["1", "a\rb"]),
]  # fmt: skip


@pytest.mark.parametrize(("notation", "content", "texts"), SOUND, ids=shown)
def test_a_sound_row(notation: TextNotation, content: bytes, texts: list[str | None]) -> None:
    expected = [dict(zip(TWO, texts[at : at + 2], strict=True)) for at in range(0, len(texts), 2)]
    for piece in PIECES:
        assert images(read(content, context(notation, TWO), piece)) == expected
    with strictly():
        assert images(read(content, context(notation, TWO))) == expected


BAD: list[tuple[TextNotation, bytes, str]] = [
    (CSV, b"", problems.FIELD_COUNT),
    (CSV, b"1", problems.FIELD_COUNT),
    (CSV, b'1,"a","b"', problems.FIELD_COUNT),
    (CSV, b'1,"a",', problems.FIELD_COUNT),
    (CSV, b'1,"a"b', problems.NOT_A_DUMP_ROW),
    (CSV, b'1,"a" ', problems.NOT_A_DUMP_ROW),
    (CSV, b'1,a"b"', problems.NOT_A_DUMP_ROW),
    (CSV, b'1,"a""b"', problems.NOT_A_DUMP_ROW),
    (CSV, b'1,"never closed', problems.NOT_A_DUMP_ROW),
    (CSV, b'1,"\xff"', problems.NOT_UTF8),
    (CSV, b'\xfe,"a"', problems.NOT_UTF8),
    (CSV, b'1,"\xed\xa0\x80"', problems.NOT_UTF8),
    (RAW, b'1,"a"b"', problems.NOT_A_DUMP_ROW),
    (RAW, b'1,a"', problems.NOT_A_DUMP_ROW),
    (RAW, b"1", problems.FIELD_COUNT),
    (TABS, b"1", problems.FIELD_COUNT),
    (TABS, b"1\ta\tb", problems.FIELD_COUNT),
    (TABS, b"1\t\xff", problems.NOT_UTF8),
]


@pytest.mark.parametrize(("notation", "record", "problem"), BAD, ids=shown)
def test_a_row_that_cannot_be_used(notation: TextNotation, record: bytes, problem: str) -> None:
    assert problem in problems.PROBLEMS
    good = b"7" + notation.separator + b"x"
    content = notation.terminator.join([good, record, good, b""])
    for piece in PIECES:
        before, bad, after = read(content, context(notation, TWO), piece)
        assert bad == dict.fromkeys(DECODED.names) | {"line": 2, "problem": problem, "value": record}
        for event, line in ((before, 1), (after, 3)):
            assert (event["line"], event["op"], event["after"]) == (line, "R", {"id": "7", "name": "x"})


def test_a_backslash_at_the_end_of_the_file_escapes_nothing() -> None:
    assert images(read(b"1,a\r\n2,b\\", context(CSV, TWO)))[1] == problems.NOT_A_DUMP_ROW


def test_a_quote_is_not_closed_where_line_ends_are_text() -> None:
    found = images(read(b'1,"a\r\n2,"b"\r\n3,"c\r\nd"\r\n', context(RAW, TWO)))
    assert found == [problems.NOT_A_DUMP_ROW, {"id": "2", "name": "b"}, {"id": "3", "name": "c\r\nd"}]


def test_the_header_is_no_row() -> None:
    notation = replace(CSV, header=True)
    for content in (b'"id","name"\r\n1,"a"\r\n', b"ID,Name\r\n1,a"):
        for piece in PIECES:
            (event,) = read(content, context(notation, TWO), piece)
            assert (event["line"], event["after"]) == (1, {"id": "1", "name": "a"})
    assert read(b"", context(notation, TWO)) == []


@pytest.mark.parametrize("header", [b'"id","other"', b'"name","id"', b'"id"', b'1,"a"', b'"id","name'])
def test_a_header_of_other_columns(header: bytes) -> None:
    with pytest.raises(SourceError, match="id, name") as raised:
        read(header + b'\r\n1,"a"\r\n', context(replace(CSV, header=True), TWO))
    assert raised.value.table == "shop.parcels"


def test_names_are_those_of_the_table() -> None:
    notation = replace(CSV, columns=("NAME", "ID"))
    assert images(read(b"a,1\r\n", context(notation, TWO))) == [{"name": "a", "id": "1"}]
    with pytest.raises(SourceError, match="other"):
        read(b"a,1\r\n", context(replace(CSV, columns=("id", "other")), TWO))


@pytest.mark.parametrize("header", [True, False])
def test_rows_of_no_columns_are_empty_lines(header: bool) -> None:
    notation = replace(CSV, columns=(), header=header)
    assert images(read(b"\r\n\r\nx\r\n\r\n", context(notation, TWO))) == [{}, {}, problems.FIELD_COUNT, {}]


def test_an_empty_line_is_a_row_of_one_column() -> None:
    notation = replace(CSV, columns=("name",))
    assert images(read(b'a\r\n\r\n""\r\n', context(notation, TWO))) == [{"name": "a"}, {"name": ""}, {"name": ""}]


@pytest.mark.parametrize(("size", "piece"), [(1, 32), (7, 32), (100, 1 << 20), (5000, 64)])
def test_a_record_that_is_too_long(size: int, piece: int) -> None:
    for notation in (CSV, RAW):
        for long in (b'2,"' + b"x" * 300 + b'"', b"2," + b"y" * 101, b'2,"' + b"z" * 400):
            content = b"1,a\r\n" + long + b"\r\n3,b\r\n"
            parts = [content[at : at + size] for at in range(0, len(content), size)]
            with patch.object(dump_records, "RECORD_LIMIT", 100), patch.object(problems, "RAW_LIMIT", 50):
                good, bad, after = read(parts, context(notation, TWO), piece)
            assert (good["after"], after["after"]) == ({"id": "1", "name": "a"}, {"id": "3", "name": "b"})
            assert (bad["problem"], bad["value"], after["line"]) == (problems.NOT_A_DUMP_ROW, long[:50], 3)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("text", [b"a\\b", b'\\"\\\\', b'""a', b"a\r;,", b"x" * 9])
def test_text_of_any_length_is_read_once(text: bytes, closed: bool) -> None:
    """Were it tried again from each of its bytes, this would not end."""
    long = text * 200_000
    for notation in (replace(CSV, terminator=b"\r\n"), RAW):
        if (b'""' in text) is notation.backslash_escapes:
            continue
        content = b'"' + long + (b'"\r\n' if closed else b"")
        found = TextRecordReader(notation).record(content, 0, True)
        if not closed:
            assert found.cells is None
        elif notation.backslash_escapes or b"\\" not in text:
            assert found.cells is not None and found.following == len(content)
            assert len(found.cells[0] or b"") == 200_000 * len(re.sub(rb'\\(.)|""', b"-", text))


def test_a_file_is_read_piece_by_piece() -> None:
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield b'%d,"%s"\r\n' % (number, b"x" * 1000)

    batches = decode_rows(connection(), pieces(), context(CSV, TWO), piece=4096)
    next(batches)
    assert taken < 10
    assert sum(batch.num_rows for batch in batches) > 80 and taken == 100


def test_a_time_is_shown_in_the_feeds_zone_beside_any_bytes() -> None:
    columns = TWO | {"at": ColumnType.of("timestamp"), "data": ColumnType.of("blob")}
    data = bytes(set(range(1, 256)) - set(b'"\\\r\n'))
    content = b'1,\\N,"2024-05-01 08:00:00","' + data + b'"\r\n2,x"\r\n'
    found = read(content, context(replace(CSV, columns=tuple(columns)), columns, zones=("+08:00", "UTC")))
    assert found[0]["after"] == {
        "id": "1", "name": None, "at": "2024-05-01 00:00:00", "data": data.decode("latin-1"),
    }  # fmt: skip


def test_usual_rows_are_read_at_once() -> None:
    rows = b"".join(rb'%d,"it\'s\\ \"%d\"\n",\N' % (number, number) + b"\r\n" for number in range(2000))
    columns = TWO | {"note": ColumnType.of("text")}
    with at_once():
        found = read(rows, context(replace(CSV, columns=tuple(columns)), columns))
    assert images(found)[5] == {"id": "5", "name": 'it\'s\\ "5"\n', "note": None}


VALUES: list[tuple[ColumnType, bytes, dict[str, Any], str | None]] = [
    (ColumnType.of("blob"), b"\xff\x00a", {}, "ÿ\0a"),
    (ColumnType.of("blob"), b"\xff\x00a", {"binary": "base64"}, "/wBh"),
    (ColumnType.of("varbinary"), b"\xff\x00a", {"binary": "hex"}, "ff0061"),
    (ColumnType.of("point"), b"\xff\x00a", {"binary": "base64"}, "ÿ\0a"),
    (ColumnType.of("bit", length=12), b"\x01\x02", {}, "258"),
    (ColumnType.of("bit", length=64), b"\xff" * 8, {}, "18446744073709551615"),
    (ColumnType.of("bit", length=64), b"\xff" * 9, {}, None),
    (ColumnType.of("enum", elements=("a", "b,c")), b"b,c", {}, "2"),
    (ColumnType.of("enum", elements=("a", "b,c")), b"b,c", {"labels": True}, "b,c"),
    (ColumnType.of("enum", elements=("a", "b")), b"", {}, "0"),
    (ColumnType.of("enum", elements=("a", "")), b"", {}, "2"),
    (ColumnType.of("enum", elements=("a", "b")), b"c", {}, None),
    (ColumnType.of("enum", elements=("a", "b")), b"A", {}, None),
    (ColumnType.of("set", elements=("a", "b", "c")), b"a,c", {}, "5"),
    (ColumnType.of("set", elements=("a", "b", "c")), b"", {}, "0"),
    (ColumnType.of("set", elements=("a", "b", "c")), b"a,d", {}, None),
    (ColumnType.of("set", elements=("a", "b", "c")), b"a,c", {"labels": True}, "a,c"),
    (ColumnType.of("set", elements=tuple(map(str, range(64)))), b"63", {}, str(2**63)),
    (ColumnType.of("decimal", length=65, scale=2), b"-12345678901234567890.10", {}, "-12345678901234567890.10"),
    (ColumnType.of("json"), b"{}", {}, "{}"),
    (ColumnType.of("time"), b"-838:59:59", {}, "-838:59:59"),
    (ColumnType.of("date"), b"0000-00-00", {}, "0000-00-00"),
]


@pytest.mark.parametrize(("column", "cell", "options", "text"), VALUES, ids=shown)
def test_values_are_as_the_feed_has_them(
    column: ColumnType, cell: bytes, options: dict[str, Any], text: str | None
) -> None:
    columns = {"v": column}
    notation = replace(CSV, columns=("v",), quote=b'"', backslash_escapes=False)
    content = b'"%s"\r\n' % cell
    expected = [problems.NOT_A_VALUE if text is None else {"v": text}]
    assert images(read(content, context(notation, columns, **options))) == expected
    with strictly():
        assert images(read(content, context(notation, columns, **options))) == expected


@pytest.mark.parametrize(
    ("encoding", "cell", "text"),
    [
        ("hex", b"00Ff", "\0ÿ"),
        ("hex", b"0", None),
        ("hex", b"0g", None),
        ("base64", b"AP8=", "\0ÿ"),
        ("base64", b"AP\n8=", "\0ÿ"),
        ("base64", b"AP8", None),
        ("base64", b"A=P8", None),
    ],
)
def test_binary_values_that_are_written_as_text(encoding: Any, cell: bytes, text: str | None) -> None:
    columns = {"v": ColumnType.of("blob"), "w": ColumnType.of("blob")}
    content = b'"%s","00"\n' % cell
    notation = TextNotation(("v", "w"), terminator=b"\n", backslash_escapes=False, encoded={"V": encoding})
    expected = [problems.NOT_A_VALUE if text is None else {"v": text, "w": "00"}]
    assert images(read(content, context(notation, columns))) == expected
    with strictly():
        assert images(read(content, context(notation, columns))) == expected


@pytest.mark.parametrize(
    ("zones", "text", "expected"),
    [
        (("+08:00", "UTC"), "2024-05-01 08:00:00", "2024-05-01 00:00:00"),
        (("UTC", "Asia/Tokyo"), "2024-05-01 20:30:00.120", "2024-05-02 05:30:00.120"),
        (("UTC", "+05:30"), "2024-05-01 20:30:00.000001", "2024-05-02 02:00:00.000001"),
        (("Europe/Berlin", "UTC"), "2024-10-27 02:30:00", "2024-10-27 00:30:00"),
        (("UTC", "Europe/Berlin"), "2024-10-27 00:30:00", "2024-10-27 02:30:00"),
        # Clocks show it for the second time.
        (("UTC", "Europe/Berlin"), "2024-10-27 01:30:00.12", "2024-10-27 01:30:00.12+00:00"),
        (("+08:00", "Europe/Berlin"), "2024-10-27 09:30:00", "2024-10-27 01:30:00+00:00"),
        (("Europe/Berlin", "UTC"), "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        (("Europe/Berlin", "UTC"), "0000-00-00 00:00:00.000", "0000-00-00 00:00:00.000"),
        (("Europe/Berlin", "UTC"), "2024-02-30 10:00:00", "2024-02-30 10:00:00"),
        (("Europe/Berlin", "Europe/Berlin"), "2024-10-27 02:30:00", "2024-10-27 02:30:00"),
    ],
)
def test_moments_go_from_the_zone_of_the_dump_to_that_of_the_feed(
    zones: tuple[str, str], text: str, expected: str
) -> None:
    columns = {"t": ColumnType.of("timestamp"), "d": ColumnType.of("datetime")}
    content = f'"{text}","{text}"\r\n\\N,\\N\r\n'.encode()
    found = images(read(content, context(TextNotation(("t", "d")), columns, zones=zones)))
    assert found == [{"t": expected, "d": text}, {"t": None, "d": None}]
