import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.lake.names import CATALOG
from cdc_lakehouse.lake.spark import use_catalog
from tests.kit.lakes import TestLake
from tests.kit.processes import free_port, running
from tests.servers.buckets import PREFIX, AzureContainer, Bucket, GcsBucket, S3Bucket
from tests.servers.kafka import Broker
from tests.servers.mysql import MySqlServer, Session, Writer, mysql_server
from tests.servers.proxy import Proxy, proxy_before
from tests.servers.tools import azurite, go_server

_GROUPS = {"kafka": {"kafka"}, "mysql": {"mysql"}, "stores": {"s3", "gcs", "azure", "new_bucket", "installed"}}


@pytest.hookimpl(tryfirst=True)  # Before xdist looks, also where this directory is named on the command line.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one worker has all tests of a server: each server is started once. Tests with servers of
    their own are anybody's."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for group in [name for name, fixtures in _GROUPS.items() if used & fixtures][:1]:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_runtest_setup(item: pytest.Item) -> None:
    grouped = item.get_closest_marker("xdist_group") is not None
    if grouped and getattr(item.config.option, "loadgroup", False) and "@" not in item.nodeid:
        raise pytest.UsageError("pytest-xdist does not know groups: each worker would start every server")


@pytest.fixture(scope="session")
def s3_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has a directory for each bucket, with a file for each object."""
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="session")
def s3(s3_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    users, port = tmp_path_factory.mktemp("users"), free_port()
    command = [
        *(go_server("versitygw"), "--port", f"127.0.0.1:{port}", "--quiet"),
        *("--access", S3Bucket.ACCESS, "--secret", S3Bucket.SECRET, "--iam-dir", str(users), "posix", str(s3_data)),
    ]
    with running(command, port, tmp_path_factory.mktemp("s3log") / "log"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def proxy(s3: str) -> Iterator[Proxy]:
    with proxy_before(s3) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [
        *(go_server("fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
        *("-backend", "memory", "-public-host", f"127.0.0.1:{port}", "-external-url", endpoint),
    ]
    with running(command, port, tmp_path_factory.mktemp("gcs") / "log"):
        yield endpoint


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [
        *(*azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
        *("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"),
    ]
    with running(command, port, tmp_path_factory.mktemp("azure") / "log"):
        yield f"http://127.0.0.1:{port}/{AzureContainer.ACCOUNT}"


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySqlServer]:
    """It writes a binlog, and has a user for Canal."""
    # Pytest's own directories, which are in memory too, are too deep for the path of a socket.
    with (
        tempfile.TemporaryDirectory(prefix="mysql-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as directory,
        mysql_server(Path(directory)) as server,
    ):
        Session(server).run(
            "CREATE USER canal IDENTIFIED WITH mysql_native_password BY 'canal'",
            "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO canal",
        )
        yield server


@pytest.fixture
def writer(mysql: MySqlServer) -> Writer:
    return Writer(mysql, "d")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def new_bucket(request: pytest.FixtureRequest) -> Callable[..., Bucket]:
    """Makes a bucket of its own on a server, which is started when it is first needed."""

    def make(service: str, prefix: str = PREFIX) -> Bucket:
        kinds = {"s3": S3Bucket, "gcs": GcsBucket, "azure": AzureContainer}
        return kinds[service](request.getfixturevalue(service), prefix)

    return make


@pytest.fixture
def lake_elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., TestLake]]:
    """Makes a lake with a catalog and a session of its own, in the warehouse that is named, and nothing beside it."""
    # The shared session must have loaded its own catalog before another one has a catalog of the same name.
    spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()

    def make(**feed: Any) -> TestLake:
        session = spark.newSession()
        lake = TestLake(tmp_path / "lake", tmp_path / "feed", lambda: session, **feed)
        use_catalog(session, lake.config.lake, lake.config.storage)
        return lake

    yield make
    assert not list((tmp_path / "lake").glob("warehouse*")), "something was written beside the warehouse"
