"""How Spark starts (that a JVM takes its settings is in Spark's tests), and what is said where catalog, warehouse or
engine cannot be used: which key names it, and whether another try may work. Of the items of a job, those at which
Spark fails are found: the others are done."""

import contextlib
import errno
import itertools
import json
import re
import resource
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import duckdb
import pyarrow.fs
import pytest
import requests
from botocore.exceptions import ClientError, EndpointConnectionError
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyiceberg import exceptions as iceberg
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyspark.errors import AnalysisException, PySparkException, PythonException
from sqlalchemy import event, make_url
from sqlalchemy.exc import IntegrityError

from cdc_lakehouse import errors
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config.storage import CatalogConfig, LakeConfig, StorageConfig
from cdc_lakehouse.definitions import defs
from cdc_lakehouse.errors import CatalogUnreachableError, ConfigurationError, EngineError
from cdc_lakehouse.lake import catalog as lake_catalog
from cdc_lakehouse.lake import faults, spark, sql_catalog
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.faults import engine_errors, engine_fault, warehouse_fault
from cdc_lakehouse.lake.file_io import packages, pyiceberg_file_io, spark_file_io
from cdc_lakehouse.lake.iceberg_java import PACKAGES
from cdc_lakehouse.lake.spark import fetch_command, filtered, jar_directory, jars, spark_settings
from cdc_lakehouse.lake.tables.lease import Lease
from cdc_lakehouse.pipeline.holds import hold_reason
from tests.kit.case_files import Case, bytes_of, read_cases, text_of
from tests.kit.lakes import TestLake
from tests.kit.waiting import until

SECRET = "hunter2"
CASES = Path(__file__).parent / "cases"


def lake_at(directory: Path, **catalog: str) -> Lake:
    found = catalog or {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
    return Lake(LakeConfig.model_validate({"warehouse": (directory / "warehouse").as_uri(), "catalog": found}))


def refused(directory: Path, **catalog: str) -> errors.CdcError:
    with pytest.raises(errors.CdcError) as raised:
        _ = lake_at(directory, **catalog).catalog
    assert SECRET not in repr(raised.value) + str(raised.value) + str(raised.value.__cause__)
    return raised.value


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where none of the drivers is installed."""
    for module in ("psycopg", "psycopg2", "MySQLdb", "hive_metastore", "thrift"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.hive", raising=False)


@pytest.mark.parametrize("case", read_cases(CASES / "catalogs.txt"), ids=str)
def test_catalog_that_cannot_be_opened_is_named_by_its_key(
    tmp_path: Path, without_extras: None, case: Case, update: bool
) -> None:
    (tmp_path / "file").write_bytes(b"no database at all" * 100)

    def refusal(line: str) -> str:
        kind, _, uri = line.replace("PASS", SECRET).replace("DIR", str(tmp_path)).partition(" ")
        error = refused(tmp_path, type=kind, uri=uri)
        return f"{type(error).__name__}: {error}".replace(str(tmp_path), "DIR")

    case.compare([*{refusal(line): None for line in case.own}], update=update)


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
    """A lock may pass, as may a lost connection."""
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
    closed = Mock(side_effect=sqlite3.InterfaceError("connection already closed"))
    monkeypatch.setattr(getattr(sql_catalog, "_Connection"), "wait", closed)  # noqa: B009
    with pytest.raises(CatalogUnreachableError, match=r"does not answer \(InterfaceError\)"):
        lake.ensure_namespace("lost")


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
    assert isinstance(fault, errors.WarehouseFullError) and "lake.warehouse is full" in str(fault)
    with pytest.raises(FileNotFoundError) as missing:
        disk.open_input_stream(str(tmp_path / "none"))
    assert engine_fault(missing.value) is None
    refused = warehouse_fault(PermissionError(errno.EACCES, "no"))
    assert isinstance(refused, ConfigurationError) and engine_fault(refused) is refused, "it is of no table"


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


def test_definitions_say_sentence_without_trace_of_catalog(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
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


class JavaError(Py4JJavaError):
    """An error of Java's whose trace is known: each line is caused by the next."""

    def __init__(self, *lines: str) -> None:
        Exception.__init__(self)
        causes = "\n\tat x.Y.z\nCaused by: ".join(lines)
        self._trace = f"An error occurred while calling o7.commitTransaction.\n: {causes}"

    def __str__(self) -> str:
        return self._trace


ICEBERG = "org.apache.iceberg.exceptions"
NAMES: dict[str, Any] = {
    **vars(faults), **vars(errors), **vars(iceberg), "ICEBERG": ICEBERG, "JavaError": JavaError,
    "ClientError": ClientError, "EndpointConnectionError": EndpointConnectionError, "requests": requests,
    "Py4JNetworkError": Py4JNetworkError, "AnalysisException": AnalysisException, "PythonException": PythonException,
    "TRACE": "Traceback (most recent call last):\n  File x.py, line 1, in rows\n",
    "SQL": "org.apache.iceberg.jdbc.UncheckedSQLException: Failed",
    "S3": "software.amazon.awssdk.services.s3.model.S3Exception",
}  # fmt: skip


def fault_of(error: Exception) -> errors.CdcError | None:
    """What `engine_errors` raises too, in the place of the error."""
    found = engine_fault(error)
    with pytest.raises(Exception) as raised, engine_errors():  # noqa: PT011
        raise error
    if found is not None:
        assert (type(raised.value), str(raised.value)) == (type(found), str(found))
    return found


@pytest.mark.parametrize("case", read_cases(CASES / "faults.txt"), ids=str)
def test_error_is_a_fault_of_its_kind_or_of_its_table(case: Case, update: bool) -> None:
    found = [fault_of(eval(line, NAMES)) for line in case.own]
    assert "secret" not in str(found)
    # What a bucket and the first line of a worker's error say, and the kind of others.
    said = [str(each) if re.search("bucket|PythonException Job", str(each)) else "" for each in found]
    texts = [f"{type(each).__name__}: {text}".removesuffix(": ") for each, text in zip(found, said, strict=True)]
    case.compare([*dict.fromkeys(texts)], update=update)


def test_a_table_is_held_for_what_is_its_own_and_never_for_a_fault_of_the_engine() -> None:
    def held(error: Exception) -> str:
        return hold_reason(error, "be written", TableName("d", "t"))

    not_found = f"{ICEBERG}.NotFoundException: Failed to open file: /t/m.avro"
    assert held(JavaError(not_found)) == f"the table could not be written: {not_found}"
    secret = f"java.lang.IllegalArgumentException: jdbc:postgresql://cdc:{SECRET}@db"
    assert held(JavaError(secret)).endswith("(java.lang.IllegalArgumentException)")
    ddl = held(errors.DdlError("it is not known"))
    assert ddl.startswith("it is not known. ") and "`cdc-lakehouse load --table d.t`" in ddl
    assert held(errors.DdlError("not yet", advice="wait")) == "not yet: wait"
    with pytest.raises(EngineError):
        held(JavaError("java.lang.OutOfMemoryError: Java heap space"))


def test_namespace_created_by_another_feed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the database refuses is not there."""
    first, second = (lake_at(tmp_path) for _ in range(2))
    asks = second.catalog.namespace_exists

    def asks_too_early(namespace: str | tuple[str, ...]) -> bool:
        found = asks(namespace)
        first.ensure_namespace("shop")
        return found

    monkeypatch.setattr(second.catalog, "namespace_exists", asks_too_early)
    second.ensure_namespace("shop")
    assert second.catalog.list_namespaces() == [("shop",)]
    refuse = "CREATE TRIGGER t BEFORE INSERT ON iceberg_namespace_properties BEGIN SELECT RAISE(ABORT, 'no'); END"
    with sqlite3.connect(tmp_path / "catalog.db") as other:
        other.execute(refuse)
    with pytest.raises(IntegrityError, match="no"):
        first.ensure_namespace("other")


# --- Items of a job at which Spark fails ---

FAILURES: dict[str, Exception] = {
    "crash": PySparkException("Python worker exited unexpectedly (crashed)"), "bug": KeyError("a bug"),
    "memory": MemoryError("malloc"), "memory of DuckDB": duckdb.OutOfMemoryException("Out of Memory Error"),
}  # fmt: skip


def isolated(line: str) -> str:
    """`items | those at which a job with them fails, how often | its error`, and `away` where Spark does not answer."""
    items, bad, error, *is_away = (part.strip() for part in line.split("|"))
    (bad, times), done, raised, engine = bad.split(" "), list[str](), FAILURES[error], MagicMock()
    engine.sparkContext.range.return_value.collect.side_effect = [ConnectionError if is_away else [0]] * 99
    left = dict.fromkeys(bad.strip("-"), int(times))

    def job(part: Sequence[str]) -> None:
        for item in part:
            if left.get(item, 0) > 0:
                left[item] -= 1
                raise raised
        done.extend(part)

    try:
        failed = faults.run_isolated(lambda: engine, items, job)
    except type(raised):
        return "raised"
    found = "".join(items[index] for index in failed)
    assert sorted(done) == sorted({*items} - {*found})
    assert error != "crash" or all("a Python worker ended" in reason for reason in failed.values())
    return found or "none"


@pytest.mark.parametrize("case", read_cases(CASES / "isolated.txt"), ids=str)
def test_items_at_which_spark_fails_alone_are_found(case: Case, update: bool) -> None:
    case.compare([*map(isolated, case.own)], update=update)


# --- How Spark starts ---

DRIVER = "org.postgresql:postgresql:42.7.0"


def config(warehouse: str = "s3://lake", catalog: dict[str, str] | None = None, **conf: Any) -> LakeConfig:
    given = catalog or {"type": "sql", "uri": "sqlite:///catalog.db"}
    return LakeConfig.model_validate({"warehouse": warehouse, "catalog": given, "spark": {"conf": conf}})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDC_LAKEHOUSE_JARS", str(tmp_path / "jars of mine"))
    return tmp_path / "jars of mine"


def test_jars_are_asked_of_the_resolver_until_they_are_kept(kept: Path) -> None:
    found = config(**{"spark.jars.packages": DRIVER, "spark.jars": "file:/own.jar"})  # pyright: ignore[reportArgumentType]
    settings = spark_settings(found)
    wanted = settings["spark.jars.packages"].split(",")
    assert {*PACKAGES, DRIVER} < set(wanted) and any("aws" in each for each in wanted)
    assert settings["spark.jars"] == "file:/own.jar" and not kept.exists()
    directory = jar_directory(found)
    directory.mkdir(parents=True)
    for name in ("b.jar", "a 1.jar"):
        (directory / name).touch()
    settings = spark_settings(found)
    assert "spark.jars.packages" not in settings and settings["spark.jars"] == "file:/own.jar"
    assert jars(found) == [directory / "a 1.jar", directory / "b.jar"]
    (of_all := jar_directory(config("file:///lake"))).mkdir()
    (of_all / "b.jar").touch()
    assert jars(found) == [of_all / "b.jar", directory / "a 1.jar"]
    found = found.model_copy(update={"spark": found.spark.model_copy(update={"master": "yarn"})})
    sent = ["file:/own.jar", (of_all / "b.jar").as_uri(), (directory / "a 1.jar").as_uri()]
    assert spark_settings(found)["spark.jars"].split(",") == sent
    assert "spark.jars.packages" in spark_settings(config()), "another set"


def test_jars_two_processes_fetch_are_kept_once(kept: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (jar := tmp_path / "a.jar").write_bytes(b"a")
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.jars": jar.as_uri()}))
    for _ in range(2):
        spark._keep_jars(session, config())
    assert [path.name for path in jar_directory(config()).iterdir()] == ["a.jar"] and not caplog.messages
    assert list(kept.iterdir()) == [jar_directory(config())]


def test_command_fetches_the_jars_of_its_configuration(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lakes: dict[str, dict[str, str]] = {
        "file:///lake": {"type": "sql", "uri": "sqlite:///catalog.db"},
        "s3://lake": {"type": "rest", "uri": "https://catalog.example.com"},
        "gs://lake": {"type": "sql", "uri": "postgresql+psycopg2://cdc:secret@db/iceberg"},
        "abfss://lake@account.dfs.core.windows.net": {"type": "glue"},
    }
    for (warehouse, catalog), conf in itertools.product(lakes.items(), ({}, {"spark.jars.packages": DRIVER})):
        wanted, fetched = config(warehouse, catalog, **conf), list[Path]()
        build = lambda lake, found=fetched: found.append(jar_directory(lake)) or SimpleNamespace(stop=lambda: None)  # noqa: E731
        monkeypatch.setattr(spark, "build_session", build)
        program, options = fetch_command(wanted).split(" --prefetch")
        assert program == "python -m cdc_lakehouse.lake.spark" and "secret" not in options
        spark.main(["--prefetch", *options.split()])
        assert fetched == [jar_directory(wanted)] and fetched[0].parent == kept


def test_login_of_catalog_is_decoded_as_sqlalchemy_does() -> None:
    uri = "postgresql+psycopg2://team%40cdc:p%3Aa%2F%25%40@db.example.com:5432/iceberg?sslmode=require"
    url = make_url(uri)
    lake = LakeConfig(warehouse="s3://bucket/lake", catalog=CatalogConfig(type="sql", uri=uri))
    settings = spark.catalog_settings(lake, StorageConfig())
    jdbc = {key.removeprefix("spark.sql.catalog.lake."): value for key, value in settings.items()}
    assert jdbc["uri"] == "jdbc:postgresql://db.example.com:5432/iceberg?sslmode=require"
    assert (jdbc["jdbc.user"], jdbc["jdbc.password"]) == (url.username, url.password) == ("team@cdc", "p:a/%@")


@pytest.mark.parametrize("case", read_cases(CASES / "start.txt"), ids=str)
def test_output_of_a_start_shows_only_what_is_wrong(case: Case, update: bool) -> None:
    *lines, rest = "".join(filtered(f"{bytes_of(line).decode()}\n" for line in case.own)).split("\n")
    assert not rest, "each line ends"
    case.compare([text_of(line) for line in lines], update=update)


@pytest.mark.parametrize("case", read_cases(CASES / "warehouses.txt"), ids=str)
def test_storage_of_a_warehouse_becomes_settings_of_both(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, update: bool
) -> None:
    (tmp_path / "credentials").write_text("[p]\naws_access_key_id=id\naws_secret_access_key=hunter2\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    warehouse, settings = case.own
    storage = StorageConfig.model_validate_json(settings.replace("PASS", "hunter2"))
    try:
        small, large = pyiceberg_file_io(warehouse, storage), spark_file_io(warehouse, storage)
        assert "hunter2" not in f"{small!r}{large!r}"
        found = [[name.split(":")[1] for name in packages(warehouse)], small.properties, large.properties, large.system]
    except ConfigurationError as error:
        found = [str(error)]
    case.compare([json.dumps(each, ensure_ascii=False).replace("hunter2", "PASS") for each in found], update=update)
