"""Directories of dumps: `cases/*.txt` say what is read of each, or why it is refused.

The file's tool writes the tables of a case. Lines of a case change the directory:

    written {"suffix": ".gz"}    how the tool writes it
    read {"time_zone": "UTC"}    with this configuration
    rm a.sql, mv a.sql b.sql     a file less, another name
    a.sql <- text                a file, compressed by its suffix (`<=` is never compressed)
    a.sql: before ~> after       another text
    a.json: name = value         another value in JSON; `name -` removes it
    ln a                         a link to itself, which cannot be listed

`database` is a dump that a run made of the database itself.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.config import DatabaseConnection, DumpCsv, InitialLoad, StorageConfig
from cdc_lakehouse.errors import CdcError, ObjectChangedError, SourceError
from cdc_lakehouse.sources.dump import database, reading
from cdc_lakehouse.sources.dump.contents import Compression, Dump, DumpedTable, DumpPosition, Notation, list_objects
from cdc_lakehouse.sources.dump.database import End, Plan, PlannedTable, stored_document
from cdc_lakehouse.sources.dump.directory import parse_load_data, read_dump
from cdc_lakehouse.sources.dump.reading import decompressed, open_pieces, read_small
from cdc_lakehouse.sources.object_store import LocalStore
from tests.boundaries import sources
from tests.boundaries.change_log import TableName
from tests.boundaries.sources import KeyRange, TableDefinition
from tests.kit import decoding, dumps
from tests.kit.case_files import Case, bytes_of, edited, evaluated, read_cases, text_of
from tests.kit.dumps import COMPRESSED, SNAPPY_BEGIN, DumpTable, snappy_chunk

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
        case "ln":
            (root / rest).symlink_to(Path(rest).name)
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
    yield f"at {position(found.position)}{f', until {position(found.until)}' if found.until else ''}"
    for table in found.tables:
        counted = "" if table.rows is None else f" {table.rows} rows"
        at = "" if table.position is None else f", at {position(table.position)}"
        yield text_of(f"{table.name}{counted}: {table.schema_path}{at}")
        notations = list(dict.fromkeys(notation_text(file.notation) for file in table.files))
        yield from (f"  as {notation}" for notation in notations)
        yield from (f"  from {text_of(file.stored.path)}" for file in table.files)
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
        pieces = open_pieces(f"file://{root}", StorageConfig(), file.stored.path, file.stored.etag, file.compression)
        events += decoding.read_dump(pieces, context)
    return decoding.images(events)


def text(value: dumps.Value) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else None if value is None else str(value)


def results_of(case: Case, root: Path) -> list[str]:
    tool, settings = case.file.stem, case.settings
    if "load_data" in settings:
        try:
            return [notation_text(parse_load_data(" ".join(case.own)))]
        except DdlSyntaxError as error:
            return [text_of(f"error: {error}")]
    edits, form, options = list[str](), dict(settings.get("written", {})), dict[str, Any]()
    for line in case.own:
        verb, _, more = line.partition(" ")
        if verb in ("written", "read"):
            (form if verb == "written" else options).update(json.loads(more))
        else:
            edits.append(line)
    if "csv" in form:
        form["csv"] = DumpCsv.model_validate(form["csv"]) if isinstance(form["csv"], dict) else form["csv"]
    tables = [TABLES.get(name) or DumpTable("d", name, {"a": "int"}, [(1,)]) for name in settings["tables"]]
    WRITERS.get(tool, database_dump)(root, tables, **form)
    for line in edits:
        change(root, line)
    try:
        found = database.read_database_dump(LocalStore(root), 1) if tool == "database" else read(root, tool, **options)
    except CdcError as error:
        # What Python's and Arrow's parsers say differs between their versions.
        said = str(error).replace(str(root), "ROOT")
        return [text_of("error: " + re.sub(r"(not JSON|be decompressed|is unusable): .*? (?=\[)", r"\1 ", said))]
    if not edits:
        # A dump that is as its tool wrote it has all statements and rows.
        written = sorted(tables, key=lambda each: (each.database, each.name))
        for dumped, table in zip(found.tables, written, strict=True):
            assert (dumped.name.database, dumped.name.table) == (table.database, table.name)
            assert dumped.create_statement == table.create
            expected = [dict(zip(table.row_columns, map(text, row), strict=True)) for row in table.rows]
            assert rows_of(root, dumped, table) == expected
    return list(shown(found))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_directory_of_dump_is_read(case: Case, tmp_path: Path, update: bool) -> None:
    case.compare(results_of(case, tmp_path), update=update)


# --- Compressed files: their content in pieces, and the errors of damaged ones ---

RANDOM = random.Random(3).randbytes(150_000)
CONTENT = b"some rows,\\N\r\n" * 20_000 + RANDOM
SUFFIXES: dict[Compression | None, str] = {"gzip": ".gz", "snappy": ".snappy", "zstd": ".zst", None: ""}
CODECS: tuple[Compression, ...] = ("gzip", "snappy", "zstd")


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


@pytest.mark.parametrize("size", [1, 4099, 1 << 22])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_content_is_read_in_pieces_of_any_size(kind: Compression | None, size: int) -> None:
    """Of several streams, too, one after the other."""
    content = CONTENT if size > 1 else CONTENT[-3000:]
    compressed = b"".join(map(COMPRESSED[SUFFIXES[kind]], (content, b"", b"two")))
    pieces = list(decompressed(cut(compressed, size), kind, "f"))
    assert b"".join(pieces) == content + b"two"
    assert all(0 < len(piece) <= reading.PIECE for piece in pieces)
    assert list(decompressed(iter([COMPRESSED[SUFFIXES[kind]](b"")]), kind, "f")) == []


WHOLE = {kind: COMPRESSED[SUFFIXES[kind]](RANDOM) for kind in CODECS}


def flipped(kind: Compression, place: int) -> bytes:
    content = bytearray(WHOLE[kind])
    content[place] ^= 0x41
    return bytes(content)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        *((kind, WHOLE[kind][:left]) for kind in CODECS for left in (0, 1, 9, 5000, -1)),
        *((kind, flipped(kind, place)) for kind in ("gzip", "snappy") for place in (0, 20, 5000, -6)),
        *((kind, b"INSERT INTO `t` VALUES\n(1);\n") for kind in CODECS),
        *((kind, WHOLE[kind] + b"more of it") for kind in CODECS),
    ],
    ids=lambda each: each if isinstance(each, str) else f"{len(each)} bytes",
)
def test_damaged_file_is_refused(kind: Compression, content: bytes) -> None:
    with pytest.raises(SourceError, match=rf"the {kind} file cannot be decompressed: .*\[segment d/f\].*copy"):
        list(decompressed(cut(content, 1000), kind, "d/f"))


def test_snappy_chunks_of_all_kinds_are_read() -> None:
    skipped = b"\xfe\x03\x00\x00abc\x80\x00\x00\x00"
    content = SNAPPY_BEGIN + snappy_chunk(b"one") + skipped + snappy_chunk(b"two", 1) + SNAPPY_BEGIN + snappy_chunk(b"")
    assert list(decompressed(cut(content, 3), "snappy", "f")) == [b"one", b"two"]
    longest = SNAPPY_BEGIN + b"\x80\xff\xff\xff" + bytes((1 << 24) - 1) + snappy_chunk(b"one")
    assert list(decompressed(iter([longest]), "snappy", "f")) == [b"one"]


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("snappy.txt")), ids=str)
def test_damaged_snappy_chunk_is_refused(case: Case) -> None:
    chunk = eval(case.own[0], {"snappy_chunk": snappy_chunk})
    with pytest.raises(SourceError, match=case.results[0]):
        list(decompressed(iter([SNAPPY_BEGIN + chunk]), "snappy", "f"))
    with pytest.raises(SourceError, match="does not begin"):
        list(decompressed(iter([chunk]), "snappy", "f"))


@pytest.mark.parametrize("kind", SUFFIXES)
def test_file_is_opened_in_a_task(tmp_path: Path, kind: Compression | None, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps.write(tmp_path, "f", b"a" * 10_000, SUFFIXES[kind])
    store = LocalStore(tmp_path)
    (file,) = list_objects(store)
    pieces = open_pieces(store.uri, StorageConfig(), file.path, file.etag, kind)
    assert b"".join(pieces) == read_small(store, file) == b"a" * 10_000
    with pytest.raises(ObjectChangedError, match="changed since"):
        list(open_pieces(store.uri, StorageConfig(), file.path, "other", kind))
    monkeypatch.setattr(reading, "SMALL_FILE_LIMIT", 9_999)
    with pytest.raises(SourceError, match=r"larger than 9999 bytes"):
        read_small(store, file)


# --- A dump that was read of the database. The text here is in lakes: a failing test says that lakes cannot be read ---

STATEMENT = "CREATE TABLE `a` (`id` int NOT NULL, `raw` blob, PRIMARY KEY (`id`))"
BEGIN, UNTIL = DumpPosition(log_file="bin.1", log_offset=4, gtid="g:1", server_id=7), DumpPosition(tso=9)
RANGES = (KeyRange(None, ("1",)), KeyRange(("1",), None))
PLAN = Plan(
    ["*"], BEGIN, 3,
    {
        "d.a": PlannedTable(TableDefinition(TableName("d", "a"), STATEMENT, "2026", 30), "t000001/", BEGIN, RANGES),
        "d.ö": PlannedTable(TableDefinition(TableName("d", "ö"), STATEMENT, ""), "t000002/", UNTIL, RANGES[:1]),
    },
)  # fmt: skip
END = End(UNTIL, ["000001/t000001/000000000-aa.3.done", "000001/t000001/000000001-bb.2.done"], {"d.ö": "why"})
STORED, STORED_END = Path(__file__).with_name("stored.txt").read_text(encoding="utf-8").splitlines()


def test_plan_and_end_are_stored_by_these_keys() -> None:
    assert stored_document(PLAN).startswith(f"{STORED}, ") and stored_document(END) == STORED_END


def database_dump(root: Path, _: Sequence[DumpTable]) -> None:
    """One that has ended; of its second range two tasks read rows."""
    rows = ("000000000-aa-0000", "000000001-bb-0000", "000000001-cc-0000")
    files = {f"000001/t000001/{name}.rows": "…" for name in rows}
    files |= dict.fromkeys([*END.done, "000001/t000001/000000001-cc.9.done"], "done")
    files |= {"000001/plan.json": stored_document(PLAN), "000001/dump.json": stored_document(END)}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")


# --- What is asked of source databases that the tests cannot start: TiDB, and other versions than their own MySQL ---


def table(statement: str, rows: int = 0) -> TableDefinition:
    return TableDefinition.of(TableName("d", "t%"), statement, "2024-01-01", rows)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases" / "tables.txt"), ids=str)
def test_statement_reads_a_range_of_a_table(case: Case, update: bool) -> None:
    given = {line.partition(" ")[0]: line.partition(" ")[2] for line in case.given if not line.startswith("CREATE")}
    (statement,) = [line for line in case.given if line.startswith("CREATE")]
    assert {*given} <= {"above", "upto", "columns"}
    above, upto = (tuple(given[name].split(", ")) if name in given else None for name in ("above", "upto"))
    found = table(statement.replace("COLUMNS", given.get("columns", "")))
    try:
        text, values = found.rows(KeyRange(above, upto))
        key = f"key {', '.join(found.key) or '-'}{' of numbers' if found.is_numbered else ''}"
        results = [key, text % tuple(map(repr, values)), f"in hexadecimal: {', '.join(sorted(found.encoded)) or '-'}"]
    except SourceError as error:
        results = [str(error)]
    case.compare(results, update=update)


def test_rows_change_no_definition() -> None:
    create = "CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB AUTO_INCREMENT=%d DEFAULT CHARSET=utf8mb4"
    one, other = table(create % 41), table(create % 97)
    assert one == other and "AUTO_INCREMENT" not in one.statement
    kept = table("CREATE TABLE `t` (\n  `id` int COMMENT ') AUTO_INCREMENT=1'\n) ENGINE=InnoDB")
    assert "AUTO_INCREMENT=1" in kept.statement


class Server:
    """Answers as the servers' documents have them. `keys` are those of a table."""

    def __init__(self, version: str, keys: Sequence[int] = (), **answers: Any) -> None:
        self.version = version
        self.is_tidb = "TiDB" in version
        self.keys, self.answers = sorted(keys), answers
        self.asked: list[str] = []

    def all(self, statement: str, values: Sequence[Any] | None = None, *, advice: str | None = None) -> Any:
        self.asked.append(statement)
        if "MIN(" in statement:
            return [(str(self.keys[0]), str(self.keys[-1])) if self.keys else (None, None)]
        if "OFFSET" in statement:
            above = [key for key in self.keys if not values or key > int(values[0])]
            place = int(statement.rpartition(" ")[2])
            return [(str(above[place]),)] if place < len(above) else []
        if "REPLICA" in statement or "SLAVE" in statement:
            if isinstance(replica := self.answers.get("replica", ()), SourceError):
                raise replica
            return replica
        return self.answers["rows"]

    def variable(self, name: str) -> str | None:
        found = self.answers.get(name)
        if isinstance(found, Exception):
            raise found
        return found.pop(0) if isinstance(found, list) else found


def asked_position(version: str, **answers: Any) -> str:
    """The server's id only where it writes all that is in its binlog."""
    server: Any = Server(version, **{"rows": [("binlog.000007", "154", "", "", "")], "server_id": "7", **answers})
    found = sources.position_of(server)
    return f"{found.tso or found} of server {found.server_id}: {'; '.join(server.asked)}"


def ranges(keys: Sequence[int], estimated: int) -> str:
    server: Any = Server("8.0.36", keys)
    found = sources.ranges_of(server, table("CREATE TABLE t (id INT PRIMARY KEY)", estimated), 30)
    assert [each.lower for each in found[1:]] == [each.upper for each in found[:-1]]
    assert (found[0].lower, found[-1].upper) == (None, None)
    return f"{' '.join(str(*each.upper) for each in found[:-1] if each.upper)}, asked {len(server.asked)} times"


def waited(**answers: Any) -> str:
    server: Any = Server("8.0.36", **answers)
    with patch("time.sleep") as slept:
        sources.wait_for_commits(server)
    return f"left {answers.get('gtid_owned')}, slept {[call.args[0] for call in slept.call_args_list]}"


def snapshot(version: str) -> str:
    """All that a session says which reads as of one moment."""
    with patch("pymysql.connect") as connect:
        cursor = connect.return_value.cursor.return_value.__enter__.return_value
        cursor.fetchall.return_value = [(version,)]
        config = DatabaseConnection.model_validate({"url": "mysql://u:p@h"})
        with sources.SourceDatabase(config) as opened, opened.as_of(452912345678901234):
            opened.all("SELECT 1")
    return "; ".join(call.args[0] for call in cursor.execute.call_args_list)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases" / "servers.txt"), ids=str)
def test_server_is_asked_in_the_words_of_its_version(case: Case, update: bool) -> None:
    names = {"position": asked_position, "ranges": ranges, "waited": waited, "SourceError": SourceError}
    names["snapshot"] = snapshot
    case.compare(evaluated(case, names), update=update)
