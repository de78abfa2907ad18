"""The page of `report`: what is in the lake is in it, and nothing of the source is markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa

from cdc_lakehouse.changelog.positions import lag_seconds
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.segments import Segment
from tests.commands import call
from tests.kit.lakes import TestLake
from tests.lake import ID, NOON, change, segment
from tests.pipeline import T0, Sink

BAD = "<script>alert(1)</script>"


class Page(HTMLParser):
    """The texts of a page, its tags, and the names of attributes by tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report(lake: TestLake, tmp_path: Path) -> str:
    path = tmp_path / "out" / "report.html"
    result = call("report", "--out", str(path), config=lake.sink.parent / "lakehouse.yaml")
    assert result.exit_code == 0, result.output
    return path.read_text(encoding="utf-8")


def fill(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    run = lake.run()
    created = change(4, "", 1, "CREATE DATABASE d")
    run.history.record(
        [created, change(5, "t", 0, "", ID), change(6, BAD, 3, f"ALTER TABLE `{BAD}` ADD c INT", ID)], NOON
    )
    counts = {"events": 7, "inserts": 4, "updates": 2, "deletes": 1, "decoded_at": NOON}
    run.segments.land(
        [
            Segment(
                segment=f"d/t/{date}", kind="file", size=9, batch=1, state="decoded", landed_at=NOON, database="d",
                table="t", feed_date=date, **counts,
            )
            for date in ("2026-06-01", "2026-06-02")
        ]
    )  # fmt: skip
    run.quarantine.replace(lambda _: False, [Rejected("d/x&y", 3, "NotJson", f'"{BAD}', b"", "d", BAD)], NOON)
    ids = {life.last.name.table: id for id, life in run.history.history.incarnations().items()}
    run.checkpoints.publish(Cut(T0 + 4), [CutRow(T0 + 4, "d", "t", None, 1, NOON)])
    run.checkpoints.publish(
        Cut(T0 + 5, held=((ids[BAD], "bad & wrong"),)), [CutRow(T0 + 5, "d", "t", None, 1234, NOON)]
    )


def test_it_says_what_is_in_the_lake(lake: TestLake, tmp_path: Path) -> None:
    fill(lake)
    before = lake.metadata()
    texts = Page(report(lake, tmp_path)).texts
    for text in (f"Feed {lake.name}", "d.t", "1,234", "2026-06-01: 7", str(T0 + 4), str(T0 + 5), "NotJson", f"d.{BAD}"):
        assert text in texts, text
    # The database is no table without a name.
    assert texts[texts.index("CREATE DATABASE d") - 2 :][:2] == ["d", "create"]
    # A bar for each cut: when it was published, and the seconds that it was behind then.
    assert f"2026-06-01 12:00:00 UTC: {round(lag_seconds(T0 + 5, NOON)):,}" in texts
    # Two segments of seven changes each.
    assert changes_of_table(texts) == ["14", "8", "4", "2"]
    assert any("bad & wrong" in text for text in texts)
    assert lake.metadata() == before


def changes_of_table(texts: list[str]) -> list[str]:
    """The changes of d.t, and its inserts, updates and deletes."""
    return texts[texts.index("d.t") :][7:11]


def test_changes_are_those_of_the_last_seven_dates(lake: TestLake, tmp_path: Path) -> None:
    fill(lake)
    dates = [f"2026-06-{day:02}" for day in range(3, 9)]
    files = [segment(f"d/t/5/{date}", state="decoded", feed_date=date, inserts=1, events=1) for date in dates]
    lake.run().segments.land(files)
    texts = Page(report(lake, tmp_path)).texts
    assert changes_of_table(texts) == ["13", "10", "2", "1"]
    assert "Changes are those since 2026-06-02." in texts


def test_changes_of_topics_are_counted_by_table(lake: TestLake, tmp_path: Path) -> None:
    fill(lake)
    ranges = [
        Segment(
            segment=f"topic/0/{date}", kind="offsets", size=9, batch=2, record_batch=2, state="decoded",
            landed_at=NOON, feed_date=date, events=4, inserts=2, updates=1, deletes=1, decoded_at=NOON,
        )
        for date in (f"2026-06-{day:02}" for day in range(3, 9))
    ]  # fmt: skip
    lake.run().segments.land(ranges)
    events = pa.table({
        "feed_date": ["2026-06-01", "2026-06-02", "2026-06-03", "2026-06-03", "2026-06-03", None],
        "schema_name": ["d"] * 6,
        "table_name": ["t", "t", "t", "t", "u", "t"],
        "op": ["I", "I", "I", "D", "U", "R"],
    })  # fmt: skip
    lake.lake.catalog.create_table(system_table(lake.name, "events").parts, events.schema).append(events)
    assert changes_of_table(Page(report(lake, tmp_path)).texts) == ["3", "2", "0", "1"]


def test_what_the_source_calls_things_is_text(lake: TestLake, tmp_path: Path) -> None:
    fill(lake)
    text = report(lake, tmp_path)
    page = Page(text)
    assert "script" not in page.tags and "&lt;script&gt;" in text
    assert f"ALTER TABLE `{BAD}` ADD c INT" in page.texts and f'"{BAD}' in page.texts and "d/x&y line 3" in page.texts


def test_it_needs_nothing_beside_it(lake: TestLake, tmp_path: Path) -> None:
    fill(lake)
    text = report(lake, tmp_path)
    page = Page(text)
    assert not page.tags & {"link", "img", "iframe", "script", "object"} and "src" not in page.attributes
    assert re.findall(r'href="([^"]*)"', text) == ["#feed-0"] and "url(" not in text and "@import" not in text


def test_a_lake_that_is_not_there_and_a_source_that_cannot_be_reached_are_told(lake: TestLake, tmp_path: Path) -> None:
    texts = Page(report(lake, tmp_path)).texts
    assert "nothing" in texts and any("the source cannot be used" in text for text in texts)


def test_one_feed(lake: TestLake, tmp_path: Path) -> None:
    config = lake.sink.parent / "lakehouse.yaml"
    assert call("report", "--feed", "nosuch", "--out", str(tmp_path / "r.html"), config=config).exit_code == 2
    assert not (tmp_path / "r.html").exists()
    done = call("report", "--json", "--out", str(tmp_path / "r.html"), config=config)
    assert json.loads(done.stdout) == {"wrote": str(tmp_path / "r.html"), "feeds": [lake.name]}
