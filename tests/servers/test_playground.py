"""The playground of deploy/, part by part: its statements on a MySQL, its feed before a Canal, and its writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import jsonschema
import pytest
import yaml

from cdc_lakehouse import config
from tests.kit.cases import statements
from tests.kit.lakes import TestLake
from tests.servers.canal import DESTINATION, PASSWORD, USER, StartCanal
from tests.servers.canal_reader import Writer
from tests.servers.mysql import MySqlServer
from tests.servers.test_canal_load import READER, Load
from tests.servers.tools import wheel

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
PLAYGROUND: Final = DEPLOY / "playground"

pytestmark = [pytest.mark.server, pytest.mark.spark]


def of_file(name: str) -> list[str]:
    """A file's statements, without those of a user that the tests' Canal has already."""
    return [each for each in statements((PLAYGROUND / name).read_text(encoding="utf-8")) if "canal" not in each]


@pytest.mark.in_turn
@pytest.mark.usefixtures("impatient")
def test_playground_has_the_rows_of_its_mysql(
    binlog: MySqlServer, start_canal: StartCanal, new_lake: Callable[..., TestLake]
) -> None:
    address, url = start_canal().address, f"mysql://reader:reader@127.0.0.1:{binlog.port}"
    shop = Writer(binlog, "shop")
    shop.run("DROP DATABASE IF EXISTS shop", f"DROP USER IF EXISTS {READER}", *of_file("shop.sql"), "USE shop")
    load = Load(new_lake, shop, address, {"type": "database", "url": url.replace(":reader@", "@")})
    lake, own = load.feed.lake, load.feed.lake.feed
    unused = ("ICEBERG_PG_USERNAME", "ICEBERG_PG_PASSWORD", "ICEBERG_PG_HOST", "ICEBERG_PG_PORT", "ICEBERG_PG_DB",
              "S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY")  # fmt: skip
    environment = {**dict.fromkeys(unused, "http://x"), "MYSQL_URL": url, "CANAL_ADDRESS": address}
    (feed,) = config.load(PLAYGROUND / "lakehouse.yaml", {**environment, "CANAL_DESTINATION": DESTINATION}).feeds
    source = feed.canal.model_copy(update={"user": USER, "password": PASSWORD})
    changed = {"name": own.name, "namespace": own.namespace, "source": source}
    lake.config = lake.config.model_copy(update={"feeds": (feed.model_copy(update=changed),)})
    load.catch_up()
    for _ in range(3):
        shop.run(*of_file("day.sql"))
    load.catch_up()
    tables = {table: found for (_, table), found in lake.tables().items()}
    assert set(tables) == {"customers", "orders"} and len(load.loaded()) >= 110
    shop.check(tables)


def test_playground_is_a_compose_file_whose_variables_and_files_exist() -> None:
    document = yaml.safe_load((DEPLOY / "playground.yaml").read_text(encoding="utf-8"))
    schemas = wheel("check-jsonschema") / "check_jsonschema/builtin_schemas/vendor"
    jsonschema.validate(document, json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8")))
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"] | document["services"]
    for service in document["services"].values():
        assert set(service.get("depends_on", ())) <= set(services)
        mounted = [each.split(":")[0] for each in service.get("volumes", ())]
        assert all((DEPLOY / each).is_file() for each in mounted if each.startswith("./")), mounted
    given = set((PLAYGROUND / "example.env").read_text(encoding="utf-8").replace("=", "\n").splitlines())
    for name in ("compose.yaml", "playground.yaml"):
        asked = [part.partition(":?")[0] for part in (DEPLOY / name).read_text().split("${") if ":?" in part[:40]]
        assert asked and set(asked) <= given, name
