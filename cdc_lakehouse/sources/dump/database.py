"""The dump of a database that was read directly, in a directory of the lake.

    {number}/plan.json                         which tables are read, from which positions on, in which ranges
    {number}/dump.json                         written last: how far the log was by then, and which ranges count
    {number}/{table}/{range}-{token}-{part}.rows
    {number}/{table}/{range}-{token}.{rows}.done       written when all parts of a range are

`number` counts dumps, `table` the tables that a dump began to read. `token` identifies one attempt to read a range:
files of an attempt that did not end are ignored. Rows are csv, compressed by zstd; their file names do not end in .zst,
because Arrow would compress such files again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from cdc_lakehouse.changelog.stored import stored_fields, stored_text
from cdc_lakehouse.errors import ObjectMissingError, SourceError
from cdc_lakehouse.sources.database import KeyRange, TableDefinition
from cdc_lakehouse.sources.dump import contents
from cdc_lakehouse.sources.dump.contents import Dump, DumpPosition
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

PLAN, DUMP = "plan.json", "dump.json"

_FORMAT: Final = 1
"""The form of both files. Without a number it is 1."""
_DONE: Final = re.compile(r"(?P<range>\d{9,})-(?P<token>[0-9a-f]+)\.(?P<rows>\d+)\.done")
_PART: Final = re.compile(r"(?P<range>\d{9,})-(?P<token>[0-9a-f]+)-\d{4,}\.rows")


# --- The content of the JSON files: the names of fields are keys ---


@dataclass(frozen=True)
class PlannedTable:
    """The plan for one table: `directory` is within the dump's, `position` the log's before it is read."""

    definition: TableDefinition
    directory: str
    position: DumpPosition
    ranges: tuple[KeyRange, ...]


@dataclass
class Plan:
    """The plan of a dump. `wanted` are names of tables, or `*`; `begun` is the number of directories assigned to
    tables, `tables` are by the identities of their names."""

    wanted: list[str]
    position: DumpPosition | None = None
    begun: int = 0
    tables: dict[str, PlannedTable] = field(default_factory=dict[str, PlannedTable])


@dataclass
class End:
    """The end of a dump: the position after the last range was read, `done` the marks of the ranges that count (a task
    of a run that died may still end), and by the tables' identities why some could not be read."""

    until: DumpPosition
    done: list[str]
    failed: dict[str, str] = field(default_factory=dict[str, str])


_T = TypeVar("_T", Plan, End)


def stored_document(document: Plan | End) -> str:
    return stored_text(_FORMAT, TypeAdapter(type(document)).dump_python(document, mode="json", exclude_none=True))


def read_document(store: ObjectStore, number: int, kind: type[_T]) -> _T:
    """Read a JSON file of a dump. Raises `ObjectMissingError` where it does not exist, `SourceError` where it is
    damaged, and `StoredFormError` when newer code wrote it."""
    path = directory_of(number, PLAN if kind is Plan else DUMP)
    try:
        content = store.read(path, limit=SMALL_FILE_LIMIT)
        return TypeAdapter(kind).validate_python(stored_fields(content, _FORMAT, "what was read of the database"))
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            reason = ": ".join([*map(str, error.errors()[0]["loc"]), error.errors()[0]["msg"]])
        said, advice = f"the plan or dump of the database is unusable: {reason}", _read_again(store, number)
        raise SourceError(said, segment=path, advice=advice) from None


def _read_again(store: ObjectStore, number: int) -> str:
    return f"remove {store.uri}/{directory_of(number)}, and it is read again"


# --- The directory ---


def directory_of(number: int, name: str = "") -> str:
    """Return the path of a dump's directory, or of a file in it."""
    return f"{number:06d}/{name}"


def part_name(number: int, token: str, part: int) -> str:
    return f"{number:09d}-{token}-{part:04d}.rows"


def done_name(number: int, token: str, rows: int) -> str:
    return f"{number:09d}-{token}.{rows}.done"


@dataclass(frozen=True, slots=True)
class CompletedRange:
    """A range that was read completely: its mark, its files in order, and the number of their rows."""

    mark: StoredObject
    files: tuple[StoredObject, ...]
    rows: int


def list_dump(store: ObjectStore, number: int) -> Mapping[str, Sequence[StoredObject]]:
    """List a dump, by directory (with a slash at its end), sorted by path. Raises as `list_objects` does."""
    objects: dict[str, list[StoredObject]] = {}
    of_dump = directory_of(number), "what was read of the database", _read_again(store, number)
    for found in contents.list_objects(store, *of_dump):
        objects.setdefault(found.path[: found.path.rindex("/") + 1], []).append(found)
    return objects


def read_ranges(objects: Iterable[StoredObject]) -> Mapping[int, CompletedRange]:
    """Return the ranges of a table that have been read, by number, from the objects in its directory."""
    parts: dict[tuple[str, str], list[StoredObject]] = {}
    marks: dict[int, tuple[re.Match[str], StoredObject]] = {}
    for found in objects:
        name = found.path.rpartition("/")[2]
        if match := _DONE.fullmatch(name):
            marks[int(match["range"])] = match, found
        elif match := _PART.fullmatch(name):
            parts.setdefault((match["range"], match["token"]), []).append(found)
    return {
        number: CompletedRange(mark, tuple(parts.get((of["range"], of["token"]), ())), int(of["rows"]))
        for number, (of, mark) in sorted(marks.items())
    }


def has_document(store: ObjectStore, number: int, name: str) -> bool:
    """Whether the dump has the file. Raises as stores do."""
    try:
        store.head(directory_of(number, name), 1)
    except ObjectMissingError:
        return False
    return True


def last_number(store: ObjectStore) -> int:
    """Return the number of the dump that was planned last, 0 where there is none. Raises as stores do."""
    return next(number for number in itertools.count() if not has_document(store, number + 1, PLAN))


def read_database_dump(store: ObjectStore, number: int) -> Dump:
    """Read a finished dump. Raises as `read_document` and `list_dump` do, and `SourceError` where a range is not there.
    Where a part of one is not, the table's rows are fewer than it says."""
    plan, end = read_document(store, number, Plan), read_document(store, number, End)
    marks, objects = set(end.done), list_dump(store, number)

    def table(of: PlannedTable) -> contents.DumpedTable | contents.UnreadTable:
        name, directory = of.definition.name, directory_of(number, of.directory)
        if (reason := end.failed.get(name.identity)) is not None:
            reason = f"{reason}; `cdc-lakehouse load --table {name}` reads it again"
            return contents.UnreadTable(name, directory, reason)
        found = objects.get(directory, ())
        ranges = read_ranges(each for each in found if not _DONE.search(each.path) or each.path in marks)
        if len(ranges) < len(of.ranges) or any(each.rows and not each.files for each in ranges.values()):
            said, advice = f"a part of what was read of {name} is not there", _read_again(store, number)
            raise SourceError(said, segment=directory, advice=advice)
        notation = contents.TextNotation(
            tuple(of.definition.types), terminator=b"\n", backslash_escapes=False,
            encoded=dict.fromkeys(sorted(of.definition.encoded), "hex"),
        )  # fmt: skip
        stored = (file for each in ranges.values() for file in each.files)
        files = tuple(contents.DumpFile(file, "zstd", notation) for file in stored)
        rows = sum(each.rows for each in ranges.values())
        return contents.DumpedTable(
            name, directory, of.definition.statement, of.definition.parsed, files, rows, of.position
        )

    return contents.dump_of(plan.position or end.until, map(table, plan.tables.values()), end.until)
