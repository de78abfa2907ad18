"""How Spark starts: its jars are asked of a resolver once, its classes come from an archive, and what the JVM says at
every start stays away from the terminal. That a JVM takes them is in Spark's tests. One section of the configuration is
for PyIceberg and for Iceberg on Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url

from cdc_lakehouse.config import CatalogConfig, LakeConfig, StorageConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake import spark
from cdc_lakehouse.lake.file_io import packages, pyiceberg_file_io, spark_file_io
from cdc_lakehouse.lake.iceberg_java import PACKAGES
from cdc_lakehouse.lake.spark import fetch_command, filtered, jar_directory, jars, spark_settings

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


def test_jars_that_two_processes_fetch_are_kept_once(
    kept: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (jar := tmp_path / "a.jar").write_bytes(b"a")
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.jars": jar.as_uri()}))
    for _ in range(2):
        spark._keep_jars(session, config())
    assert [path.name for path in jar_directory(config()).iterdir()] == ["a.jar"] and not caplog.messages
    assert list(kept.iterdir()) == [jar_directory(config())]


@pytest.mark.parametrize(
    ("warehouse", "catalog"),
    [
        ("file:///lake", {"type": "sql", "uri": "sqlite:///catalog.db"}),
        ("s3://lake", {"type": "rest", "uri": "https://catalog.example.com"}),
        ("gs://lake", {"type": "sql", "uri": "postgresql+psycopg2://cdc:secret@db/iceberg"}),
        ("abfss://lake@account.dfs.core.windows.net", {"type": "glue"}),
    ],
)
def test_command_fetches_the_jars_of_its_configuration(
    warehouse: str, catalog: dict[str, str], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for conf in ({}, {"spark.jars.packages": DRIVER}):
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


START = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/22 21:48:09 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/22 21:48:09 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
26/11/22 21:48:12 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "ERROR".
"""
RESOLVED = """\
:: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml
Ivy Default Cache set to: /root/.ivy2.5.2/cache
The jars for the packages stored in: /root/.ivy2.5.2/jars
org.xerial#sqlite-jdbc added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-1;1.0
\tconfs: [default]
\tfound org.xerial#sqlite-jdbc;3.50.3.0 in central
downloading https://repo1.maven.org/maven2/org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar ...
\t[SUCCESSFUL ] org.xerial#sqlite-jdbc;3.50.3.0!sqlite-jdbc.jar (221ms)
:: resolution report :: resolve 2011ms :: artifacts dl 224ms
\t:: modules in use:
\torg.xerial#sqlite-jdbc;3.50.3.0 from central in [default]
\t---------------------------------------------------------------------
\t|       conf       | number| search|dwnlded|evicted|| number|dwnlded|
\t---------------------------------------------------------------------
:: retrieving :: org.apache.spark#spark-submit-parent-1
\tconfs: [default]
\t1 artifacts copied, 0 already retrieved (13541kB/32ms)
"""
FAILED = """\
:::: WARNINGS
\t\tmodule not found: org.x#y;1
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.x#y;1: not found]
"""
WRONG = """\
26/11/22 21:48:12 ERROR Executor: Exception in task 0.0
# A fatal error has been detected by the JVM
java.lang.OutOfMemoryError: Java heap space
26/11/22 21:48:12 WARN TaskSetManager: Lost task 1.0
\tat x.y
"""


def test_output_of_a_start_is_left_out_and_what_is_wrong_comes_through() -> None:
    def lines(*texts: str) -> list[str]:
        return list(filtered("".join(texts).splitlines(keepends=True)))

    assert lines(START, WRONG) == WRONG.splitlines(keepends=True)
    (sentence,) = lines(RESOLVED)
    assert "fetched" in sentence
    cached = [line for line in RESOLVED.splitlines(keepends=True) if "downloading" not in line]
    assert lines(*cached) == []
    before = RESOLVED.splitlines(keepends=True)[:6]
    assert lines(*before, FAILED) == [*before, *FAILED.splitlines(keepends=True)], "a resolver that fails is told whole"


# --- The warehouse ---

SECRET = "hunter2"
ABFSS = "abfss://c@acct.dfs.core.windows.net/lake"


@pytest.mark.parametrize(
    ("warehouse", "package"),
    [
        ("s3://b/lake", "iceberg-aws-bundle:"), ("gs://b/lake", "iceberg-gcp-bundle:"),
        (ABFSS, "iceberg-azure-bundle:"), ("hdfs://n/lake", ""), ("s3a://bucket/lake", ""),
        # A file system that starts no process.
        ("file:///lake", "bare-naked-local-fs:"), ("/lake", "bare-naked-local-fs:"),
    ],
)  # fmt: skip
def test_warehouse_needs_the_package_of_its_service(warehouse: str, package: str) -> None:
    assert [package in each for each in packages(warehouse)] == [True] * bool(package)
    storage = StorageConfig.model_validate({"s3": {"region": "x"}})
    assert bool(spark_file_io(warehouse, storage).local_files) == ("local" in package)
    if not package:
        assert pyiceberg_file_io(warehouse, storage).pyiceberg == spark_file_io(warehouse, storage).catalog == {}


@pytest.mark.parametrize("warehouse", ["azure://c/lake", "gcs://b/lake"])
def test_warehouse_of_another_scheme_is_refused(warehouse: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gs://bucket.*abfss://"):
        packages(warehouse)


BOTH = {"s3.endpoint": "http://e:1", "s3.access-key-id": "id", "s3.secret-access-key": SECRET,
        "s3.session-token": SECRET}  # fmt: skip
S3 = {"s3.force-virtual-addressing": "False", "s3.region": "r"}
S3_SPARK = {
    "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true", "client.region": "r",
}  # fmt: skip
GS = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}
ADLS = {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
KEYS = {"access_key_id": "id", "secret_access_key": SECRET}
PRINCIPAL = {"tenant_id": "t", "client_id": "c", "client_secret": SECRET}
SETTINGS: list[tuple[str, dict[str, Any], dict[str, str], dict[str, str], dict[str, str]]] = [
    # Settings, and of PyIceberg, Spark's catalog and the JVM all properties.
    ("s3://b/lake", {**KEYS, "endpoint": "http://e:1", "path_style": True, "region": "r", "session_token": SECRET},
     {**BOTH, **S3}, {**BOTH, **S3_SPARK}, {}),
    ("s3://b/lake", {"region": "r"}, S3, {**S3_SPARK, "s3.path-style-access": "false"}, {}),
    ("s3://b/lake", {"profile": "p", "region": "r"},
     {**S3, "s3.access-key-id": "id", "s3.secret-access-key": SECRET},
     {**S3_SPARK, "s3.path-style-access": "false", "client.credentials-provider":
      "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"}, {"aws.profile": "p"}),
    ("s3://b/lake", {"access_key_id": "x", "secret_access_key": "y", "region": "r", "buckets": {"b": KEYS}},
     {**S3, "s3.access-key-id": "id", "s3.secret-access-key": SECRET},
     {**S3_SPARK, "s3.path-style-access": "false", "s3.access-key-id": "id", "s3.secret-access-key": SECRET}, {}),
    ("gs://b/lake", {}, {}, GS, {}),
    ("gs://b/lake", {"endpoint": "http://e:1", "anonymous": True},
     {"gcs.service.host": "http://e:1", "gcs.oauth2.token": "anonymous",
      "gcs.oauth2.token-expires-at": "4102444800000"},
     {**GS, "gcs.service.host": "http://e:1", "gcs.no-auth": "true"}, {}),
    (ABFSS, {"account_key": SECRET}, {"adls.account-name": "acct", "adls.account-key": SECRET},
     {**ADLS, "adls.auth.shared-key.account.name": "acct", "adls.auth.shared-key.account.key": SECRET}, {}),
    (ABFSS, {"sas_token": SECRET}, {"adls.account-name": "acct", "adls.sas-token": SECRET},
     {**ADLS, "adls.sas-token.acct.dfs.core.windows.net": SECRET}, {}),
    (ABFSS, PRINCIPAL,
     {"adls.account-name": "acct", "adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": SECRET}, ADLS,
     {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": SECRET}),
]  # fmt: skip


@pytest.mark.parametrize(("warehouse", "settings", "small", "large", "system"), SETTINGS)
def test_settings_become_properties_of_both(
    warehouse: str, settings: dict[str, Any], small: dict[str, str], large: dict[str, str], system: dict[str, str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "credentials").write_text(f"[p]\naws_access_key_id=id\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    service = {"s3": "s3", "gs": "gs", "abfss": "azure"}[warehouse.partition(":")[0]]
    storage = StorageConfig.model_validate({service: settings})
    of_pyiceberg, of_spark = pyiceberg_file_io(warehouse, storage), spark_file_io(warehouse, storage)
    assert SECRET not in f"{of_pyiceberg!r}{of_spark!r}"
    assert of_pyiceberg.pyiceberg == small
    assert (of_spark.catalog, of_spark.system) == (large, system)


def test_azure_emulator_holds_no_warehouse() -> None:
    storage = StorageConfig.model_validate({"azure": {"endpoint": "http://127.0.0.1:1/a"}})
    with pytest.raises(ConfigurationError, match="without endpoint"):
        pyiceberg_file_io(ABFSS, storage)
