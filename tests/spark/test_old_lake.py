"""The next run on a lake that older code made is right, whatever has become of the stored form since.

    pytest tests/spark/test_old_lake.py

`tests/spark/old_lake.py` has what the lake holds: each feed was stopped by a kill in the middle of a run."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.pipeline.steps import Steps
from tests.canal_captures import capture
from tests.canal_truth import check_tables
from tests.kit.data_sets import apply_stage
from tests.kit.hand_sinks import HandSink, row
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth
from tests.sources.canal.captured import CapturedCanal
from tests.sources.canal.servers import serving
from tests.spark import old_lake
from tests.spark.old_lake import EXCHANGE, EXCHANGED, OldLake, put

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> OldLake:
    root = tmp_path_factory.mktemp("old") / "lake"
    root.mkdir()
    old_lake.unpack(root)
    return OldLake(root, spark)


def run_twice(feed: TestLake) -> Steps:
    """A run with news, and one without: it commits nothing."""
    done = run_all(feed.run())
    before = feed.metadata()
    run_all(feed.run())
    assert feed.metadata() == before
    return done


def rows(feed: TestLake, table: str) -> list[tuple[Any, ...]]:
    found = feed.tables()["d", table].scan().to_arrow().drop(["_commit_ts"])
    return sorted(tuple(each.values()) for each in found.to_pylist())


def test_files_with_every_kind_of_statement(lake: OldLake) -> None:
    feed = lake.files()
    done = run_twice(feed)
    held = set(done.applied.held)
    assert held == {"d.k#1", "d.b#1"}
    assert rows(feed, "p") == [(3, 31, "p21"), (4, 4, "p23"), (5, 5, "p33"), (11, 3, "p5")]
    assert rows(feed, "u") == [(1, 1, "p3"), (2, 22, "u24")]
    assert rows(feed, "t") == [(7, 100, "t11"), (7, 300, "t13")]
    assert rows(feed, "r") == [(1, 1, "q2", 7), (2, 2, "r16", 7), (3, 3, "r18", 8)]
    assert rows(feed, "g") == [(2, 2, "g28"), (3, 3, "g34")]
    assert rows(feed, "b") == [(1, 1, "b2")]
    assert set(feed.tables()) == {("d", name) for name in "putrgb"}

    # The statements of the history go on from the versions that were stored; so do the rows that a DDL moved.
    sink = HandSink(feed.sink)
    sink.schema("p", 40, *old_lake.COLUMNS, action=EXCHANGED, query=EXCHANGE)
    sink.schema("u", 40, *old_lake.COLUMNS)
    put(sink, "p", 40, ("I", 41, "12", "12"))
    put(sink, "t", 10, ("U", 42, "8", "100"), index=2)
    sink.rows("d/r", 17, row("U", "r", 43, "1", "1", '"r43"', "9"), index=2)
    put(sink, "b", 1, ("I", 25, "2", "2"), index=2)
    put(sink, "b", 1, ("I", 29, "3", "3"), index=3)
    sink.checkpoint(50)
    assert set(run_twice(feed).applied.held) == {"d.k#1"}
    assert rows(feed, "p") == [(1, 1, "p3"), (2, 22, "u24"), (11, 3, "p5"), (12, 12, "p41")]
    assert rows(feed, "u") == [(3, 31, "p21"), (4, 4, "p23"), (5, 5, "p33")]
    assert rows(feed, "t") == [(7, 300, "t13"), (8, 100, "t42")]
    assert rows(feed, "r") == [(1, 1, "r43", 9), (2, 2, "r16", 7), (3, 3, "r18", 8)]
    assert rows(feed, "b") == [(1, 1, "b2"), (2, 2, "b25"), (3, 3, "b29")]
    assert [row["state"] for row in feed.machinery("quarantine") if row["segment"].startswith("d/b/")] == ["replayed"]


def check(feed: TestLake, truth: Truth, stage: int) -> None:
    tables = truth.tables(stage)
    feed.check(tables, except_for={name for name, table in tables.items() if not table["key"]})


@pytest.mark.parametrize(("name", "restored"), [("random_3", True), ("random_5", False)])
def test_a_data_set_goes_on(name: str, restored: bool, lake: OldLake, data_sets: Path, tmp_path: Path) -> None:
    """Also where the lake is brought back from a backup: the next run takes up where that ends."""
    truth = Truth(data_sets / "canal-json" / name)
    feed = lake.data_set(truth)
    run_twice(feed)
    check(feed, truth, old_lake.STOPPED[name])
    if restored:
        back_up(lake.root, tmp_path)
    apply_stage(truth.dataset, len(truth.stages) - 1, feed.sink)

    def go_on() -> None:
        run_twice(feed)
        check(feed, truth, len(truth.stages) - 1)
        assert feed.events_by_segment() == truth.events_by_segment(len(truth.stages) - 1)

    go_on()
    if restored:
        before = feed.metadata()
        restore(lake.root, tmp_path)
        assert feed.metadata() != before
        go_on()


def back_up(root: Path, kept: Path) -> None:
    """Catalog and warehouse, at one moment."""
    shutil.copytree(root / "warehouse", kept / "warehouse")
    copy_catalog(root, kept)


def restore(root: Path, kept: Path) -> None:
    shutil.rmtree(root / "warehouse")
    shutil.copytree(kept / "warehouse", root / "warehouse")
    copy_catalog(kept, root)


def copy_catalog(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source / "catalog.db")) as read,
        contextlib.closing(sqlite3.connect(target / "catalog.db")) as written,
    ):
        read.backup(written)


def test_a_canal_server_goes_on(lake: OldLake) -> None:
    of = capture(old_lake.CAPTURE)
    server = CapturedCanal(of, acked=old_lake.CAPTURE_STOPPED)
    with serving(server) as address:
        done = run_twice(lake.binlog(address))
    check_tables(lake.binlog(address), done, old_lake.CAPTURE, of)
    records = sorted(lake.binlog(address).machinery("records"), key=lambda row: row["offset"])
    assert [row["value"] for row in records] == of.entries
