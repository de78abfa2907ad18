"""Opening of catalogs, and PyIceberg's SQL catalog with a cache: each version of a table's metadata is read once.

Faults of a catalog become errors that name the configuration key: what no retry repairs is a `ConfigurationError`, what
may pass a `CatalogUnreachableError`. No message holds a URI, which may hold a password."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import PY_CATALOG_IMPL, Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog, SqlCatalogBaseTable
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import event, exc
from sqlalchemy.engine import ExceptionContext, make_url

from cdc_lakehouse.errors import CatalogUnreachableError, ConfigurationError

_LOG: Final = logging.getLogger("cdc_lakehouse")
_SILENT_SECONDS: Final = 5.0  # How long SQLite waits for a lock before people hear of it.
_LOCKED: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")


class _Connection(sqlite3.Connection):
    """Waits `timeout` seconds for a database that another process keeps locked, and says so."""

    def __init__(self, database: str, timeout: float = _SILENT_SECONDS, **options: Any) -> None:
        super().__init__(database, min(timeout, _SILENT_SECONDS), **options)
        self._patience = timeout

    def commit(self) -> None:
        self.wait(super().commit)

    def wait(self, step: Callable[..., Any], *arguments: Any) -> Any:
        began = time.monotonic()
        while True:
            try:
                return step(*arguments)
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - began
                # Where two wait for each other SQLite does not wait at all.
                if not error.sqlite_errorname.startswith(_LOCKED) or not _SILENT_SECONDS <= waited < self._patience:
                    raise
                _LOG.warning("waiting for the catalog for %.0f s: another process keeps it locked", waited)


def _execute(cursor: Any, statement: str, parameters: Any, _: object) -> bool:
    """Execute a statement in the place of SQLAlchemy, which True tells it."""
    cursor.connection.wait(cursor.execute, statement, parameters)
    return True


class CachingSqlCatalog(SqlCatalog):
    """A SQL catalog whose metadata files are read by `metadata_at`, which knows them. Whoever opens it sets that."""

    metadata_at: Callable[[tuple[str, ...], str], TableMetadata]

    def _init_catalog(self) -> None:
        event.listen(self.engine, "handle_error", _in_its_place)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "do_execute", _execute)
            event.listen(self.engine, "do_connect", lambda *found: found[-1].update(factory=_Connection))
        super()._init_catalog()

    def create_tables(self) -> None:
        """Create the catalog's own tables; another process may create some at the same time."""
        for _ in SqlCatalogBaseTable.metadata.tables:
            with contextlib.suppress(exc.DatabaseError):
                return super().create_tables()
        return super().create_tables()

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace. PyIceberg asks first whether it exists; another feed may create it after that."""
        try:
            super().create_namespace(namespace, properties)
        except exc.IntegrityError:
            if not self.namespace_exists(namespace):
                raise

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        if (location := orm_table.metadata_location) is None:
            return super()._convert_orm_to_iceberg(orm_table)
        name = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        metadata = self.metadata_at(name, location)
        return Table(name, metadata, location, self._load_file_io(metadata.properties, location), self)


_PACKAGES: Final = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""The packages that install a driver, where they are not called like its module."""

_UNUSABLE: Final = (
    "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_PERM", "SQLITE_AUTH",
)  # fmt: skip
_FULL: Final = ("SQLITE_FULL", "SQLITE_IOERR")
_REFUSALS: Final = (
    iceberg.UnauthorizedError, iceberg.ForbiddenError, iceberg.AuthorizationExpiredError, iceberg.OAuthError,
)  # fmt: skip


def open_catalog(name: str, kind: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog of a kind (PyIceberg's `type`); its later database errors are converted too.

    Raises `ConfigurationError` for what no retry repairs, and `CatalogUnreachableError`."""
    implementation = {"type": kind}
    if kind == "sql":
        try:
            make_url(properties.get("uri", "")).get_dialect().import_dbapi()
        except ModuleNotFoundError as error:
            module = error.name or ""
            raise _not_installed("lake.catalog.uri: its database", _PACKAGES.get(module, module)) from None
        except exc.NoSuchModuleError:
            raise ConfigurationError(
                "lake.catalog.uri: its scheme is not the name of a database",
                advice="write an SQLAlchemy URI, such as sqlite:///./lake/catalog.db or postgresql://host/database",
            ) from None
        except (exc.ArgumentError, ValueError):
            # The message of the error can hold a part of a password.
            raise ConfigurationError(
                "lake.catalog.uri: is not an SQLAlchemy URI",
                advice="write driver://user:password@host:port/database, with @, :, / and % of a password "
                "percent-encoded",
            ) from None
        implementation = {PY_CATALOG_IMPL: f"{CachingSqlCatalog.__module__}.{CachingSqlCatalog.__name__}"}
    try:
        return load_catalog(name, **implementation, **properties)
    except iceberg.NotInstalledError:
        raise _not_installed(f"lake.catalog.type: {kind}", f"pyiceberg[{kind}]") from None
    except _REFUSALS as error:
        raise ConfigurationError(
            f"lake.catalog: the catalog refuses the credentials ({type(error).__name__})",
            advice="correct credential or token in lake.catalog",
        ) from error
    except (OSError, iceberg.RESTError) as error:
        raise _unreachable(type(error).__name__) from error


def _in_its_place(context: ExceptionContext) -> BaseException | None:
    """Return the error to raise instead of a database error; None for errors that PyIceberg handles."""
    found, wrapped = context.original_exception, context.sqlalchemy_exception
    code: str | None = getattr(found, "sqlite_errorname", None)
    if code is None:
        # Another database. PyIceberg handles errors of other classes itself.
        is_lost = isinstance(wrapped, exc.DBAPIError) and wrapped.connection_invalidated
        is_away = is_lost or isinstance(wrapped, exc.OperationalError | exc.InterfaceError)
        return _unreachable(type(found).__name__) if is_away else None
    if code.startswith(_LOCKED):
        said = "lake.catalog.uri: another process keeps the database locked"
        return CatalogUnreachableError(said, advice="wait for it, or end it")
    if code.startswith(_UNUSABLE):
        advice = "correct it in lakehouse.yaml, or let this user read and write that file and its directory"
        return ConfigurationError(f"lake.catalog.uri: the database cannot be used: {found}", advice=advice)
    if code.startswith(_FULL):
        said = f"lake.catalog.uri: the database cannot be written: {found}"
        return CatalogUnreachableError(said, advice="see whether the disk is full")
    return None


def _unreachable(what: str) -> CatalogUnreachableError:
    return CatalogUnreachableError(
        f"the catalog at lake.catalog.uri does not answer ({what})", advice="see whether it runs, and the uri is right"
    )


def _not_installed(what: str, package: str) -> ConfigurationError:
    return ConfigurationError(f"{what} needs a package that is not installed", advice=f"pip install '{package}'")
