"""The TiCDC storage sink: the meaning of each of its paths.

    {schema}/{table}/{version}/[{physical partition}/][{date}/]CDC{index}.json       data (the protocol's extension)
    {schema}/{table}/{version}/[{physical partition}/][{date}/]meta/CDC.index         name of the last data file
    {schema}/{table}/meta/schema_{version}_{checksum}.json                            table schema and DDL
    {schema}/meta/schema_{version}_{checksum}.json                                    database DDL
    metadata                                                                          {"checkpoint-ts": N}

TiCDC up to v7.0 (and v6.5.2) has one `{schema}/{table}/{version}/schema.json` in the place of `meta/schema_…`, and no
index files. With use-table-id-as-path (from v8.5.7) `{table id}` replaces `{schema}/{table}`, and there are no files of
database DDL: the schema files name the table.

With tables split across nodes the files are `CDC_{dispatcher}_{index}.json` and `meta/CDC_{dispatcher}.index`. Names
are unchanged in paths (spaces, dots, unicode, upper case; a table `a/b` makes two levels, and a table `meta` shares the
database's own `meta`), so a data file is recognised by the directory of a schema file, not by a pattern of names. Index
numbers are padded to 6 to 20 digits. TiCDC writes local files as `NAME.tmp.{uuid}` and renames them.

A schema file has the columns of a table at a version, and the DDL that made it. The checksum in its name is CRC32-IEEE
over Go's JSON of the table's name and columns (without statement, type and version), the columns sorted by name,
indented by four spaces, with `<`, `>` and `&` escaped. A byte that is not UTF-8, as a default can have it, is an
escaped U+FFFD there and in the file; the character itself is never escaped."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import commit_time, end_ts_at, is_commit_ts
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.config import DateSeparator, Protocol, StorageSinkSource
from cdc_lakehouse.config.sources import EXTENSIONS
from cdc_lakehouse.errors import CheckpointError, ObjectMissingError, SchemaFileError, SourceError, in_one_line
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory

METADATA: Final = "metadata"
METADATA_LIMIT: Final = 64 * 1024
INDEX_LIMIT: Final = 4 * 1024

_SCHEMA_FILE: Final = re.compile(
    r"(?P<directory>.+)/(?:meta/schema_(?P<version>\d{1,20})_(?P<checksum>\d{10})|(?P<old>\d{1,20})/schema)\.json"
)
_INDEX_FILE: Final = re.compile(r"(?P<directory>.+)/meta/CDC(?:_(?P<dispatcher>\d+))?\.index")
DATES: Final[dict[DateSeparator, str]] = {
    "none": "", "year": r"\d{4}", "month": r"\d{4}-\d{2}", "day": r"\d{4}-\d{2}-\d{2}",
}  # fmt: skip
"""The form of a date directory's name."""
_BELOW_TABLE: Final = {
    separator: re.compile(
        rf"(?P<version>\d{{1,20}})/(?:(?P<partition>\d{{1,20}})/)?{date and f'(?P<date>{date})/'}"
        r"CDC(?:_(?P<dispatcher>\d+)_)?(?P<index>\d{6,20})\.(?P<extension>\w+)"
    )
    for separator, date in DATES.items()
}
_LARGEST: Final = (1 << 63) - 1
# Whatever the options are. A year may be mistaken for a physical partition: what can be a date is one.
_ANY_DATA_FILE: Final = re.compile(
    r"(?P<table>.+?)/(?P<below>\d{1,20}/(?:\d{1,20}/)??(?:(?P<date>\d{4}(?:-\d\d){0,2})/)?"
    r"CDC(?:_\d+_)?\d{6,20}\.(?P<extension>\w+))"
)
_SEPARATORS: Final[dict[int, DateSeparator]] = {0: "none", 4: "year", 7: "month", 10: "day"}
"""By the length of a date."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A segment of the sink: one data file. `directory` is its table's; `feed_date` is the date directory's name, None
    without one. `size` is in bytes. Where directories are named by table ids, `database` and `table` are empty."""

    path: str
    directory: str
    database: str
    table: str
    version: int
    physical_partition: int | None
    feed_date: str | None
    dispatcher: str | None
    index: int
    size: int
    etag: str
    modified: datetime.datetime


@dataclass(frozen=True, slots=True)
class SchemaFilePath:
    """A schema file; its database and table are in its content. `checksum` is None where the name has none."""

    path: str
    directory: str
    version: int
    checksum: int | None


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file. `directory` is the data files' own; the content names the last of them."""

    path: str
    directory: str
    dispatcher: str | None
    etag: str
    modified: datetime.datetime


@dataclass
class Listing:
    data: list[DataFile] = field(default_factory=list["DataFile"])
    schemas: list[SchemaFilePath] = field(default_factory=list["SchemaFilePath"])
    indexes: list[IndexFile] = field(default_factory=list["IndexFile"])
    unreadable: list[UnreadableDirectory] = field(default_factory=list["UnreadableDirectory"])
    unknown: list[str] = field(default_factory=list[str])
    """Paths that match no rule: reported, never read."""


def read_checkpoint(store: ObjectStore, now: datetime.datetime) -> int:
    """Read the sink's checkpoint-ts: every event at or below it is in the files.

    Read it before listing the sink, so that the listing has everything that it promises. Raises `CheckpointError` when
    it is missing, is not what TiCDC writes, or is too far ahead of `now`."""
    try:
        content = store.read(METADATA, limit=METADATA_LIMIT)
    except ObjectMissingError:
        advice = "check source.uri, or wait for the first checkpoint"
        raise CheckpointError("the sink has no metadata file", segment=METADATA, advice=advice) from None
    except SourceError as error:
        raise CheckpointError(error.message, segment=METADATA, advice=error.advice) from error
    fault = partial(CheckpointError, segment=METADATA)
    checkpoint = read_json(content, f"the metadata file ({content[:80]!r})", fault).get("checkpoint-ts")
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int) or not is_commit_ts(checkpoint):
        raise CheckpointError(f"the checkpoint-ts is not a TSO: {checkpoint!r}", segment=METADATA)
    if not is_commit_ts(checkpoint, end_ts_at(now)):
        # Once accepted, it would stay the feed's clock for good.
        raise CheckpointError(
            f"the checkpoint-ts is {commit_time(checkpoint):%Y-%m-%d %H:%M:%S} UTC, more than a day after it was read",
            segment=METADATA,
            advice="set right the clock that is wrong, the source's or this machine's; a metadata file that is damaged "
            "is written again with the changefeed's next checkpoint",
        )
    return checkpoint


def list_sink(store: ObjectStore, source: StorageSinkSource) -> Listing:
    """List everything in the sink, classified by its path. Raises `SourceUnreachableError` when the sink cannot be
    listed, and `SourceError` when it was written with another layout."""
    return classify(store.list(), source)


def classify(
    objects: Iterable[StoredObject | UnreadableDirectory], source: StorageSinkSource, tables: Iterable[str] = ()
) -> Listing:
    """Classify objects of a sink; `tables` are known directories of tables besides those with schema files. Raises
    `SourceError` when a data file has another layout."""
    listing = Listing()
    data: list[StoredObject] = []
    for found in objects:
        path = found.path
        # A local path that is not UTF-8 is shown with its bytes escaped, which no valid name equals.
        shown = path if path.isascii() else path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if isinstance(found, UnreadableDirectory):
            listing.unreadable.append(replace(found, path=shown))
        elif shown != path:
            listing.unknown.append(shown)
        elif path == METADATA or ".tmp." in path.rpartition("/")[2]:
            continue
        elif match := _SCHEMA_FILE.fullmatch(path):
            version, checksum = int(match["version"] or match["old"]), match["checksum"]
            checked = None if checksum is None else int(checksum)
            listing.schemas.append(SchemaFilePath(path, match["directory"], version, checked))
        elif match := _INDEX_FILE.fullmatch(path):
            listing.indexes.append(IndexFile(path, match["directory"], match["dispatcher"], found.etag, found.modified))
        else:
            data.append(found)
    known = {*tables, *(s.directory for s in listing.schemas if may_be_table(s.directory, source))}
    for found in data:
        file = _data_file(found, known, source)
        if file is None:
            _refuse_other_layout(found.path, source)
            listing.unknown.append(found.path)
        else:
            listing.data.append(file)
    return listing


def read_index(store: ObjectStore, index: IndexFile) -> str:
    """Return the path of the last data file, which an index names. Raises `SourceError` when it names none, and as
    `ObjectStore.read` does."""
    content = store.read(index.path, limit=INDEX_LIMIT)
    name = content.decode("utf-8", "replace").strip()
    if not re.fullmatch(r"CDC(?:_\d+_)?\d{6,20}\.\w+", name):
        said = f"the index file does not name a data file: {name[:80]!r}"
        raise SourceError(said, segment=index.path, advice="restore the file as TiCDC wrote it")
    return f"{index.directory}/{name}"


def above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the deepest first."""
    while path := path.rpartition("/")[0]:
        yield path


def schema_file_at(path: str) -> tuple[str, int] | None:
    """Return directory and version of the schema file at a path; None when it is not a schema file."""
    match = _SCHEMA_FILE.fullmatch(path)
    return None if match is None else (match["directory"], int(match["version"] or match["old"]))


def table_directory(data_file: str, version: int) -> str:
    """Return the table's directory for a data file of a version. Raises `ValueError` when the file is of another
    version."""
    # It is above the version's own directory, below which there may be a partition's, a date's, or both.
    for directory, _, name in (place.rpartition("/") for place in above(data_file)):
        if directory and name.isdecimal() and int(name) == version:
            return directory
    raise ValueError(f"{data_file} is not of version {version}")


def may_be_table(directory: str, source: StorageSinkSource) -> bool:
    """Whether the directory of a schema file is a table's; else it is a database's."""
    return ("/" in directory) != source.use_table_id_as_path


def _data_file(found: StoredObject, tables: set[str], source: StorageSinkSource) -> DataFile | None:
    # From the deepest directory up: of `db/t/7` and `db/t`, both tables, the longer one owns `db/t/7/{version}/CDC…`.
    below_table = _BELOW_TABLE[source.date_separator]
    for directory in above(found.path):
        if directory in tables and (match := below_table.fullmatch(found.path.removeprefix(f"{directory}/"))):
            break
    else:
        # It has no schema file (yet): take the shortest plausible table name, so that the file is still landed.
        anywhere = _ANY_DATA_FILE.fullmatch(found.path)
        if anywhere is None or not may_be_table(directory := anywhere["table"], source):
            return None
        match = below_table.fullmatch(anywhere["below"])
    if match is None or match["extension"] != EXTENSIONS[source.protocol]:
        return None
    if any(int(match[name] or 0) > _LARGEST for name in ("version", "partition", "index")):
        return None
    database, _, table = ("", "", "") if source.use_table_id_as_path else directory.partition("/")
    return DataFile(
        path=found.path, directory=directory, database=database, table=table, version=int(match["version"]),
        physical_partition=None if match["partition"] is None else int(match["partition"]),
        feed_date=match.groupdict().get("date"), dispatcher=match["dispatcher"], index=int(match["index"]),
        size=found.size, etag=found.etag, modified=found.modified,
    )  # fmt: skip


def _refuse_other_layout(path: str, source: StorageSinkSource) -> None:
    match = _ANY_DATA_FILE.fullmatch(path)
    if match is None or match["extension"] not in EXTENSIONS.values():
        return
    by_ids = source.use_table_id_as_path
    is_other = "/" in match["table"] if by_ids else match["table"].isdigit()
    (protocol,) = (name for name, extension in EXTENSIONS.items() if extension == match["extension"])
    for option, other, given in (
        ("use-table-id-as-path", str(by_ids ^ is_other).lower(), str(by_ids).lower()),
        ("protocol", protocol, source.protocol),
        ("date-separator", _SEPARATORS[len(match["date"] or "")], source.date_separator),
    ):
        if other != given:
            said = f"the sink was written with {option} {other}, the configuration says {given}"
            raise SourceError(said, segment=path, advice=f"set source.{option.replace('-', '_')} to {other}")


# Detection of the options that a storage sink was written with, from the paths of its files.

LOOKED_AT: Final = 50_000
"""The maximum number of objects that are examined."""
_SAMPLES: Final = 8
DEFAULT_SEPARATOR: Final[DateSeparator] = "day"
"""TiCDC's own default, for a sink without data files."""


@dataclass(frozen=True)
class DetectedSink:
    """The findings about a sink from its files; None where no data file shows it. `tables`: `(database, table)`, none
    where directories are named by table ids. `first_date`: the first date directory. `samples`: the largest data files,
    each with the directory of its table. `whole`: whether the whole store was examined."""

    protocol: Protocol | None
    separator: DateSeparator | None
    table_ids: bool
    tables: frozenset[tuple[str, str]]
    first_date: str | None
    samples: tuple[tuple[StoredObject, str], ...]
    whole: bool


def detect_sink(store: ObjectStore) -> DetectedSink:
    """Examine the paths of a store. Raises as `ObjectStore.list` does."""
    objects = list(itertools.islice(store.list(), LOOKED_AT + 1))
    known: dict[str, Protocol] = {extension: protocol for protocol, extension in EXTENSIONS.items()}
    directories: set[str] = set()
    data: list[tuple[StoredObject, re.Match[str]]] = []
    for found in (each for each in objects if isinstance(each, StoredObject)):
        if (schema := schema_file_at(found.path)) is not None:
            directories.add(schema[0])
        elif (match := _ANY_DATA_FILE.fullmatch(found.path)) and match["extension"] in known:
            data.append((found, match))
            directories.add(match["table"])
    protocols: Counter[Protocol] = Counter(known[match["extension"]] for _, match in data)
    dates = Counter(match["date"] or "" for _, match in data)
    separators: Counter[DateSeparator] = Counter(_SEPARATORS[len(date)] for date in dates.elements())
    data.sort(key=lambda each: (-each[0].size, each[0].path))
    samples = tuple((found, match["table"]) for found, match in data[:_SAMPLES])
    table_ids = bool(samples) and "/" not in samples[0][1]
    tables = frozenset((database, table) for database, slash, table in (d.partition("/") for d in directories) if slash)
    protocol = protocols.most_common(1)[0][0] if protocols else None
    separator = separators.most_common(1)[0][0] if separators else None
    first_date, is_whole = min(filter(None, dates), default=None), len(objects) <= LOOKED_AT
    return DetectedSink(
        protocol, separator, table_ids, frozenset() if table_ids else tables, first_date, samples, is_whole
    )


def roots_below(store: ObjectStore) -> list[str]:
    """Return directories below the store's root that have a file `metadata`, as sinks do: sorted, the shallowest
    first."""
    found: Iterable[StoredObject | UnreadableDirectory] = itertools.islice(store.list(), LOOKED_AT)
    paths = (each.path for each in found if each.path.endswith(f"/{METADATA}"))
    return sorted((path.removesuffix(f"/{METADATA}") for path in paths), key=lambda root: (root.count("/"), root))


SCHEMA_FILE_LIMIT: Final = 64 * 1024 * 1024  # 4,096 columns with long labels stay far below.

# Go's encoding/json escapes only these.
_GO_ESCAPES: Final = str.maketrans({
    "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029",
    **{chr(0xDC00 + byte): "\\ufffd" for byte in range(0x80, 0x100)},
})  # fmt: skip
_ESCAPE: Final = re.compile(rb"\\(ufffd|.)", re.DOTALL)


def read_schema_file(store: ObjectStore, file: SchemaFilePath) -> SchemaChange:
    """Read one schema file: its statement, with the resulting columns. Raises `SchemaFileError` when the content is
    invalid, and as `ObjectStore.read` does."""
    content = store.read(file.path, limit=SCHEMA_FILE_LIMIT)
    fault = partial(SchemaFileError, segment=file.path)
    table = read_json(content, "the schema file", fault)
    try:
        if file.checksum is not None:
            marked = _ESCAPE.sub(lambda found: rb"\udcff" if found[1] == b"ufffd" else found[0], content)
            text = checked_text(json.loads(marked))
            # Go before 1.22 has no short escape for backspace and form feed.
            older = text.replace("\\b", "\\u0008").replace("\\f", "\\u000c")
            if file.checksum not in (zlib.crc32(text.encode()), zlib.crc32(older.encode())):
                raise fault("the schema file's content does not match the checksum in its name")
        version, action = int(table["TableVersion"]), int(table["Type"])
        if version != file.version:
            raise ValueError(f"TableVersion {version} is not the version in the file's name")
        if table["Table"] and not table["Schema"]:
            raise ValueError("Schema is empty, which is the table's database")
        database, name, query = (str(table[key]) for key in ("Schema", "Table", "Query"))
        columns = tuple(_column(column) for column in table["TableColumns"] or ())
        kind = "columns" if action == versions.SEEN else "statement"
        return SchemaChange(version, database, name, action, query, columns, origin=file.path, kind=kind)
    except KeyError as error:
        raise fault(f"the schema file lacks {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise fault(f"a value of the schema file is not what TiCDC writes there: {in_one_line(error)}") from None


def checked_text(document: Mapping[str, Any]) -> str:
    """Return the text that a schema file's checksum covers. Raises `KeyError` when the document lacks a part of it."""
    columns = sorted(document["TableColumns"] or [], key=lambda column: column["ColumnName"].encode())
    checked = {
        "Table": document["Table"], "Schema": document["Schema"], "Version": 0, "TableColumns": columns,
        "TableColumnsTotal": document["TableColumnsTotal"],
    }  # fmt: skip
    return go_json(checked, indent=4)


def go_json(value: Any, indent: int | None = None) -> str:
    """Format JSON as Go's encoding/json does; bytes that are not UTF-8 are given as Python's surrogateescape does."""
    separators = (",", ":") if indent is None else None
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators).translate(_GO_ESCAPES)


def _column(column: dict[str, Any]) -> SourceColumn:
    def number(key: str) -> int | None:
        return int(column[key]) if column.get(key) not in (None, "") else None

    name = str(column["ColumnName"])
    declared = str(column["ColumnType"])
    # The documentation calls the length ColumnLength; the code writes ColumnPrecision.
    length = number("ColumnPrecision") if "ColumnPrecision" in column else number("ColumnLength")
    elements: Any = column.get("ColumnElems") or []
    if type(elements) is not list or any(type(each) is not str for each in cast("list[object]", elements)):
        raise TypeError("ColumnElems is no list of texts")
    labels, scale = tuple(cast("list[str]", elements)), number("ColumnScale")
    source_id, default = column.get("ColumnId"), column.get("ColumnDefault")
    return SourceColumn(
        name, ColumnType.of(declared, length=length, scale=scale, elements=labels),
        nullable=column.get("ColumnNullable") != "false", primary_key=column.get("ColumnIsPk") == "true",
        default=None if default is None else str(default),
        source_id=None if source_id in (None, "") else int(str(source_id)),
    )  # fmt: skip
