r"""Dumps of TiDB's Dumpling (pingcap/tidb, dumpling/export).

In names of files, names of databases and tables have `%XX` in the place of each byte of `[\x00-\x1f%"*./:<>?\\|]`, and
of the minus in `-schema` (in any case of letters); other characters are unchanged.

A file's number is `%09d` of its chunk (`-r`, or no option) or of the file (`-F`), or with both options `%09d%04d` of
both (`newOutputFileNamer`); older releases padded less. A chunk without rows has no file, so that numbers of chunks may
have gaps; those of a chunk's files may not. A table without rows has only a schema file.

A view has a schema file with a table of the same columns, in addition to the view's own file (`ShowCreateView`). Files
of `--sql` are `result.{number}`: they name no table."""

from __future__ import annotations

import re
from typing import Final

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DumpCsv, InitialLoad
from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources.dump import contents, flat_files
from cdc_lakehouse.sources.dump.contents import DumpedTable, UnreadTable
from cdc_lakehouse.sources.dump.flat_files import CreateStatement, RowFile, TableFiles
from cdc_lakehouse.sources.dump.reading import without_suffix
from cdc_lakehouse.sources.object_store import ObjectStore

_OF_QUERY: Final = re.compile(r"result\.\d+\.(?:sql|csv|parquet)")
_POLICY: Final = re.compile(r"[^/]+-placement-policy-create\.sql")
_ESCAPE: Final = re.compile(r"%(.{0,2})", re.DOTALL)
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{2}")
_CHUNK_DIGITS, _BOTH_DIGITS = 9, 13


def read_dumpling(store: ObjectStore, initial: InitialLoad) -> contents.Dump:
    """Read a dump of Dumpling. Raises as `directory.read_dump` does."""
    # Before the listing: it is written last, so the listing then has everything.
    position = flat_files.parse_status(flat_files.read_metadata(store))
    objects = contents.list_objects(store)
    files, _, unknown = flat_files.classify(found for found in objects if found.path != flat_files.METADATA)
    unknown = [path for path in unknown if not _POLICY.fullmatch(without_suffix(path)[0])]
    # All of Dumpling's names for files of rows have one number.
    unknown += (rows.object.path for table in files for rows in table.rows if len(rows.numbers) != 1)
    for path in unknown:
        if _OF_QUERY.fullmatch(without_suffix(path)[0]):
            raise SourceError(
                "the dump is of a query (--sql): it does not say which table its rows are of",
                segment=path,
                advice="dump tables, with --where or --tables-list",
            )
    contents.refuse_unknown(sorted(unknown), "Dumpling")
    tables = (_read_table(store, table, initial.csv) for table in files if table.is_table)
    return contents.Dump(position, *contents.sorted_tables(tables))


def decode_name(name: str) -> str:
    """Return the name that is escaped in a file's name. Raises `SourceError` for an invalid escape."""

    def decoded(escape: re.Match[str]) -> str:
        if not _HEXADECIMAL.fullmatch(escape[1]):
            raise SourceError(
                f"the name {name!r} in a file's is not escaped as Dumpling does it: a % is followed by two digits",
                advice="dump with the default names of files (no --output-filename-template)",
            )
        return chr(int(escape[1], 16))

    return _ESCAPE.sub(decoded, name)


def _read_table(store: ObjectStore, table: TableFiles, csv: DumpCsv) -> DumpedTable | UnreadTable:
    rows = table.ordered(table.rows)
    if all(len(file.numbers[0]) == _BOTH_DIGITS for file in rows):
        # Then the numbers show whether a file between others is missing.
        following: dict[str, int] = {}
        for file in rows:
            chunk, number = file.numbers[0][:_CHUNK_DIGITS], int(file.numbers[0][_CHUNK_DIGITS:])
            expected = following.get(chunk, 0)
            if number != expected:
                raise DumpError(
                    f"a file of {table.shown} is not there: chunk {chunk} goes on with file {number}, not {expected}",
                    segment=file.object.path,
                )
            following[chunk] = number + 1

    def files(statement: CreateStatement) -> tuple[contents.DumpFile, ...]:
        return tuple(file.with_notation(_notation(file, statement, csv)) for file in rows)

    name = TableName(decode_name(table.database), decode_name(table.table))
    return flat_files.read_table(store, table.only_schema(), name, files)


def _notation(file: RowFile, statement: CreateStatement, csv: DumpCsv) -> contents.Notation:
    columns = statement.row_columns
    if file.format == "sql":
        # The option is the same for both formats.
        return contents.InsertNotation(columns, csv.escape_backslash)
    if file.format == "csv":
        return contents.TextNotation(
            columns=columns,
            separator=csv.separator.encode(),
            quote=csv.delimiter.encode(),
            null=csv.null.encode(),
            terminator=csv.line_terminator.encode(),
            backslash_escapes=csv.escape_backslash,
            header=csv.header and bool(columns),
            binary=csv.binary,
        )
    raise SourceError(
        f"rows of a dump in the format {file.format} are not read",
        segment=file.object.path,
        advice="dump with --filetype sql or csv",
    )
