"""A catalog or a warehouse that cannot be used: which key names it, and whether another try may work."""

from __future__ import annotations

import re
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError
from pyspark.errors import AnalysisException, PythonException

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
    TransientError,
    WarehouseFullError,
    WarehouseUnreachableError,
)
from cdc_lakehouse.lake import catalog as lake_catalog
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.faults import engine_errors, engine_fault, warehouse_fault
from cdc_lakehouse.lake.tables.lease import Lease
from cdc_lakehouse.pipeline.holds import hold_reason
from tests.kit.lakes import TestLake

SECRET = "hunter2"


def lake_at(directory: Path, **catalog: str) -> Lake:
    return Lake(LakeConfig.model_validate({"warehouse": (directory / "warehouse").as_uri(), "catalog": catalog}))


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
    ("uri", "said"),
    [
        (f"postgresql://cdc:{SECRET}@db/lake", "lake.catalog.uri: .*pip install 'psycopg.binary.'"),
        (f"postgresql+psycopg2://cdc:{SECRET}@db/lake", "lake.catalog.uri: .*pip install 'psycopg2-binary'"),
        (f"mysql://cdc:{SECRET}@db/lake", "lake.catalog.uri: .*pip install 'mysqlclient'"),
        (f"postgres://cdc:{SECRET}@db/lake", r"lake.catalog.uri: its scheme .*postgresql://"),
        (f"postgresql://cdc:a:{SECRET}", "lake.catalog.uri: is not an SQLAlchemy URI: write driver:"),
        (f"cdc {SECRET}", "lake.catalog.uri: is not an SQLAlchemy URI: write driver:"),
    ],
)
def test_a_uri_that_no_driver_takes(tmp_path: Path, without_extras: None, uri: str, said: str) -> None:
    error = refused(tmp_path, type="sql", uri=uri)
    assert isinstance(error, ConfigurationError) and re.search(said, str(error)), str(error)


def test_a_hive_catalog_without_its_package(tmp_path: Path, without_extras: None) -> None:
    error = refused(tmp_path, type="hive", uri="thrift://127.0.0.1:1")
    assert isinstance(error, ConfigurationError)
    assert "lake.catalog.type: hive" in str(error) and "pip install 'pyiceberg[hive]'" in str(error)


def test_a_catalog_that_does_not_answer_may_answer_later(tmp_path: Path) -> None:
    error = refused(tmp_path, type="rest", uri=f"http://cdc:{SECRET}@127.0.0.1:1")
    assert isinstance(error, CatalogUnreachableError) and "lake.catalog.uri" in str(error)


def directory_in_its_place(path: Path) -> None:
    path.mkdir()


def other_file_in_its_place(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


@pytest.mark.parametrize("spoil", [directory_in_its_place, other_file_in_its_place])
def test_a_database_that_cannot_be_opened(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "catalog.db")
    error = refused(tmp_path, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert isinstance(error, ConfigurationError) and "lake.catalog.uri: the database cannot be used: " in str(error)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_catalog, "SQLITE_TIMEOUT_SECONDS", 0)


@pytest.mark.usefixtures("impatient")
def test_a_lock_may_pass(tmp_path: Path) -> None:
    database = tmp_path / "catalog.db"
    with sqlite3.connect(database) as other:
        other.execute("BEGIN EXCLUSIVE")
        error = refused(tmp_path, type="sql", uri=f"sqlite:///{database}")
        assert isinstance(error, CatalogUnreachableError) and "locked" in str(error)
        other.rollback()
        lake = lake_at(tmp_path, type="sql", uri=f"sqlite:///{database}")
        lake.ensure_namespace("before")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnreachableError, match=r"lake\.catalog\.uri: another process keeps .* locked"):
            lake.ensure_namespace("meanwhile")
        other.rollback()
        lake.ensure_namespace("after")
    assert set(lake.catalog.list_namespaces()) == {("after",), ("before",)}


def test_a_database_that_becomes_unusable(tmp_path: Path) -> None:
    database = tmp_path / "catalog.db"
    lake = lake_at(tmp_path, type="sql", uri=f"sqlite:///{database}")
    lake.ensure_namespace("before")
    database.write_bytes(b"no database at all" * 1000)
    with pytest.raises(ConfigurationError, match=r"lake\.catalog\.uri: the database cannot be used"):
        lake.ensure_namespace("after")


def test_a_warehouse_that_cannot_be_written_is_said_by_the_first_write_of_a_run(lake: TestLake) -> None:
    lake.warehouse.mkdir(parents=True)
    (lake.warehouse / f"cdc_{lake.name}").touch()
    with pytest.raises(ConfigurationError, match=r"lake\.warehouse cannot be written: .*Not a directory"):
        Lease(lake.lake, lake.name, "run", utc_now).take()


def test_a_full_disk_may_have_room_later() -> None:
    stream = pyarrow.fs.LocalFileSystem().open_output_stream("/dev/full")
    with pytest.raises(OSError, match="No space left") as full, stream:
        stream.write(b"x" * 100_000)
    fault = warehouse_fault(full.value)
    assert isinstance(fault, WarehouseFullError) and "lake.warehouse is full" in str(fault)


def test_a_file_that_is_not_there_is_no_fault_of_the_warehouse(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        pyarrow.fs.LocalFileSystem().open_input_stream(str(tmp_path / "none"))
    assert warehouse_fault(missing.value) is None


def test_definitions_say_the_sentence_without_a_trace_of_the_catalog(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(str(lake.config.lake.catalog.uri).removeprefix("sqlite:///"))
    directory.mkdir(parents=True)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    with pytest.raises(ConfigurationError, match=r"lake\.catalog\.uri: the database cannot be used") as raised:
        defs()
    assert "sqlalchemy" not in "".join(traceback.format_exception(raised.value))


def test_a_jvm_that_has_ended_is_an_error_that_may_pass() -> None:
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=1))
    with pytest.raises(EngineError, match=r"Py4JNetworkError|does not answer") as raised, engine_errors():
        gateway.jvm.System.currentTimeMillis()
    assert isinstance(raised.value.__cause__, Py4JNetworkError | ConnectionError)


def test_what_spark_says_of_a_worker_that_died_is_its_first_line() -> None:
    with pytest.raises(EngineError, match=r"^Spark failed: PythonException Job aborted: run again"), engine_errors():
        raise PythonException("Job aborted\njava.io.EOFException")


_ABOUT = "Traceback (most recent call last):\n  File x.py, line 1, in rows\n"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("no"), EngineError),
        (Py4JNetworkError("Error while sending"), EngineError),
        (PythonException("Python worker exited unexpectedly (crashed)"), EngineError),
        (PythonException(f"{_ABOUT}MemoryError"), EngineError),
        (PythonException(f"{_ABOUT}ValueError: 7 is no date\n"), None),
        (AnalysisException("[UNRESOLVED_COLUMN] x"), None),
        (MemoryError(), EngineError),
        (ServiceUnavailableError("503"), CatalogUnreachableError),
        (ForbiddenError("403"), None),
        (TimeoutError("read timed out"), WarehouseUnreachableError),
        (OSError(28, "No space left on device"), WarehouseFullError),
        (FileNotFoundError("data.parquet"), None),
        (PermissionError(13, "Permission denied"), None),
        (WarehouseFullError("full"), WarehouseFullError),
        (TransientError("another writer has changed the table"), None),
        (ValueError("not a date"), None),
    ],
    ids=repr,
)
def test_what_says_nothing_of_the_table_at_which_it_came_up(error: Exception, kind: type[CdcError] | None) -> None:
    fault = engine_fault(error)
    assert (None if fault is None else type(fault)) == kind


class _JavaError(Py4JJavaError):
    """An error of Java's whose trace is known."""

    def __init__(self, *lines: str) -> None:
        Exception.__init__(self)
        self._trace = "An error occurred while calling o7.commitTransaction.\n: " + "\n\tat x.Y.z\nCaused by: ".join(
            lines
        )

    def __str__(self) -> str:
        return self._trace


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["org.apache.iceberg.jdbc.UncheckedSQLException: Failed", "org.sqlite.SQLiteException: [SQLITE_BUSY] x"],
         CatalogUnreachableError),
        (["org.apache.iceberg.jdbc.UncheckedSQLException: Failed", "org.postgresql.util.PSQLException: FATAL: the "
          "database system is shutting down"], CatalogUnreachableError),
        (["org.apache.iceberg.exceptions.ServiceUnavailableException: Service unavailable"], CatalogUnreachableError),
        (["software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request",
          "java.net.ConnectException: Connection refused"], WarehouseUnreachableError),
        (["software.amazon.awssdk.services.s3.model.S3Exception: Slow down (Service: S3, Status Code: 503, x)"],
         WarehouseUnreachableError),
        (["org.apache.iceberg.exceptions.RuntimeIOException: Failed", "java.io.IOException: No space left on device"],
         WarehouseFullError),
        (["java.lang.OutOfMemoryError: Java heap space"], EngineError),
        (["org.apache.spark.SparkException: Job aborted"], EngineError),
        (["org.apache.iceberg.jdbc.UncheckedSQLException: x", "org.sqlite.SQLiteException: [SQLITE_CONSTRAINT] x"],
         None),
        (["software.amazon.awssdk.services.s3.model.S3Exception: Denied (Service: S3, Status Code: 403, x)"], None),
        (["org.apache.iceberg.exceptions.NotFoundException: Failed to open file: /t/m.avro",
          "java.io.FileNotFoundException: /t/m.avro"], None),
        (["java.lang.IllegalArgumentException: Cannot add column"], None),
    ],
    ids=lambda value: value[-1].partition(":")[0] if isinstance(value, list) else None,
)  # fmt: skip
def test_what_java_says_of_the_engine_and_what_of_a_table(lines: list[str], kind: type[CdcError] | None) -> None:
    fault = engine_fault(_JavaError(*lines))
    assert (None if fault is None else type(fault)) == kind


NAME = TableName("d", "t")


def test_a_table_is_held_for_what_is_its_own_and_never_for_a_fault_of_the_engine() -> None:
    missing = "org.apache.iceberg.exceptions.NotFoundException: Failed to open file: /t/m.avro"
    assert hold_reason(_JavaError(missing), "be written", NAME) == f"the table could not be written: {missing}"
    secret = f"java.lang.IllegalArgumentException: jdbc:postgresql://cdc:{SECRET}@db"
    assert hold_reason(_JavaError(secret), "be written", NAME).endswith("(java.lang.IllegalArgumentException)")
    ddl = hold_reason(DdlError("it is not known"), "be written", NAME)
    assert ddl.startswith("it is not known. ") and "`cdc-lakehouse load --table d.t`" in ddl
    assert hold_reason(DdlError("not yet", advice="wait"), "be written", NAME) == "not yet: wait"
    with pytest.raises(EngineError):
        hold_reason(_JavaError("java.lang.OutOfMemoryError: Java heap space"), "be written", NAME)
