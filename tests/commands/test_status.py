"""`status`, `show`, `schema` and `report`, beside what tests/golden_pages has: other sources, and what is missing."""

from __future__ import annotations

import datetime
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.errors import ConfigurationError
from tests.boundaries.change_log import utc_now
from tests.commands import call, run_that_fails
from tests.kit import scripted_lake as script
from tests.kit.dagster_feed import FAILURE_TAG
from tests.kit.kafka import impatient_client
from tests.kit.lakes import TestLake
from tests.kit.leases import lease_of
from tests.kit.scripted_lake import NOON, T0, Rejected, bad_rows, before, publish
from tests.pipeline import Sink, lake_in


@pytest.fixture
def lake(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    return lake


def status(exit_code: int = 0) -> dict[str, Any]:
    result = call("status", "--json")
    assert result.exit_code == exit_code, result.output
    (feed,) = json.loads(result.stdout)["feeds"]
    return feed


def test_empty_lake_has_nothing_published_and_no_error(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    seen = status()
    assert (seen["feed"], seen["source_checkpoint_ts"], seen["error"]) == (lake.name, T0 + 10, None)
    assert (seen["published_checkpoint_ts"], seen["published_lag_seconds"]) == (None, None)
    assert (seen["tables"], seen["held"], seen["quarantined"]) == ([], {}, 0)
    assert lake.metadata() == {}


@pytest.mark.parametrize("content", [None, "{"])
def test_unusable_source_leaves_the_lake_shown(lake: TestLake, content: str | None) -> None:
    publish(lake, {"a": 12}, {"d.x": "it's bad"})
    if content is not None:
        lake.sink.mkdir()
        (lake.sink / "metadata").write_text(content)
    seen = status(exit_code=3 if content is None else 0)
    assert (str(lake.sink) if content is None else "checkpoint-ts") in seen["error"]
    assert seen["source_checkpoint_ts"] is None
    assert [table["table"] for table in seen["tables"]] == ["a", "x"]


def test_pattern_in_another_letter_case_is_a_warning(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    lake.configure(tables={"include": ["D.*", "d.t"]})
    assert status()["warnings"] == []
    script.create(lake, "t", "u")
    said = "the pattern D.* of tables.include matches none of the 2 tables that were seen; d.t differs in letter case"
    assert status()["warnings"] == [f"{said}, and 1 more"]


def test_contradicting_messages_are_shown_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = {"type": "kafka", "format": "dts-canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
    lake = lake_in(tmp_path, source={**nobody, "kafka": {"socket.connection.setup.timeout.ms": "1000"}})
    impatient_client(monkeypatch, lake.feed.kafka, 1)
    script.contradict(lake, "a row of DELETE is in old")
    result = call("status", config=lake.config_path)
    assert result.exit_code == 3 and "run the dates again" in result.stdout
    assert "t/0 from offset 17 on: a row of DELETE is in old" in result.stdout


def test_reading_of_a_database_is_shown_until_it_ends(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    source = lake.feed.source.model_dump(exclude_unset=True)
    lake.configure(source={**source, "initial": {"type": "database", "url": "mysql://r@127.0.0.1:1"}})
    assert status()["initial"]["reading"] is None
    script.write_database_progress(lake, rows=200_000, estimated=300_000)
    reading = status()["initial"]["reading"]
    assert (reading["rows"], reading["estimated_rows"], reading["ranges_read"]) == (200_000, 300_000, 1)
    for command in ("status", "plan"):
        assert "the database is being read: 200000 of about 300000 rows are read" in call(command).stdout
    script.write_database_progress(lake, ended=True)
    assert status()["initial"]["reading"] is None


def test_run_is_shown_while_it_goes_on_and_after(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    lease = lease_of(lake, "the-run")
    lease.take()
    seen = status()["last_run"]
    assert (seen["run"], seen["ended_at"]) == ("the-run", None)
    lease.release()
    seen = status()["last_run"]
    assert (seen["run"], seen["was_killed"]) == ("the-run", False) and seen["ended_at"] is not None


@pytest.mark.parametrize("kind", ["transient", "permanent"])
def test_failed_run_is_shown_with_its_next_try(lake: TestLake, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    Sink(lake.sink).checkpoint(10)
    error = ConfigurationError("the wrong key", advice="correct it")
    home, failed = run_that_fails(lake, monkeypatch, error, **{FAILURE_TAG: kind})
    (run,) = status()["failed_runs"]
    assert (run["run"], run["job"], run["error"]) == (failed, None, "the wrong key: correct it")
    ended = datetime.datetime.fromisoformat(run["ended_at"])
    retried = None if run["next_try_at"] is None else datetime.datetime.fromisoformat(run["next_try_at"]) - ended
    assert retried == (datetime.timedelta(minutes=1) if kind == "transient" else None)
    result = call("status", "--check")
    assert result.exit_code == 1 and "  check: the last run failed" in result.stdout
    assert ("tries it again at" if kind == "transient" else "not tried again") in result.stdout
    (home / "dagster.yaml").write_text("storage: {postgres: {postgres_url: [no]}}")
    result = call("status")
    assert result.exit_code == 0 and "the Dagster instance of" in result.stderr and lake.name in result.stdout


RED, YELLOW, GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


def test_terminal_shows_problems_in_colour(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    Sink(lake.sink).checkpoint(10)

    def first_words(colour: str, *options: str) -> list[str]:
        lines = call("status", *options, terminal=True).stdout.splitlines()
        return [line[5:].split()[0] for line in lines if line.startswith(colour)]

    publish(lake, {"a": 1, "b": 1}, at=before(utc_now(), 3))
    assert first_words(GREEN, "--check") == ["feed", "check:"]
    assert first_words(RED, "--check") == first_words(YELLOW, "--check") == []
    lake.configure(tables={"settings": {"d.a": {"freshness_minutes": 1}}})
    publish(lake, {"a": 1, "b": 1}, {"d.x": "bad"}, at=before(utc_now(), 3))
    assert first_words(RED) == ["feed", "d.x", "d.x:"] and first_words(YELLOW) == ["d.a"]
    assert "\x1b" not in call("status").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call("status", terminal=True).stdout


def test_check_is_1_where_something_needs_a_person(lake: TestLake) -> None:
    def check() -> tuple[int, list[str]]:
        result = call("status", "--check")
        lines = [line.strip() for line in result.stdout.splitlines()]
        return result.exit_code, [line.removeprefix("check: ") for line in lines if line.startswith("check: ")]

    publish(lake, at=before(utc_now(), 0))
    assert check() == (1, ["the source cannot be used"])
    Sink(lake.sink).checkpoint(10)
    assert check() == (0, ["all is well"]) and call("status").exit_code == 0
    publish(lake, at=before(utc_now(), 2))
    lake.configure(freshness_minutes=1)
    assert check() == (1, ["the cut is 2 min old, and freshness_minutes is 1"])
    lake.configure(freshness_minutes=60)
    bad_rows(lake)
    assert check() == (1, ["1 rows are quarantined"])
    script.resolve_all(lake)
    publish(lake, held={"d.x": "bad"}, at=before(utc_now(), 0))
    assert check() == (1, ["d.x is held"])


def test_check_is_1_where_nothing_is_published(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    result = call("status", "--check")
    assert result.exit_code == 1 and "  check: nothing is published" in result.stdout


@pytest.mark.parametrize("command", ["status", "show", "plan"])
def test_looking_before_the_first_run_makes_nothing(tmp_path: Path, command: str) -> None:
    assert call("sample", "--directory", str(tmp_path), "--transactions", "20").exit_code == 0
    files = sorted(tmp_path.iterdir())
    result = call(command, config=tmp_path / "lakehouse.yaml")
    assert result.exit_code == (2 if command == "show" else 0), result.output
    assert sorted(tmp_path.iterdir()) == files


# --- show and schema ---


def test_rows_are_shown_as_of_the_published_cut(lake: TestLake) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string()), pa.field("blob", pa.binary())])
    script.create(lake, "a")
    table = script.current_table(lake, "a", schema)
    table.append(pa.Table.from_pylist([{"id": 1, "note": "published\n", "blob": b"\xff\x00"}], schema=schema))
    publish(lake, {"a": (table.current_snapshot().snapshot_id, 1)})
    table.append(pa.Table.from_pylist([{"id": 2, "note": "later", "blob": None}], schema=schema))
    shown = call("show", "d.a").stdout
    assert r"published\n" in shown and "ff00" in shown and "later" not in shown
    (document,) = json.loads(call("show", "d.a", "--json").stdout)["tables"]
    assert document["rows"] == [{"id": 1, "note": "published\n", "blob": "ff00"}]
    assert call("show", "d.a", "--csv").stdout == 'id,note,blob\n1,"published\n",ff00\n'
    assert call("show", "d.a", "--csv", "--columns", "blob, id").stdout == "blob,id\nff00,1\n"
    for words, said in (
        (["show", "d.a", "--columns", "id,nosuch"], ["nosuch", "id, note, blob"]),
        (["show", "d.b"], ["no table d.b is published", "d.a"]),
        (["schema", "d.b"], ["no table d.b is published", "d.a"]),
        (["show", "d.a", "--csv", "--json"], ["exclude each other"]),
    ):
        result = call(*words)
        assert result.exit_code == 2 and [each for each in said if each not in result.stderr] == []


def test_schema_has_generated_columns_and_other_names(lake: TestLake) -> None:
    create = (
        "CREATE TABLE `a` (`id` BIGINT NOT NULL PRIMARY KEY COMMENT 'of the\tshop', `_commit_ts` INT DEFAULT '7', "
        "`double` INT GENERATED ALWAYS AS (`_commit_ts` * 2) VIRTUAL)"
    )
    script.ddl(lake, create)
    publish(lake, {"a": 0})
    (shown,) = json.loads(call("schema", "d.a", "--json").stdout)["tables"]
    keys = ("name", "default", "comment", "key", "lake_name", "lake_type")
    assert [tuple(column[key] for key in keys) for column in shown["columns"]] == [
        ("id", None, "of the\tshop", True, "id", "long"),
        ("_commit_ts", "7", None, False, "_commit_ts_", "int"),
        ("double", None, None, False, None, None),
    ]


# --- report ---


class Page(HTMLParser):
    """The texts of a page, its tags, and the names of attributes."""

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


def report(tmp_path: Path) -> str:
    path = tmp_path / "out" / "report.html"
    done = call("report", "--json", "--out", str(path))
    assert done.exit_code == 0 and json.loads(done.stdout)["wrote"] == str(path), done.output
    return path.read_text(encoding="utf-8")


def test_report_escapes_names_and_needs_no_other_file(lake: TestLake, tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    script.ddl(lake, f"CREATE TABLE `{bad}` (id INT PRIMARY KEY)", "CREATE DATABASE e")
    script.quarantine(lake, Rejected("d/x&y", 3, "NotJson", f'"{bad}', b"", "d", bad))
    publish(lake, {"t": 1}, {script.incarnation(lake, bad): "bad & wrong"})
    metadata = lake.metadata()
    text = report(tmp_path)
    page = Page(text)
    assert {f"d.{bad}", f"CREATE TABLE `{bad}` (id INT PRIMARY KEY)", f'"{bad}', "d/x&y line 3"} <= set(page.texts)
    assert any("bad & wrong" in each for each in page.texts) and "e" in page.texts, "a database has no table"
    assert not page.tags & {"link", "img", "iframe", "script", "object"} and "src" not in page.attributes
    assert re.findall(r'href="([^"]*)"', text) == ["#feed-0"] and "url(" not in text and "@import" not in text
    assert lake.metadata() == metadata


def test_report_counts_changes_of_the_last_seven_dates(lake: TestLake, tmp_path: Path) -> None:
    files = [script.segment(f"d/t/5/{day}", feed_date=f"2026-06-{day:02}", events=1, inserts=1) for day in range(1, 9)]
    script.land(lake, *files)
    publish(lake, {"t": 8})
    texts = Page(report(tmp_path)).texts
    assert texts[texts.index("d.t") :][7:11] == ["7", "7", "0", "0"], "changes, inserts, updates, deletes"
    assert "Changes are those since 2026-06-02." in texts


def test_report_counts_changes_of_topics_by_table(lake: TestLake, tmp_path: Path) -> None:
    days = (f"2026-06-{day:02}" for day in range(3, 9))
    script.land(lake, *(script.offsets(f"topic/0/{day}", feed_date=day, events=4, decoded_at=NOON) for day in days))
    script.events(lake, [("2026-06-01", "t", "I"), ("2026-06-03", "t", "I"), ("2026-06-03", "t", "I"),
                         ("2026-06-03", "t", "D"), ("2026-06-03", "u", "U"), (None, "t", "R")])  # fmt: skip
    publish(lake, {"t": 1})
    texts = Page(report(tmp_path)).texts
    assert texts[texts.index("d.t") :][7:11] == ["3", "2", "0", "1"]


def test_report_of_an_empty_lake_and_an_unknown_feed(lake: TestLake, tmp_path: Path) -> None:
    texts = Page(report(tmp_path)).texts
    assert "nothing" in texts and any("the source cannot be used" in text for text in texts)
    out = tmp_path / "r.html"
    assert call("report", "--feed", "nosuch", "--out", str(out)).exit_code == 2 and not out.exists()
