"""Jars: asked of a resolver once, then of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.jars import PACKAGES, jar_directory
from cdc_lakehouse.lake.spark import spark_settings

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
