"""The dump of a database that was read directly, in a directory of the lake.

    {number}/plan.json                         which tables are read, from which positions on, in which ranges
    {number}/dump.json                         written last: the tables, their files, and how far the log was by then
    {number}/{table}/schema.sql                CREATE TABLE
    {number}/{table}/{range}-{token}-{part}.rows
    {number}/{table}/{range}-{token}.{rows}.done       written when all parts of a range are

`number` counts dumps, `table` the tables that a dump began to read. `token` identifies one attempt to read a range:
files of an attempt that did not end are ignored. Rows are csv, compressed by zstd; their file names do not end in .zst,
because Arrow would compress such files again."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.changelog.stored import Json, stored_fields, stored_text
from cdc_lakehouse.errors import ObjectMissingError, SourceError
from cdc_lakehouse.sources.dump import contents
from cdc_lakehouse.sources.dump.contents import Dump, DumpPosition
from cdc_lakehouse.sources.dump.flat_files import StatementError, read_create_table
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory

if TYPE_CHECKING:
    from cdc_lakehouse.sources.database.reading import TableDefinition

PLAN, DUMP = "plan.json", "dump.json"

_FORMAT: Final = 1
"""The form of both files. Without a number it is 1."""
_POSITION: Final = TypeAdapter(DumpPosition)
_DONE: Final = re.compile(r"(?P<range>\d{9,})-(?P<token>[0-9a-f]+)\.(?P<rows>\d+)\.done")
_PART: Final = re.compile(r"(?P<range>\d{9,})-(?P<token>[0-9a-f]+)-\d{4,}\.rows")


def notation_of(columns: Iterable[str], encoded: Iterable[str]) -> contents.TextNotation:
    """Return the notation of rows; `encoded` columns are hexadecimal digits."""
    return contents.TextNotation(
        tuple(columns), terminator=b"\n", backslash_escapes=False, encoded=dict.fromkeys(encoded, "hex")
    )


def directory_of(number: int, name: str = "") -> str:
    """Return the path of a dump's directory, or of a file in it."""
    return f"{number:06d}/{name}"


def part_name(number: int, token: str, part: int) -> str:
    return f"{number:09d}-{token}-{part:04d}.rows"


def done_name(number: int, token: str, rows: int) -> str:
    return f"{number:09d}-{token}.{rows}.done"


@dataclass(frozen=True, slots=True)
class CompletedRange:
    """A range that was read completely: its files in order, the number of their rows, and the time when that ended."""

    files: tuple[StoredObject, ...]
    rows: int
    ended: datetime.datetime


def list_dump(store: ObjectStore, number: int) -> Mapping[str, Sequence[StoredObject]]:
    """List everything in a dump, by directory (which ends in a slash) and sorted by path. Raises as `ObjectStore.list`
    does, and `SourceError` for a directory that cannot be listed."""
    objects: dict[str, list[StoredObject]] = {}
    for found in store.list(directory_of(number)):
        if isinstance(found, UnreadableDirectory):
            raise SourceError(
                f"what was read of the database cannot be listed: {found.reason}",
                segment=found.path,
                advice=_read_again(store, number),
            )
        objects.setdefault(found.path[: found.path.rindex("/") + 1], []).append(found)
    return {directory: sorted(each, key=lambda found: found.path) for directory, each in objects.items()}


def read_ranges(objects: Iterable[StoredObject]) -> Mapping[int, CompletedRange]:
    """Return the ranges of a table that have been read, by number, from the objects in its directory."""
    parts: dict[tuple[str, str], list[StoredObject]] = {}
    done: dict[int, tuple[tuple[str, str], int, datetime.datetime]] = {}
    for found in objects:
        name = found.path.rpartition("/")[2]
        if match := _DONE.fullmatch(name):
            done[int(match["range"])] = (match["range"], match["token"]), int(match["rows"]), found.modified
        elif match := _PART.fullmatch(name):
            parts.setdefault((match["range"], match["token"]), []).append(found)
    return {number: CompletedRange(tuple(parts.get(of, ())), rows, ended) for number, (of, rows, ended) in done.items()}


def has_document(store: ObjectStore, number: int, name: str) -> bool:
    """Whether the dump has the file. Raises as stores do."""
    try:
        store.head(directory_of(number, name), 1)
    except ObjectMissingError:
        return False
    return True


def last_number(store: ObjectStore) -> int:
    """Return the number of the dump that was planned last, 0 where there is none. Raises as stores do."""
    number = 0
    while has_document(store, number + 1, PLAN):
        number += 1
    return number


def read_document(
    store: ObjectStore, number: int, name: str, parse: Callable[[dict[str, Any]], Any] = lambda fields: fields
) -> Any:
    """Read a JSON file of a dump, and parse its fields, with `ValueError` for others. Raises `ObjectMissingError` where
    it does not exist, `SourceError` where it is damaged, and `StoredFormError` when newer code wrote it."""
    path = directory_of(number, name)
    try:
        content = store.read(path, limit=SMALL_FILE_LIMIT)
        return parse(stored_fields(content, _FORMAT, "what was read of the database"))
    except ValueError as error:
        raise SourceError(
            f"what was read of the database cannot be used: {error}",
            segment=path,
            advice=_read_again(store, number),
        ) from None


def _read_again(store: ObjectStore, number: int) -> str:
    return f"remove {store.uri}/{directory_of(number)}, and it is read again"


# --- The content of the JSON files ---


def stored_document(fields: Json) -> str:
    return stored_text(_FORMAT, fields)


def stored_table(
    definition: TableDefinition,
    position: DumpPosition,
    directory: str,
    ranges: Mapping[int, CompletedRange],
    unread: str | None,
) -> dict[str, Any]:
    """Return a table's entry in `dump.json`, for a table that was read into a directory; `unread` is the reason where
    it could not be."""
    files = [file for _, each in sorted(ranges.items()) for file in each.files]
    return {
        "database": definition.name.database,
        "table": definition.name.table,
        "position": _POSITION.dump_python(position, exclude_none=True),
        "schema": f"{directory}schema.sql",
        "columns": list(definition.types) if files else [],
        "encoded": sorted(definition.encoded) if files else [],
        "files": [[file.path, file.size] for file in files],
        "rows": sum(each.rows for each in ranges.values()),
        "unread": unread,
    }


def stored_dump(position: DumpPosition, until: DumpPosition, started: str, tables: Sequence[Json]) -> str:
    """Return the text of `dump.json`."""
    positions = {"position": position, "until": until}
    stored = {name: _POSITION.dump_python(each, exclude_none=True) for name, each in positions.items()}
    return stored_document({**stored, "started": started, "tables": tables})


def read_database_dump(store: ObjectStore, number: int) -> Dump:
    """Read a finished dump. Raises `SourceError` where one of its files does not exist, or has another size, and as
    `read_document` does."""
    document = read_document(store, number, DUMP)
    objects = {found.path: found for directory in list_dump(store, number).values() for found in directory}

    def the(path: str) -> StoredObject:
        if path not in objects:
            raise SourceError(
                "a file of what was read of the database is not there", segment=path, advice=_read_again(store, number)
            )
        return objects[path]

    def table(of: Mapping[str, Any]) -> contents.DumpedTable | contents.UnreadTable:
        schema = the(of["schema"])
        if (reason := of.get("unread")) is not None:
            name = TableName(of["database"], of["table"])
            reason = f"{reason}; `cdc-lakehouse load --table {name}` reads it again"
            return contents.UnreadTable(name, schema.path, reason)
        try:
            statement = read_create_table(store, schema)
        except StatementError as error:
            return contents.UnreadTable(TableName(of["database"], of["table"]), schema.path, error.message)
        notation = notation_of(of["columns"], of["encoded"])
        files: list[contents.DumpFile] = []
        for path, size in of["files"]:
            found = the(path)
            if found.size != size:
                raise SourceError(
                    f"a file that was read of the database had {size} bytes, not {found.size}",
                    segment=path,
                    advice=_read_again(store, number),
                )
            files.append(contents.DumpFile(path, size, found.etag, found.modified, "zstd", notation))
        return contents.DumpedTable(
            TableName(of["database"], of["table"]), schema.path, statement.text, statement.definition, tuple(files),
            of["rows"], _POSITION.validate_python(of["position"]),
        )  # fmt: skip

    return Dump(
        _POSITION.validate_python(document["position"]),
        *contents.sorted_tables(map(table, document["tables"])),
        (),
        document["started"],
        _POSITION.validate_python(document["until"]),
    )
