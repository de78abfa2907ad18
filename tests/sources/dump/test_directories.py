"""Directories of dumps: `cases/*.txt` say what is read of each, or why it is refused.

The file's tool writes the tables of a case. Lines of a case change the directory:

    written {"suffix": ".gz"}    how the tool writes it
    read {"time_zone": "UTC"}    with this configuration
    rm a.sql, mv a.sql b.sql     a file less, another name
    a.sql <- text                a file, compressed by its suffix (`<=` is never compressed)
    a.sql: before ~> after       another text
    a.json: name = value         another value in JSON; `name -` removes it
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.config import DumpCsv, InitialLoad, StorageConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import Dump, DumpedTable, DumpPosition, Notation
from cdc_lakehouse.sources.dump.directory import read_dump
from cdc_lakehouse.sources.dump.mydumper import parse_load_data
from cdc_lakehouse.sources.dump.reading import open_pieces
from cdc_lakehouse.sources.object_store import LocalStore
from tests.kit import decoding, dumps
from tests.kit.case_files import Case, bytes_of, edited, read_cases, text_of
from tests.kit.dumps import COMPRESSED, DumpTable

KINDS = DumpTable(
    "shop",
    "kinds",
    {
        "id": "bigint NOT NULL",
        "price": "decimal(10,2) DEFAULT '1.50'",
        "doubled": "decimal(11,2) GENERATED ALWAYS AS (`price` * 2) VIRTUAL",
        "note": "varchar(20) COMMENT 'a; b'",
        "raw": "varbinary(16)",
    },
    [
        (1, Decimal("2.50"), "plain", b"\x00\xff\\"),
        (2, None, "a,b\t'\"\\\r\n", None),
        (3, Decimal("-0.01"), "", b""),
        (4, Decimal("0.00"), "\\N", b"\n"),
        (5, Decimal("7.00"), "日本", b"\x80"),
    ],
    ",\n  PRIMARY KEY (`id`)\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='it''s'\n"
    "/*!50100 PARTITION BY HASH (id) PARTITIONS 4 */",
)
EMPTY = DumpTable("shop", "empty", {"a": "int"})
ODD = DumpTable("sh.op", "a.b/c%2E-Schema x*", {"a`b": "int"}, [(1,)])
COMPUTED = DumpTable("d", "computed", {"g": "int GENERATED ALWAYS AS (1) STORED"}, [(), ()])
TABLES = {"kinds": KINDS, "empty": EMPTY, "odd": ODD, "computed": COMPUTED}
WRITERS: dict[str, Callable[..., Path]] = {
    "dumpling": dumps.dumpling, "mydumper": dumps.mydumper, "mysqlshell": dumps.mysqlshell,
}  # fmt: skip
CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/*.txt")))


def read(root: Path, tool: str, **options: Any) -> Dump:
    return read_dump(LocalStore(root), InitialLoad.model_validate({"type": tool, "uri": f"file://{root}", **options}))


def change(root: Path, line: str) -> None:
    verb, _, rest = line.partition(" ")
    match verb:
        case "rm":
            (root / rest).unlink()
        case "mv":
            before, after = rest.split(" ")
            (root / before).rename(root / after)
        case _ if " <- " in line or " <= " in line:
            name, sign, content = line.partition(" <- " if " <- " in line else " <= ")
            suffix = Path(name).suffix if sign == " <- " else ""
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(COMPRESSED.get(suffix, bytes)(bytes_of(content)))
        case _ if " ~> " in line:
            name, _, edit = line.partition(": ")
            before, _, after = edit.partition(" ~> ")
            content = (root / name).read_bytes()
            assert bytes_of(before) in content, line
            (root / name).write_bytes(content.replace(bytes_of(before), bytes_of(after)))
        case _:
            name, _, edit = line.partition(": ")
            (root / name).write_bytes(edited(json.loads((root / name).read_bytes()), [edit]))


def shown(found: Dump) -> Iterator[str]:
    yield f"at {position(found.position)}"
    for table in found.tables:
        counted = "" if table.rows is None else f" {table.rows} rows"
        yield text_of(f"{table.name}{counted}: {table.schema_path}")
        notations = list(dict.fromkeys(notation_text(file.notation) for file in table.files))
        yield from (f"  as {notation}" for notation in notations)
        yield from (f"  from {text_of(file.path)}" for file in table.files)
    yield from (f"unread {table.name}, {table.schema_path}: {table.reason}" for table in found.unread)


def position(at: DumpPosition) -> str:
    return " ".join(f"{each.name} {value}" for each in fields(at) if (value := getattr(at, each.name)) is not None)


def notation_text(notation: Notation) -> str:
    """The kind, and what is not its default."""
    usual = type(notation)(notation.columns)
    others = [each.name for each in fields(notation) if getattr(notation, each.name) != getattr(usual, each.name)]
    values = [f"{name}={text_of(repr(getattr(notation, name)))}" for name in others]
    kind = type(notation).__name__.removesuffix("Notation").lower()
    return " ".join([kind, ",".join(notation.columns) or "nothing", *values])


def rows_of(root: Path, dumped: DumpedTable, table: DumpTable) -> list[dict[str, Any]]:
    """The rows of all files, as decoders read them by the notation."""
    columns = {name: parse_type(definition.split(" ")[0]) for name, definition in table.columns.items()}
    events = list[dict[str, Any]]()
    for file in dumped.files:
        context = decoding.dump_context(file.notation, columns, table=table.name)
        pieces = open_pieces(f"file://{root}", StorageConfig.nothing(), file.path, file.etag, file.compression)
        events += decoding.read_dump(pieces, context)
    return decoding.images(events)


def text(value: dumps.Value) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else None if value is None else str(value)


def check_rows(root: Path, found: Dump, tables: Sequence[DumpTable]) -> None:
    """A dump that is as its tool wrote it has all statements and rows."""
    for dumped, table in zip(found.tables, sorted(tables, key=lambda each: (each.database, each.name)), strict=True):
        assert (dumped.name.database, dumped.name.table) == (table.database, table.name)
        assert dumped.create_statement == table.create
        expected = [dict(zip(table.row_columns, map(text, row), strict=True)) for row in table.rows]
        assert rows_of(root, dumped, table) == expected


def results_of(case: Case, root: Path) -> list[str]:
    tool, settings = case.file.stem, case.settings
    if "load_data" in settings:
        try:
            return [notation_text(parse_load_data(" ".join(case.own)))]
        except DdlSyntaxError as error:
            return [text_of(f"error: {error}")]
    edits = [line for line in case.own if not line.startswith(("written ", "read "))]
    form, options = (
        {
            name: value
            for line in case.own
            if line.startswith(f"{verb} ")
            for name, value in json.loads(line[len(verb) + 1 :]).items()
        }
        for verb in ("written", "read")
    )
    form = {**settings.get("written", {}), **form}
    if "csv" in form:
        form["csv"] = DumpCsv.model_validate(form["csv"]) if isinstance(form["csv"], dict) else form["csv"]
    tables = [TABLES.get(name) or DumpTable("d", name, {"a": "int"}, [(1,)]) for name in settings["tables"]]
    WRITERS[tool](root, tables, **form)
    for line in edits:
        change(root, line)
    try:
        found = read(root, tool, **options)
    except SourceError as error:
        # What Python's and Arrow's parsers say differs between their versions.
        return [text_of("error: " + re.sub(r"(not JSON|be decompressed): .*? (?=\[)", r"\1 ", str(error)))]
    if not edits:
        check_rows(root, found, tables)
    return list(shown(found))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_directory_of_dump_is_read(case: Case, tmp_path: Path, update: bool) -> None:
    case.compare(results_of(case, tmp_path), update=update)


def test_part_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    dumps.dumpling(tmp_path, [EMPTY])
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match=r"cannot be listed: Too many levels.*\[segment loop\]"):
        read(tmp_path, "dumpling")
