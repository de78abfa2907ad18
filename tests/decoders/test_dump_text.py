"""Delimited text of dumps, rule by rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.formats import dump_values
from cdc_lakehouse.decoders.formats.dump import decode_rows
from cdc_lakehouse.decoders.text.strict import TextRecordReader
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import TextNotation
from tests.decoders.dump_reading import at_once, context, images, read
from tests.kit.duckdb_sql import connection

TWO = {"id": ColumnType.of("int"), "name": ColumnType.of("varchar", length=20)}
CSV = TextNotation(tuple(TWO))
RAW = replace(CSV, backslash_escapes=False)


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


@pytest.mark.parametrize(("size", "piece"), [(1, 32), (7, 32), (100, 1 << 20), (5000, 64)])
def test_a_record_that_is_too_long(size: int, piece: int) -> None:
    for notation in (CSV, RAW):
        for long in (b'2,"' + b"x" * 300 + b'"', b"2," + b"y" * 101, b'2,"' + b"z" * 400):
            content = b"1,a\r\n" + long + b"\r\n3,b\r\n"
            parts = [content[at : at + size] for at in range(0, len(content), size)]
            with patch.object(dump_values, "RECORD_LIMIT", 100), patch.object(problems, "RAW_LIMIT", 50):
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
