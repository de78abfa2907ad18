"""Directories of MySQL Shell: what is in them, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import DumpPosition, TextNotation
from tests.kit import dumps
from tests.kit.dumps import GTID, write
from tests.sources.dump.tables import EMPTY, KINDS, ODD, TABLES, content, named, paths, read, replace

ROW_COLUMNS = ("id", "price", "note", "raw")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("rows_per_file", [None, 2, 5])
def test_a_whole_dump(tmp_path: Path, suffix: str, rows_per_file: int | None) -> None:
    dumps.mysqlshell(tmp_path, TABLES, suffix=suffix, rows_per_file=rows_per_file)
    dump = read(tmp_path, "mysqlshell")
    assert dump.position == DumpPosition(None, "bin.000003", 4711, GTID)
    assert dump.started == "2026-06-10 01:02:03" and dump.left_out == ()
    assert [(table.name.database, table.name.table) for table in dump.tables] == [
        ("sh.op", ODD.name), ("shop", "empty"), ("shop", "kinds"),
    ]  # fmt: skip
    kinds = named(dump, KINDS)
    assert kinds.create_statement == KINDS.create and kinds.schema_path == "shop@kinds.sql" and kinds.rows == 5
    marks = {None: [""], 2: ["@0", "@1", "@@2"], 5: ["@@0"]}[rows_per_file]
    assert paths(kinds) == [f"shop@kinds{mark}.tsv{suffix}" for mark in marks]
    assert content(tmp_path, kinds).count(b"\n") == 5 and content(tmp_path, kinds).startswith(b"1\t2.50\tplain\tAP9c\n")
    assert kinds.files[0].notation == TextNotation(ROW_COLUMNS, b"\t", b"", rb"\N", b"\n", encoded={"raw": "base64"})
    assert len(named(dump, EMPTY).files) == 1 and content(tmp_path, named(dump, EMPTY)) == b""


def test_the_csv_dialect(tmp_path: Path) -> None:
    dumps.mysqlshell(tmp_path, [KINDS], csv=True)
    (file,) = read(tmp_path, "mysqlshell").tables[0].files
    assert file.notation == TextNotation(ROW_COLUMNS, b",", b'"', rb"\N", b"\r\n", encoded={"raw": "base64"})


def test_partitions(tmp_path: Path) -> None:
    dumps.mysqlshell(tmp_path, [KINDS], partitions=("p0", "p/1"), rows_per_file=3)
    assert paths(read(tmp_path, "mysqlshell").tables[0]) == [
        "shop@kinds@p0@0.tsv.zst", "shop@kinds@p0@@1.tsv.zst", "shop@kinds@p%2F1@@0.tsv.zst",
    ]  # fmt: skip


def test_older_dumps_count_nothing(tmp_path: Path) -> None:
    dumps.mysqlshell(tmp_path, [KINDS], counts=False)
    assert read(tmp_path, "mysqlshell").tables[0].rows is None


def test_names_of_files_may_be_cut(tmp_path: Path) -> None:
    dumps.mysqlshell(tmp_path, [KINDS])
    for path in list(tmp_path.glob("shop@kinds*")):
        path.rename(tmp_path / path.name.replace("shop@kinds", "shop@k0"))
    replace(tmp_path / "shop.json", '"shop@kinds"', '"shop@k0"')
    replace(tmp_path / "@.done.json", "shop@kinds", "shop@k0")
    (table,) = read(tmp_path, "mysqlshell").tables
    assert table.name.table == "kinds" and paths(table) == ["shop@k0.tsv.zst"]


def changed(path: Path, **values: Any) -> None:
    """A document with other values; None takes one out."""
    document = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def options(root: Path, **values: Any) -> None:
    path = root / "shop@kinds.json"
    changed(path, options={**json.loads(path.read_text())["options"], **values})


def test_what_is_no_table_is_left_out_and_told(tmp_path: Path) -> None:
    dumps.mysqlshell(tmp_path, [KINDS], views=["v.w"], start={"users": ["'a'@'%'"]})
    changed(tmp_path / "shop.json", events=["e"], functions=["f"], procedures=["p"])
    changed(tmp_path / "shop@kinds.json", triggers=["t"], where="id < 9")
    write(tmp_path, "shop@kinds.triggers.sql", "CREATE TRIGGER …")
    for name in ("@.users.sql", "@.checksums.json", "load-progress.1234.json"):
        write(tmp_path, name, "")
    assert read(tmp_path, "mysqlshell").left_out == (
        "rows of `shop`.`kinds` other than where id < 9", "the event `shop`.`e`", "the function `shop`.`f`",
        "the procedure `shop`.`p`", "the view `shop`.`v.w`", "triggers of `shop`.`kinds`", "users",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "position"),
    [
        ({"gtidExecuted": ""}, DumpPosition(None, "bin.000003", 4711, None)),
        ({"gtidExecuted": "u:1-5,\nv:1-6"}, DumpPosition(None, "bin.000003", 4711, "u:1-5,v:1-6")),
        ({"binlogFile": "", "binlogPosition": 0}, DumpPosition(gtid=GTID)),
        ({"binlogFile": None, "binlogPosition": None}, DumpPosition(gtid=GTID)),
    ],
)
def test_positions(tmp_path: Path, start: dict[str, Any], position: DumpPosition) -> None:
    dumps.mysqlshell(tmp_path, [EMPTY], start=start)
    assert read(tmp_path, "mysqlshell").position == position


@pytest.mark.parametrize(
    ("utc", "zone", "said"),
    [
        (True, None, None),
        (True, "UTC", None),
        (False, "Asia/Shanghai", None),
        (False, "UTC", None),
        (True, "Asia/Shanghai", r"in UTC \(tzUtc\), the configuration says Asia/Shanghai"),
        (False, None, r"zone of its server.*set source\.initial\.time_zone"),
    ],
)
def test_the_zone_of_times(tmp_path: Path, utc: bool, zone: str | None, said: str | None) -> None:
    dumps.mysqlshell(tmp_path, [EMPTY], start={"tzUtc": utc})
    configured = {} if zone is None else {"time_zone": zone}
    if said is None:
        assert read(tmp_path, "mysqlshell", **configured).tables
        return
    with pytest.raises(SourceError, match=said):
        read(tmp_path, "mysqlshell", **configured)


# --- What is refused ---

LAST = "shop@kinds@@2.tsv.zst"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "@.done.json").unlink(), r"not finished.* no @\.done\.json"),
        (lambda root: (root / "@.json").unlink(), r"not there: it has no @\.json"),
        (lambda root: (root / LAST).unlink(), r"a chunk of rows is not there: .*@2\.tsv\.zst, or the last as .*@@2\."),
        (lambda root: (root / "shop@kinds@1.tsv.zst").unlink(), r"chunk .* not there: shop@kinds@1\.tsv.zst"),
        (lambda root: (root / LAST).rename(root / f"{LAST[:10]}@3.tsv.zst"), r"not there: shop@kinds@2\.tsv.zst"),
        (lambda root: (root / LAST).rename(root / "shop@kinds@2.tsv.zst"), r"not there: shop@kinds@3\.tsv.zst"),
        (lambda root: (root / LAST).rename(root / "shop@kinds@2.tsv.zst.dumping"), r"not finished.*@2.tsv.zst.dumping"),
        (lambda root: changed(root / "@.done.json", chunkFileBytes={"x@@7.tsv": 1}), r"not there \[segment x@@7.tsv"),
        (lambda root: (root / "shop@kinds.sql").unlink(), r"is not there \[segment shop@kinds\.sql\]"),
        (lambda root: (root / "shop@kinds.json").unlink(), r"is not there \[segment shop@kinds\.json\]"),
        (lambda root: (root / "shop.json").write_text("{"), r"not JSON.*shop\.json"),
        (lambda root: (root / "shop.json").write_text("[]"), r"no JSON object.*shop\.json"),
        (lambda root: changed(root / "shop.json", tables="kinds"), r"'tables' .* no list.*shop\.json"),
        (lambda root: changed(root / "shop.json", tables=[1]), r"'tables' .* no names"),
        (lambda root: changed(root / "shop.json", basenames={}), r"files of 'kinds' are called"),
        (lambda root: changed(root / "shop.json", includesData=False), r"'shop' has no rows.*ddlOnly"),
        (lambda root: changed(root / "shop.json", includesDdl=False), r"'shop' has no CREATE TABLE"),
        (lambda root: changed(root / "shop@kinds.json", partitions=["p0"]), r"files of 'p0' are called"),
        (lambda root: changed(root / "shop@kinds.json", compression="lz4"), r"compression lz4"),
        (lambda root: changed(root / "shop@kinds.json", extension=None), r"extension None"),
        (lambda root: options(root, columns=["id", "note"]), r"columns id, note, its .* id, price, note, raw"),
        (lambda root: options(root, fieldsEscapedBy="#"), r"escaped by '#'"),
        (lambda root: options(root, decodeColumns={"raw": "ROT13"}), r"decoded by ROT13"),
        (lambda root: options(root, fieldsEnclosedBy="\ud800"), r"not JSON of UTF-8"),
        (lambda root: options(root, linesTerminatedBy=None), r"it lacks linesTerminatedBy"),
        (lambda root: replace(root / "shop@kinds.sql", "TABLE `kinds`", "TABLE `kind`"), r"'kinds', its .* 'kind'"),
        (lambda root: changed(root / "@.json", consistent=False), r"not of one point.*consistent: true"),
        (lambda root: changed(root / "@.json", defaultCharacterSet="latin1"), r"in latin1.*utf8mb4"),
        (lambda root: changed(root / "@.json", binlogPosition=None), r"no position in its binlog bin\.000003"),
        (lambda root: changed(root / "@.json", binlogPosition="4"), r"'binlogPosition' .* no int"),
        (lambda root: changed(root / "@.json", binlogFile="", gtidExecuted=""), r"does not say its position"),
        (lambda root: changed(root / "@.json", binlogFile="tidb-binlog"), r"is of TiDB.*with Dumpling"),
        (lambda root: changed(root / "@.json", basenames={}), r"files of 'shop' are called"),
        (lambda root: write(root, "shop@kinds@3.tsv.zst", "x"), r"does not write.*shop@kinds@3\.tsv\.zst"),
        (lambda root: write(root, "notes.txt", "x"), r"does not write.*notes\.txt"),
    ],
)
def test_dumps_that_are_refused(tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    dumps.mysqlshell(tmp_path, [KINDS, EMPTY], rows_per_file=2)
    read(tmp_path, "mysqlshell")
    change(tmp_path)
    with pytest.raises(SourceError, match=said):
        read(tmp_path, "mysqlshell")


def test_without_escapes_null_is_a_word(tmp_path: Path) -> None:
    dumps.mysqlshell(tmp_path, [KINDS])
    options(tmp_path, fieldsEscapedBy="")
    notation = read(tmp_path, "mysqlshell").tables[0].files[0].notation
    assert isinstance(notation, TextNotation) and notation.null == b"NULL" and not notation.backslash_escapes
