"""INSERT statements of dumps, rule by rule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.formats import dump_insert, dump_values
from cdc_lakehouse.decoders.formats.dump_insert import InsertRecordReader, NotSoundError
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import InsertNotation
from tests.decoders.dump_reading import PIECES, at_once, context, eagerly, images, read, strictly

TWO = {"id": ColumnType.of("int"), "name": ColumnType.of("varchar", length=20)}
ESCAPES = InsertNotation(tuple(TWO))
DOUBLED = InsertNotation(tuple(TWO), backslash_escapes=False)


def agreed(content: bytes, of: Any) -> list[dict[str, Any]]:
    """The events, by each reader and at any size of pieces."""
    with strictly():
        expected = read(content, of)
    with eagerly():
        for piece in PIECES:
            assert read(content, of, piece) == expected
    return expected


def test_the_columns_that_a_statement_lists_are_its_own() -> None:
    content = (
        b"INSERT INTO parcels (name) VALUES ('a');\nINSERT INTO parcels (name, id) VALUES ('b',2),('c',3);\n"
        b"INSERT INTO parcels VALUES (4,'d');\n"
    )
    expected = [{"name": "a"}, {"name": "b", "id": "2"}, {"name": "c", "id": "3"}, {"id": "4", "name": "d"}]
    events = agreed(content, context(ESCAPES, TWO))
    assert (images(events), [event["line"] for event in events]) == (expected, [1, 2, 3, 4])
    with pytest.raises(SourceError, match="other"):
        read(b"INSERT INTO parcels (id, other) VALUES (1,2);\n", context(ESCAPES, TWO))


def test_rows_with_values_of_generated_columns_have_all_columns() -> None:
    """`name` is generated: the statements list no names, and have its values or not."""
    notation = InsertNotation(("id",))
    content = b"INSERT INTO parcels VALUES (1,'a'),(2,'b');\nINSERT INTO parcels VALUES (3),(4);\n"
    content += b"INSERT INTO parcels (id) VALUES (5);\nINSERT INTO parcels VALUES (6,'c'),(7);\n"
    expected = [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}, {"id": "3"}, {"id": "4"}, {"id": "5"}]
    assert images(agreed(content, context(notation, TWO))) == [
        *expected, {"id": "6", "name": "c"}, problems.FIELD_COUNT,
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "piece"), [(1, 32), (7, 32), (100, 1 << 20), (5000, 64)])
def test_a_row_that_is_too_long(size: int, piece: int) -> None:
    for long in (b"(2,'" + b"x" * 300 + b"')", b"(2,'" + b"y" * 100 + b"'", b"(2" + b" " * 200 + b")"):
        content = b"INSERT INTO parcels VALUES\n(1,'a'),\n" + long + b",\n(3,'b');\n"
        parts = [content[at : at + size] for at in range(0, len(content), size)]
        with patch.object(dump_values, "RECORD_LIMIT", 100), patch.object(problems, "RAW_LIMIT", 50):
            good, bad, after = read(parts, context(ESCAPES, TWO), piece)
        assert (good["after"], after["after"]) == ({"id": "1", "name": "a"}, {"id": "3", "name": "b"})
        assert (bad["problem"], bad["value"], after["line"]) == (problems.NOT_A_DUMP_ROW, long[:50], 3)


@pytest.mark.parametrize("text", [rb"\'", b"''", b"ab''", b"x" * 9])
def test_strings_of_any_length_are_read_once(text: bytes) -> None:
    """Were they tried again from each of their bytes, this would not end."""
    reader, long = InsertRecordReader(backslash_escapes=True), b"('" + text * 200_000
    (cell,) = reader.row(long + b"');", 0, True).cells
    assert len(cell or b"") == 200_000 * len(re.sub(rb"\\'|''", b"'", text))
    with pytest.raises(NotSoundError):
        reader.row(long, 0, True)


@pytest.mark.parametrize(
    "head",
    ["INSERT INTO t{}", "INSERT INTO t ({}", "INSERT{}", "INSERT INTO t (a,{} b", "SET {}"],
)
@pytest.mark.parametrize("filler", [" ", "``", '""', "'", r"\'", "`a`,", "(", "a", "/*"])
def test_the_head_of_a_statement_is_read_once(head: str, filler: str) -> None:
    content = head.format(filler * 200_000).encode()
    with pytest.raises(NotSoundError):
        InsertRecordReader(backslash_escapes=True).head(content, 0, True)


@pytest.mark.parametrize("gap", [b",\n", b"\n,", b","])
@pytest.mark.parametrize("cell", [b"x'00ff'", b"_binary '\xff\\0'", b"CONVERT('\xff' USING UTF8MB4)", b"'\xff'"])
def test_usual_rows_are_read_at_once(gap: bytes, cell: bytes) -> None:
    columns = TWO | {"data": ColumnType.of("blob")}
    rows = gap.join(rb"(%d,'it\'s \"%d\"\n',%s)" % (number, number, cell) for number in range(2000))
    content = b"/*!40101 SET NAMES binary*/;\nINSERT INTO `parcels` VALUES\n" + rows + b";\n"
    with at_once():
        found = read(content, context(InsertNotation(tuple(columns)), columns, binary="hex"))
    data = "00ff" if b"x'" in cell else "ff00" if b"_b" in cell else "ff"
    assert images(found)[5] == {"id": "5", "name": 'it\'s "5"\n', "data": data}
    assert len(found) == 2000


@pytest.mark.parametrize("gap", [b",\n", b"\n,", b","])
@pytest.mark.parametrize("per_statement", [1, 7, 1000])
def test_statements_that_begin_alike_are_read_together(gap: bytes, per_statement: int) -> None:
    rows = [b"(%d,'it''s %d')" % (number, number) for number in range(1000)]
    statements = [gap.join(rows[at : at + per_statement]) for at in range(0, len(rows), per_statement)]
    content = b"".join(b"INSERT INTO `parcels` VALUES\n" + tuples + b";\n" for tuples in statements)
    with at_once(), patch.object(dump_insert, "read_tuples", wraps=dump_insert.read_tuples) as reads:
        found = read(content, context(ESCAPES, TWO))
    assert images(found) == [{"id": str(number), "name": f"it's {number}"} for number in range(1000)]
    assert reads.call_count == 1


@pytest.mark.parametrize("table", ["parcels", "par'cels", "par\\cels"])
@pytest.mark.parametrize("listed", ["", "(`id`,`name`) ", "(`name`,`id`) "])
def test_what_ends_a_statement_may_stand_in_a_text(table: str, listed: str) -> None:
    head = f"INSERT INTO `{table}` {listed}VALUES\n".encode()
    one, other = (b"'2',1", b"'4',3") if listed.startswith("(`name") else (b"1,'2'", b"3,'4'")
    within = b"5,'" + b"x);\n" + head + b"(6'" if b"'" not in head else b"5,'x'"
    content = head + b"(" + one + b");\n" + head + b"(" + other + b"),\n(" + within + b");\n"
    of = replace(context(DOUBLED, TWO), table=table)
    with eagerly():
        found = read(content, of)
    with strictly():
        assert read(content, of) == found
    assert images(found)[:2] == [{"id": "1", "name": "2"}, {"id": "3", "name": "4"}]
