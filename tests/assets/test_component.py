"""Feeds in a Dagster project of somebody else: the project of docs/dagster-project.md, as it stands there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest
import yaml
from dagster.components.testing.utils import create_defs_folder_sandbox

from cdc_lakehouse import FeedComponent as Component
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CdcError, ConfigurationError
from tests.kit.scripted_lake import create_in

PAGE = Path(__file__).parents[2] / "docs" / "dagster-project.md"
SOURCE = {
    "type": "storage_sink", "uri": "./sink", "protocol": "canal-json", "date_separator": "day", "time_zone": "UTC",
}  # fmt: skip
FEED = {"name": "shop", "source": SOURCE, "start_date": "2026-11-01"}
LAKE = {"warehouse": "./lake", "catalog": {"type": "sql", "uri": "sqlite:///./catalog.db"}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project of the page."""
    blocks = re.findall(r"```\w+\n# ([\w./]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 7
    for name, text in blocks:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in ("my_project", "my_project/defs"):
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_project"]:
        del sys.modules[name]


def load_project(project: Path) -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=project / "my_project")


def know_orders(project: Path) -> None:
    """The lake of the page's component has the table `shop.orders`."""
    attributes = yaml.safe_load((project / "my_project/defs/shop/defs.yaml").read_text())["attributes"]
    config = Component(**attributes).configuration(project / "my_project/defs/shop")
    create_in(config, "shop", "orders")


def test_project_of_the_page_loads(project: Path) -> None:
    know_orders(project)
    found = load_project(project)
    graph = found.resolve_asset_graph()
    orders = dg.AssetKey(["cdc", "shop", "shop", "orders"])
    assert graph.get(orders).group_name == "cdc/shop"
    assert graph.get(dg.AssetKey(["cdc", "shop", "raw"])).group_name == "cdc"
    assert graph.get(dg.AssetKey(["payments", "raw"])).group_name == "payments"
    assert graph.get(dg.AssetKey("revenue")).parent_keys == {orders}
    assert {sensor.name for sensor in found.sensors or ()} >= {"shop_checkpoint", "payments_checkpoint"}
    source = yaml.safe_load((project / "models/sources.yml").read_text())["sources"][0]["tables"][0]
    assert dg.AssetKey(source["config"]["meta"]["dagster"]["asset_key"]) == orders
    keys_of_checks = {key.asset_key for key in graph.asset_check_keys}
    assert orders in keys_of_checks and keys_of_checks <= set(graph.get_all_asset_keys())


def test_changed_table_runs_dependent_assets(project: Path) -> None:
    know_orders(project)
    found = load_project(project)
    orders = dg.AssetKey(["cdc", "shop", "shop", "orders"])
    instance = dg.DagsterInstance.ephemeral()
    assert dg.evaluate_automation_conditions(found, instance).total_requested == 0
    before = dg.evaluate_automation_conditions(found, instance)

    def requested(*, sound: bool) -> int:
        instance.report_runless_asset_event(dg.AssetMaterialization(orders))
        for name in ("no_duplicate_keys", "rows_conserved"):
            evaluation = dg.AssetCheckEvaluation(asset_key=orders, check_name=name, passed=sound, metadata={})
            instance.report_runless_asset_event(evaluation)
        after = dg.evaluate_automation_conditions(found, instance, cursor=before.cursor)
        return after.get_num_requested(dg.AssetKey("revenue"))

    assert requested(sound=False) == 0
    assert requested(sound=True) == 1


def test_plain_definitions_of_the_page_load(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = __import__("my_project.plain", fromlist=["defs"]).defs
    assert dg.AssetKey(["payments", "events"]) in loaded.resolve_asset_graph().get_all_asset_keys()


def test_feeds_merge_with_a_project_that_has_spark(tmp_path: Path) -> None:
    def feed(name: str) -> dg.Definitions:
        return build_definitions(Component(lake=LAKE, feed={**FEED, "name": name}).configuration(tmp_path / name))

    @dg.asset
    def own(spark: dg.ResourceParam[str]) -> None: ...

    theirs = dg.Definitions([own], resources={"spark": "theirs"}, executor=dg.multiprocess_executor)
    merged = dg.Definitions.merge(theirs, feed("a"), feed("b"))
    dg.Definitions.validate_loadable(merged)


SCHEMA: Any = jsonschema.Draft202012Validator(Component.model().model_json_schema())
"""As `dg check yaml` has it."""


@pytest.mark.parametrize(
    ("attributes", "faults"),
    [
        ({"lake": LAKE, "feed": FEED}, []),
        ({"lake": LAKE, "feed": {**FEED, "format_version": "${VERSION}"}}, []),
        ({"config": "lakehouse.yaml"}, []),
        ({"lake": LAKE}, ["'feed' is a dependency of 'lake'"]),
        ({"configs": "x"}, ["'configs' was unexpected"]),
        ({"lake": LAKE, "feed": {**FEED, "freshness": 5}}, ["'freshness' was unexpected"]),
        ({"lake": LAKE, "feed": {**FEED, "source": {**SOURCE, "protokol": "csv"}}}, ["'protokol' was unexpected"]),
        ({"lake": LAKE, "feed": {**FEED, "source": {"type": "kafka"}}}, ["'bootstrap_servers' is", "'format' is"]),
    ],
)
def test_schema_of_the_component_says_each_fault(attributes: dict[str, Any], faults: list[str]) -> None:
    found = [each.message for each in SCHEMA.iter_errors(attributes)]
    assert len(found) == len(faults) and all(any(fault in each for each in found) for fault in faults), found


def test_component_is_listed_and_described() -> None:
    assert "FeedComponent" in dir(__import__("cdc_lakehouse"))
    assert "asset" in Component.get_spec().produces and Component.get_spec().description
    feed = SCHEMA.schema["properties"]["feed"]["properties"]
    assert all(each.get("description") for each in [*SCHEMA.schema["properties"].values(), *feed.values()])


@pytest.mark.parametrize("options", [{}, {"protocol": "csv", "source": "s3://bucket/cdc"}])
def test_scaffolded_component_loads(options: dict[str, str]) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(Component, "invoices", options)
        with sandbox.load_component_and_build_defs(folder) as (_, definitions):
            assert dg.AssetKey(["invoices", "raw"]) in definitions.resolve_all_asset_keys()
        attributes = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
        assert not [*SCHEMA.iter_errors(json.loads(json.dumps(attributes, default=str)))]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"lake": LAKE, "feed": {**FEED, "start": 1}}, "feeds[0].start"),
        ({"config": "lakehouse.yaml", "lake": LAKE}, "config alone"),
        ({"config": "lakehouse.yaml"}, "lakehouse.yaml"),
    ],
)
def test_wrong_attributes_are_refused(tmp_path: Path, attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Component(**attributes).configuration(tmp_path)


def test_secrets_come_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "from-environment")
    s3 = {"access_key_id": "${KEY}", "secret_access_key": "${KEY}"}
    config = Component(lake=LAKE, storage={"s3": s3}, feed=FEED).configuration(tmp_path)
    assert config.storage.s3.secret_access_key == "from-environment"
    assert config.lake.warehouse == (tmp_path / "lake").as_uri()
    s3["secret_access_key"] = "plain"
    with pytest.raises(CdcError, match="secret"):
        Component(lake=LAKE, storage={"s3": s3}, feed=FEED).configuration(tmp_path)
