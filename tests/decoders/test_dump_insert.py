"""INSERT statements of dumps, rule by rule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.files import dump_insert, dump_records
from cdc_lakehouse.decoders.files.dump_insert_strict import InsertRecordReader, NotSoundError
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.notation import InsertNotation
from tests.decoders.dump_reading import PIECES, at_once, context, eagerly, images, read, strictly
from tests.kit.cases import shown

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


CELLS: list[tuple[ColumnType, bytes, str | None]] = [
    (ColumnType.of("int"), b"-1", "-1"),
    (ColumnType.of("int"), b"NULL", None),
    (ColumnType.of("int"), b"null", None),
    (ColumnType.of("decimal"), b"0.50", "0.50"),
    (ColumnType.of("double"), b"-1.5e-10", "-1.5e-10"),
    (ColumnType.of("double"), b"+.5E+3", "+.5E+3"),
    (ColumnType.of("varchar"), b"''", ""),
    (ColumnType.of("varchar"), b"'NULL'", "NULL"),
    (ColumnType.of("varchar"), b"'it''s'", "it's"),
    (ColumnType.of("varchar"), b"''''", "'"),
    (ColumnType.of("varchar"), b'"it\'s ""so"""', 'it\'s "so"'),
    (ColumnType.of("varchar"), rb"'\0\b\n\r\t\Z\\\'\"\q\%\_'", "\0\b\n\r\t\x1a\\'\"q\\%\\_"),
    (ColumnType.of("varchar"), b"'),\n(1,'", "),\n(1,"),
    (ColumnType.of("varchar"), b"');\nINSERT'", ");\nINSERT"),
    (ColumnType.of("varchar"), "'日本'".encode(), "日本"),
    (ColumnType.of("varchar"), b"x'C3A9'", "é"),
    (ColumnType.of("varchar"), b"_binary 'a'", "a"),
    (ColumnType.of("json"), rb"CONVERT('{\"a\": 1}' USING UTF8MB4)", '{"a": 1}'),
    (ColumnType.of("json"), b"CONVERT('[''x'']' USING UTF8MB4)", "['x']"),
    (ColumnType.of("blob"), b"x''", ""),
    (ColumnType.of("blob"), b"x'00fF'", "\0ÿ"),
    (ColumnType.of("blob"), b"X'00fF'", "\0ÿ"),
    (ColumnType.of("blob"), b"0x00fF", "\0ÿ"),
    (ColumnType.of("blob"), b"0xFFF", "\x0fÿ"),
    (ColumnType.of("blob"), b"b'100000001'", "\x01\x01"),
    (ColumnType.of("blob"), b"_binary '\xff\\0'", "ÿ\0"),
    (ColumnType.of("blob"), b"'\xff''\\''", "ÿ''"),
    (ColumnType.of("blob"), b"7", "7"),
    (ColumnType.of("point"), b"x'00fF'", "\0ÿ"),
    (ColumnType.of("bit"), b"x'0102'", "258"),
    (ColumnType.of("bit"), b"0x0102", "258"),
    (ColumnType.of("bit"), b"b'101'", "5"),
    (ColumnType.of("bit"), b"0b101", "5"),
    (ColumnType.of("bit"), b"7", "7"),
    (ColumnType.of("bit"), b"'7'", "55"),
    (ColumnType.of("bit"), rb"_binary '\0\n'", "10"),
    (ColumnType.of("enum", elements=("a", "b'c")), b"'b''c'", "2"),
    (ColumnType.of("timestamp"), b"'2024-05-01 08:00:00'", "2024-05-01 08:00:00"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cell", "text"), CELLS, ids=shown)
def test_a_value(column: ColumnType, cell: bytes, text: str | None) -> None:
    of = context(InsertNotation(("id", "v")), {"id": ColumnType.of("int"), "v": column})
    content = b"INSERT INTO `parcels` VALUES\n(1,%s),\n(2,NULL),\n(3,%s);\n" % (cell, cell)
    assert images(agreed(content, of)) == [{"id": "1", "v": text}, {"id": "2", "v": None}, {"id": "3", "v": text}]


BAD: list[tuple[bytes, str]] = [
    (b"(1)", problems.FIELD_COUNT),
    (b"()", problems.FIELD_COUNT),
    (b"(1,'a',2)", problems.FIELD_COUNT),
    (b"(1,)", problems.NOT_A_DUMP_ROW),
    (b"(1,,'a')", problems.NOT_A_DUMP_ROW),
    (b"(1,a)", problems.NOT_A_DUMP_ROW),
    (b"(1,'a' 'b')", problems.NOT_A_DUMP_ROW),
    (b"(1,'a'b)", problems.NOT_A_DUMP_ROW),
    (b"(1,'a'x'')", problems.NOT_A_DUMP_ROW),
    (b"(1,NULLL)", problems.NOT_A_DUMP_ROW),
    (b"(NUL,'a')", problems.NOT_A_DUMP_ROW),
    (b"(1.2.3,'a')", problems.NOT_A_DUMP_ROW),
    (b"(1e5.0,'a')", problems.NOT_A_DUMP_ROW),
    (b"(1e5e5,'a')", problems.NOT_A_DUMP_ROW),
    (b"(--1,'a')", problems.NOT_A_DUMP_ROW),
    (b"(1-1,'a')", problems.NOT_A_DUMP_ROW),
    (b"(1,x'1')", problems.NOT_A_DUMP_ROW),
    (b"(1,x'1g')", problems.NOT_A_DUMP_ROW),
    (b"(1,b'12')", problems.NOT_A_DUMP_ROW),
    (b"(1,0x)", problems.NOT_A_DUMP_ROW),
    (b"(1,NOW())", problems.NOT_A_DUMP_ROW),
    (b"(1,CONVERT('a' USING latin1))", problems.NOT_A_DUMP_ROW),
    (b"((1),'a')", problems.NOT_A_DUMP_ROW),
    (b"(1,'a'))", problems.NOT_A_DUMP_ROW),
    (b"(1,'a') (2,'b')", problems.NOT_A_DUMP_ROW),
    (b"(1,'never closed)", problems.NOT_A_DUMP_ROW),
    (b"1,'a'", problems.NOT_A_DUMP_ROW),
    (b"(x'31','a')", problems.NOT_A_VALUE),
    (b"(1,'\xff')", problems.NOT_UTF8),
    (b"(1,x'ff')", problems.NOT_UTF8),
]


@pytest.mark.parametrize(("row", "problem"), BAD, ids=shown)
def test_a_row_that_cannot_be_used(row: bytes, problem: str) -> None:
    content = b"INSERT INTO `parcels` VALUES\n(6,'x'),\n%s,\n(7,'y');\n" % row
    for notation in (ESCAPES, DOUBLED):
        before, bad, after = agreed(content, context(notation, TWO))
        assert bad | {"value": None} == dict.fromkeys(DECODED.names) | {"line": 2, "problem": problem}
        assert bad["value"].removesuffix(b",") == row
        assert (before["line"], before["after"]) == (1, {"id": "6", "name": "x"})
        assert (after["line"], after["after"]) == (3, {"id": "7", "name": "y"})


@pytest.mark.parametrize(
    "row", [b"(1,'a',\n,2)", b"(1,\n,'b',2)", b"(1,'a',x'''',2)", b"(1,'a',x'41''42',2)", b"(1,NULL,NUL,2)"]
)
@pytest.mark.parametrize("gap", [b",\n", b"\n,", b","])
def test_a_row_that_looks_nearly_right(row: bytes, gap: bytes) -> None:
    columns = {**TWO, "data": ColumnType.of("blob"), "n": ColumnType.of("int")}
    sound = b"(5,'it''s',x'4142',6)"
    found = agreed(
        b"INSERT INTO `parcels` VALUES\n%s;\n" % gap.join([sound, row, sound]),
        context(InsertNotation(tuple(columns)), columns),
    )
    assert images(found[:1]) == [{"id": "5", "name": "it's", "data": "AB", "n": "6"}]
    assert found[1]["problem"] == problems.NOT_A_DUMP_ROW


def test_without_escapes_a_backslash_is_one() -> None:
    content = rb"INSERT INTO parcels VALUES (1,'a\'),(2,'it''s \n');" + b"\n"
    expected = [{"id": "1", "name": "a\\"}, {"id": "2", "name": "it's \\n"}]
    assert images(agreed(content, context(DOUBLED, TWO))) == expected


def test_text_in_the_character_set_of_its_column() -> None:
    texts = [
        ("latin1", b"caf\xe9 \x80", "café €"), ("gbk", b"\xd6\xd0\x81\\\\", "中\u4e57"),
        ("greek", b"\xe1\xa1", "α\u02bd"), ("geostd8", b"abc", "abc"),
    ]  # fmt: skip
    for charset, value, text in texts:
        columns = {**TWO, "name": replace(TWO["name"], charset=charset)}
        content = b"INSERT INTO `parcels` VALUES\n(1,'%s'),\n(2,'plain');\n" % value
        of = context(InsertNotation(tuple(columns), own_charsets=True), columns)
        assert images(agreed(content, of)) == [{"id": "1", "name": text}, {"id": "2", "name": "plain"}]
        (bad, _) = agreed(content.replace(value, value if charset == "latin1" else b"\xff\xff"), of)
        assert bad["problem"] == (None if charset == "latin1" else problems.NOT_IN_CHARSET)


HARMLESS = [
    b"", b"\n\n", b"-- INSERT INTO parcels VALUES (9,'no');\n", b"--\n", b"# no;\n", b"/* (9,'no'); */\n", b";",
    b"/*!40101 SET NAMES binary*/;\n", b"/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n", b"SET SQL_MODE='A;B', x = \";\";\n",
    b"/*!40103 SET TIME_ZONE='+00:00' */;\n", b"LOCK TABLES `parcels` WRITE;\n", b"UNLOCK TABLES;\n", b"USE `shop`;\n",
    b"/*!40000 ALTER TABLE `parcels` DISABLE KEYS */;\n", b"ALTER TABLE `shop`.`parcels` ENABLE KEYS;\n",
    b"START TRANSACTION;\n", b"BEGIN;\n", b"COMMIT;\n",
]  # fmt: skip


@pytest.mark.parametrize("statement", HARMLESS, ids=shown)
def test_what_changes_no_row_is_skipped(statement: bytes) -> None:
    row = b"INSERT INTO parcels VALUES (1,'a');\n"
    events = agreed(statement + row + statement + row + statement, context(ESCAPES, TWO))
    assert [(event["line"], event["problem"]) for event in events] == [(1, None), (2, None)]


@pytest.mark.parametrize(
    "statement",
    [
        b"DELETE FROM parcels;\n", b"UPDATE parcels SET id = 1;\n", b"TRUNCATE parcels;\n", b"DROP TABLE parcels;\n",
        b"/*!50000 DELETE FROM parcels */;\n", b"/*!INSERT INTO parcels VALUES (9,'x') */;\n", b"garbage\n", b"\xff\n",
        b"ALTER TABLE parcels DROP COLUMN id;\n", b"INSERT INTO parcels SELECT 1;\n", b"INSERT INTO VALUES (1,'a');\n",
        b"INSERT INTO parcels SET id = 1;\n", b"/* never closed\n", b"SET x = 'never closed;\n",
    ],
    ids=shown,
)  # fmt: skip
def test_another_statement_is_one_bad_record(statement: bytes) -> None:
    row = b"INSERT INTO parcels VALUES\n(1,'a');\n"
    events = agreed(row + statement + row, context(ESCAPES, TWO))
    assert [event["problem"] for event in events] == [None, problems.NOT_A_DUMP_ROW, None]
    assert events[1]["value"] == statement.rstrip()


@pytest.mark.parametrize(
    "head",
    [
        b"INSERT INTO `parcels` VALUES\n", b"insert into parcels values", b"INSERT IGNORE INTO `parcels` VALUES",
        b"REPLACE INTO `parcels` VALUES(", b"INSERT INTO `shop`.`parcels` VALUES ", b'INSERT INTO "parcels" VALUES ',
        b"INSERT INTO `parcels` (`id`,`name`) VALUES\n", b"INSERT INTO `parcels`(id, NAME)VALUES",
    ],
    ids=shown,
)  # fmt: skip
def test_how_a_statement_begins(head: bytes) -> None:
    content = head.removesuffix(b"(") + b"(1,'a'),(2,'b');\n"
    assert images(agreed(content, context(ESCAPES, TWO))) == [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]


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


def test_rows_of_no_columns() -> None:
    content = b"INSERT INTO parcels VALUES\n(),\n();\nINSERT INTO parcels () VALUES ();\n"
    assert images(agreed(content, context(InsertNotation(()), TWO))) == [{}, {}, {}]


def test_rows_of_another_table() -> None:
    content = b"INSERT INTO other VALUES (1,'a'),(2,'b');\nINSERT INTO `parcels` VALUES (3,'c');\n"
    events = agreed(content, context(ESCAPES, TWO))
    assert images(events) == [problems.WRONG_TABLE, problems.WRONG_TABLE, {"id": "3", "name": "c"}]
    assert events[0]["value"] == b"(1,'a')"
    content = b"INSERT INTO other.parcels VALUES (1,'a');\n"
    assert images(agreed(content, context(ESCAPES, TWO))) == [problems.WRONG_TABLE]


@pytest.mark.parametrize("rest", [b"", b",", b",\n"])
def test_a_file_that_ends_within_a_statement(rest: bytes) -> None:
    events = agreed(b"INSERT INTO parcels VALUES\n(1,'a'),\n(2,'b')" + rest, context(ESCAPES, TWO))
    assert images(events) == [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}, problems.NOT_A_DUMP_ROW]
    assert events[2]["value"] == b""


@pytest.mark.parametrize(("size", "piece"), [(1, 32), (7, 32), (100, 1 << 20), (5000, 64)])
def test_a_row_that_is_too_long(size: int, piece: int) -> None:
    for long in (b"(2,'" + b"x" * 300 + b"')", b"(2,'" + b"y" * 100 + b"'", b"(2" + b" " * 200 + b")"):
        content = b"INSERT INTO parcels VALUES\n(1,'a'),\n" + long + b",\n(3,'b');\n"
        parts = [content[at : at + size] for at in range(0, len(content), size)]
        with patch.object(dump_records, "RECORD_LIMIT", 100), patch.object(problems, "RAW_LIMIT", 50):
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
