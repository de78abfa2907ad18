r"""Directories of dumps, as Dumpling, mydumper and MySQL Shell lay them out.

No real tool made them: they are written from what the tools' sources and documents say. Values are `None`, numbers
(`int`, `Decimal`), text and, of binary columns, `bytes`; a row has those of the columns that are not generated."""

import base64
import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import google_crc32c
import pyarrow as pa

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import quoted
from cdc_lakehouse.config import DumpCsv
from cdc_lakehouse.config.sources import DumpType
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
from tests.kit.truth import Truth

Value = None | int | float | Decimal | str | bytes
"""A number is what numbers are; bytes are of binary columns, those of a BIT too."""
Row = Sequence[Value]
TSO = 466_100_000_000_000_001
GTID = "0f0f0f0f-1111-2222-3333-444444444444:1-77"


@dataclass(frozen=True)
class DumpTable:
    """`columns` are definitions by name, `after` what stands after the columns; or `statement` is the whole of it."""

    database: str
    name: str
    columns: dict[str, str]
    rows: Sequence[Row] = ()
    after: str = ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
    statement: str = ""

    @property
    def create(self) -> str:
        if self.statement:
            return self.statement
        lines = ",\n".join(f"  {quoted(name)} {definition}" for name, definition in self.columns.items())
        return f"CREATE TABLE {quoted(self.name)} (\n{lines}\n{self.after}"

    @property
    def row_columns(self) -> list[str]:
        return [name for name, definition in self.columns.items() if " AS (" not in definition]

    @property
    def binary(self) -> list[str]:
        kinds = ("binary", "varbinary", "blob", "bit")
        return [name for name in self.row_columns if self.columns[name].lower().startswith(kinds)]

    def chunks(self, size: int | None) -> list[Sequence[Row]]:
        """Rows of each file; none where there are no rows."""
        step = size or len(self.rows) or 1
        return [self.rows[start : start + step] for start in range(0, len(self.rows), step)]


# --- Compression ---


SNAPPY_BEGIN = b"\xff\x06\x00\x00sNaPpY"


def snappy_chunk(content: bytes, kind: int = 0) -> bytes:
    """A chunk of framed snappy: compressed (0), or as it is (1)."""
    crc = google_crc32c.value(content)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    body = content if kind else pa.Codec("snappy").compress(content, asbytes=True)
    return bytes((kind,)) + (len(body) + 4).to_bytes(3, "little") + masked.to_bytes(4, "little") + body


def framed_snappy(content: bytes, size: int = 65536) -> bytes:
    return SNAPPY_BEGIN + b"".join(
        snappy_chunk(content[start : start + size]) for start in range(0, len(content), size)
    )


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    # Without the time, so that the bytes are the same in each process.
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".snappy": framed_snappy,
    ".zst": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
}


def write(root: Path, name: str, content: str | bytes, suffix: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{name}{suffix}"
    path.write_bytes(COMPRESSED[suffix](content.encode() if isinstance(content, str) else content))
    return path


# --- Rows by the rules of the notations, and what a reader should make of them ---

LABELS = ("small", "it's", "größe, xl")
MARKS = ("a", "b", "'", "ü")
COLUMNS = {
    "id": ColumnType.of("bigint unsigned"),
    "Name": ColumnType.of("varchar", length=80),
    "data": ColumnType.of("blob"),
    "flags": ColumnType.of("bit", length=16),
    "kind": ColumnType.of("enum", elements=LABELS),
    "marks": ColumnType.of("set", elements=MARKS),
    "shape": ColumnType.of("point"),
    "note": ColumnType.of("text"),
}

_LETTERS = {"\0": "0", "\b": "b", "\n": "n", "\r": "r", "\t": "t", "\x1a": "Z"}


def with_backslashes(text: bytes, also: bytes, letters: str = "0bnrtZ") -> bytes:
    escapes = {byte: b"\\" + bytes([byte]) for byte in b"\\" + also}
    escapes |= {ord(character): b"\\" + letter.encode() for character, letter in _LETTERS.items() if letter in letters}
    return b"".join(escapes.get(byte) or bytes([byte]) for byte in text)


def plain(value: int | float | Decimal | str | bytes) -> bytes:
    """MySQL prints decimals without an exponent."""
    if isinstance(value, bytes):
        return value
    return (f"{value:f}" if isinstance(value, Decimal) else str(value)).encode()


class Bare(bytes):
    """A value that is written as it is."""


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "hex": lambda value: value.hex().encode(),
    "base64": base64.b64encode,
}


@dataclass(frozen=True)
class TextWriter:
    notation: TextNotation
    bare_text: bool = False
    """Text stands in quotes only where it has to."""
    letters: str = "0bnrtZ"
    also: bytes = b""
    """More bytes that are escaped."""

    def file(self, rows: Sequence[Row]) -> bytes:
        header = self._record(self.notation.columns) if self.notation.header and self.notation.columns else b""
        return header + b"".join(map(self.row, rows))

    def row(self, row: Row) -> bytes:
        notation = self.notation
        return self._record([
            ENCODERS[notation.encoded.get(name, notation.binary)](value)
            if isinstance(value, bytes) and not isinstance(value, Bare)
            else value
            for name, value in zip(notation.columns, row, strict=True)
        ])  # fmt: skip

    def _record(self, values: Sequence[Value]) -> bytes:
        return self.notation.separator.join(map(self._value, values)) + self.notation.terminator

    def _value(self, value: Value) -> bytes:
        notation = self.notation
        if value is None:
            return notation.null
        text = plain(value)
        if isinstance(value, int | float | Decimal | Bare):
            return text
        if not notation.quote:
            return with_backslashes(text, notation.separator[:1] + self.also, self.letters)
        marks = [notation.separator, notation.quote, notation.null, notation.terminator]
        special = [*marks, b"\\", *(bytes([end]) for end in b"\r\n\0")]
        if self.bare_text and text and not any(part and part in text for part in special) and notation.null:
            return text
        escaped = text.replace(notation.quote, notation.quote * 2)
        if notation.backslash_escapes:
            escaped = with_backslashes(text, notation.quote[:1] + self.also, self.letters)
        return notation.quote + escaped + notation.quote


@dataclass(frozen=True)
class InsertWriter:
    notation: InsertNotation
    style: str = "dumpling"
    """dumpling, mydumper (hexadecimal or not), mysqldump."""
    listed: bool = False
    per_statement: int = 3
    hexadecimal: bool = True
    table: str = "parcels"
    quote: bytes = b"'"

    def file(self, rows: Sequence[Row]) -> bytes:
        before, after = {
            "dumpling": (b"/*!40101 SET NAMES binary*/;\n", b""),
            "mydumper": (b"/*!40101 SET NAMES binary*/;\n/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n", b""),
            "mysqldump": (
                b"-- Dump of parcels; INSERT INTO\n--\n\nLOCK TABLES `parcels` WRITE;\n"
                b"/*!40000 ALTER TABLE `parcels` DISABLE KEYS */;\n",
                b"/*!40000 ALTER TABLE `parcels` ENABLE KEYS */;\nUNLOCK TABLES;\n",
            ),
        }[self.style]
        return before + self.statements(rows) + after

    def statements(self, rows: Sequence[Row]) -> bytes:
        gap = {"dumpling": b",\n", "mydumper": b"\n,", "mysqldump": b","}[self.style]
        names = f"({','.join(map(quoted, self.notation.columns))}) " if self.listed else ""
        head = f"INSERT INTO {quoted(self.table)} {names}VALUES{chr(10) if self.style == 'dumpling' else ' '}".encode()
        groups = (rows[at : at + self.per_statement] for at in range(0, len(rows), self.per_statement))
        return b"".join(head + gap.join(map(self.row, group)) + b";\n" for group in groups)

    def row(self, row: Row) -> bytes:
        return b"(" + b",".join(map(self._value, row)) + b")"

    def _value(self, value: Value) -> bytes:
        if value is None:
            return b"NULL"
        text = plain(value)
        if isinstance(value, int | float | Decimal):
            return text
        if isinstance(value, bytes) and self.hexadecimal:
            digits = text.hex().encode()
            if self.style == "dumpling":
                return b"x'%s'" % digits
            return b"0x" + digits if text else b"''"
        mark = self.quote
        escapes = self.notation.backslash_escapes
        string = mark + (with_backslashes(text, b"'\"") if escapes else text.replace(mark, mark * 2)) + mark
        if isinstance(value, bytes):
            return b"_binary " + string
        return b"CONVERT(%s USING UTF8MB4)" % string if self.style == "mydumper" and mark == b"'" else string


def image(row: Row, names: Sequence[str], binary: str, labels: bool) -> dict[str, str | None]:
    return {name: _text(name, value, binary, labels) for name, value in zip(names, row, strict=True)}


def _text(name: str, value: Value, binary: str, labels: bool) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        if name == "flags":
            return str(int.from_bytes(value, "big"))
        if name == "shape" or binary == "characters":
            return "".join(map(chr, value))
        return value.hex() if binary == "hex" else base64.b64encode(value).decode()
    if name == "kind" and not labels:
        return "0" if value == "" else str(LABELS.index(str(value)) + 1)
    if name == "marks" and not labels:
        return str(sum(2 ** MARKS.index(label) for label in str(value).split(",") if label))
    return str(value)


# --- Dumpling ---

NAMES_BINARY = "/*!40101 SET NAMES binary*/;\n"


def dumpling_name(name: str) -> str:
    """As Dumpling's `fn` escapes it."""
    escaped = "".join(f"%{ord(c):02X}" if c < " " or c in '%"*./:<>?\\|' else c for c in name)
    found = escaped.lower().find("-schema")
    while found >= 0:
        escaped = f"{escaped[:found]}%2D{escaped[found + 1 :]}"
        found = escaped.lower().find("-schema")
    return escaped


def dumpling_status(log: str, position: object, gtid: str = "", header: str = "SHOW MASTER STATUS:") -> str:
    return f"{header}\n\tLog: {log}\n\tPos: {position}\n\tGTID:{gtid}\n\n"


def dumpling(
    root: Path, tables: Sequence[DumpTable], *, status: str | None = None, filetype: str = "csv",
    csv: DumpCsv | None = None, suffix: str = "", rows_per_file: int | None = None, number: str = "{:09d}",
    complete_insert: bool = False,
) -> Path:  # fmt: skip
    """A finished dump; of TiDB at `TSO`, unless `status` says otherwise."""
    options = csv or DumpCsv()
    for table, stem, index, rows in _parts(root, tables, dumpling_name, NAMES_BINARY, "", suffix, rows_per_file):
        if filetype == "sql":
            named = complete_insert or len(table.columns) != len(table.row_columns)
            notation = InsertNotation(tuple(table.row_columns), options.escape_backslash)
            writer = InsertWriter(notation, "dumpling", named, len(rows), table=table.name)
            content = NAMES_BINARY.encode() + writer.statements(rows)
        else:
            marks = (options.separator, options.delimiter, options.null, options.line_terminator)
            rules = (options.escape_backslash, options.header, options.binary)
            notation = TextNotation(tuple(table.row_columns), *(each.encode() for each in marks), *rules)
            content = TextWriter(notation, letters="0nr").file(rows)
        write(root, f"{stem}.{number.format(index)}.{filetype}", content, suffix)
    times = ("Started dump at: 2026-06-10 01:02:03\n", "Finished dump at: 2026-06-10 01:02:09\n")
    write(root, "metadata", (status or dumpling_status("tidb-binlog", TSO)).join(times))
    return root


def _parts(
    root: Path, tables: Sequence[DumpTable], named: Callable[[str], str], header: str, exists: str, suffix: str,
    size: int | None,
) -> Iterator[tuple[DumpTable, str, int, Sequence[Row]]]:  # fmt: skip
    """Write the statements that make tables; gives the rows of each file of a table, and how its name begins."""
    for table in tables:
        database, name = named(table.database), named(table.name)
        create = f"{header}CREATE DATABASE {exists}{quoted(table.database)};\n"
        write(root, f"{database}-schema-create.sql", create, suffix)
        write(root, f"{database}.{name}-schema.sql", f"{header}{table.create};\n", suffix)
        for index, rows in enumerate(table.chunks(size)):
            yield table, f"{database}.{name}", index, rows


# --- mydumper ---

HEADERS = "/*!40101 SET NAMES binary*/;\n/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n/*!40103 SET TIME_ZONE='+00:00' */;\n"
SOURCE = f"""[source]
# Channel_Name = '' # It can be use to setup replication FOR CHANNEL
# executed_gtid_set = "{GTID}"
# SOURCE_LOG_FILE = "bin.000003"
# SOURCE_LOG_POS = 4711
"""


def mydumper(
    root: Path, tables: Sequence[DumpTable], *, output: str = "INSERT", source: str = SOURCE, suffix: str = "",
    rows_per_file: int | None = None, hex_blob: bool = False, header: bool = False, text_metadata: str | None = None,
) -> Path:  # fmt: skip
    """A finished dump, as 1.0 makes it, or with `text_metadata` as 0.10 does. Names that 1.0 replaces are replaced."""
    stand_ins: dict[str, str] = {}

    def file_name(name: str) -> str:
        plain = all(c.isalnum() or c in "-_ " for c in name) and not name.startswith("mydumper_")
        return name if plain else stand_ins.setdefault(name, f"mydumper_{len(stand_ins)}")

    exists = "/*!32312 IF NOT EXISTS*/ "
    for table, stem, index, rows in _parts(root, tables, file_name, HEADERS, exists, suffix, rows_per_file):
        path = f"{stem}.{index:05d}"
        if output == "INSERT":
            named = len(table.columns) != len(table.row_columns)
            notation = InsertNotation(tuple(table.row_columns))
            writer = InsertWriter(notation, "mydumper", named, len(rows), hex_blob, table.name, b'"')
            write(root, f"{path}.sql", HEADERS.encode() + writer.statements(rows), suffix)
        else:
            separator, quote, shown = (b",", b'"', ",") if output == "CSV" else (b"\t", b"", r"\t")
            hexed, names = table.binary if hex_blob else [], table.row_columns
            notation = TextNotation(tuple(names), separator, quote, rb"\N", b"\n", header=header)
            texts = [[f"{value:f}" if isinstance(value, Decimal) else value for value in row] for row in rows]
            for row in texts:
                for place, value in enumerate(row):
                    if isinstance(value, bytes) and names[place] in hexed:
                        row[place] = Bare(value.hex().upper().encode())
            content = TextWriter(notation, letters="0nrZ", also=b"\"'" + separator).file(texts)
            write(root, f"{path}.dat", content, suffix)
            columns = ",".join(f"@{name}" if name in hexed else quoted(name) for name in names)
            decoded = ",".join(f"{quoted(name)}=UNHEX(@{name})" for name in hexed)
            load = (
                f"LOAD DATA LOCAL INFILE '{path}.dat{suffix}' REPLACE INTO TABLE {quoted(table.name)} CHARACTER SET "
                f"binary FIELDS TERMINATED BY '{shown}' ENCLOSED BY '{quote.decode()}' ESCAPED BY '\\\\' "
                f"LINES STARTING BY '' TERMINATED BY '\\n' {'IGNORE 1 LINES ' if header else ''}"
                f"({columns}){f'SET {decoded}' if decoded else ''};\n"
            )
            write(root, f"{path}.sql", HEADERS + load, suffix)
    sections = (
        f"\n[{quoted(each.database)}.{quoted(each.name)}]\nreal_table_name={each.name}\nrows = {len(each.rows)}\n"
        for each in tables
    )
    if text_metadata is not None:
        write(root, "metadata", text_metadata)
    else:
        began = "# Started dump at: 2026-06-10 01:02:03\n[config]\nquote-character = BACKTICK\n\n"
        variables = "[myloader_session_variables]\nSQL_MODE='NO_AUTO_VALUE_ON_ZERO,' /*!40101\n\n"
        ended = "[config]\nmax-statement-size = 999\n# Finished dump at: 2026-06-10 01:02:09\n"
        write(root, "metadata", f"{began}{variables}{source}{''.join(sections)}{ended}")
    return root


# --- MySQL Shell ---

_SHELL: Final = json.loads(Path(__file__).with_name("mysqlshell.json").read_text(encoding="utf-8"))
"""What is the same in each dump, by document."""


def shell_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._~" or ord(c) > 127 else f"%{ord(c):02X}" for c in name)


def mysqlshell(
    root: Path, tables: Sequence[DumpTable], *, suffix: str = ".zst", rows_per_file: int | None = None,
    partitions: Sequence[str] = (), csv: bool = False, start: dict[str, Any] | None = None, views: Sequence[str] = (),
    counts: bool = True,
) -> Path:  # fmt: skip
    """A finished dump of tables, in chunks where `rows_per_file` says how large; rows stand in the first of the
    `partitions`. `start` is put into `@.json`; `views` are of the first table's database."""
    separator, quote, terminator = (",", '"', "\r\n") if csv else ("\t", "", "\n")
    extension = f"{'csv' if csv else 'tsv'}{suffix}"
    databases = list(dict.fromkeys(table.database for table in tables))
    chunk_bytes: dict[str, int] = {}
    for table in tables:
        basename = f"{shell_name(table.database)}@{shell_name(table.name)}"
        parts = {name: f"{basename}@{shell_name(name)}" for name in partitions}
        marks = (separator.encode(), quote.encode(), rb"\N", terminator.encode())
        notation = TextNotation(tuple(table.row_columns), *marks, binary="base64")
        document = {
            **_SHELL["table"],
            "options": {
                **_SHELL["options"], "schema": table.database, "table": table.name, "columns": table.row_columns,
                **({"decodeColumns": dict.fromkeys(table.binary, "FROM_BASE64")} if table.binary else {}),
                "fieldsTerminatedBy": separator, "fieldsEnclosedBy": quote, "fieldsOptionallyEnclosed": csv,
                "linesTerminatedBy": terminator,
            },
            "extension": extension, "chunking": rows_per_file is not None, "partitions": list(partitions),
            "basenames": parts, "compression": {"": "none", ".gz": "gzip", ".zst": "zstd"}[suffix],
        }  # fmt: skip
        write(root, f"{basename}.json", json.dumps(document))
        write(root, f"{basename}.sql", f"-- MySQLShell dump 2.0.1\n/*!40101 SET @saved = 1 */;\n{table.create};\n")
        for place, part in enumerate(parts.values() or [basename]):
            chunks = table.chunks(rows_per_file) if place == 0 else []
            for index, rows in enumerate(chunks or [[]]):
                mark = "" if rows_per_file is None else f"{'@@' if index >= len(chunks) - 1 else '@'}{index}"
                content = TextWriter(notation).file(rows)
                name = f"{part}{mark}.{extension}"
                (root / name).write_bytes(COMPRESSED[suffix](content))
                (root / f"{name}.idx").write_bytes(len(content).to_bytes(8, "big"))
                chunk_bytes[name] = len(content)
    for database in databases:
        own = [table.name for table in tables if table.database == database]
        seen = list(views) if database == databases[0] else []
        basenames = {name: f"{shell_name(database)}@{shell_name(name)}" for name in (*own, *seen)}
        for name, ending in itertools.product(seen, (".sql", ".pre.sql")):
            write(root, f"{basenames[name]}{ending}", "CREATE VIEW …")
        schema = {**_SHELL["schema"], "schema": database, "tables": own, "views": seen, "basenames": basenames}
        write(root, f"{shell_name(database)}.json", json.dumps(schema))
        write(root, f"{shell_name(database)}.sql", f"CREATE DATABASE {quoted(database)};\n")
    for name in ("@.sql", "@.post.sql"):
        write(root, name, "-- nothing\n")
    basenames = {database: shell_name(database) for database in databases}
    begin = {**_SHELL["@.json"], "schemas": databases, "basenames": basenames, "gtidExecuted": GTID, **(start or {})}
    write(root, "@.json", json.dumps(begin))
    rows_of = {name: {each.name: len(each.rows) for each in tables if each.database == name} for name in databases}
    counted = {"tableRows": rows_of, "chunkFileBytes": chunk_bytes} if counts else {}
    write(root, "@.done.json", json.dumps({**_SHELL["@.done.json"], **counted}))
    return root


# --- The true rows of a data set's stage ---

NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year")


def dump_of(
    truth: Truth, stage: int, root: Path, names: Sequence[tuple[str, str]] | None = None, tool: DumpType = "dumpling",
    **form: Any,
) -> Path:  # fmt: skip
    """A dump of the tables (of some of them) at the stage's checkpoint-ts, which TiDB calls a position of its log."""
    tables = [_dump_table(each) for name, each in sorted(truth.tables(stage).items()) if names is None or name in names]
    log, position = "tidb-binlog", truth.stages[stage]["checkpoint_ts"]
    match tool:
        case "dumpling":
            return dumpling(root, tables, status=dumpling_status(log, position), **form)
        case "mydumper":
            source = f'[source]\n# SOURCE_LOG_FILE = "{log}"\n# SOURCE_LOG_POS = {position}\n'
            return mydumper(root, tables, source=source, **form)
        case "mysqlshell":
            return mysqlshell(root, tables, start={"binlogFile": log, "binlogPosition": position}, **form)


def _dump_table(true: dict[str, Any]) -> DumpTable:
    columns = {
        column["name"]: f"{column['type']} {'' if column['nullable'] else 'NOT '}NULL" for column in true["columns"]
    }
    key = ",".join(f"`{name.replace('`', '``')}`" for name in true["key"])
    end = ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    types = [column["type"] for column in true["columns"]]
    rows = [[_dumped(cell, kind) for cell, kind in zip(row, types, strict=True)] for row in true["rows"]]
    return DumpTable(true["schema"], true["table"], columns, rows, f",PRIMARY KEY ({key})\n{end}" if key else end)


def _dumped(cell: Any, kind: str) -> Value:
    base = re.match(r"\w+", kind)[0]  # pyright: ignore[reportOptionalSubscript]
    if cell is None:
        return None
    if base == "json":
        return json.dumps(None if cell == {"json": None} else cell, ensure_ascii=False)
    if isinstance(cell, dict):
        return base64.b64decode(cell["b64"])
    if base == "bit":
        bits = int(kind.partition("(")[2].partition(")")[0] or 1)
        return int(cell).to_bytes((bits + 7) // 8, "big")
    if base == "vector":
        return json.dumps([float(each) for each in cell])
    return Decimal(cell) if base in NUMBERS else cell
