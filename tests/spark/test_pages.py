"""What people see of one lake that has everything: a table that changes, one that is held, dropped, left out, rows
that are quarantined and discarded, a failed run, lag, pending statements. The pages are files in tests/golden_pages."""

import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from cdc_lakehouse.cli import main
from cdc_lakehouse.config import load
from cdc_lakehouse.definitions import build_definitions
from tests.boundaries.change_log import commit_time
from tests.kit.golden_pages import FOLDER, as_json, compare, described, logged, normalized
from tests.kit.hand_sinks import ADD_COLUMN, CREATE, CSV, DROP, ID, MODIFY, T0, HandSink, integer, row, text
from tests.kit.lakes import TestLake
from tests.kit.receivers import HttpReceiver, http_receiver
from tests.kit.waiting import clock_at

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pages")]

START = commit_time(T0)
DAY = f"{START:%Y-%m-%d}"
COLUMNS = (ID, integer("v"), text("s"))
COMMANDS = {
    **{name: [name] for name in ("status", "plan", "show", "metrics")},
    **{f"{name}_json": [name, "--json"] for name in ("status", "plan")},
    "show_json": ["show", "d.orders", "--json", "--columns", "id, n"],
    "show_csv": ["show", "d.orders", "--csv"],
    "schema": ["schema", "d.orders"],
    "schema_json": ["schema", "d.orders", "--json"],
    "quarantine_list": ["quarantine", "list"],
    "quarantine_list_all": ["quarantine", "list", "--all"],
    "quarantine_list_json": ["quarantine", "list", "--all", "--json"],
}
"""Pages that change nothing, of the lake at the end of the story."""
NO_KEY = "![no](key)<b>"
"""Shown as it is: in Markdown an image, in HTML a tag."""


def minutes(number: int) -> int:
    return number * 60_000 << 18


class Story:
    """The lake, and the pages by name as they come to be."""

    def __init__(self, lake: TestLake, hook: HttpReceiver) -> None:
        self.lake, self.sink, self.hook = lake, HandSink(lake.sink), hook
        self.directory = lake.config_path.parent
        self.home = self.directory / "dagster_home"
        self.pages: dict[str, str] = {}
        self.now = START

    def configure(self, **feed: Any) -> None:
        self.lake.configure(**feed)
        document = json.loads(self.lake.config_path.read_text())
        receiver = {"type": "webhook", "url": f"http://127.0.0.1:{self.hook.port}/${{HOOK}}"}
        self.lake.config_path.write_text(json.dumps({**document, "alerts": [receiver]}))

    def call(self, *words: str) -> Result:
        environment = {"CDC_LAKEHOUSE_CONFIG": str(self.lake.config_path), "DAGSTER_HOME": str(self.home), "HOOK": "x"}
        with clock_at(lambda: self.now):
            return CliRunner(env=environment).invoke(main, words)

    def show(self, name: str, *words: str, with_errors: bool = True) -> None:
        """A page with the command, what it prints, and its exit code."""
        done = self.call(*words)
        assert "Traceback" not in done.output and (done.exception is None or isinstance(done.exception, SystemExit))
        said = done.stdout + (done.stderr if with_errors else "")
        self.add(name, f"$ cdc-lakehouse {' '.join(words)}\n{said}exit code {done.exit_code}")

    def add(self, name: str, page: str) -> None:
        page = page.replace(str(self.lake.warehouse), "<warehouse>")
        page = re.sub(r"^(cdc_lakehouse_last_run_(?:end|dur)\S+) .*", r"\1 <number>", page, flags=re.MULTILINE)
        page = re.sub(r'("snapshot_id": )"\d+"', r'\1"<snapshot>"', page)
        self.pages[name] = normalized(page, self.directory, DAY)

    def create(self, table: str, *ids: int) -> None:
        query = f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY, `v` INT, `s` VARCHAR(50))"
        self.sink.schema(table, 1, *COLUMNS, action=CREATE, query=query)
        self.put(table, 1, *[("I", 2, n, n * 10) for n in ids])

    def put(self, table: str, version: int, *changes: tuple[Any, ...], index: int = 1, more: str = "") -> None:
        lines = [row(op, table, at, str(id), *map(str, values), f'"{table}"') for op, at, id, *values in changes]
        self.sink.rows(f"d/{table}", version, *lines, *filter(None, [more]), index=index, date=DAY)

    def last_run(self) -> list[dg.EventLogEntry]:
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            return list(instance.all_logs(instance.get_runs(limit=1)[0].run_id))


def tell(story: Story) -> None:
    """The story of the lake."""
    story.configure()
    for table, ids in (("orders", (1, 2, 3)), ("customers", (1, 2)), ("old", (1,)), ("logs", (1,))):
        story.create(table, *ids)
    no_key = (integer("id"), integer("v"))
    query = f"CREATE TABLE `{NO_KEY}` (`id` INT COMMENT '```<b>', `v` INT)"
    story.sink.schema(NO_KEY, 1, *no_key, action=CREATE, query=query)
    story.sink.checkpoint(minutes(1))
    story.now = START + datetime.timedelta(minutes=2)
    story.show("run", "run")
    story.add("assets_of_the_first_run", as_json(logged(story.last_run())[0]))

    query = "ALTER TABLE `orders` ADD COLUMN `n` INT DEFAULT 7 COMMENT 'of the shop'"
    n = replace(integer("n"), default="7")
    story.sink.schema("orders", minutes(2), *COLUMNS, n, action=ADD_COLUMN, query=query)
    changes = [("U", 1, 11), ("D", 2, 20), ("I", 4, 40)]
    lines = [row(op, "orders", minutes(2) + 5, str(id), str(v), '"it\'s"', str(id)) for op, id, v in changes]
    story.sink.rows("d/orders", minutes(2), *lines, date=DAY)
    bad = row("I", "customers", minutes(2) + 6, "5", "not a number", '"x"')
    story.put("customers", 1, ("I", minutes(2) + 5, 3, 30), index=2, more=f"{bad}\r\ngarbage \x1b[31m\r\nmore")
    story.sink.schema("old", minutes(2), *COLUMNS, action=DROP, query="DROP TABLE `d`.`old`")
    story.sink.checkpoint(minutes(3))
    story.now = START + datetime.timedelta(minutes=4)
    story.show("run_held", "run")
    materialized, checked = logged(story.last_run())
    story.add("assets", as_json(materialized))
    story.add("checks", as_json(checked))
    story.show("run_nothing", "run")

    story.configure(policy={"max_quarantined_rows": 0})
    story.sink.checkpoint(minutes(4))
    story.show("run_failed", "run")
    story.configure(policy={})
    open_rows = json.loads(story.call("quarantine", "list", "--json").stdout)["feeds"][0]["rows"]
    words = ["quarantine", "discard", open_rows[0]["id"], "--by", "ann", "--reason", "a test", "--yes"]
    story.show("quarantine_discard", *words)

    columns = (ID, text("v"), text("s"), n)
    query = "ALTER TABLE `orders` MODIFY COLUMN `v` VARCHAR(50)"
    story.sink.schema("orders", minutes(5), *columns, action=MODIFY, query=query)
    query = "ALTER TABLE `orders` ADD COLUMN `later` INT"
    story.sink.schema("orders", minutes(9), *columns, integer("later"), action=ADD_COLUMN, query=query)
    story.sink.checkpoint(minutes(7))
    story.now = START + datetime.timedelta(minutes=10)
    for name, words in COMMANDS.items():
        story.show(name, *words)
    story.show("status_check", "status", "--check")
    assert story.pages.pop("status_check") == (
        story.pages["status"].replace(" status\n", " status --check\n").replace("exit code 0", "exit code 1")
    )
    for name, later in (("show_as_of", 2), ("show_before_the_first_cut", 0)):
        moment = START + datetime.timedelta(minutes=later)
        story.show(name, "show", "d.orders", "--as-of", f"{moment:%Y-%m-%dT%H:%M}")
    story.show("quarantine_show", "quarantine", "show", open_rows[0]["id"])
    report = story.directory / "report.html"
    assert story.call("report", "--out", str(report)).exit_code == 0
    page = re.sub(r"(</?(?:section|h\d|div|table|tr|ul|p|svg|g|style)\b)", r"\n\1", report.read_text())
    # Dagster has the machine's clock: the failed run can be anywhere in the timeline.
    page = re.sub(r"\n<g><title>[^<]* failed[^<]*</title>[^<]*<rect[^>]*>\s*</g>", "", page)
    page = re.sub(r"\n<tr><td>[^<]*</td><td>run</td><td></td><td><code>failed.*?</tr>", "", page, flags=re.DOTALL)
    page = re.sub(r'(<rect x=")[\d.]+(" y="[\d.]+" width="4.0")', r"\1<number>\2", page)
    page = re.sub(r'(<text x="0" y="130">)[^<]*( UTC</text>\n?</svg>\n<h3>Cuts)', r"\1<times>\2", page)
    story.add("report", page)
    tick(story)
    story.show("run_held_json", "run", "--json")

    story.show("hold", "hold", "d.orders", "--reason", "an audit", "--by", "ann")
    story.show("resume", "resume", "d.orders")
    maintain(story)


def tick(story: Story) -> None:
    """Alerts, and what Dagster loads."""
    with clock_at(lambda: story.now), dg.DagsterInstance.from_config(str(story.home)) as instance:
        definitions = build_definitions(load(story.lake.config_path, {"HOOK": "x"}))
        story.add("definitions", as_json(described(definitions)))
        repository = definitions.get_repository_def()
        with dg.build_sensor_context(instance, repository_def=repository) as context:
            repository.get_sensor_def("cdc_alerts").evaluate_tick(context)
    story.add("alerts", as_json(story.hook.documents))


def maintain(story: Story) -> None:
    orphan = story.lake.data_files("orders")[0].with_name("left-behind.parquet")
    orphan.write_bytes(b"not a part of any snapshot")
    os.utime(orphan, (0, 0))
    before = (story.lake.metadata(), story.lake.data_files())
    story.show("maintain_dry_run", "maintain", "--dry-run")
    story.show("maintain_dry_run_json", "maintain", "--dry-run", "--json", "--table", "d.orders")
    assert (story.lake.metadata(), story.lake.data_files()) == before and orphan.exists()
    rows = story.lake.all_rows()
    folder = orphan.parent.rename(orphan.parent.with_name("away"))
    # The JVM logs its own errors.
    story.show("maintain_not_done", "maintain", "--compact", with_errors=False)
    folder.rename(orphan.parent)
    story.show("maintain_compact", "maintain", "--compact")
    assert orphan.exists(), "compaction alone removes no orphan file"
    story.show("maintain_table", "maintain", "--table", "d.orders")
    assert not orphan.exists() and story.lake.all_rows() == rows
    story.show("maintain_unknown", "maintain", "--table", "d.nosuch")


@pytest.fixture(scope="module")
def pages(lake_root: Path, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[dict[str, str]]:
    of_orders = {"freshness_minutes": 5, "owners": ["a@example.com"], "tags": {"pii": True}}
    tables = {"include": ["d.*", "d.oders"], "exclude": ["d.logs"], "settings": {"d.orders": of_orders}}
    with contextlib.ExitStack() as stack:
        hook = stack.enter_context(http_receiver())
        directory = tmp_path_factory.mktemp("pages")
        lake = TestLake(
            lake_root, directory, lambda: spark, name="shop", source=CSV, tables=tables, start_date=DAY,
            owners=["team:shop"], tags={"tier": 1}, maintenance={"min_small_files": 2},
        )  # fmt: skip
        story = Story(lake, hook)
        tell(story)
        yield story.pages


@pytest.mark.parametrize("name", sorted(file.name for file in FOLDER.iterdir()))
def test_page_equals_its_golden_file(name: str, pages: dict[str, str], update: bool) -> None:
    """A new page begins as an empty file."""
    compare(name, pages[Path(name).stem], update=update)


def test_every_page_is_compared(pages: dict[str, str]) -> None:
    assert pages.keys() == {file.stem for file in FOLDER.iterdir()}
