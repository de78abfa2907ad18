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
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PythonException

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.definitions import defs
from cdc_lakehouse.errors import CatalogUnreachableError, CdcError, ConfigurationError, EngineError, WarehouseFullError
from cdc_lakehouse.lake import catalog as lake_catalog
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.engine_faults import engine_errors
from cdc_lakehouse.lake.faults import warehouse_fault
from cdc_lakehouse.lake.tables.lease import Lease
from cdc_lakehouse.pipeline.context import utc_now
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
    (Path(lake.config.lake.warehouse.removeprefix("file://"))).mkdir(parents=True)
    (Path(lake.config.lake.warehouse.removeprefix("file://")) / f"cdc_{lake.name}").touch()
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
