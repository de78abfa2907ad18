"""The pictures of the docs, from the UI that `make dev` shows: `.venv/bin/python scripts/pictures.py`.

It needs Chromium (Debian: apt-get install chromium), and some runs of the sample feed, so that plots have points. The
status page is that of CDC_LAKEHOUSE_CONFIG: hold a table first, so that it has something to say.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs/images"
PAGES = {
    # The groups of the feed and of its database are open.
    "asset-graph": "asset-groups?expanded=global@global:shop,global@global:shop/shop",
    "events-plots": "assets/shop/events",
    "table": "assets/shop/shop/orders",
    "checks": "assets/shop/checkpoint?view=checks&checkDetail=nothing_held",
    "sensor-tick": "locations/cdc_lakehouse/sensors/shop_checkpoint",
}


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:3000"
    with (
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport={"width": 1400, "height": 800})
        # Without its navigation a page has room for what it shows.
        page.goto(address)
        page.get_by_role("button", name="Hide navigation").click()
        for name, path in PAGES.items():
            # The whole graph is in view.
            page.set_viewport_size({"width": 1400, "height": 1150 if name == "asset-graph" else 800})
            page.goto(f"{address}/{path}")
            settle(page)
            if name == "events-plots":
                plots = page.get_by_text("Plots", exact=True).first
                plots.click()
                plots.evaluate("element => element.scrollIntoView()")
                settle(page)
            page.screenshot(path=IMAGES / f"{name}.png")
        page.goto(f"{address}/locations/cdc_lakehouse/jobs/shop_dates")
        page.get_by_role("button", name="Materialize all").click()
        page.get_by_role("dialog").get_by_text("All", exact=True).click()
        settle(page)
        page.screenshot(path=IMAGES / "backfill.png")
        status_page(page)


def status_page(page: Page) -> None:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "report.html")
        subprocess.run([Path(sys.executable).with_name("cdc-lakehouse"), "report", "--out", out], check=True)
        page.set_viewport_size({"width": 1200, "height": 1160})
        page.goto(out.as_uri())
        page.screenshot(path=IMAGES / "status-page.png")


def settle(page: Page) -> None:
    """Numbers come after the page, and Dagster never stops to ask for more."""
    page.wait_for_timeout(10_000)


if __name__ == "__main__":
    main()
