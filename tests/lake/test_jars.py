"""Jars: asked of a resolver once, then of a directory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url

from cdc_lakehouse.config import CatalogConfig, LakeConfig, StorageConfig
from cdc_lakehouse.lake import spark
from cdc_lakehouse.lake.spark import PACKAGES, fetch_command, jar_directory, spark_settings

DRIVER = "org.postgresql:postgresql:42.7.0"


def config(**conf: Any) -> LakeConfig:
    catalog = {"type": "sql", "uri": "sqlite:///catalog.db"}
    return LakeConfig.model_validate({"warehouse": "s3://lake", "catalog": catalog, "spark": {"conf": conf}})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDC_LAKEHOUSE_JARS", str(tmp_path / "jars of mine"))
    return tmp_path / "jars of mine"


def test_a_set_that_is_not_kept_is_asked_of_the_resolver(kept: Path) -> None:
    settings = spark_settings(config(**{"spark.jars.packages": DRIVER}))
    wanted = settings["spark.jars.packages"].split(",")
    assert {*PACKAGES, DRIVER} < set(wanted) and any("aws" in each for each in wanted)
    assert "spark.jars" not in settings and not kept.exists()


def test_a_set_that_is_kept_is_taken_from_its_directory(kept: Path) -> None:
    found = config(**{"spark.jars.packages": DRIVER, "spark.jars": "file:/own.jar"})
    directory = jar_directory(found)
    directory.mkdir(parents=True)
    for name in ("b.jar", "a 1.jar"):
        (directory / name).touch()
    settings = spark_settings(found)
    assert "spark.jars.packages" not in settings
    assert settings["spark.jars"].split(",") == [
        "file:/own.jar", (directory / "a 1.jar").as_uri(), (directory / "b.jar").as_uri(),
    ]  # fmt: skip
    assert "spark.jars.packages" in spark_settings(config()), "another set"


@pytest.mark.parametrize(
    ("warehouse", "catalog"),
    [
        ("file:///lake", {"type": "sql", "uri": "sqlite:///catalog.db"}),
        ("s3://lake", {"type": "rest", "uri": "https://catalog.example.com"}),
        ("gs://lake", {"type": "sql", "uri": "postgresql+psycopg2://cdc:secret@db/iceberg"}),
        ("abfss://lake@account.dfs.core.windows.net", {"type": "glue"}),
    ],
)
@pytest.mark.parametrize("conf", [{}, {"spark.jars.packages": DRIVER}])
def test_the_command_that_fetches_a_set_is_of_that_set(
    warehouse: str, catalog: dict[str, str], conf: dict[str, str], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"warehouse": warehouse, "catalog": catalog, "spark": {"conf": conf}}
    wanted = LakeConfig.model_validate(document)
    fetched: list[Path] = []

    def build(lake: LakeConfig) -> SimpleNamespace:
        fetched.append(jar_directory(lake))
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(spark, "build_session", build)
    program, *options = fetch_command(wanted).split(" --prefetch")
    assert program == "python -m cdc_lakehouse.lake.spark" and "secret" not in options[0]
    spark.main(["--prefetch", *options[0].split()])
    assert fetched == [jar_directory(wanted)] and fetched[0].parent == kept


def test_login_of_catalog_is_decoded_as_sqlalchemy_does() -> None:
    uri = "postgresql+psycopg2://team%40cdc:p%3Aa%2F%25%40@db.example.com:5432/iceberg?sslmode=require"
    url = make_url(uri)
    lake = LakeConfig(warehouse="s3://bucket/lake", catalog=CatalogConfig(type="sql", uri=uri))
    settings = spark.catalog_settings(lake, StorageConfig.nothing())
    jdbc = {key.removeprefix("spark.sql.catalog.lake."): value for key, value in settings.items()}
    assert jdbc["uri"] == "jdbc:postgresql://db.example.com:5432/iceberg?sslmode=require"
    assert (jdbc["jdbc.user"], jdbc["jdbc.password"]) == (url.username, url.password) == ("team@cdc", "p:a/%@")
