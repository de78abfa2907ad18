"""A catalog, a warehouse or an engine that cannot be used: which key names it, and whether another try may work."""

from __future__ import annotations

import contextlib
import re
import resource
import sqlite3
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.exceptions import CommitStateUnknownException, ForbiddenError, ServiceUnavailableError, UnauthorizedError
from pyspark.errors import AnalysisException, PythonException
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.definitions import defs
from cdc_lakehouse.errors import (
    CatalogUnreachableError,
    CdcError,
    ConfigurationError,
    DdlError,
    EngineError,
    RunNotRecordedError,
    TransientError,
    WarehouseFullError,
    WarehouseUnreachableError,
)
from cdc_lakehouse.lake import catalog as lake_catalog
from cdc_lakehouse.lake import sql_catalog
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.faults import engine_errors, engine_fault
from cdc_lakehouse.lake.tables.lease import Lease
from cdc_lakehouse.pipeline.holds import hold_reason
from tests.kit.lakes import TestLake
from tests.kit.waiting import until

SECRET = "hunter2"


def lake_at(directory: Path, **catalog: str) -> Lake:
    found = catalog or {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
    return Lake(LakeConfig.model_validate({"warehouse": (directory / "warehouse").as_uri(), "catalog": found}))


def refused(directory: Path, **catalog: str) -> CdcError:
    with pytest.raises(CdcError) as raised:
        _ = lake_at(directory, **catalog).catalog
    assert SECRET not in repr(raised.value) + str(raised.value) + str(raised.value.__cause__)
    return raised.value


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where none of the drivers is installed."""
    for module in ("psycopg", "psycopg2", "MySQLdb", "hive_metastore", "thrift"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.hive", raising=False)


@pytest.mark.parametrize(
    ("catalog", "error", "said"),
    [
        ("sql postgresql://cdc:PASS@db/lake", ConfigurationError, "uri: .*pip install 'psycopg.binary.'"),
        ("sql postgresql+psycopg2://cdc:PASS@db/lake", ConfigurationError, "uri: .*pip install 'psycopg2-binary'"),
        ("sql mysql://cdc:PASS@db/lake", ConfigurationError, "uri: .*pip install 'mysqlclient'"),
        ("sql postgres://cdc:PASS@db/lake", ConfigurationError, r"uri: its scheme .*postgresql://"),
        ("sql postgresql://cdc:a:PASS", ConfigurationError, "uri: is not an SQLAlchemy URI: write driver:"),
        ("sql cdc-PASS", ConfigurationError, "uri: is not an SQLAlchemy URI: write driver:"),
        ("hive thrift://127.0.0.1:1", ConfigurationError, r"type: hive.*pip install 'pyiceberg\[hive\]'"),
        ("rest http://cdc:PASS@127.0.0.1:1", CatalogUnreachableError, "uri"),
        ("sql sqlite:///DIR", ConfigurationError, "uri: the database cannot be used: "),
        ("sql sqlite:///DIR/file", ConfigurationError, "uri: the database cannot be used: "),
        ("sql sqlite:///DIR/file/below/catalog.db", ConfigurationError, "uri: the directory .* cannot be used: Not a"),
    ],
)
def test_catalog_that_cannot_be_opened_is_named_by_its_key(
    tmp_path: Path, without_extras: None, catalog: str, error: type[CdcError], said: str
) -> None:
    (tmp_path / "file").write_bytes(b"no database at all" * 100)
    kind, _, uri = catalog.replace("PASS", SECRET).replace("DIR", str(tmp_path)).partition(" ")
    found = refused(tmp_path, type=kind, uri=uri)
    assert type(found) is error and re.search(f"lake.catalog.{said}", str(found)), str(found)


def test_directories_of_a_lake_are_made_or_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/b/catalog.db"}
    with pytest.raises(ConfigurationError, match=r"lake\.warehouse: the directory .* cannot be used: Not a directory"):
        _ = lake_at(tmp_path / "file/below", **catalog).catalog
    assert lake_at(tmp_path / "a", **catalog).catalog.list_namespaces() == []
    assert (tmp_path / "a/warehouse").is_dir()


def test_two_processes_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    metadata, opened = SqlCatalogBaseTable.metadata, list[Any]()
    # It is called once it is known which tables are absent.
    event.listen(metadata, "before_create", lambda *_, **__: opened.append(lake_at(tmp_path).catalog), once=True)
    lake_at(tmp_path).catalog.create_namespace("shop")
    assert [each.list_namespaces() for each in opened] == [[("shop",)]]


def test_catalog_that_is_locked_or_spoiled_later_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock may pass."""
    monkeypatch.setattr(lake_catalog, "SQLITE_TIMEOUT_SECONDS", 0)
    database = tmp_path / "catalog.db"
    with sqlite3.connect(database) as other:
        other.execute("BEGIN EXCLUSIVE")
        error = refused(tmp_path)
        assert isinstance(error, CatalogUnreachableError) and "locked" in str(error)
        other.rollback()
        lake = lake_at(tmp_path)
        lake.ensure_namespace("before")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnreachableError, match=r"lake\.catalog\.uri: another process keeps .* locked"):
            lake.ensure_namespace("meanwhile")
        other.rollback()
        lake.ensure_namespace("after")
    assert set(lake.catalog.list_namespaces()) == {("after",), ("before",)}
    database.write_bytes(b"no database at all" * 1000)
    with pytest.raises(ConfigurationError, match=r"lake\.catalog\.uri: the database cannot be used"):
        lake.ensure_namespace("last")


def test_catalog_whose_connection_is_lost_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_at(tmp_path)

    def is_closed(*_: object) -> None:
        raise sqlite3.InterfaceError("connection already closed")

    _ = lake.catalog
    monkeypatch.setattr(getattr(sql_catalog, "_Connection"), "wait", is_closed)  # noqa: B009
    with pytest.raises(CatalogUnreachableError, match=r"does not answer \(InterfaceError\)"):
        lake.ensure_namespace("shop")


def test_wait_for_locked_catalog_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sql_catalog, "_SILENT_SECONDS", 0.02)
    database = tmp_path / "catalog.db"
    lake = lake_at(tmp_path)
    lake.ensure_namespace("before")
    with contextlib.closing(sqlite3.connect(database)) as other, ThreadPoolExecutor(1) as worker:
        other.execute("BEGIN EXCLUSIVE")
        waiting = worker.submit(lake.catalog.list_namespaces)
        until(lambda: "another process keeps it locked" in caplog.text, 60)
        assert not waiting.done()
        other.rollback()
        assert waiting.result(60) == [("before",)]


def test_a_warehouse_that_cannot_be_written_is_said_by_the_first_write_of_a_run(lake: TestLake) -> None:
    lake.warehouse.mkdir(parents=True)
    (lake.warehouse / f"cdc_{lake.name}").touch()
    with pytest.raises(ConfigurationError, match=r"lake\.warehouse cannot be written: .*Not a directory"):
        Lease(lake.lake, lake.name, "run", utc_now).take()


def test_disk_that_is_full_is_told_from_a_missing_file(tmp_path: Path) -> None:
    """It may have room later."""
    disk = pyarrow.fs.LocalFileSystem()
    stream = disk.open_output_stream("/dev/full")
    with pytest.raises(OSError, match="No space left") as full, stream:
        stream.write(b"x" * 100_000)
    fault = engine_fault(full.value)
    assert isinstance(fault, WarehouseFullError) and "lake.warehouse is full" in str(fault)
    with pytest.raises(FileNotFoundError) as missing:
        disk.open_input_stream(str(tmp_path / "none"))
    assert engine_fault(missing.value) is None


@pytest.mark.parametrize(
    ("what", "error", "reason"),
    [
        ("NO_SUCH_BUCKET during CreateMultipartUpload operation: The specified bucket does not exist. (Request ID: H)",
         ConfigurationError, "NO_SUCH_BUCKET: The specified bucket does not exist."),
        ("ACCESS_DENIED during HeadObject operation: No response body.", ConfigurationError, "ACCESS_DENIED: No resp"),
        ("UNKNOWN (HTTP status 503) during PutObject operation: Slow down", WarehouseUnreachableError, "UNKNOWN: Slow"),
    ],
)  # fmt: skip
def test_fault_of_a_bucket_is_reported_without_keys(what: str, error: type[CdcError], reason: str) -> None:
    found = OSError(f"When getting information for key 'w/secret/00000-a.json' in bucket 'b': AWS Error {what}")
    with pytest.raises(error) as raised, engine_errors():
        raise found
    said = str(raised.value)
    assert f"the bucket 'b' cannot be used ({reason}" in said and "w/secret" not in said and "Request" not in said
    assert type(engine_fault(found)) is error, "no table is to blame"


def test_file_of_a_lake_is_written_whole_or_stays(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    place = lake.location("a", "plan.json")
    lake.write(place, b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            lake.write(place, b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lake.read(place) == b"before"
    lake.write(place, b"after")
    assert lake.read(place) == b"after" and len(list((tmp_path / "warehouse/a").iterdir())) == 1


def test_definitions_say_the_sentence_without_a_trace_of_the_catalog(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(str(lake.config.lake.catalog.uri).removeprefix("sqlite:///")).mkdir(parents=True)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    with pytest.raises(ConfigurationError, match=r"lake\.catalog\.uri: the database cannot be used") as raised:
        defs()
    assert "sqlalchemy" not in "".join(traceback.format_exception(raised.value))


def test_a_jvm_that_has_ended_is_an_error_that_may_pass() -> None:
    gateway: Any = JavaGateway(gateway_parameters=GatewayParameters(port=1))
    with pytest.raises(EngineError, match=r"Py4JNetworkError|does not answer") as raised, engine_errors():
        gateway.jvm.System.currentTimeMillis()
    assert isinstance(raised.value.__cause__, Py4JNetworkError | ConnectionError)


def test_what_spark_says_of_a_worker_that_died_is_its_first_line() -> None:
    with pytest.raises(EngineError, match=r"^Spark failed: PythonException Job aborted: run again"), engine_errors():
        raise PythonException("Job aborted\njava.io.EOFException")


class JavaError(Py4JJavaError):
    """An error of Java's whose trace is known: each line is caused by the next."""

    def __init__(self, *lines: str) -> None:
        Exception.__init__(self)
        causes = "\n\tat x.Y.z\nCaused by: ".join(lines)
        self._trace = f"An error occurred while calling o7.commitTransaction.\n: {causes}"

    def __str__(self) -> str:
        return self._trace


_ABOUT = "Traceback (most recent call last):\n  File x.py, line 1, in rows\n"
_ICEBERG, _S3 = "org.apache.iceberg", "software.amazon.awssdk.services.s3.model.S3Exception"
_SQL = f"{_ICEBERG}.jdbc.UncheckedSQLException: Failed"
_NOT_FOUND = f"{_ICEBERG}.exceptions.NotFoundException: Failed to open file: /t/m.avro"
FAULTS: list[tuple[type[CdcError] | None, list[Exception]]] = [
    (EngineError, [
        ConnectionRefusedError("no"), Py4JNetworkError("Error while sending"), MemoryError(),
        PythonException("Python worker exited unexpectedly (crashed)"), PythonException(f"{_ABOUT}MemoryError"),
        JavaError("java.lang.OutOfMemoryError: Java heap space"),
        JavaError("org.apache.spark.SparkException: Job aborted"),
    ]),
    (RunNotRecordedError, [RunNotRecordedError("no")]),
    (CatalogUnreachableError, [
        ServiceUnavailableError("503"), CommitStateUnknownException("504"),
        JavaError(_SQL, "org.sqlite.SQLiteException: [SQLITE_BUSY] x"),
        JavaError(_SQL, "org.postgresql.util.PSQLException: FATAL: the database system is shutting down"),
        JavaError(_SQL, "org.postgresql.util.PSQLException: ERROR: deadlock detected"),
        JavaError(_SQL, "org.postgresql.util.PSQLException: An I/O error occurred while sending to the backend.",
                  "java.io.EOFException"),
        JavaError(f"{_ICEBERG}.exceptions.ServiceUnavailableException: Service unavailable"),
        JavaError(f"{_ICEBERG}.exceptions.RESTException: Error occurred while processing POST request",
                  f"{_ICEBERG}.shaded.org.apache.hc.core5.http.NoHttpResponseException: rest failed to respond"),
        UnauthorizedError("401 token expired"), JavaError(f"{_ICEBERG}.exceptions.NotAuthorizedException: expired"),
    ]),
    (WarehouseUnreachableError, [
        TimeoutError("read timed out"), JavaError(f"{_S3}: Slow down (Service: S3, Status Code: 503, x)"),
        JavaError("software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request",
                  "java.net.ConnectException: Connection refused"),
    ]),
    (WarehouseFullError, [
        OSError(28, "No space left on device"), WarehouseFullError("full"),
        JavaError(f"{_ICEBERG}.exceptions.RuntimeIOException: Failed", "java.io.IOException: No space left on device"),
    ]),
    # What says something of the table at which it came up.
    (None, [
        PythonException(f"{_ABOUT}ValueError: 7 is no date\n"), AnalysisException("[UNRESOLVED_COLUMN] x"),
        ForbiddenError("403"), FileNotFoundError("data.parquet"), PermissionError(13, "Permission denied"),
        ValueError("not a date"), TransientError("another writer has changed the table"),
        JavaError(_SQL, "org.sqlite.SQLiteException: [SQLITE_CONSTRAINT] x"),
        JavaError(f"{_S3}: Denied (Service: S3, Status Code: 403, x)"),
        JavaError(_NOT_FOUND, "java.io.FileNotFoundException: /t/m.avro"),
        JavaError("java.lang.IllegalArgumentException: Cannot add column"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "errors"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_error_is_a_fault_of_its_kind_or_of_its_table(kind: type[CdcError] | None, errors: list[Exception]) -> None:
    found = {str(error): engine_fault(error) for error in errors}
    wrong = {said: fault for said, fault in found.items() if (None if fault is None else type(fault)) != kind}
    assert not wrong and len(found) == len(errors)


def test_a_table_is_held_for_what_is_its_own_and_never_for_a_fault_of_the_engine() -> None:
    def held(error: Exception) -> str:
        return hold_reason(error, "be written", TableName("d", "t"))

    assert held(JavaError(_NOT_FOUND)) == f"the table could not be written: {_NOT_FOUND}"
    secret = f"java.lang.IllegalArgumentException: jdbc:postgresql://cdc:{SECRET}@db"
    assert held(JavaError(secret)).endswith("(java.lang.IllegalArgumentException)")
    ddl = held(DdlError("it is not known"))
    assert ddl.startswith("it is not known. ") and "`cdc-lakehouse load --table d.t`" in ddl
    assert held(DdlError("not yet", advice="wait")) == "not yet: wait"
    with pytest.raises(EngineError):
        held(JavaError("java.lang.OutOfMemoryError: Java heap space"))


def test_namespace_created_by_another_feed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (lake_at(tmp_path) for _ in range(2))
    asks = second.catalog.namespace_exists

    def asks_too_early(namespace: str | tuple[str, ...]) -> bool:
        found = asks(namespace)
        first.ensure_namespace("shop")
        return found

    monkeypatch.setattr(second.catalog, "namespace_exists", asks_too_early)
    second.ensure_namespace("shop")
    assert second.catalog.list_namespaces() == [("shop",)]


def test_namespace_that_the_database_refuses_is_not_there(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    assert lake.catalog.list_namespaces() == []
    with sqlite3.connect(tmp_path / "catalog.db") as other:
        other.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON iceberg_namespace_properties BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    with pytest.raises(IntegrityError, match="no"):
        lake.ensure_namespace("shop")
