"""Directories of mydumper: what is in them, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import BinaryNotation, DumpPosition, InsertNotation, TextNotation
from cdc_lakehouse.sources.dump.mydumper import parse_load_data
from tests.kit import dumps
from tests.kit.dumps import GTID, TSO, dumpling_status, write
from tests.sources.dump.tables import EMPTY, KINDS, ODD, TABLES, content, named, paths, read, replace

ROW_COLUMNS = ("id", "price", "note", "raw")
POSITION = DumpPosition(None, "bin.000003", 4711, GTID)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_whole_dump(tmp_path: Path, suffix: str) -> None:
    dumps.mydumper(tmp_path, TABLES, suffix=suffix, rows_per_file=2)
    dump = read(tmp_path, "mydumper")
    assert dump.position == POSITION and dump.started == "2026-06-10 01:02:03" and dump.left_out == ()
    assert [(table.name.database, table.name.table) for table in dump.tables] == [
        ("sh.op", ODD.name), ("shop", "empty"), ("shop", "kinds"),
    ]  # fmt: skip
    kinds = named(dump, KINDS)
    assert kinds.create_statement == KINDS.create and kinds.rows == 5
    assert paths(kinds) == [f"shop.kinds.{number:05d}.sql{suffix}" for number in range(3)]
    assert {file.notation for file in kinds.files if isinstance(file.notation, InsertNotation)} == {
        InsertNotation(ROW_COLUMNS, own_charsets=True)
    }
    assert content(tmp_path, kinds).count(b"INSERT INTO") == 3
    assert named(dump, EMPTY).files == () and named(dump, EMPTY).rows == 0
    odd = named(dump, ODD)
    assert paths(odd) == [f"mydumper_0.mydumper_1.00000.sql{suffix}"] and odd.rows == 1


@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize(
    ("output", "separator", "quote", "hex_blob", "header"),
    [("LOAD_DATA", b"\t", b"", False, False), ("CSV", b",", b'"', False, True), ("CSV", b",", b'"', True, False)],
)
def test_rows_in_text(
    tmp_path: Path, output: str, separator: bytes, quote: bytes, hex_blob: bool, header: bool, suffix: str
) -> None:
    dumps.mydumper(
        tmp_path, [KINDS, EMPTY], output=output, suffix=suffix, rows_per_file=3, hex_blob=hex_blob, header=header
    )
    kinds = named(read(tmp_path, "mydumper"), KINDS)
    assert paths(kinds) == [f"shop.kinds.0000{number}.dat{suffix}" for number in range(2)]
    for file in kinds.files:
        encoded: dict[str, BinaryNotation] = {"raw": "hex"} if hex_blob else {}
        assert file.notation == TextNotation(
            ROW_COLUMNS, separator, quote, rb"\N", b"\n", header=header, encoded=encoded, own_charsets=True
        )


def test_parts_of_chunks_are_in_order(tmp_path: Path) -> None:
    dumps.mydumper(tmp_path, [EMPTY])
    names = [f"shop.empty.{number}.sql" for number in ("00001", "00001.00001", "00001.00012", "00007", "100000")]
    for name in reversed(names):
        write(tmp_path, name, "INSERT INTO `empty` VALUES\n(1);\n")
    assert paths(read(tmp_path, "mydumper").tables[0]) == names


def test_what_is_no_table_is_left_out_and_told(tmp_path: Path) -> None:
    dumps.mydumper(tmp_path, [EMPTY, ODD])
    for name in ("shop.v-schema.sql", "shop.v-schema-view.sql", "mydumper_0.s-schema-sequence.sql"):
        write(tmp_path, name, "CREATE …")
    write(tmp_path, "shop.empty-schema-triggers.sql", "CREATE TRIGGER …")
    write(tmp_path, "shop-schema-triggers.sql", "CREATE TRIGGER …", ".gz")
    for name in ("not_updated_tables", "metadata.header", "shop.empty-checksum", "shop.empty-metadata"):
        write(tmp_path, name, "1")
    dump = read(tmp_path, "mydumper")
    assert [table.name.table for table in dump.tables] == [ODD.name, "empty"]
    assert dump.left_out == (
        "the sequence `sh.op`.`s`", "the view `shop`.`v`", "triggers of `shop`.`empty`",
        "triggers of the database `shop`",
    )  # fmt: skip


def test_0_10(tmp_path: Path) -> None:
    """It writes the metadata as Dumpling does, one file of a table without a number, and no counts."""
    metadata = (
        "Started dump at: 2026-06-10 01:02:03\n" + dumpling_status("bin.000003", 4711, GTID)
    ) + "Finished dump at: 2026-06-10 01:02:09\n"
    dumps.mydumper(tmp_path, [KINDS, EMPTY], text_metadata=metadata)
    (tmp_path / "shop.kinds.00000.sql").rename(tmp_path / "shop.kinds.sql")
    dump = read(tmp_path, "mydumper")
    assert dump.position == POSITION and dump.started == "2026-06-10 01:02:03"
    assert paths(named(dump, KINDS)) == ["shop.kinds.sql"] and named(dump, KINDS).rows is None
    replace(tmp_path / "metadata", "Finished", "Not finished")
    with pytest.raises(SourceError, match="not finished"):
        read(tmp_path, "mydumper")


@pytest.mark.parametrize(
    ("source", "position"),
    [
        (dumps.SOURCE.replace("# S", "S").replace("# e", "e"), POSITION),
        (f"[master]\nFile = bin.000003\nPosition = 4711\nExecuted_Gtid_Set = {GTID}\n\n", POSITION),
        ("[master]\n# Channel_Name = ''\nFile = bin.7\nPosition = 4\nExecuted_Gtid_Set = \n\n[replication]\nFile = x\n"
         "Position = 9\n", DumpPosition(None, "bin.7", 4, None)),
        (f"[source]\nFile = tidb-binlog\nPosition = {TSO}\nExecuted_Gtid_Set =\n", DumpPosition(tso=TSO)),
        (f'[source]\n# executed_gtid_set = "{GTID}"\n', DumpPosition(gtid=GTID)),
        (f'[source]\n# executed_gtid_set = "{GTID},\n{GTID}"\n# X = 1\n', DumpPosition(gtid=f"{GTID},{GTID}")),
    ],
)  # fmt: skip
def test_positions(tmp_path: Path, source: str, position: DumpPosition) -> None:
    dumps.mydumper(tmp_path, [EMPTY], source=source)
    assert read(tmp_path, "mydumper").position == position


@pytest.mark.parametrize("key", ["empty", "mydumper_0"])
def test_counts_stand_under_the_name_of_the_table_or_of_its_files(tmp_path: Path, key: str) -> None:
    table = dumps.DumpTable("d", "a.b", {"a": "int"}, [(1,), (2,)])
    dumps.mydumper(tmp_path, [table])
    if key == "mydumper_0":
        replace(tmp_path / "metadata", "[`d`.`a.b`]", "[`d`.`mydumper_0`]")
    assert [(each.name.table, each.rows) for each in read(tmp_path, "mydumper").tables] == [("a.b", 2)]


def test_names_in_double_quotes(tmp_path: Path) -> None:
    dumps.mydumper(tmp_path, [dumps.DumpTable("d", "t", {"a": "int"}, [(1,)])])
    replace(tmp_path / "metadata", "[`d`.`t`]", '["d"."t"]')
    assert read(tmp_path, "mydumper").tables[0].rows == 1


# --- What is refused ---


def in_text(root: Path) -> None:
    """Files as they are with LOAD_DATA."""
    for path in root.iterdir():
        path.unlink()
    dumps.mydumper(root, [KINDS, EMPTY], output="LOAD_DATA", rows_per_file=3)


def without(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        in_text(root)
        (root / name).unlink()

    return change


def with_load_data(before: str, after: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        in_text(root)
        replace(root / "shop.kinds.00000.sql", before, after)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "metadata").rename(root / "metadata.partial"), r"no metadata file: it is not finished"),
        (lambda root: write(root, "metadata.partial", ""), r"not finished.*metadata\.partial"),
        (lambda root: (root / "metadata").unlink(), r"no metadata file"),
        (lambda root: replace(root / "metadata", "# Finished", "# Almost finished"), r"not finished"),
        (lambda root: replace(root / "metadata", dumps.SOURCE, ""), r"does not say its position.*dump TiDB with"),
        (lambda root: replace(root / "metadata", "4711", "x"), r"position of the dump in bin\.000003 .* number: 'x'"),
        (lambda root: (root / "shop.kinds-schema.sql").unlink(), r"rows of `shop`.`kinds` and no file"),
        (lambda root: (root / "shop.kinds.00000.sql").unlink(), r"has 5 rows of `shop`.`kinds`, and has no file"),
        (lambda root: write(root, "shop.kinds.0.sql", "x"), r"do not belong together"),
        (lambda root: write(root, "shop.empty.0.parquet", "x"), r"format parquet"),
        (lambda root: write(root, "shop.a.b-schema.sql", "x"), r"mydumper does not write.*shop\.a\.b-schema\.sql"),
        (lambda root: write(root, "shop.other-schema.sql", KINDS.create), r"says the table 'other'.* 'kinds'"),
        (lambda root: write(root, "mydumper_7.t-schema.sql", EMPTY.create), r"which database its files call"),
        (without("shop.kinds.00001.sql"), r"LOAD DATA statement .* is not there \[segment shop\.kinds\.00001\.dat\]"),
        (without("shop.kinds.00001.dat"), r"with the rows .* is not there \[segment shop\.kinds\.00001\.sql\]"),
        (with_load_data("ESCAPED BY '\\\\'", "ESCAPED BY '#'"), r"(?s)by '#'.*\[segment shop\.kinds\.00000\.sql"),
        (with_load_data("`note`", "`nota`"), r"column that the table has not: 'nota'"),
        (with_load_data("LOAD DATA", "LOAD XML"), r"expected LOAD DATA"),
    ],
)  # fmt: skip
def test_dumps_that_are_refused(tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    dumps.mydumper(tmp_path, [KINDS, EMPTY])
    read(tmp_path, "mydumper")
    change(tmp_path)
    with pytest.raises(SourceError, match=said):
        read(tmp_path, "mydumper")


# --- LOAD DATA ---


def test_a_statement_that_says_little() -> None:
    assert parse_load_data("load data infile 'f' into table t (a, `b``c`)") == TextNotation(
        ("a", "b`c"), b"\t", b"", rb"\N", b"\n"
    )


def test_what_is_done_to_values() -> None:
    statement = (
        "/*!40101 SET NAMES binary*/;\nLOAD DATA LOCAL INFILE 'f' REPLACE INTO TABLE `d`.`t` CHARACTER SET utf8mb4 "
        "COLUMNS TERMINATED BY ';' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '\\\\' LINES STARTING BY '' TERMINATED BY "
        "'\\r\\n' IGNORE 1 LINES (@j,@h,@b,`x`) SET `j`=CONVERT(@j USING UTF8MB4),`h`=UNHEX(@h),b=FROM_BASE64(@b);"
    )
    assert parse_load_data(statement) == TextNotation(
        ("j", "h", "b", "x"), b";", b'"', rb"\N", b"\r\n", header=True, encoded={"h": "hex", "b": "base64"}
    )


@pytest.mark.parametrize(
    "end",
    [
        "", "()", "(a", "(a) SET a=LOWER(@a)", "(a) SET a=UNHEX(a)", "LINES STARTING BY 'x' (a)", "IGNORE 2 LINES (a)",
        "FIELDS ESCAPED BY '' (a)", "(a); SELECT 1", "(a) SET a=UNHEX(@a),",
    ],
)  # fmt: skip
def test_statements_that_are_not_understood(end: str) -> None:
    with pytest.raises(DdlSyntaxError):
        parse_load_data(f"LOAD DATA LOCAL INFILE 'f' INTO TABLE t {end}")
