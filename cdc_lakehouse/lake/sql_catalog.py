"""PyIceberg's SQL catalog, with a cache of metadata: each version of a table's metadata is read once."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from cachetools import LRUCache
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog, SqlCatalogBaseTable
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

_KEPT: Final = 256


class CachingSqlCatalog(SqlCatalog):
    """A SQL catalog that caches metadata files, because a run loads a table many times. A metadata file never changes:
    another version has another file."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._metadata: LRUCache[str, TableMetadata] = LRUCache(_KEPT)
        self._lock = threading.Lock()

    def create_tables(self) -> None:
        """Create the catalog's own tables; another process may create some at the same time."""
        for _ in SqlCatalogBaseTable.metadata.tables:
            with contextlib.suppress(DatabaseError):
                return super().create_tables()
        return super().create_tables()

    def metadata_file(self, identifier: tuple[str, ...]) -> str | None:
        """Return the location of a table's metadata file, read from the database only; None when there is no such
        table."""
        with Session(self.engine) as session:
            return session.scalar(
                select(IcebergTables.metadata_location).where(
                    IcebergTables.catalog_name == self.name,
                    IcebergTables.table_namespace == self.namespace_to_string(identifier[:-1]),
                    IcebergTables.table_name == identifier[-1],
                )
            )

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        with self._lock:
            known = None if location is None else self._metadata.get(location)
        if location is None or known is None:
            table = super()._convert_orm_to_iceberg(orm_table)
            with self._lock:
                self._metadata[table.metadata_location] = table.metadata
            return table
        name = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return Table(name, known, location, self._load_file_io(known.properties, location), self)
