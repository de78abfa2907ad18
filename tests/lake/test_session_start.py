"""The start of a session, without a JVM: who waits for it, who is told what went wrong, and what it is given."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from sqlalchemy import make_url

from cdc_lakehouse.config import CatalogConfig
from cdc_lakehouse.lake import spark
from tests.kit.lakes import TestLake

SESSION: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(_jvm=None), _jsparkSession=None, setActiveSession=lambda _: None
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the threads in which sessions are built; a session is what `build_session` needs of one."""
    threads: list[str] = []

    def build(*_: Any) -> Any:
        threads.append(threading.current_thread().name)
        return SESSION

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(spark.SparkSession, "_get_j_spark_session_class", lambda _: SESSION)
    monkeypatch.setattr(spark, "_build_session", build)
    yield threads
    assert not spark._starting


@pytest.fixture
def start(lake: TestLake) -> Callable[[], None]:
    return lambda: spark.start_session(lake.config.lake, lake.config.storage)


def test_a_start_is_waited_for_and_is_one(lake: TestLake, built: list[str], start: Callable[[], None]) -> None:
    for _ in range(2):
        start()
    assert spark.build_session(lake.config.lake) is SESSION
    here = threading.current_thread().name
    assert [name for name in built if name != here] == ["start of Spark_0"] and built[-1] == here


def test_what_goes_wrong_in_the_thread_is_raised_where_the_session_is_wanted(
    lake: TestLake, built: list[str], start: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(spark, "_build_session", lambda *_: 1 / 0)
        start()
        with pytest.raises(ZeroDivisionError):
            spark.build_session(lake.config.lake)
    assert spark.build_session(lake.config.lake) is SESSION, "the next one tries again"


def test_session_starts_only_where_no_jvm_lives(
    lake: TestLake, built: list[str], start: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        start()
        assert not built
        jvm.kill()
        jvm.wait()
        start()
        assert SparkContext._gateway is None
        assert spark.build_session(lake.config.lake) is SESSION and built[0] == "start of Spark_0"


def test_the_login_of_a_catalog_is_decoded_as_sqlalchemy_does() -> None:
    uri = "postgresql+psycopg2://team%40cdc:p%3Aa%2F%25%40@db.example.com:5432/iceberg?sslmode=require"
    url = make_url(uri)
    settings = spark._catalog_settings(CatalogConfig(type="sql", uri=uri), "s3://bucket/lake")
    jdbc = {key.removeprefix("spark.sql.catalog.lake."): value for key, value in settings.items()}
    assert jdbc["uri"] == "jdbc:postgresql://db.example.com:5432/iceberg?sslmode=require"
    assert (jdbc["jdbc.user"], jdbc["jdbc.password"]) == (url.username, url.password) == ("team@cdc", "p:a/%@")
