"""What people do in Dagster's UI, done in a headless Chromium against the processes of `make dev`."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

pytest.importorskip("playwright", reason="the browser's driver is not installed: run scripts/setup")
from playwright.sync_api import Page, expect, sync_playwright

from cdc_lakehouse.assets.steps import decide_op_name, job_name
from cdc_lakehouse.sample import shop
from tests.kit.lakes import TestLake
from tests.kit.receivers import HttpReceiver, http_receiver
from tests.kit.shop import check_shop, true_rows
from tests.kit.waiting import until
from tests.servers.dev import Dev

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_LOCATION = "tests.servers.impatient"

pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium)"),
]


@pytest.fixture
def page() -> Iterator[Page]:
    with (
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]) as browser,
    ):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page


class Ui:
    """What a person does with a feed."""

    def __init__(self, page: Page, port: int, feed: str) -> None:
        self.page, self.feed = page, feed
        self._address = f"http://127.0.0.1:{port}"

    def open(self, path: str) -> None:
        self.page.goto(f"{self._address}/{path}")

    def switch_sensor(self, on: bool) -> None:
        self.open("automation")
        name = self.page.get_by_text(f"{self.feed}_checkpoint", exact=True).first
        # A row has a box to choose it, and the switch.
        switch = name.locator("xpath=ancestor::*[count(.//input)=2][1]//input").last
        # Until Dagster has said how it is, it shows as off, and a click is lost.
        self.page.wait_for_load_state("networkidle")
        expect(switch).to_be_checked(checked=not on)
        with self.page.expect_response(lambda response: "mutation " in (response.request.post_data or "")):
            switch.locator("..").click()  # its label: the box itself is out of sight
        expect(switch).to_be_checked(checked=on)

    def launch(self, job: str, config: str | None = None) -> None:
        """A run of a job, by the launchpad's button."""
        self.open(f"locations/{_LOCATION}/jobs/{job}/playground")
        button = self.page.get_by_role("button", name="Launch Run")
        expect(button).to_be_enabled()
        if config is not None:
            self.page.locator(".CodeMirror").first.click()
            self.page.keyboard.press("Control+A")
            self.page.keyboard.insert_text(config)
            expect(self.page.locator(".CodeMirror").first).to_contain_text(config)
            expect(button).to_be_enabled()
        button.click()

    def asset(self, *path: str, view: str = "overview") -> None:
        self.open("/".join(["assets", self.feed, *path]) + f"?view={view}")


def finished(home: Path, number: int) -> dg.DagsterRun:
    """The newest run by a click, when `number` of them and all others are over."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        until(lambda: len(by_clicks(instance)) >= number and all(run.is_finished for run in instance.get_runs()), 400)
        runs = by_clicks(instance)
        assert len(runs) == number, runs
        assert runs[0].status == dg.DagsterRunStatus.SUCCESS, instance.all_logs(runs[0].run_id)
        return runs[0]


def by_clicks(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Without those of schedules, whose time can come meanwhile, and of a tick that began before the sensor was off."""
    started_by = {"dagster/sensor_name", "dagster/schedule_name"}
    return [run for run in instance.get_runs() if started_by.isdisjoint(run.tags)]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    """A receiver of alerts, whose address Dagster has in its environment."""
    with http_receiver() as receiver:
        monkeypatch.setenv("HOOK", receiver.url("hook"))
        yield receiver


def told(hook: HttpReceiver, event: str, kind: str, subject: str) -> bool:
    notices = [notice for document in hook.documents for notice in document["notices"]]
    return (event, kind, subject) in [(notice["event"], notice["kind"], notice["subject"]) for notice in notices]


def test_a_feed_is_worked_by_clicks(tmp_path: Path, page: Page, hook: HttpReceiver) -> None:
    now = datetime.datetime.now(datetime.UTC)
    first = now.date() - datetime.timedelta(days=2)
    lake = TestLake(tmp_path / "root", tmp_path, no_session, source={"time_zone": "UTC"}, start_date=first.isoformat())
    document = json.loads(lake.config_path.read_text())
    receivers = [{"type": "webhook", "url": "${HOOK}", "on": ["held"]}]
    lake.config_path.write_text(json.dumps({**document, "alerts": receivers}))
    lake.sink.mkdir()
    dev = Dev(lake, tmp_path)
    with dev.running() as process:
        ui = Ui(page, dev.port, lake.name)
        # Else it would take what is new before anybody clicks.
        ui.switch_sensor(False)
        lake.sink.rmdir()
        start = datetime.datetime.combine(first, datetime.time(), datetime.UTC)
        shop.write_history(lake.sink, start=start, end=now, transactions=60)

        ui.launch(job_name(lake.name, "new"))
        assert finished(dev.home, 1).job_name == job_name(lake.name, "new")
        check_shop(lake)

        # It has the definitions loaded again, which then have the tables.
        ui.switch_sensor(True)
        columns, rows = true_rows(lake)["shop", "orders"]
        until(lambda: is_defined(ui), 120)
        ui.asset("current", "shop", "orders")
        expect(page.get_by_text("Row count", exact=True).locator("..")).to_contain_text(str(len(rows)))
        for column in columns:
            expect(page.get_by_text(column, exact=True).first).to_be_visible()

        decide = f"ops: {{{decide_op_name(lake.name)}: {{config: %s}}}}"
        ui.launch(job_name(lake.name, "tables"), decide % "{hold: {shop.orders: looked at}}")
        finished(dev.home, 2)
        ui.asset("checkpoint", view="checks")
        check = page.get_by_text("nothing_held", exact=True).first
        expect(check.locator("xpath=ancestor::*[3]")).to_contain_text("Failed")
        check.click()
        expect(page.get_by_text("Evaluation result").locator("..")).to_contain_text("Failed")
        until(lambda: told(hook, "opened", "held", "shop.orders"), 60, shown=lambda: hook.documents)

        ui.launch(job_name(lake.name, "tables"), decide % "{resume: [shop.orders]}")
        finished(dev.home, 3)
        ui.asset("checkpoint", view="checks")
        expect(check.locator("xpath=ancestor::*[3]")).to_contain_text("Succeeded")
        until(lambda: told(hook, "over", "held", "shop.orders"), 60, shown=lambda: hook.documents)

        ui.open(f"locations/{_LOCATION}/jobs/{job_name(lake.name, 'dates')}")
        page.get_by_role("button", name="Materialize all").click()
        dialog = page.get_by_role("dialog")
        dates = dialog.get_by_placeholder("No matching partitions")
        second = first + datetime.timedelta(days=1)
        dates.or_(dialog.locator("input[type=text]").first).first.fill(f"[{first}...{second}]")
        dates.or_(dialog.locator("input[type=text]").first).first.press("Enter")
        expect(dialog).to_contain_text("2 partitions")
        dialog.get_by_role("button", name="Launch backfill").click()
        again = finished(dev.home, 4)
        assert again.tags["dagster/asset_partition_range_start"] == first.isoformat()
        assert again.tags["dagster/asset_partition_range_end"] == second.isoformat()
        check_shop(lake)
        process.terminate()


def is_defined(ui: Ui) -> bool:
    ui.asset("current", "shop", "orders")
    ui.page.wait_for_timeout(3000)
    return ui.page.get_by_text("External Asset").count() == 0


def no_session() -> None:
    raise AssertionError("nothing of this test runs here")
