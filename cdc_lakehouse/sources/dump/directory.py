r"""Directories of dumps, by tool. To add one: its name in `config.sources`, its reader, its row in `_TOOLS`, and what
`detect_dump` knows it by.

Dumpling and mydumper have all files in one directory, and their names give their kind.

    {database}-schema-create.sql                                      CREATE DATABASE
    {database}.{table}-schema.sql                                     CREATE TABLE; of a view: a table in its place
    {database}.{table}-schema-{view|sequence|triggers|post}.sql
    {database}-schema-{post|triggers}.sql
    {database}.{table}[.{number}[.{number}]].{sql|csv|dat|parquet}    rows

each with the suffix of its compression. Neither tool writes a dot in the name of a database or a table (see
below for the replacements).

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
unchanged. A file's number is `%09d` of its chunk (`-r`, or no option) or of the file (`-F`), or with both options
`%09d%04d` of both (`newOutputFileNamer`); older releases padded less. A chunk without rows has no file, so that numbers
of chunks may have gaps; those of a chunk's files may not. A table without rows has only a schema file. A view has a
schema file with a table of the same columns, in addition to the view's own file (`ShowCreateView`). Files of `--sql`
are `result.{number}`: they name no table.

mydumper (mydumper/mydumper, src/mydumper) calls `metadata` `metadata.partial` until the dump is finished. Before 0.13
it is the text above; since then it is an INI file:

    # Started dump at: 2024-05-06 07:08:09
    [source]                                        [master] before 0.17
    # SOURCE_LOG_FILE = "bin.000003"                comments unless --source-data; File = … before
    # SOURCE_LOG_POS = 4711
    # executed_gtid_set = "…"

    [`d`.`mydumper_0`]                              or the table's own name
    real_table_name=a.b
    rows = 42
    # Finished dump at: 2024-05-06 07:09:10

For a server that it recognises as TiDB it writes no position since 0.13, although it reads one snapshot: such a dump
cannot be joined to a change log.

Names in paths are those of databases and tables, or `mydumper_{number}` for those with characters other than letters,
digits, `-`, `_` and blanks (`determine_filename`). The real names are in CREATE TABLE and CREATE DATABASE. 0.10 uses
all names unchanged, and gives a table's only file no number: a name with a dot is refused, because the database and the
table cannot be distinguished, and one that ends in `-schema`, whose rows have the name of another table's schema.
Numbers of files have gaps: a chunk without rows has no file. Only the number of rows shows what is missing.

Formats: INSERT statements in `.sql`; with LOAD_DATA and CSV the rows are in `.dat`, and a `.sql` of the same numbers
holds the statement that loads it. `--hex-blob` shows in that statement (`UNHEX`), and in INSERT statements in the value
(`0x…`). Its connections `SET NAMES binary`: text is in the character set of its column. Strings of INSERT statements
are in double quotes, and statements of a table with generated columns list columns in any order (observed with
0.10). The LOAD DATA statement gives a file's notation; NULL is `\N` in the file, without quotes (mydumper_write.c,
`initialize_load_data_statement_suffix`):

    LOAD DATA LOCAL INFILE 'd.t.00000.dat' REPLACE INTO TABLE `t` CHARACTER SET binary
    FIELDS TERMINATED BY '\t' ENCLOSED BY '' ESCAPED BY '\\' LINES STARTING BY '' TERMINATED BY '\n' IGNORE 1 LINES
    (`a`,@j,@b)SET `j`=CONVERT(@j USING UTF8MB4),`b`=UNHEX(@b);

MySQL Shell: util.dumpInstance, dumpSchemas, dumpTables (mysql/mysql-shell, modules/util/dump/dumper.cc).

    @.json                              written first: schemas and the names of their files, position
    @.done.json                         written last
    {schema}.json                       tables, views, and the names of their files
    {schema}@{table}.json               how the rows are written; partitions, and the names of their files
    {schema}@{table}.sql                CREATE TABLE
    {schema}@{table}.{extension}                                            all rows
    {schema}@{table}@0.{extension} … {schema}@{table}@@{last}.{extension}   or rows in chunks, the last marked by @@
    {schema}@{table}@{partition}…                                           or so for each partition
    ….idx                               beside a file of rows: offsets in it, of no use here

The names of files are in `basenames`: they are escaped and shortened there, so paths are never parsed. A local file is
`….dumping` until it is complete. `tableRows` (the number of rows) and `chunkFileBytes` (the files) in `@.done.json`
were added in later releases."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import Cursor, DdlSyntaxError, Token, name_value, tokenize
from cdc_lakehouse.changelog.ddl.statements import form, forms, parse
from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DumpCsv, InitialLoad
from cdc_lakehouse.config.sources import DumpType
from cdc_lakehouse.errors import DumpError, ObjectMissingError, SourceError
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.dump import contents
from cdc_lakehouse.sources.dump.contents import ONE_DUMP, Dump, DumpedTable, DumpFile, DumpPosition, UnreadTable
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT, read_small, read_text, without_suffix
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

_OF_DATABASE: Final = re.compile(r"(?P<database>[^./]+)-schema-(?P<kind>create|post|triggers)\.sql")
_OF_TABLE: Final = re.compile(
    r"(?P<database>[^./]+)\.(?P<table>[^./]+?)-schema(?:-(?P<kind>view|sequence|triggers|post))?\.sql"
)
_ROWS: Final = re.compile(
    r"(?P<database>[^./]+)\.(?P<table>[^./]+)(?P<numbers>(?:\.[0-9]{1,20}){0,2})\.(?P<format>sql|csv|dat|parquet)"
)


class RowFile(NamedTuple):
    """A file of rows. `numbers` are those of its name, as digits."""

    object: StoredObject
    numbers: tuple[str, ...]
    format: str

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(map(int, self.numbers))

    def with_notation(self, notation: contents.Notation) -> DumpFile:
        return DumpFile(self.object, without_suffix(self.object.path)[1], notation)


@dataclass
class TableFiles:
    """All files of a table or similar object, by the names that its files use for it."""

    name: TableName
    schemas: list[StoredObject] = field(default_factory=list[StoredObject])
    rows: list[RowFile] = field(default_factory=list[RowFile])
    is_stand_in: bool = False
    """Whether the schema file represents a view or a sequence, which have no rows."""

    @property
    def is_table(self) -> bool:
        """Whether it is a table of which the dump has more than its triggers."""
        return bool(self.rows or (self.schemas and not self.is_stand_in))

    def only_schema(self) -> StoredObject:
        """Return the only schema file. Raises `SourceError` when there is none, or several."""
        if not self.schemas:
            said = f"the dump has rows of {self.name.quoted} and no file with its CREATE TABLE"
            advice = "dump again with the schemas of tables"
            raise SourceError(said, segment=self.rows[0].object.path if self.rows else None, advice=advice)
        if len(self.schemas) > 1:
            paths = " and ".join(each.path for each in self.schemas[:2])
            raise SourceError(f"the dump has the table {self.name.quoted} twice: {paths}", advice=ONE_DUMP)
        return self.schemas[0]

    def ordered(self, rows: Iterable[RowFile]) -> list[RowFile]:
        """Sort the table's files of rows by their numbers. Raises `SourceError` when two have the same, or are of two
        formats: then two dumps are in one directory."""
        found = sorted(rows, key=lambda file: (file.order, file.object.path))
        for one, other in itertools.pairwise(found):
            if one.order == other.order or one.format != other.format:
                paths = f"{one.object.path} and {other.object.path}"
                said = f"the dump has rows of {self.name.quoted} in files that do not belong together: {paths}"
                raise SourceError(said, advice=ONE_DUMP)
        return found


def classify(objects: Iterable[StoredObject]) -> tuple[list[TableFiles], dict[str, StoredObject], list[str]]:
    """Classify files by their names: tables, CREATE DATABASE files by the database in the path, and unknown paths."""
    tables: dict[TableName, TableFiles] = {}
    databases: dict[str, StoredObject] = {}
    unknown: list[str] = []
    for found in objects:
        name, _ = without_suffix(found.path)
        if match := _OF_TABLE.fullmatch(name) or _ROWS.fullmatch(name):
            table_name = TableName(match["database"], match["table"])
            table = tables.setdefault(table_name, TableFiles(table_name))
            if match.re is _ROWS:
                table.rows.append(RowFile(found, tuple(match["numbers"].split(".")[1:]), match["format"]))
            else:
                table.is_stand_in |= match["kind"] in ("view", "sequence")
                table.schemas += [found] * (match["kind"] is None)
        elif match := _OF_DATABASE.fullmatch(name):
            databases |= {match["database"]: found} if match["kind"] == "create" else {}
        else:
            unknown.append(found.path)
    return list(tables.values()), databases, unknown


class StatementError(DumpError):
    """A schema file does not have its one statement. Where it is a table's, the others of the dump can be loaded."""


def _create_statement(store: ObjectStore, file: StoredObject, *kinds: str) -> tuple[str, ddl.Clause]:
    """Return the only statement of a file that begins with CREATE and one of these words, without a semicolon, and its
    clause. Raises `StatementError` when it has none, several, or one that cannot be parsed, and as `read_text` does."""
    content = read_text(store, file)
    try:
        _, tokens = tokenize(content)
        found, statement = list[str](), list[Token]()
        for token in tokens:
            if token.kind != "end" and token.word != ";":
                statement.append(token)
                continue
            words = [name_value(each).upper() for each in statement[:2] if each.kind == "word"]
            if words in (["CREATE", kind] for kind in kinds):
                # Up to the semicolon, because a special comment may close after the last token.
                found.append(content[statement[0].start : token.start].strip())
            statement = []
        if len(found) != 1:
            said = f"the schema file has {len(found) or 'no'} CREATE {kinds[0]} statements"
            raise StatementError(said, segment=file.path)
        (clause,) = parse(found[0])
    except DdlSyntaxError as error:
        raise StatementError(f"the statement of the schema file: {error.message}", segment=file.path) from None
    return found[0], clause


def read_create_table(store: ObjectStore, file: StoredObject) -> tuple[str, ddl.CreateTable]:
    """Read the CREATE TABLE statement of a file: its text, and its parsed form. Raises as `_create_statement` does."""
    statement, clause = _create_statement(store, file, "TABLE", "OR")
    if not isinstance(clause, ddl.CreateTable) or not clause.columns:
        raise StatementError("the statement of the schema file lists no columns", segment=file.path)
    return statement, clause


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


METADATA: Final = "metadata"
TIDB_LOG: Final = "tidb-binlog"
"""TiDB's name for its binlog; the offset in it is a TSO."""

_OF_SERVER: Final = re.compile(
    r"SHOW (?:MASTER|BINARY LOG) STATUS:(?: /\* AFTER CONNECTION POOL ESTABLISHED \*/)?\s*(?:\n|\Z)"
)
_FIELD: Final = re.compile(r"^\t\s*(\w+):((?<=GTID:).*(?:\n[^\t\n].*)*|.*)", re.MULTILINE)
"""A set of GTIDs of several servers has a line for each."""
_AGAIN: Final = "wait until the dump is finished, or dump again into an empty directory"


def read_metadata(store: ObjectStore) -> str:
    """Read the metadata file. Raises as `ObjectStore.read` does, and `SourceError` when the dump is not finished."""
    try:
        content = store.read(METADATA, limit=SMALL_FILE_LIMIT)
    except ObjectMissingError:
        said = "the dump has no metadata file: it is not finished, or not there"
        raise SourceError(said, segment=METADATA, advice=f"check source.initial.uri, or {_AGAIN}") from None
    text = content.decode("utf-8", "replace")
    if not re.search(r"^(?:# )?Finished dump at: ", text, re.MULTILINE):
        raise SourceError("the dump is not finished: its metadata does not say when", segment=METADATA, advice=_AGAIN)
    return text


def parse_status(text: str) -> DumpPosition:
    """Return the position in a metadata file. Raises `SourceError` for none, two different ones, or no number."""
    positions: list[DumpPosition] = []
    for block in re.split(r"^(?=SHOW )", text.replace("\r\n", "\n"), flags=re.MULTILINE):
        if _OF_SERVER.match(block):
            fields = {name: value.strip() for name, value in _FIELD.findall(block)}
            positions.append(position_of(fields.get("Log"), fields.get("Pos"), fields.get("GTID")))
    positions = positions or [position_of(None, None, None)]
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


# Dumpling

_OF_QUERY: Final = re.compile(r"result\.\d+\.(?:sql|csv|parquet)")
_POLICY: Final = re.compile(r"[^/]+-placement-policy-create\.sql")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_CHUNK_DIGITS, _BOTH_DIGITS = 9, 13


def read_dumpling(store: ObjectStore, initial: InitialLoad) -> Dump:
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
    return contents.dump_of(position, tables)


def _read_table(store: ObjectStore, table: TableFiles, csv: DumpCsv) -> DumpedTable | UnreadTable:
    rows = table.ordered(table.rows)
    if all(len(file.numbers[0]) == _BOTH_DIGITS for file in rows):
        # Then the numbers show whether a file between others is missing.
        following: dict[str, int] = {}
        for file in rows:
            chunk, number = file.numbers[0][:_CHUNK_DIGITS], int(file.numbers[0][_CHUNK_DIGITS:])
            expected = following.get(chunk, 0)
            if number != expected:
                said = f"a file of {table.name.quoted} is not there: chunk {chunk} goes on with file {number}, not "
                raise DumpError(f"{said}{expected}", segment=file.object.path)
            following[chunk] = number + 1

    def unescaped(name: str) -> str:
        if "%" in _ESCAPE.sub("", name):
            said = f"the name {name!r} in a file's is not escaped as Dumpling does it: a % is followed by two digits"
            advice = "dump with the default names of files (no --output-filename-template)"
            raise SourceError(said, advice=advice)
        return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), name)

    name = TableName(unescaped(table.name.database), unescaped(table.name.table))

    def files(of: DumpedTable) -> Iterator[DumpFile]:
        return (file.with_notation(_notation(file, of.row_columns, csv)) for file in rows)

    return read_table(store, table.only_schema(), name, files)


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


_DECODED: Final[dict[str, contents.BinaryNotation]] = {"FROM_BASE64": "base64", "UNHEX": "hex"}

# mydumper

_LOADED: Final = form(
    "[LOCAL] INFILE <string> [REPLACE|IGNORE] INTO TABLE <table> [CHARACTER SET|CHAR SET|CHARSET <charset>]", dict
)
_VALUES: Final = forms({
    "TERMINATED BY <terminator:string>": dict, "ESCAPED BY <escape:string>": dict,
    "ENCLOSED BY, OPTIONALLY ENCLOSED BY <quote:string>": dict,
})  # fmt: skip
_LINES: Final = forms({"STARTING BY <start:string>": dict, "TERMINATED BY <terminator:string>": dict})
_ENCODINGS: Final = forms({
    "CONVERT ( @ <token> USING <charset> )": lambda: None,
    **{f"{function} ( @ <token> )": partial(str, encoding) for function, encoding in _DECODED.items()},
})  # fmt: skip


def parse_load_data(statement: str) -> contents.TextNotation:
    """Return the notation of the file that a statement loads. Statements before it, in special comments, are skipped.
    Raises `DdlSyntaxError` when there is no such statement, or one that cannot be parsed."""
    cursor = Cursor(statement)
    while not cursor.accept("LOAD", "DATA"):
        if cursor.at_end:
            raise cursor.expected("LOAD DATA")
        cursor.take()
    _LOADED(cursor)
    # The defaults of MySQL.
    values, lines = {"terminator": "\t", "quote": "", "escape": "\\"}, {"start": "", "terminator": "\n"}
    if cursor.accept_any(("FIELDS", "COLUMNS")):
        while read := cursor.accept_longest(_VALUES):
            values |= read(cursor)
    if (escape := values["escape"]) != "\\":
        # Decoders support no other, and without one mydumper's text is ambiguous.
        raise cursor.error(f"values are escaped by {escape!r}, which is not read")
    if cursor.accept("LINES"):
        while read := cursor.accept_longest(_LINES):
            lines |= read(cursor)
    if start := lines["start"]:
        raise cursor.error(f"lines start by {start!r}, which is not read")
    header = cursor.accept("IGNORE")
    if header:
        if cursor.integer() != 1:
            raise cursor.expected("IGNORE 1 LINES")
        cursor.expect("LINES")
    columns = cursor.enclosed(lambda: cursor.take().text if cursor.accept("@") else cursor.column_name())
    encoded: dict[str, contents.BinaryNotation] = {}
    more = cursor.accept("SET")
    while more:
        column = cursor.column_name()
        cursor.expect("=")
        if encoding := cursor.expect_longest(_ENCODINGS, "CONVERT, UNHEX or FROM_BASE64 of a variable")(cursor):
            encoded[column] = encoding
        more = cursor.accept(",")
    cursor.accept(";")
    if not cursor.at_end:
        raise cursor.expected("the end")
    return contents.TextNotation(
        columns, values["terminator"].encode(), values["quote"].encode(), terminator=lines["terminator"].encode(),
        header=header, encoded=encoded,
    )  # fmt: skip


_PARTIAL: Final = f"{METADATA}.partial"
# Checksums of 0.10 and later, row counts of 0.11, tables left out by --updated-since, tablespaces: no rows.
_NO_ROWS: Final = re.compile(
    rf"{METADATA}(?:\.header)?|not_updated_tables|all-schema-create-tablespace\.sql(?:\.gz|\.zst)?"
    r"|[^/]+-(?:checksum|metadata)(?:\.gz|\.zst)?"
)
_STAND_IN_NAME: Final = re.compile(r"mydumper_\d+")
_SECTION: Final = re.compile(r"\[(?P<name>.+)\]")
_TABLE_SECTION: Final = re.compile(r"([`\"])(?P<database>(?:(?!\1).|\1\1)+)\1\.\1(?P<table>(?:(?!\1).|\1\1)+)\1")
_PAIR: Final = re.compile(r"(?:#\s*)?(?P<key>[A-Za-z_]+)\s*=\s*(?P<value>.*)")
_LOG_KEYS: Final = ("file", "source_log_file", "master_log_file")
_OFFSET_KEYS: Final = ("position", "source_log_pos", "master_log_pos")


def read_mydumper(store: ObjectStore, initial: InitialLoad) -> Dump:
    del initial  # The files say all.
    # Before the listing: it gets its final name last, so the listing then has everything.
    position, counted = _parse_metadata(read_metadata(store))
    objects = contents.list_objects(store)
    if any(found.path == _PARTIAL for found in objects):
        raise SourceError("the dump is not finished: it has partial metadata, too", segment=_PARTIAL, advice=_AGAIN)
    files, of_databases, unknown = classify(each for each in objects if not _NO_ROWS.fullmatch(each.path))
    contents.refuse_unknown(unknown, "mydumper")
    databases = {table.name.database: table.name.database for table in files}
    for name in filter(_STAND_IN_NAME.fullmatch, databases):
        if name not in of_databases:
            said = f"the dump does not say which database its files call {name}"
            advice = "dump again with the schemas of databases"
            raise SourceError(said, segment=f"{name}-schema-create.sql", advice=advice)
        _, clause = _create_statement(store, of_databases[name], "DATABASE", "SCHEMA")
        databases[name] = cast("ddl.OfDatabase", clause).name
    own = (each for each in files if each.is_table)
    tables = (_mydumper_table(store, each, databases[each.name.database], counted, position) for each in own)
    dump = contents.dump_of(position, tables)
    with_rows = {table.name for table in dump.tables if table.files}
    with_rows |= {TableName(databases[each.name.database], each.name.table) for each in files if each.rows}
    for name, rows in counted.items():
        if rows and name not in with_rows:
            said = f"the dump says that it has {rows} rows of {name.quoted}, and has no file of them"
            raise DumpError(said, segment=METADATA)
    return dump


def _parse_metadata(text: str) -> tuple[DumpPosition, dict[TableName, int]]:
    """Return the position, and the numbers of rows by table, under each name that a table has in the metadata."""
    lines = text.split("\n")
    if not any(_SECTION.fullmatch(line) for line in lines):
        return parse_status(text), {}
    # The pairs of each section, with keys in lower case, including those in comments.
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    last = ""
    for line in lines:
        if match := _SECTION.fullmatch(line):
            section, last = sections.setdefault(match["name"], {}), ""
        elif match := _PAIR.fullmatch(line):
            last = match["key"].lower()
            section[last] = match["value"].strip().strip("\"'")
        elif section.get(last, "").endswith(","):
            section[last] += line.strip().strip("\"'#")  # A GTID set of several servers may have a line for each.
    source = sections.get("source") or sections.get("master") or {}
    log, offset = (next((source[key] for key in keys if source.get(key)), None) for keys in (_LOG_KEYS, _OFFSET_KEYS))
    position = position_of(log, offset, source.get("executed_gtid_set"))
    counted: dict[TableName, int] = {}
    for name, values in sections.items():
        if (match := _TABLE_SECTION.fullmatch(name)) and re.fullmatch("[0-9]{1,19}", rows := values.get("rows", "")):
            names = (match[each].replace(match[1] * 2, match[1]) for each in ("database", "table"))
            counted[TableName(*names)] = int(rows)
    return position, counted


def _mydumper_table(
    store: ObjectStore, table: TableFiles, database: str, counted: Mapping[TableName, int], position: DumpPosition
) -> DumpedTable | UnreadTable:
    schema, name = table.only_schema(), TableName(database, table.name.table)
    if _STAND_IN_NAME.fullmatch(table.name.table):
        # The statement alone says which table it is.
        name = TableName(database, read_create_table(store, schema)[1].table.name)
    rows = counted.get(name, counted.get(TableName(database, table.name.table)))
    own_charsets = position.tso is None  # TiDB has UTF-8 whatever a column's character set is.

    def files(dumped: DumpedTable) -> list[DumpFile]:
        of_text = table.ordered(file for file in table.rows if file.format in ("dat", "csv"))
        of_sql = table.ordered(file for file in table.rows if file.format not in ("dat", "csv"))
        if not of_text:
            for file in of_sql:
                if file.format != "sql":
                    said = f"rows of a dump in the format {file.format} are not read"
                    raise DumpError(said, segment=file.object.path, advice="dump rows as INSERT, LOAD DATA or CSV")
            inserts = contents.InsertNotation(dumped.row_columns, own_charsets=own_charsets)
            return [file.with_notation(inserts) for file in of_sql]
        there = {file.order: file for file in (*of_sql, *of_text)}
        for order in sorted({file.order for file in of_text} ^ {file.order for file in of_sql}):
            lacks = "rows" if there[order] in of_sql else "LOAD DATA statement"
            said = f"the file with the {lacks} that belongs to this one is not there"
            raise DumpError(said, segment=there[order].object.path)
        # The statements of a table differ only in the name of the file.
        first = of_sql[0].object
        try:
            notation = parse_load_data(read_text(store, first))
        except DdlSyntaxError as error:
            said = f"the statement that loads rows is not understood: {error.message}"
            raise DumpError(said, segment=first.path) from None
        names = {each.name for each in dumped.definition.columns}
        if unknown := [name for name in notation.columns if name not in names]:
            said = f"the statement that loads rows has a column that the table has not: {unknown[0]!r}"
            raise DumpError(said, segment=first.path)
        return [file.with_notation(replace(notation, own_charsets=own_charsets)) for file in of_text]

    return read_table(store, schema, name, files, rows)


# MySQL Shell

_LOG: Final = logging.getLogger("cdc_lakehouse")
_START, _DONE = "@.json", "@.done.json"
_UNFINISHED: Final = ".dumping"
# Of the whole dump: statements before and after, users, checksums, the manifest of a bucket, and what a load did.
_OTHER_FILES: Final = re.compile(
    r"@\.(?:json|done\.json|sql|post\.sql|users\.sql|checksums\.json|manifest\.json)|load-progress[^/]*"
)
_COMPRESSIONS: Final[dict[str, contents.Compression | None]] = {"none": None, "gzip": "gzip", "zstd": "zstd"}


def read_mysqlshell(store: ObjectStore, initial: InitialLoad) -> Dump:
    files = _Files(store, {found.path: found for found in contents.list_objects(store)})
    if missing := [path for path in (_START, _DONE) if path not in files.objects]:
        said = f"the dump is not finished, or not there: it has no {missing[0]}"
        raise SourceError(said, segment=missing[0], advice=f"check source.initial.uri, {_AGAIN}")
    start, done = files.document(_START), files.document(_DONE)
    if start.of("consistent", bool) is False:
        said = "the dump is not of one point: it was made with consistent: false"
        raise SourceError(said, segment=_START, advice="dump again with consistent: true")
    charset = start.of("defaultCharacterSet", str)
    if charset not in (None, "utf8mb4", "utf8mb3", "utf8"):
        said = f"the dump's text is in {charset}, which is not read"
        raise SourceError(said, segment=_START, advice="dump again with defaultCharacterSet: utf8mb4")
    utc = start.of("tzUtc", bool)
    if utc and initial.time_zone != "UTC":
        said = f"the dump has times in UTC (tzUtc), the configuration says {initial.time_zone}"
        raise SourceError(said, segment=_START, advice="leave out source.initial.time_zone")
    if utc is False and "time_zone" not in initial.model_fields_set:
        said = "the dump has times in the zone of its server (tzUtc: false), which it does not say"
        raise SourceError(said, segment=_START, advice="set source.initial.time_zone to that zone")
    tables: list[DumpedTable | UnreadTable] = []
    for database in start.names("schemas"):
        basename = _basename(start, database)
        schema = files.document(f"{basename}.json")
        files.known |= {f"{basename}.json", f"{basename}.sql"}
        for flag, lacks in (("includesData", "rows"), ("includesDdl", "CREATE TABLE statements")):
            if schema.of(flag, bool) is False:
                said = f"the dump of the database {database!r} has no {lacks}"
                raise SourceError(said, segment=schema.path, advice="dump again without ddlOnly and dataOnly")
        counted = done.within("tableRows").within(database)
        for table in schema.names("tables"):
            name = TableName(database, table)
            tables.append(_shell_table(files, name, _basename(schema, table), counted.of(table, int)))
        for view in schema.names("views"):
            name = _basename(schema, view)
            files.known |= {f"{name}.sql", f"{name}.pre.sql"}
    for path in done.within("chunkFileBytes").values:
        if path not in files.objects:
            raise DumpError("a file of the dump is not there", segment=path)
    unknown = [path for path in files.objects if path not in files.known and not _OTHER_FILES.fullmatch(path)]
    contents.refuse_unknown(unknown, "MySQL Shell")
    log, offset, gtid = start.of("binlogFile", str), start.of("binlogPosition", int), start.of("gtidExecuted", str)
    if log == TIDB_LOG:
        said = "the dump is of TiDB, of which MySQL Shell does not read one snapshot"
        raise SourceError(said, segment=_START, advice="dump TiDB with Dumpling")
    if log and start.of("gtidExecutedInconsistent", bool):
        gtid = None  # Of another moment than the rows.
    position = position_of(log, None if offset is None else str(offset), gtid, _START)
    return contents.dump_of(position, tables)


_Value = TypeVar("_Value", str, int, bool, list[Any], dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Document:
    """A JSON object of the dump. Its methods raise `DumpError` for a value of another kind."""

    path: str
    values: Mapping[str, Any]

    def of(self, key: str, kind: type[_Value]) -> _Value | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise DumpError(f"{key!r} of the dump's metadata is no {kind.__name__}", segment=self.path)
        return value

    def names(self, key: str) -> list[str]:
        found = self.of(key, list) or []
        if not all(isinstance(each, str) for each in found):
            raise DumpError(f"{key!r} of the dump's metadata are no names", segment=self.path)
        return found

    def within(self, key: str) -> _Document:
        return _Document(self.path, self.of(key, dict) or {})


class _Files:
    """The objects of the dump by their paths, and which of them are known."""

    def __init__(self, store: ObjectStore, objects: Mapping[str, StoredObject]) -> None:
        self.store = store
        self.objects = objects
        self.known: set[str] = set()

    def required(self, path: str) -> StoredObject:
        if path not in self.objects:
            raise DumpError("a file of the dump is not there", segment=path)
        self.known.add(path)
        return self.objects[path]

    def document(self, path: str) -> _Document:
        content = read_small(self.store, self.required(path))
        return _Document(path, read_json(content, "the dump's metadata", partial(DumpError, segment=path)))


def _shell_table(files: _Files, name: TableName, basename: str, rows: int | None) -> DumpedTable | UnreadTable:
    document = files.document(f"{basename}.json")
    schema = files.required(f"{basename}.sql")
    files.known.add(f"{basename}.triggers.sql")
    if where := document.of("where", str):
        _LOG.warning("the dump lacks rows of %s: it has those where %s", name.quoted, where)
    compression = document.of("compression", str) or "none"
    extension = document.of("extension", str)
    if compression not in _COMPRESSIONS or not extension:
        raise SourceError(
            f"the rows of {name.quoted} are in a form that is not read: extension {extension}, compression "
            f"{compression}",
            segment=document.path,
            advice="dump again with compression none, gzip or zstd",
        )
    parts = [_basename(document, partition) for partition in document.names("partitions")]
    stored = [file for part in parts or [basename] for file in _chunks(files, part, extension, document.path)]
    files.known |= {f"{file.path}{ending}" for file in stored for ending in ("", ".idx")}

    def dumped(table: DumpedTable) -> Iterator[DumpFile]:
        notation, of = _shell_notation(document, table), _COMPRESSIONS[compression]
        return (DumpFile(each, of, notation) for each in stored)

    return read_table(files.store, schema, name, dumped, rows)


def _basename(document: _Document, name: str) -> str:
    basename = document.within("basenames").of(name, str)
    if not basename:
        raise DumpError(f"the dump does not say what the files of {name!r} are called", segment=document.path)
    return basename


def _chunks(files: _Files, basename: str, extension: str, origin: str) -> list[StoredObject]:
    """Return the files of a table or a partition: one with all rows, or chunks up to the one that is marked as the
    last. Raises `SourceError` when one is missing."""
    whole = files.objects.get(f"{basename}.{extension}")
    if whole is not None:
        return [whole]
    found: list[StoredObject] = []
    while True:
        number = len(found)
        last = files.objects.get(f"{basename}@@{number}.{extension}")
        if last is not None:
            return [*found, last]
        path = f"{basename}@{number}.{extension}"
        if path not in files.objects:
            if f"{path}{_UNFINISHED}" in files.objects:
                said = "the dump is not finished: a file is being written"
                advice = "wait until it is finished, or dump again into an empty directory"
                raise DumpError(said, segment=f"{path}{_UNFINISHED}", advice=advice)
            said = f"a chunk of rows is not there: {path}, or the last as {basename}@@{number}.{extension}"
            raise DumpError(said, segment=origin)
        found.append(files.objects[path])


def _shell_notation(document: _Document, table: DumpedTable) -> contents.TextNotation:
    options = document.within("options")
    columns = tuple(options.names("columns"))
    if not {*table.row_columns} <= {*columns} <= {each.name for each in table.definition.columns}:
        said = f"the dump's rows have the columns {', '.join(columns)}, its CREATE TABLE has "
        raise DumpError(said + ", ".join(table.row_columns), segment=document.path)
    escape = _required(options, "fieldsEscapedBy")
    decoded = options.within("decodeColumns")
    encoded = {column: decoded.of(column, str) or "" for column in decoded.values}
    other = next((function for function in encoded.values() if function not in _DECODED), None)
    if escape not in ("\\", "") or other is not None:
        raise SourceError(
            f"values of the dump are escaped by {escape!r}" if other is None else f"columns are decoded by {other}",
            segment=document.path,
            advice="dump again with the dialect default or csv",
        )
    return contents.TextNotation(
        columns=columns,
        separator=_required(options, "fieldsTerminatedBy").encode(),
        quote=_required(options, "fieldsEnclosedBy").encode(),
        # MySQL, "SELECT ... INTO Statement": without escapes, NULL is the word NULL.
        null=rb"\N" if escape else b"NULL",
        terminator=_required(options, "linesTerminatedBy").encode(),
        backslash_escapes=bool(escape),
        encoded={column: _DECODED[function] for column, function in encoded.items()},
    )


def _required(options: _Document, key: str) -> str:
    value = options.of(key, str)
    if value is None:
        raise DumpError(f"the dump does not say how its rows are written: it lacks {key}", segment=options.path)
    return value


# The tools

_TOOLS: Final[dict[str, Callable[[ObjectStore, InitialLoad], Dump]]] = {
    "dumpling": read_dumpling, "mydumper": read_mydumper, "mysqlshell": read_mysqlshell,
}  # fmt: skip
_LOOKED_AT: Final = 1_000
_OF_DUMPLING: Final = re.compile(r".+\.\d{9,}\.(?:sql|csv)(?:\.\w+)?")


def detect_dump(store: ObjectStore) -> DumpType | None:
    """Return the tool that made the dump in a store; None where it is not a finished dump. Raises as `ObjectStore.list`
    does. Dumpling's metadata and mydumper's before 0.13 are alike: the source's log and the numbers of files differ."""
    found = list(itertools.islice(store.list(), _LOOKED_AT))
    paths = {each.path for each in found if isinstance(each, StoredObject)}
    if _START in paths:
        return "mysqlshell"
    try:
        metadata = store.read(METADATA, limit=SMALL_FILE_LIMIT)
    except ObjectMissingError:
        return None
    if metadata.startswith((b"#", b"[")):
        return "mydumper"
    if b"Started dump at:" not in metadata:
        return None
    numbered = any(_OF_DUMPLING.fullmatch(path) for path in paths)
    return "dumpling" if numbered or TIDB_LOG.encode() in metadata else "mydumper"


def read_dump(store: ObjectStore, initial: InitialLoad) -> Dump:
    """Read the tables of a finished dump and its position, from small files: tasks read rows (`reading.open_pieces`).
    Raises `SourceUnreachableError` when the store cannot be listed, and `SourceError` when the dump is not finished,
    has no position that changes can follow, lacks a file, or has an unknown one."""
    return _TOOLS[initial.type](store, initial)
