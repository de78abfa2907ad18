r"""Dumps of mydumper (mydumper/mydumper, src/mydumper).

`metadata` is called `metadata.partial` until the dump is finished. Before 0.13 it is the text that `status` reads;
since then it is an INI file:

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

NULL is `\N` in the file, without quotes (mydumper, src/mydumper/mydumper_write.c,
`initialize_load_data_statement_suffix`)."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.ddl.lexer import Cursor, DdlSyntaxError
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import InitialLoad
from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources.dump import contents, flat_files
from cdc_lakehouse.sources.dump.contents import DumpedTable, TextNotation, UnreadTable
from cdc_lakehouse.sources.dump.flat_files import TableFiles
from cdc_lakehouse.sources.dump.reading import read_text
from cdc_lakehouse.sources.object_store import ObjectStore


def parse_load_data(statement: str) -> TextNotation:
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
    return TextNotation(
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


_PARTIAL: Final = f"{flat_files.METADATA}.partial"
# Checksums of 0.10 and later, row counts of 0.11, tables left out by --updated-since, tablespaces: no rows.
_NO_ROWS: Final = re.compile(
    rf"{flat_files.METADATA}(?:\.header)?|not_updated_tables|all-schema-create-tablespace\.sql(?:\.gz|\.zst)?"
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
    position, counted = _parse_metadata(flat_files.read_metadata(store))
    objects = contents.list_objects(store)
    if any(found.path == _PARTIAL for found in objects):
        advice = "wait until the dump is finished, or dump again into an empty directory"
        raise SourceError("the dump is not finished: it has partial metadata, too", segment=_PARTIAL, advice=advice)
    files, of_databases, unknown = flat_files.classify(each for each in objects if not _NO_ROWS.fullmatch(each.path))
    contents.refuse_unknown(unknown, "mydumper")
    databases = {table.database: table.database for table in files}
    for name in filter(_STAND_IN_NAME.fullmatch, databases):
        if name not in of_databases:
            said = f"the dump does not say which database its files call {name}"
            advice = "dump again with the schemas of databases"
            raise SourceError(said, segment=f"{name}-schema-create.sql", advice=advice)
        databases[name] = flat_files.read_database_name(store, of_databases[name])
    tables = (_read_table(store, each, databases[each.database], counted, position) for each in files if each.is_table)
    dump = contents.Dump(position, *contents.sorted_tables(tables))
    with_rows = {(table.name.database, table.name.table) for table in dump.tables if table.files}
    with_rows |= {(databases[table.database], table.table) for table in files if table.rows}
    for (database, table), rows in counted.items():
        if rows and (database, table) not in with_rows:
            raise DumpError(
                f"the dump says that it has {rows} rows of {TableName(database, table).quoted}, and has no file of "
                "them",
                segment=flat_files.METADATA,
            )
    return dump


# --- Metadata ---


def _parse_metadata(text: str) -> tuple[contents.DumpPosition, _Rows]:
    lines = text.split("\n")
    if not any(_SECTION.fullmatch(line) for line in lines):
        return flat_files.parse_status(text), {}
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
    position = flat_files.position_of(log, offset, source.get("executed_gtid_set"))
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


def _read_table(
    store: ObjectStore, table: TableFiles, database: str, counted: _Rows, position: contents.DumpPosition
) -> DumpedTable | UnreadTable:
    schema, name = table.only_schema(), TableName(database, table.table)
    if _STAND_IN_NAME.fullmatch(table.table):
        # The statement alone says which table it is.
        name = TableName(database, flat_files.read_create_table(store, schema)[1].table.name)
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

    return flat_files.read_table(store, schema, name, files, rows)
