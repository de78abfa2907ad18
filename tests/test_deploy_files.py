"""The files of deploy/: what they name exists. `tests/servers/test_deploy.py` has the linter and the schema of their
kinds, and starts the parts."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance

from cdc_lakehouse.config import load
from cdc_lakehouse.lake.spark import spark_settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def test_what_the_dockerfile_copies_is_there_and_in_its_context() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    taken = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    assert copied and copied == taken and all((ROOT / source).exists() for source in copied)
    version = re.search(r"ARG PYTHON=([\d.]+)", text)
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    low, high = (int(bound) for bound in re.findall(r"3\.(\d+)", requires))
    assert version is not None and low <= int(version[1].split(".")[1]) < high


def test_the_jars_that_the_image_fetches_are_those_of_its_lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert "--prefetch --warehouse s3://any --catalog-uri postgresql://any" in text and "--archive-classes" in text
    monkeypatch.setenv("CDC_LAKEHOUSE_JARS", str(tmp_path))
    for name in ("ICEBERG_PG_USERNAME", "ICEBERG_PG_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"):
        monkeypatch.setenv(name, "x")
    wanted = spark_settings(load(DEPLOY / "lakehouse.yaml").lake)["spark.jars.packages"]
    assert "iceberg-aws-bundle" in wanted and "org.postgresql" in wanted


def test_every_variable_of_a_file_is_given_to_its_containers() -> None:
    services = read("compose.yaml")["services"]
    given = set(services["code-location"]["environment"])
    text = "".join((DEPLOY / name).read_text() for name in ("dagster.yaml", "workspace.yaml", "lakehouse.yaml"))
    named = set(re.findall(r"env: (\w+)", text)) | set(re.findall(r"\$\{(\w+)", text))
    assert named and named <= given
    for service in ("webserver", "daemon"):
        assert services[service]["environment"] == services["code-location"]["environment"]
    assert set(re.findall(r"`((?:CDC_LAKEHOUSE|DAGSTER)_\w+)`", PAGE)) <= given | {
        "CDC_LAKEHOUSE_CONFIG", "CDC_LAKEHOUSE_JARS", "DAGSTER_HOME",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["compose.yaml", "playground.yaml"])
def test_files_services_and_variables_of_a_compose_file_exist(name: str) -> None:
    composed, own = read("compose.yaml"), read(name)
    for service in own["services"].values():
        assert set(service.get("depends_on", ())) <= composed["services"].keys() | own["services"].keys()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in own["volumes"] or (DEPLOY / source).is_file(), volume
    given = set((DEPLOY / "playground/example.env").read_text(encoding="utf-8").replace("=", "\n").splitlines())
    asked = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / name).read_text(encoding="utf-8")))
    assert asked and asked <= given


def test_every_program_that_is_started_is_there() -> None:
    services = read("compose.yaml")["services"]
    started = [services[name]["command"] for name in ("bucket", "code-location", "webserver", "daemon")]
    started.append(services["code-location"]["healthcheck"]["test"][1:])
    for program, *_ in started:
        assert (Path(sys.executable).parent / program).exists(), program


def test_the_instance_is_that_of_the_command_line_with_postgres() -> None:
    ours = read("dagster.yaml")
    storage = ours.pop("storage")["postgres"]["postgres_db"]
    assert set(storage) >= {"hostname", "username", "password", "db_name", "port"}
    usual = yaml.safe_load((ROOT / "cdc_lakehouse/commands/dagster.yaml").read_text(encoding="utf-8"))
    assert ours == usual


def test_the_chart_has_the_same_instance() -> None:
    values, ours = read("helm-values.yaml"), read("dagster.yaml")
    assert values["postgresql"]["postgresqlScheme"] == ours["storage"]["postgres"]["postgres_db"]["scheme"]
    pools = values["concurrency"]["pools"]
    assert {"granularity": pools["granularity"], "default_limit": pools["defaultLimit"]} == ours["concurrency"]["pools"]
    assert ours["run_monitoring"].items() <= _snakes(values["dagsterDaemon"]["runMonitoring"]).items()
    for kind in ("sensor", "schedule"):
        assert values["retention"][kind]["purgeAfterDays"] == ours["retention"][kind]["purge_after_days"]
    (code,) = values["dagster-user-deployments"]["deployments"]
    assert code["codeServerArgs"] == ["-m", "cdc_lakehouse.definitions"]
    lock = (ROOT / "uv.lock").read_text(encoding="utf-8")
    version = re.search(r'name = "dagster"\nversion = "([\d.]+)"', lock)
    head = (DEPLOY / "helm-values.yaml").read_text(encoding="utf-8")
    assert version is not None and f"--version {version[1]}" in head, "the chart is of the version of Dagster"
    page = (ROOT / "docs/dagster-project.md").read_text(encoding="utf-8")
    assert set(re.findall(r"dagster-dg-cli==([\d.]+)", page)) == {version[1]}, "and so is dg"


def test_dagster_takes_the_instance_of_the_chart(tmp_path: Path) -> None:
    """What the chart writes of the values into dagster.yaml, but storage and the launcher, which the image loads."""
    values = read("helm-values.yaml")
    daemon, retention = values["dagsterDaemon"], values["retention"]
    coordinator = daemon["runCoordinator"]
    queued = _snakes(coordinator.get("config", {}).get("queuedRunCoordinator", {}))
    instance = {
        "run_coordinator": {"module": "dagster", "class": coordinator["type"], "config": queued},
        "concurrency": _snakes({name: values["concurrency"][name] for name in ("pools", "runs")}),
        "run_monitoring": _snakes(daemon["runMonitoring"]),
        "run_retries": _snakes(daemon["runRetries"]),
        "retention": _snakes({name: retention[name] for name in ("sensor", "schedule")}),
        "telemetry": values["telemetry"],
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(instance), encoding="utf-8")
    with DagsterInstance.from_config(str(tmp_path)) as made:
        limits = made.get_concurrency_config()
    assert limits.pool_config.default_pool_limit == 1 and limits.run_queue_config is not None
    assert limits.run_queue_config.max_concurrent_runs == values["concurrency"]["runs"]["maxConcurrentRuns"]


def _snakes(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name): _snakes(values[name]) for name in values}


def test_extras_of_the_page_are_those_of_the_package() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    pages = PAGE + (ROOT / "docs/dagster-project.md").read_text(encoding="utf-8")
    assert extras == {"glue", "hive", "k8s", "postgres"} and all(extra in pages for extra in extras)
