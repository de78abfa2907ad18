r"""Directories of Dumpling and mydumper: all files are in one directory, and their names give their kind.

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
unchanged.

A file's number is `%09d` of its chunk (`-r`, or no option) or of the file (`-F`), or with both options `%09d%04d` of
both (`newOutputFileNamer`); older releases padded less. A chunk without rows has no file, so that numbers of chunks may
have gaps; those of a chunk's files may not. A table without rows has only a schema file.

A view has a schema file with a table of the same columns, in addition to the view's own file (`ShowCreateView`). Files
of `--sql` are `result.{number}`: they name no table.

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
0.10).

The LOAD DATA statement that mydumper writes for a file of delimited text, which gives the file's notation:

    LOAD DATA LOCAL INFILE 'd.t.00000.dat' REPLACE INTO TABLE `t` CHARACTER SET binary
    FIELDS TERMINATED BY '\t' ENCLOSED BY '' ESCAPED BY '\\' LINES STARTING BY '' TERMINATED BY '\n' IGNORE 1 LINES
    (`a`,@j,@b)SET `j`=CONVERT(@j USING UTF8MB4),`b`=UNHEX(@b);

NULL is `\N` in the file, without quotes (mydumper_write.c, `initialize_load_data_statement_suffix`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import Cursor, DdlSyntaxError, Token, name_value, tokenize
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
        return DumpFile.of(self.object, without_suffix(self.object.path)[1], notation)


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


# --- mydumper ---


def parse_load_data(statement: str) -> contents.TextNotation:
    """Return the notation of the file that a statement loads. Statements before it, in special comments, are skipped.
    Raises `DdlSyntaxError` when there is no such statement, or one that cannot be parsed."""
    cursor = Cursor(statement)
    while not cursor.at("LOAD", "DATA"):
        if cursor.at_end:
            raise cursor.expected("LOAD DATA")
        cursor.take()
    cursor.expect("LOAD", "DATA")
    cursor.accept("LOCAL")
    cursor.expect("INFILE")
    cursor.string("a file")
    cursor.accept_any(("REPLACE", "IGNORE"))
    cursor.expect("INTO", "TABLE")
    cursor.table_name()
    if cursor.accept_charset():
        cursor.charset_name()
    of_values = {"TERMINATED": "\t", "ENCLOSED": "", "ESCAPED": "\\"}
    of_lines = {"STARTING": "", "TERMINATED": "\n"}
    _read_options(cursor, ("FIELDS", "COLUMNS"), of_values)
    if (escape := of_values["ESCAPED"]) != "\\":
        # Decoders support no other, and without one mydumper's text is ambiguous.
        raise cursor.error(f"values are escaped by {escape!r}, which is not read")
    _read_options(cursor, ("LINES",), of_lines)
    if start := of_lines["STARTING"]:
        raise cursor.error(f"lines start by {start!r}, which is not read")
    header = cursor.accept("IGNORE")
    if header:
        if cursor.integer() != 1:
            raise cursor.expected("IGNORE 1 LINES")
        cursor.expect("LINES")
    columns = cursor.enclosed(lambda: _variable(cursor) if cursor.at("@") else cursor.column_name())
    encoded: dict[str, contents.BinaryNotation] = {}
    more = cursor.accept("SET")
    while more:
        # The functions by which variables become columns' values.
        column = cursor.column_name()
        cursor.expect("=")
        function = cursor.expect_any(("CONVERT", "UNHEX", "FROM_BASE64"), "CONVERT, UNHEX or FROM_BASE64")
        cursor.expect("(")
        _variable(cursor)
        if function == "CONVERT":
            cursor.expect("USING")
            cursor.charset_name()
        else:
            encoded[column] = "hex" if function == "UNHEX" else "base64"
        cursor.expect(")")
        more = cursor.accept(",")
    cursor.accept(";")
    if not cursor.at_end:
        raise cursor.expected("the end")
    separator, quote, terminator = of_values["TERMINATED"], of_values["ENCLOSED"], of_lines["TERMINATED"]
    return contents.TextNotation(
        columns, separator.encode(), quote.encode(), terminator=terminator.encode(), header=header, encoded=encoded
    )


def _read_options(cursor: Cursor, words: Container[str], options: dict[str, str]) -> None:
    """Replace MySQL's defaults by the strings that follow one of the words, in any order."""
    name = cursor.accept_any(words)
    while name is not None:
        if cursor.at("OPTIONALLY", "ENCLOSED"):
            cursor.take()
        name = next((name for name in options if cursor.accept(name, "BY")), None)
        if name is not None:
            options[name] = cursor.string()


def _variable(cursor: Cursor) -> str:
    cursor.expect("@")
    return cursor.take().text


_PARTIAL: Final = f"{METADATA}.partial"
# Checksums of 0.10 and later, row counts of 0.11, tables left out by --updated-since, tablespaces: no rows.
_NO_ROWS: Final = re.compile(
    rf"{METADATA}(?:\.header)?|not_updated_tables|all-schema-create-tablespace\.sql(?:\.gz|\.zst)?"
    r"|[^/]+-(?:checksum|metadata)(?:\.gz|\.zst)?"
)
_STAND_IN_NAME: Final = re.compile(r"mydumper_\d+")
_SECTION: Final = re.compile(r"\[(?P<name>.+)\]")
_TABLE_SECTION: Final = re.compile(r"`(?P<database>(?:[^`]|``)+)`\.`(?P<table>(?:[^`]|``)+)`")
_ANSI_TABLE_SECTION: Final = re.compile(r'"(?P<database>(?:[^"]|"")+)"\."(?P<table>(?:[^"]|"")+)"')
_PAIR: Final = re.compile(r"(?:#\s*)?(?P<key>[A-Za-z_]+)\s*=\s*(?P<value>.*)")
_LOG_KEYS: Final = ("file", "source_log_file", "master_log_file")
_OFFSET_KEYS: Final = ("position", "source_log_pos", "master_log_pos")


_Rows = dict[tuple[str, str], int]
"""The numbers of rows by database and table, under each name that a table has in the metadata."""


def read_mydumper(store: ObjectStore, initial: InitialLoad) -> contents.Dump:
    del initial  # The files say all.
    # Before the listing: it gets its final name last, so the listing then has everything.
    position, counted = _parse_metadata(read_metadata(store))
    objects = contents.list_objects(store)
    if any(found.path == _PARTIAL for found in objects):
        advice = "wait until the dump is finished, or dump again into an empty directory"
        raise SourceError("the dump is not finished: it has partial metadata, too", segment=_PARTIAL, advice=advice)
    files, of_databases, unknown = classify(each for each in objects if not _NO_ROWS.fullmatch(each.path))
    contents.refuse_unknown(unknown, "mydumper")
    databases = {table.database: table.database for table in files}
    for name in filter(_STAND_IN_NAME.fullmatch, databases):
        if name not in of_databases:
            said = f"the dump does not say which database its files call {name}"
            advice = "dump again with the schemas of databases"
            raise SourceError(said, segment=f"{name}-schema-create.sql", advice=advice)
        databases[name] = read_database_name(store, of_databases[name])
    own = (each for each in files if each.is_table)
    tables = (_mydumper_table(store, each, databases[each.database], counted, position) for each in own)
    dump = contents.Dump(position, *contents.sorted_tables(tables))
    with_rows = {(table.name.database, table.name.table) for table in dump.tables if table.files}
    with_rows |= {(databases[table.database], table.table) for table in files if table.rows}
    for (database, table), rows in counted.items():
        if rows and (database, table) not in with_rows:
            raise DumpError(
                f"the dump says that it has {rows} rows of {TableName(database, table).quoted}, and has no file of "
                "them",
                segment=METADATA,
            )
    return dump


# --- Metadata ---


def _parse_metadata(text: str) -> tuple[contents.DumpPosition, _Rows]:
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
    counted: _Rows = {}
    for name, values in sections.items():
        if match := _TABLE_SECTION.fullmatch(name) or _ANSI_TABLE_SECTION.fullmatch(name):
            quote = name[0]
            database, table = (match[each].replace(quote * 2, quote) for each in ("database", "table"))
            rows = values.get("rows", "")
            if rows.isascii() and rows.isdigit() and len(rows) < 20:
                counted[database, table] = int(rows)
    return position, counted


# --- Tables ---


def _mydumper_table(
    store: ObjectStore, table: TableFiles, database: str, counted: _Rows, position: contents.DumpPosition
) -> DumpedTable | UnreadTable:
    schema, name = table.only_schema(), TableName(database, table.table)
    if _STAND_IN_NAME.fullmatch(table.table):
        # The statement alone says which table it is.
        name = TableName(database, read_create_table(store, schema)[1].table.name)
    rows = counted.get((database, name.table), counted.get((database, table.table)))
    own_charsets = position.tso is None  # TiDB has UTF-8 whatever a column's character set is.

    def files(dumped: DumpedTable) -> list[contents.DumpFile]:
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
        if unknown := [name for name in notation.columns if name not in dumped.columns]:
            said = f"the statement that loads rows has a column that the table has not: {unknown[0]!r}"
            raise DumpError(said, segment=first.path)
        return [file.with_notation(replace(notation, own_charsets=own_charsets)) for file in of_text]

    return read_table(store, schema, name, files, rows)
