r"""Directories of Dumpling and mydumper: all files are in one directory, and their names give their kind.

    {database}-schema-create.sql                                      CREATE DATABASE
    {database}.{table}-schema.sql                                     CREATE TABLE; of a view: a table in its place
    {database}.{table}-schema-{view|sequence|triggers|post}.sql
    {database}-schema-{post|triggers}.sql
    {database}.{table}[.{number}[.{number}]].{sql|csv|dat|parquet}    rows

each with the suffix of its compression. Neither tool writes a dot in the name of a database or a table (see `dumpling`
below and `mydumper` for the replacement).

Tools put other statements around the CREATE TABLE of a file: `SET NAMES`, `SET TIME_ZONE`, in special comments.
Backslashes in its strings are escapes, as MySQL and TiDB print SHOW CREATE TABLE.

The metadata of Dumpling and of mydumper before 0.13: when the dump began and ended, and where the source was.

    Started dump at: 2024-05-06 07:08:09
    SHOW MASTER STATUS:
    <tab>Log: tidb-binlog
    <tab>Pos: 449590000000000001
    <tab>GTID:

    Finished dump at: 2024-05-06 07:09:10

The header is `SHOW BINARY LOG STATUS:` from MySQL 8.4 on. A block of a replica's own source (`SHOW SLAVE STATUS:`) says
nothing of the dumped server's log. Dumpling writes the status a second time when its connections are open, as
`SHOW MASTER STATUS: /* AFTER CONNECTION POOL ESTABLISHED */` (pingcap/tidb, dumpling/export/metadata.go).

In names of Dumpling's files (pingcap/tidb, dumpling/export), names of databases and tables have `%XX` in the place of
each byte of `[\x00-\x1f%"*./:<>?\\|]`, and of the minus in `-schema` (in any case of letters); other characters are
unchanged.

A file's number is `%09d` of its chunk (`-r`, or no option) or of the file (`-F`), or with both options `%09d%04d` of
both (`newOutputFileNamer`); older releases padded less. A chunk without rows has no file, so that numbers of chunks may
have gaps; those of a chunk's files may not. A table without rows has only a schema file.

A view has a schema file with a table of the same columns, in addition to the view's own file (`ShowCreateView`). Files
of `--sql` are `result.{number}`: they name no table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError, Token, name_value, tokenize
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.changelog.schema import TableName, quoted
from cdc_lakehouse.config import DumpCsv, InitialLoad
from cdc_lakehouse.errors import DumpError, ObjectMissingError, SourceError
from cdc_lakehouse.sources.dump import contents
from cdc_lakehouse.sources.dump.contents import ONE_DUMP, DumpedTable, DumpFile, DumpPosition, UnreadTable
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT, read_text, without_suffix
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

RowFormat = Literal["sql", "csv", "dat", "parquet"]

_OF_DATABASE: Final = re.compile(r"(?P<database>[^./]+)-schema-(?P<kind>create|post|triggers)\.sql")
_OF_TABLE: Final = re.compile(
    r"(?P<database>[^./]+)\.(?P<table>[^./]+?)-schema(?:-(?P<kind>view|sequence|triggers|post))?\.sql"
)
_ROWS: Final = re.compile(
    r"(?P<database>[^./]+)\.(?P<table>[^./]+)(?P<numbers>(?:\.[0-9]{1,20}){0,2})\.(?P<format>sql|csv|dat|parquet)"
)


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows. `numbers` are those of its name, as digits."""

    object: StoredObject
    numbers: tuple[str, ...]
    format: RowFormat

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.numbers)

    def with_notation(self, notation: contents.Notation) -> DumpFile:
        found = self.object
        compression = without_suffix(found.path)[1]
        return DumpFile(found.path, found.size, found.etag, found.modified, compression, notation)


@dataclass
class TableFiles:
    """All files of a table or similar object, by the names that its files use for it."""

    database: str
    table: str
    schemas: list[StoredObject] = field(default_factory=list[StoredObject])
    rows: list[RowFile] = field(default_factory=list[RowFile])
    is_stand_in: bool = False
    """Whether the schema file represents a view or a sequence, which have no rows."""

    @property
    def shown(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def is_table(self) -> bool:
        """Whether it is a table of which the dump has more than its triggers."""
        return bool(self.rows or (self.schemas and not self.is_stand_in))

    def only_schema(self) -> StoredObject:
        """Return the only schema file. Raises `SourceError` when there is none, or several."""
        if not self.schemas:
            said = f"the dump has rows of {self.shown} and no file with its CREATE TABLE"
            advice = "dump again with the schemas of tables"
            raise SourceError(said, segment=self.rows[0].object.path if self.rows else None, advice=advice)
        if len(self.schemas) > 1:
            paths = " and ".join(each.path for each in self.schemas[:2])
            raise SourceError(f"the dump has the table {self.shown} twice: {paths}", advice=ONE_DUMP)
        return self.schemas[0]

    def ordered(self, rows: Iterable[RowFile]) -> list[RowFile]:
        """Sort the table's files of rows by their numbers. Raises `SourceError` when two have the same, or are of two
        formats: then two dumps are in one directory."""
        found = sorted(rows, key=lambda file: (file.order, file.object.path))
        for one, other in itertools.pairwise(found):
            if one.order == other.order or one.format != other.format:
                raise SourceError(
                    f"the dump has rows of {self.shown} in files that do not belong together: {one.object.path} and "
                    f"{other.object.path}",
                    advice=ONE_DUMP,
                )
        return found


def classify(objects: Iterable[StoredObject]) -> tuple[list[TableFiles], dict[str, StoredObject], list[str]]:
    """Classify files by their names: those of tables, the CREATE DATABASE files by the names of databases in paths, and
    paths that match no rule."""
    tables: dict[tuple[str, str], TableFiles] = {}
    databases: dict[str, StoredObject] = {}
    unknown: list[str] = []
    for found in objects:
        name, _ = without_suffix(found.path)
        if match := _OF_TABLE.fullmatch(name) or _ROWS.fullmatch(name):
            key = (match["database"], match["table"])
            table = tables.setdefault(key, TableFiles(*key))
            if match.re is _ROWS:
                numbers = tuple(match["numbers"].split(".")[1:])
                table.rows.append(RowFile(found, numbers, cast("RowFormat", match["format"])))
            else:
                table.is_stand_in |= match["kind"] in ("view", "sequence")
                table.schemas += [found] * (match["kind"] is None)
        elif match := _OF_DATABASE.fullmatch(name):
            databases |= {match["database"]: found} if match["kind"] == "create" else {}
        else:
            unknown.append(found.path)
    return list(tables.values()), databases, unknown


class StatementError(DumpError):
    """A table's schema file does not give its columns. The other tables of the dump can be loaded."""


def read_create_table(store: ObjectStore, file: StoredObject) -> tuple[str, ddl.CreateTable]:
    """Read the CREATE TABLE statement of a file: its text, without a semicolon, and its parsed form. Raises
    `StatementError` when it has none, has several, or has one that cannot be parsed, and as `read_text` does."""
    content = read_text(store, file)
    try:
        found = [text for text, words in _statements(content) if words in (["CREATE", "TABLE"], ["CREATE", "OR"])]
        if len(found) != 1:
            raise StatementError(f"the schema file has {len(found) or 'no'} CREATE TABLE statements", segment=file.path)
        (clause,) = parse(found[0])
    except DdlSyntaxError as error:
        raise StatementError(f"the statement of the schema file: {error.message}", segment=file.path) from None
    if not isinstance(clause, ddl.CreateTable) or not clause.columns:
        raise StatementError("the statement of the schema file lists no columns", segment=file.path)
    return found[0], clause


def read_table(
    store: ObjectStore, schema: StoredObject, name: TableName, files: Callable[[DumpedTable], Iterable[DumpFile]],
    rows: int | None = None,
) -> DumpedTable | UnreadTable:  # fmt: skip
    """Read a table's schema file, and return the table with its `files` of rows. Raises `SourceError` where the file
    is of another table, and as `read_text` does."""
    try:
        statement, definition = read_create_table(store, schema)
    except StatementError as error:
        return UnreadTable(name, schema.path, error.message)
    if (stated := definition.table.name) != name.table:
        said = f"the dump says the table {name.table!r}, its statement {stated!r}"
        advice = "dump with the default names of files into an empty directory"
        raise SourceError(said, segment=schema.path, advice=advice)
    table = DumpedTable(name, schema.path, statement, definition, (), rows)
    return replace(table, files=tuple(files(table)))


def read_database_name(store: ObjectStore, file: StoredObject) -> str:
    """Return the database that a file's CREATE DATABASE statement names. Raises `SourceError` when there is none that
    can be parsed, and as `read_text` does."""
    content = read_text(store, file)
    try:
        for text, words in _statements(content):
            if words in (["CREATE", "DATABASE"], ["CREATE", "SCHEMA"]):
                (clause,) = parse(text)
                if isinstance(clause, ddl.OfDatabase) and clause.kind == "create_database":
                    return clause.name
    except DdlSyntaxError as error:
        raise DumpError(f"the statement of the schema file: {error.message}", segment=file.path) from None
    raise DumpError("the schema file has no CREATE DATABASE statement", segment=file.path)


def _statements(content: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each statement of a text, with its first two words in upper case. Raises `DdlSyntaxError`."""
    _, tokens = tokenize(content)
    statement: list[Token] = []
    for token in tokens:
        if token.kind != "end" and token.word != ";":
            statement.append(token)
        elif statement:
            # Up to the semicolon, because a special comment may close after the last token.
            text = content[statement[0].start : token.start].strip()
            yield text, [name_value(each).upper() for each in statement[:2] if each.kind == "word"]
            statement = []


METADATA: Final = "metadata"
TIDB_LOG: Final = "tidb-binlog"
"""TiDB's name for its binlog; the offset in it is a TSO."""

_FINISHED: Final = re.compile(r"^(?:# )?Finished dump at: ", re.MULTILINE)
_HEADER: Final = re.compile(
    r"SHOW (?P<of>MASTER|BINARY LOG|SLAVE|REPLICA|ALL SLAVES|ALL REPLICAS) STATUS:"
    r"(?P<later> /\* AFTER CONNECTION POOL ESTABLISHED \*/)?\s*"
)
_AGAIN: Final = "wait until the dump is finished, or dump again into an empty directory"


def read_metadata(store: ObjectStore) -> str:
    """Read the text of the dump's metadata file. Raises `SourceError` when it does not exist, or the dump has not
    ended, and as `ObjectStore.read` does."""
    try:
        content = store.read(METADATA, limit=SMALL_FILE_LIMIT)
    except ObjectMissingError:
        said = "the dump has no metadata file: it is not finished, or not there"
        raise SourceError(said, segment=METADATA, advice=f"check source.initial.uri, or {_AGAIN}") from None
    text = content.decode("utf-8", "replace")
    if not _FINISHED.search(text):
        raise SourceError("the dump is not finished: its metadata does not say when", segment=METADATA, advice=_AGAIN)
    return text


def parse_status(text: str) -> DumpPosition:
    """Return the position in a metadata file of the form above. Raises `SourceError` when the file has no position, two
    different ones, or one that is not a number."""
    blocks: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    last = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        if header := _HEADER.fullmatch(line):
            fields, last = {}, ""
            if header["of"] in ("MASTER", "BINARY LOG"):
                blocks.append(fields)  # Of the dumped server.
        elif line.startswith("\t"):
            last, _, value = line.strip().partition(":")
            fields[last] = value.strip()
        elif line and last == "GTID":
            fields[last] += line.strip()  # A set of several servers has a line for each.
        else:
            last = ""
    positions = [position_of(block.get("Log"), block.get("Pos"), block.get("GTID")) for block in blocks or [{}]]
    for position in positions[1:]:
        if position != positions[0]:
            said = f"the dump is not of one point: it began at {positions[0]} and went on at {position}"
            raise SourceError(said, segment=METADATA, advice="dump again with --consistency flush, lock or snapshot")
    return positions[0]


def position_of(log: str | None, offset: str | None, gtid: str | None, path: str = METADATA) -> DumpPosition:
    """Return the position in a status of the file at `path`. TiDB's log is `tidb-binlog`, its offset there a TSO.
    Raises `SourceError` when the offset is not a number, or the status has no position at all."""
    gtid = "".join((gtid or "").split()) or None
    if not (log or gtid):
        raise SourceError(
            "the dump does not say its position in the change log",
            segment=path,
            advice="dump MySQL again with its binlog on, as a user who may see its status (REPLICATION CLIENT); dump "
            "TiDB with Dumpling",
        )
    if not log:
        return DumpPosition(gtid=gtid)
    number = int(offset) if offset and offset.isascii() and offset.isdigit() and len(offset) <= 20 else None
    if log == TIDB_LOG:
        if number is None or not is_commit_ts(number):
            advice = "dump again with --snapshot and the TSO as a number, or without --snapshot"
            raise SourceError(f"the position of the dump is not a TSO: {offset!r}", segment=path, advice=advice)
        return DumpPosition(tso=number)
    if number is None:
        raise DumpError(f"the position of the dump in {log} is not a number: {offset!r}", segment=path)
    return DumpPosition(log_file=log, log_offset=number, gtid=gtid)


# --- Dumpling ---

_OF_QUERY: Final = re.compile(r"result\.\d+\.(?:sql|csv|parquet)")
_POLICY: Final = re.compile(r"[^/]+-placement-policy-create\.sql")
_ESCAPE: Final = re.compile(r"%(.{0,2})", re.DOTALL)
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{2}")
_CHUNK_DIGITS, _BOTH_DIGITS = 9, 13


def read_dumpling(store: ObjectStore, initial: InitialLoad) -> contents.Dump:
    # Before the listing: it is written last, so the listing then has everything.
    position = parse_status(read_metadata(store))
    objects = contents.list_objects(store)
    files, _, unknown = classify(found for found in objects if found.path != METADATA)
    unknown = [path for path in unknown if not _POLICY.fullmatch(without_suffix(path)[0])]
    # All of Dumpling's names for files of rows have one number.
    unknown += (rows.object.path for table in files for rows in table.rows if len(rows.numbers) != 1)
    for path in unknown:
        if _OF_QUERY.fullmatch(without_suffix(path)[0]):
            said = "the dump is of a query (--sql): it does not say which table its rows are of"
            raise SourceError(said, segment=path, advice="dump tables, with --where or --tables-list")
    contents.refuse_unknown(sorted(unknown), "Dumpling")
    tables = (_read_table(store, table, initial.csv) for table in files if table.is_table)
    return contents.Dump(position, *contents.sorted_tables(tables))


def _read_table(store: ObjectStore, table: TableFiles, csv: DumpCsv) -> DumpedTable | UnreadTable:
    rows = table.ordered(table.rows)
    if all(len(file.numbers[0]) == _BOTH_DIGITS for file in rows):
        # Then the numbers show whether a file between others is missing.
        following: dict[str, int] = {}
        for file in rows:
            chunk, number = file.numbers[0][:_CHUNK_DIGITS], int(file.numbers[0][_CHUNK_DIGITS:])
            expected = following.get(chunk, 0)
            if number != expected:
                said = f"a file of {table.shown} is not there: chunk {chunk} goes on with file {number}, not {expected}"
                raise DumpError(said, segment=file.object.path)
            following[chunk] = number + 1

    def unescaped(name: str) -> str:
        def byte(escape: re.Match[str]) -> str:
            if not _HEXADECIMAL.fullmatch(escape[1]):
                raise SourceError(
                    f"the name {name!r} in a file's is not escaped as Dumpling does it: a % is followed by two digits",
                    advice="dump with the default names of files (no --output-filename-template)",
                )
            return chr(int(escape[1], 16))

        return _ESCAPE.sub(byte, name)

    name = TableName(unescaped(table.database), unescaped(table.table))
    return read_table(
        store,
        table.only_schema(),
        name,
        lambda dumped: [file.with_notation(_notation(file, dumped.row_columns, csv)) for file in rows],
    )


def _notation(file: RowFile, columns: tuple[str, ...], csv: DumpCsv) -> contents.Notation:
    if file.format == "sql":
        # The option is the same for both formats.
        return contents.InsertNotation(columns, csv.escape_backslash)
    if file.format == "csv":
        return contents.TextNotation(
            columns, csv.separator.encode(), csv.delimiter.encode(), csv.null.encode(), csv.line_terminator.encode(),
            backslash_escapes=csv.escape_backslash, header=csv.header and bool(columns), binary=csv.binary,
        )  # fmt: skip
    said = f"rows of a dump in the format {file.format} are not read"
    raise SourceError(said, segment=file.object.path, advice="dump with --filetype sql or csv")
