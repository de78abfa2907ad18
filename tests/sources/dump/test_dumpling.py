"""Directories of Dumpling: what is in them, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.config import DumpCsv
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import DumpPosition, InsertNotation, TextNotation
from cdc_lakehouse.sources.dump.dumpling import decode_name
from tests.kit import dumps
from tests.kit.dumps import TSO, dumpling_metadata, dumpling_status, write
from tests.sources.dump.tables import EMPTY, KINDS, ODD, TABLES, content, named, paths, read, replace

ROW_COLUMNS = ("id", "price", "note", "raw")


@pytest.mark.parametrize("suffix", dumps.COMPRESSED)
@pytest.mark.parametrize("filetype", ["csv", "sql"])
def test_a_whole_dump(tmp_path: Path, filetype: str, suffix: str) -> None:
    dumps.dumpling(tmp_path, TABLES, filetype=filetype, suffix=suffix, rows_per_file=2)
    dump = read(tmp_path, "dumpling")
    assert dump.position == DumpPosition(tso=TSO) and dump.started == "2026-06-10 01:02:03" and dump.left_out == ()
    assert [(table.name.database, table.name.table) for table in dump.tables] == [
        ("sh.op", ODD.name), ("shop", "empty"), ("shop", "kinds"),
    ]  # fmt: skip
    kinds = named(dump, KINDS)
    assert kinds.create_statement == KINDS.create and kinds.rows is None
    assert kinds.schema_path == f"shop.kinds-schema.sql{suffix}"
    assert paths(kinds) == [f"shop.kinds.{number:09d}.{filetype}{suffix}" for number in range(3)]
    assert {file.notation.columns for file in kinds.files} == {ROW_COLUMNS}
    plain = dumps.dumpling(tmp_path / "plain", [KINDS], filetype=filetype, rows_per_file=2)
    assert content(tmp_path, kinds) == b"".join(
        (plain / f"shop.kinds.{number:09d}.{filetype}").read_bytes() for number in range(3)
    )
    assert named(dump, EMPTY).files == ()
    assert paths(named(dump, ODD)) == [f"sh%2Eop.a%2Eb%2Fc%252E%2DSchema x%2A.000000000.{filetype}{suffix}"]


def test_how_rows_are_written(tmp_path: Path) -> None:
    options = DumpCsv(
        separator="|+|",
        delimiter="<q>",
        null="",
        line_terminator="\n",
        escape_backslash=False,
        header=False,
        binary="hex",
    )
    dumps.dumpling(tmp_path / "csv", [KINDS], csv=options)
    dumps.dumpling(tmp_path / "sql", [KINDS], csv=options, filetype="sql")

    def notation(name: str, **configured: object) -> object:
        return read(tmp_path / name, "dumpling", **configured).tables[0].files[0].notation

    said = options.model_dump()
    assert notation("csv") == TextNotation(ROW_COLUMNS, header=True)
    assert notation("csv", csv=said) == TextNotation(
        ROW_COLUMNS, b"|+|", b"<q>", b"", b"\n", backslash_escapes=False, header=False, binary="hex"
    )
    assert notation("sql") == InsertNotation(ROW_COLUMNS)
    assert notation("sql", csv=said) == InsertNotation(ROW_COLUMNS, backslash_escapes=False)


def test_only_generated_columns_have_no_header(tmp_path: Path) -> None:
    table = dumps.DumpTable("d", "t", {"g": "int GENERATED ALWAYS AS (1) STORED"}, [(), ()])
    dumps.dumpling(tmp_path, [table])
    (found,) = read(tmp_path, "dumpling").tables
    assert found.files[0].notation == TextNotation((), header=False)
    assert content(tmp_path, found) == b"\r\n\r\n"


@pytest.mark.parametrize(
    "names",
    [
        ("t.0.csv", "t.1.csv", "t.10.csv"),
        ("t.0001.csv", "t.0003.csv"),
        ("t.0000000000000.csv", "t.0000000000001.csv", "t.0000000020000.csv"),
    ],
)
def test_forms_of_numbers(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Numbers of chunks may have gaps: one without rows makes no file."""
    dumps.dumpling(tmp_path, [dumps.DumpTable("d", "t", {"a": "int"})])
    for name in reversed(names):
        write(tmp_path, f"d.{name}", "1\r\n")
    assert paths(read(tmp_path, "dumpling").tables[0]) == [f"d.{name}" for name in names]


def test_what_is_no_table_is_left_out_and_told(tmp_path: Path) -> None:
    dumps.dumpling(tmp_path, [KINDS])
    write(tmp_path, "shop.v%2Ew-schema.sql", "CREATE TABLE `v.w` (`a` int);\n", ".gz")
    write(tmp_path, "shop.v%2Ew-schema-view.sql", "CREATE VIEW …", ".gz")
    write(tmp_path, "shop.ids-schema-sequence.sql", "CREATE SEQUENCE …")
    write(tmp_path, "shop.kinds-schema-triggers.sql", "CREATE TRIGGER …")
    write(tmp_path, "shop-schema-post.sql", "CREATE EVENT …")
    write(tmp_path, "far-placement-policy-create.sql", "CREATE PLACEMENT POLICY …")
    dump = read(tmp_path, "dumpling")
    assert [table.name.table for table in dump.tables] == ["kinds"]
    assert dump.left_out == (
        "routines and events of the database `shop`", "the sequence `shop`.`ids`", "the view `shop`.`v.w`",
        "triggers of `shop`.`kinds`", "the placement policy `far`",
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["t", "a.b", "%41", "x-schema", "-SCHEMA-schema", "日本 x", 'a\tb\\c|d?e:f"g<h>i*', "%"]
)
def test_names_come_back(name: str) -> None:
    escaped = dumps.dumpling_name(name)
    assert decode_name(escaped) == name
    assert "." not in escaped and "/" not in escaped and "-schema" not in escaped.lower()


# --- Positions ---

BINLOG = dumpling_status("bin.000003", 4711, dumps.GTID)
REPLICA = f"SHOW SLAVE STATUS:\n\tHost: 10.0.0.1\n\tLog: other.000009\n\tPos: 9\n\tGTID:{dumps.GTID}\n\n"


@pytest.mark.parametrize(
    ("blocks", "position"),
    [
        ([dumpling_status("tidb-binlog", TSO)], DumpPosition(tso=TSO)),
        (["SHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: 466100000000000001\n\n"], DumpPosition(tso=TSO)),
        ([BINLOG], DumpPosition(None, "bin.000003", 4711, dumps.GTID)),
        ([BINLOG, REPLICA], DumpPosition(None, "bin.000003", 4711, dumps.GTID)),
        ([REPLICA, BINLOG], DumpPosition(None, "bin.000003", 4711, dumps.GTID)),
        (
            [dumpling_status("bin.1", 7, "u:1-5,\nv:1-6,\nw:7", "SHOW BINARY LOG STATUS:")],
            DumpPosition(None, "bin.1", 7, "u:1-5,v:1-6,w:7"),
        ),
        (
            [
                dumpling_status("bin.1", 7),
                dumpling_status("bin.1", 7, "", "SHOW MASTER STATUS: /* AFTER CONNECTION POOL ESTABLISHED */"),
            ],
            DumpPosition(None, "bin.1", 7, None),
        ),
    ],
)
def test_positions(tmp_path: Path, blocks: list[str], position: DumpPosition) -> None:
    dumps.dumpling(tmp_path, [EMPTY])
    dumpling_metadata(tmp_path, *blocks)
    assert read(tmp_path, "dumpling").position == position


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([dumpling_status("tidb-binlog", "2026-06-10 01:02:03")], r"not a TSO: '2026-06-10 01:02:03'.*--snapshot"),
        ([dumpling_status("tidb-binlog", "")], r"not a TSO: ''"),
        ([dumpling_status("tidb-binlog", 1 << 63)], "not a TSO"),
        ([dumpling_status("bin.1", "x")], r"position of the dump in bin\.1 is not a number: 'x'"),
        (["SHOW MASTER STATUS:\n\tLog: bin.1\n"], "is not a number: None"),
        ([], r"does not say its position.*REPLICATION CLIENT"),
        ([REPLICA], "does not say its position"),
        ([BINLOG, BINLOG.replace("4711", "4712")], r"not of one point: it began at .*4711.* and went on at .*4712"),
    ],
)
def test_positions_that_are_refused(tmp_path: Path, blocks: list[str], said: str) -> None:
    dumps.dumpling(tmp_path, [EMPTY])
    dumpling_metadata(tmp_path, *blocks)
    with pytest.raises(SourceError, match=rf"{said}.*"):
        read(tmp_path, "dumpling")


# --- What is refused ---


def unfinished(root: Path) -> None:
    dumpling_metadata(root, dumpling_status("tidb-binlog", TSO), finished=False)


def twice_compressed(root: Path) -> None:
    write(root, "shop.kinds-schema.sql", KINDS.create, ".gz")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unfinished, r"not finished.*\[segment metadata\].*wait"),
        (lambda root: (root / "metadata").unlink(), r"no metadata file.*initial\.uri"),
        (lambda root: (root / "shop.kinds-schema.sql").unlink(), r"rows of `shop`.`kinds` and no file.*kinds\.0000"),
        (twice_compressed, r"`shop`.`kinds` twice: shop.kinds-schema.sql and shop.kinds-schema.sql.gz"),
        (
            lambda root: write(root, "%73hop.kinds-schema.sql", KINDS.create),
            r"`shop`.`kinds` twice: %73hop.kinds-schema.sql and shop.kinds-schema.sql",
        ),
        (lambda root: write(root, "shop.kinds.000000000.csv", "", ".gz"), r"do not belong together.*csv and .*csv\.gz"),
        (lambda root: write(root, "shop.kinds.000000009.sql", ""), r"do not belong together.*\.csv and .*\.sql"),
        (lambda root: write(root, "shop.empty.0000000000001.csv", "x"), r"not there: chunk 000000000 .* file 1, not 0"),
        (lambda root: write(root, "shop.empty.000000000.parquet", "x"), r"format parquet.*parquet\].*sql or csv"),
        (lambda root: write(root, "shop.empty.000000000.dat", "x"), r"format dat"),
        (lambda root: write(root, "result.000000000.csv", "x"), r"of a query.*result\.000000000\.csv"),
        (lambda root: write(root, "result.1.sql", "x", ".zst"), r"of a query.*result\.1\.sql\.zst"),
        (lambda root: write(root, "shop.empty.csv", "x"), r"does not write.*segment shop\.empty\.csv"),
        (lambda root: write(root, "shop.empty.0.0.csv", "x"), r"does not write.*segment shop\.empty\.0\.0\.csv"),
        (lambda root: write(root, "notes.txt", "x"), r"does not write.*\[segment notes\.txt\]"),
        (lambda root: write(root, "shop.empty.1.csv.lz4", "x"), r"does not write.*\[segment shop.empty.1.csv.lz4\]"),
        (lambda root: write(root / "shop", "empty.000000000.csv", "x"), r"segment shop/empty\.000000000\.csv"),
        (lambda root: write(root, "a%4.b-schema.sql", "x"), r"'a%4' .* not escaped.*--output-filename-template"),
        (lambda root: write(root, "shop.other-schema.sql", KINDS.create), r"says the table 'other'.* 'kinds'"),
        (lambda root: write(root, "shop.empty-schema.sql", b"CREATE TABLE `\xff` (a int)"), "not UTF-8 at byte 14"),
        (lambda root: (root / "shop.empty-schema.sql.gz").write_bytes(b"x"), "twice"),
        (lambda root: (root / "shop.x-schema.sql.gz").write_bytes(b"x"), r"cannot be decompressed.*shop.x-schema"),
    ],
)
def test_dumps_that_are_refused(tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    dumps.dumpling(tmp_path, [KINDS, EMPTY])
    read(tmp_path, "dumpling")
    change(tmp_path)
    with pytest.raises(SourceError, match=said):
        read(tmp_path, "dumpling")


UNREAD = [
    ("SET NAMES x;", "no CREATE TABLE"),
    (EMPTY.create + ";" + EMPTY.create, "2 CREATE TABLE"),
    ("CREATE TABLE empty (a nothing)", "a column type"),
    ("CREATE TABLE empty LIKE kinds", "lists no columns"),
]


@pytest.mark.parametrize(("statement", "said"), UNREAD)
def test_a_statement_that_is_not_understood_is_of_its_table_alone(tmp_path: Path, statement: str, said: str) -> None:
    dumps.dumpling(tmp_path, [KINDS, EMPTY])
    write(tmp_path, "shop.empty-schema.sql", statement)
    found = read(tmp_path, "dumpling")
    assert [str(table.name) for table in found.tables] == ["shop.kinds"]
    (table,) = found.unread
    assert (str(table.name), table.schema_path) == ("shop.empty", "shop.empty-schema.sql") and said in table.reason


def test_the_first_of_several_unknown_files_is_named(tmp_path: Path) -> None:
    dumps.dumpling(tmp_path, [EMPTY])
    for name in ("z.txt", "b.txt", "c"):
        write(tmp_path, name, "x")
    with pytest.raises(SourceError, match=r"\[segment b\.txt\]"):
        read(tmp_path, "dumpling")


def test_a_schema_that_is_changed_by_hand(tmp_path: Path) -> None:
    """Its columns are those of the statement, whatever stands around it."""
    dumps.dumpling(tmp_path, [KINDS])
    replace(tmp_path / "shop.kinds-schema.sql", "`note`", "`text`")
    assert read(tmp_path, "dumpling").tables[0].files[0].notation.columns == ("id", "price", "text", "raw")


def test_a_part_that_cannot_be_listed(tmp_path: Path) -> None:
    dumps.dumpling(tmp_path, [EMPTY])
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match=r"cannot be listed: Too many levels.*\[segment loop\]"):
        read(tmp_path, "dumpling")
