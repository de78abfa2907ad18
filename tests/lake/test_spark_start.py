"""How Spark starts: its jars are asked of a resolver once, its classes come from an archive, and what the JVM says at
every start stays away from the terminal. That a JVM takes them is in Spark's tests. One section of the configuration is
for PyIceberg and for Iceberg on Spark."""

from __future__ import annotations

import json
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
from tests.kit.case_files import Case, bytes_of, read_cases, text_of

CASES = Path(__file__).parent / "cases"
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
