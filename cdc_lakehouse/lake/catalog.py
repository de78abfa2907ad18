"""The catalog without a JVM: opens it, finds tables, and serves the small tables that PyIceberg writes. The schema in
the header of a manifest is understood once."""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import pyiceberg.avro.file
from cachetools import LRUCache
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.errors import ConfigurationError, TransientError, WarehouseFullError
from cdc_lakehouse.lake.file_io import pyiceberg_file_io
from cdc_lakehouse.lake.names import CATALOG, Identifier

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog  # Reading a lake on SQLite needs none.
    from pyiceberg.table.metadata import TableMetadata

SQLITE_TIMEOUT_SECONDS: Final = 60
_KEPT: Final = 256
_LOCATION: Final = (
    "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)


class Lake:
    """The lake of one configuration, as PyIceberg sees it. Opening it needs neither a JVM nor a source."""

    def __init__(self, config: LakeConfig, storage: StorageConfig | None = None) -> None:
        self.config, self.storage = config, storage or StorageConfig()
        self.on_write: Callable[[], object] = lambda: None  # Called before this process writes something without a JVM.
        self.expires_at: datetime.datetime | None = None  # Of the credentials for the warehouse.
        self._lock, self._namespaces = threading.RLock(), set[str]()
        self._catalog: Catalog | None = None
        self._locations: dict[tuple[str, ...], str] = {}
        self._metadata: LRUCache[str, Any] = LRUCache(_KEPT)

    @property
    def catalog(self) -> Catalog:
        """The open catalog. It is opened once, and again when the credentials for the warehouse have expired."""
        with self._lock:
            ends = self.expires_at
            if self._catalog is None or (ends is not None and ends < datetime.datetime.now(datetime.UTC)):
                self._catalog = self._open()
            return self._catalog

    def _open(self) -> Catalog:
        file_io = pyiceberg_file_io(self.config.warehouse, self.storage)
        self.expires_at = file_io.expires_at
        # The warehouse of a catalog can be a name, which is not a location.
        properties = {"warehouse": self.config.warehouse, **file_io.properties, **self.config.catalog.properties}
        if self.config.warehouse.startswith("file:"):
            _ensure_directory(path_of(self.config.warehouse), "lake.warehouse")
        uri = properties.get("uri", "")
        if uri.startswith("sqlite:///"):
            _ensure_directory(Path(uri.removeprefix("sqlite:///")).parent, "lake.catalog.uri")
            # Spark's threads and this process share the file: wait for the other's commit instead of failing.
            properties["uri"] = f"{uri}?timeout={SQLITE_TIMEOUT_SECONDS}"
        # It loads SQLAlchemy and more, which tasks in Python workers do not need.
        from cdc_lakehouse.lake.sql_catalog import open_catalog  # noqa: PLC0415

        catalog: Any = open_catalog(CATALOG, self.config.catalog.type, properties)
        catalog.metadata_at = partial(self._metadata_at, properties)
        return catalog

    def load(self, identifier: Identifier) -> Table | None:
        """Load a table; None when it does not exist. That does not create a lake that nobody has written to."""
        uri = self.config.catalog.uri or ""
        if self._catalog is None and uri.startswith("sqlite:///"):
            path = Path(uri.removeprefix("sqlite:///"))
            nearest = next((each for each in path.parents if each.exists()), path)
            if not path.exists() and nearest.is_dir():
                return None  # A directory that cannot be read is not taken for one without a lake.
            if self.config.warehouse.startswith("file:"):
                # What is wrong, such as a lock, the catalog itself reports.
                with contextlib.suppress(sqlite3.Error, OSError):
                    return self._read_table(path, identifier)
        with contextlib.suppress(NoSuchTableError, NoSuchNamespaceError):
            return load_current(self.catalog, identifier.parts)
        return None

    def _read_table(self, database: Path, identifier: Identifier) -> Table | None:
        """Load a table from SQLite and a local file, without SQLAlchemy: its import takes a third of a command's time.
        Raises `sqlite3.Error` and `OSError`."""
        uri = f"file:{quote(str(database))}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, timeout=1, uri=True)) as connection:
            found = connection.execute(_LOCATION, (CATALOG, *identifier.parts)).fetchone()
        if found is None:
            return None
        metadata = self._metadata_at({}, identifier.parts, found[0])
        io: Any = load_file_io({**self.config.catalog.properties, **metadata.properties}, found[0])
        catalog: Any = _Unopened(self)
        return Table(identifier.parts, metadata, found[0], io, catalog)

    def _metadata_at(self, properties: dict[str, str], name: tuple[str, ...], location: str) -> TableMetadata:
        """Return what a metadata file says. It never changes, and is read once: a run loads a table many times."""
        with self._lock:
            self._locations[name] = location
            known = self._metadata.get(location)
        if known is None:
            known = FromInputFile.table_metadata(load_file_io(properties, location).new_input(location))
            with self._lock:
                self._metadata[location] = known
        return known

    def existing(self, identifier: Identifier) -> Table:
        """Load a table that existed a moment ago. Raises `TransientError` when somebody has removed it."""
        table = self.load(identifier)
        if table is None:
            raise TransientError(f"the table {identifier} no longer exists", advice="run again")
        return table

    def metadata_file(self, identifier: Identifier) -> str | None:
        """Return the location of the metadata file that was read last, or could not be, of a table of a SQL catalog."""
        return self._locations.get(identifier.parts)

    def ensure_namespace(self, namespace: str) -> None:
        with self._lock:
            if namespace in self._namespaces:
                return
            with contextlib.suppress(NamespaceAlreadyExistsError):
                self.catalog.create_namespace((namespace,))
            self._namespaces.add(namespace)

    def write(self, location: str, content: bytes) -> None:
        """Write a file that belongs to no table, whole or not at all, as stores do. An existing one is overwritten."""
        self.on_write()
        if location.startswith("file:"):
            (path := path_of(location)).parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(uuid.uuid4().hex)
            try:
                part.write_bytes(content)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            return
        with load_file_io(dict(self.catalog.properties), location).new_output(location).create(overwrite=True) as file:
            file.write(content)

    def read(self, location: str) -> bytes | None:
        """Read a file that `write` wrote; None for a missing one."""
        with contextlib.suppress(FileNotFoundError):
            if location.startswith("file:"):
                return path_of(location).read_bytes()
            with load_file_io(dict(self.catalog.properties), location).new_input(location).open() as file:
                return file.read()
        return None

    def delete(self, location: str) -> None:
        """Delete a file that `write` wrote. A missing file is not an error."""
        with contextlib.suppress(FileNotFoundError):
            load_file_io(dict(self.catalog.properties), location).delete(location)

    def location(self, *parts: str) -> str:
        return "/".join((self.config.warehouse.rstrip("/"), *parts))


def load_current(catalog: Catalog, name: tuple[str, ...]) -> Table:
    """Load a table. A metadata file is deleted by the second commit after: the catalog names another then."""
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            return catalog.load_table(name)
    return catalog.load_table(name)


class _Unopened:
    """The catalog of a table that was read without it: it is opened for the first commit."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def supports_server_side_planning(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake.catalog, name)


# PyIceberg resolves the schema of each manifest anew, which costs each write of a small table 7 ms of CPU.


@functools.lru_cache(_KEPT)
def _schema(text: str) -> Any:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(text))


def _made_once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same reader for the same schemas, which `_schema` and PyIceberg's constants are. It has no state."""
    known: LRUCache[Any, tuple[Any, Any]] = LRUCache(_KEPT)
    lock = threading.Lock()

    def made(*arguments: Any) -> Any:
        key = tuple(tuple(each.items()) if isinstance(each, dict) else id(each) for each in arguments)
        with lock:
            if key not in known:
                known[key] = arguments, make(*arguments)  # What is kept keeps its id.
            return known[key][1]

    return made


_files: Any = pyiceberg.avro.file
_files.AvroFileHeader.get_schema = lambda self: _schema(self.meta["avro.schema"])
_files.resolve_reader, _files.construct_reader = map(_made_once, (_files.resolve_reader, _files.construct_reader))


def path_of(uri: str) -> Path:
    """Return the path of a `file:` URI as the configuration has it: nothing in it is escaped."""
    return Path(urlsplit(uri).path)


def _ensure_directory(directory: Path, key: str) -> None:
    """Create a directory. Raises `ConfigurationError` when it can be neither created nor written, which no retry
    repairs, and `WarehouseFullError` when the disk is full."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(directory, os.W_OK | os.X_OK) else "it cannot be written"
    except OSError as error:
        reason = error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WarehouseFullError(f"{key}: the directory {directory} cannot be made: {reason}") from error
    if reason is not None:
        advice = "correct it in lakehouse.yaml, or let this user write there"
        raise ConfigurationError(f"{key}: the directory {directory} cannot be used: {reason}", advice=advice)


def system_namespace(feed: str) -> str:
    return f"cdc_{feed}"


def system_table(feed: str, name: str) -> Identifier:
    """Return the identifier of one of a feed's own tables; docs/tables.md lists them all."""
    return Identifier(system_namespace(feed), name)
