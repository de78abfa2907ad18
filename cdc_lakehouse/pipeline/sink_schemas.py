"""The schema files of a storage sink. Each is read once in a run; recorded ones are not read."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.problems import BAD_SCHEMA_FILE, Rejected
from cdc_lakehouse.errors import SchemaFileError, SourceError
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.sources.object_store import ObjectStore
from cdc_lakehouse.sources.sink.paths import SchemaFilePath, schema_file_at
from cdc_lakehouse.sources.sink.schema_file import read_schema_file


class SchemaFiles:
    """The schema files of a listing, and those that are already recorded."""

    def __init__(
        self, feed: FeedConfig, store: ObjectStore, recorded: SchemaHistory, listed: Iterable[SchemaFilePath]
    ) -> None:
        self._feed = feed
        self._store = store
        self._recorded = recorded
        self._listed = tuple(listed)
        self._read: dict[str, SchemaChange] = {}
        self._absent_from_rows: dict[tuple[str, int], frozenset[str]] = {}

    def changes(self, upto: int | None) -> tuple[list[SchemaChange], list[Rejected]]:
        """Return the changes up to a commit-ts that are not recorded, or are recorded differently, and the unusable
        files."""
        known = self._recorded.changes
        changes = [marked for change in known.values() if (marked := self._marked(change)) != change]
        rejected: list[Rejected] = []
        for file in sorted(self._listed, key=lambda file: (file.version, file.path)):
            if file.path in known or (upto is not None and file.version > upto):
                continue
            try:
                changes.append(self._marked(self._read_file(file)))
            except (SchemaFileError, SourceError) as error:
                database, table = self.name_at(file.directory)
                rejected.append(Rejected(file.path, None, BAD_SCHEMA_FILE, error.advised, None, database, table))
        return changes, rejected

    def mark_absent_from_rows(self, directory: str, version: int, columns: Iterable[str]) -> None:
        """Mark columns that the rows of a version were seen to lack."""
        self._absent_from_rows[directory, version] = frozenset(columns)

    def of(self, directory: str, version: int) -> SchemaChange | None:
        """Return the schema of a table's directory at a version; None when no usable file has it."""
        return self._by_place.get((directory, version))

    def name_at(self, path: str) -> tuple[str | None, str | None]:
        """Return the database and table of a path, as far as they are known; a table whose directory is named by its id
        may have had other names at other times."""
        parts = path.split("/")
        for depth in range(len(parts), 0, -1):
            if (known := self._names.get("/".join(parts[:depth]))) is not None:
                return known.database, known.table or None
        database, table, *_ = (*parts, "", "")
        return database, table or None

    def first_ts(self) -> int | None:
        """Return the least version of the schema files: a changefeed writes none that is older than its start-ts. None
        before the first file."""
        recorded = (place[1] for origin in self._recorded.changes if (place := schema_file_at(origin)) is not None)
        return min((*recorded, *(file.version for file in self._listed)), default=None)

    @functools.cached_property
    def history(self) -> History:
        """The history including all files, even those above the checkpoint."""
        changes = {change.origin: change for change in (*self._recorded.changes.values(), *self._by_place.values())}
        if not changes.keys() - self._recorded.changes.keys():
            return self._recorded.history
        history = History()
        history.apply(changes.values())
        return history

    @functools.cached_property
    def versions(self) -> Mapping[tuple[TableName, int], TableVersion]:
        """The version that each file describes, by table and commit-ts."""
        return self.history.described()

    @functools.cached_property
    def _by_place(self) -> Mapping[tuple[str, int], SchemaChange]:
        found: dict[tuple[str, int], SchemaChange] = {}
        for origin, change in self._recorded.changes.items():
            if (place := schema_file_at(origin)) is not None:
                found[place] = change
        for file in self._listed:
            if file.path not in self._recorded.changes and (change := self._usable(file)) is not None:
                found[file.directory, file.version] = change
        return found

    @functools.cached_property
    def _names(self) -> Mapping[str, TableName]:
        return {directory: TableName(c.database, c.table) for (directory, _), c in sorted(self._by_place.items())}

    def _marked(self, change: SchemaChange) -> SchemaChange:
        """Return the change with what is known of its columns from elsewhere: which of them are virtual."""
        names = self._feed.settings_of(change.database, change.table).virtual_columns
        configured = {name.lower() for name in names or ()}
        place = schema_file_at(change.origin)
        seen = self._absent_from_rows.get(place, frozenset()) if place else frozenset()

        def virtual(column: SourceColumn) -> Literal["configured", "seen"] | None:
            if column.name.lower() in configured:
                return "configured"
            return "seen" if column.name in seen or column.virtual == "seen" else None

        if all(column.virtual == virtual(column) for column in change.columns):
            return change
        return replace(change, columns=tuple(replace(column, virtual=virtual(column)) for column in change.columns))

    def _read_file(self, file: SchemaFilePath) -> SchemaChange:
        """Read a schema file. Raises `SchemaFileError` or `SourceError` when it cannot be used."""
        if file.path not in self._read:
            self._read[file.path] = read_schema_file(self._store, file)
        return self._read[file.path]

    def _usable(self, file: SchemaFilePath) -> SchemaChange | None:
        try:
            return self._read_file(file)
        except (SchemaFileError, SourceError):
            return None  # `changes` reports it.
