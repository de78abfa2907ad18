"""A feed of a Canal server, with sessions that were captured, through the whole pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import dagster as dg
import pytest

from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.lake.record_commits import RecordCommits
from cdc_lakehouse.pipeline.steps import run_all
from cdc_lakehouse.sources.canal.client import CanalClient
from tests.canal_captures import SOURCES, capture
from tests.canal_truth import check_tables
from tests.crashes import CrashPoint
from tests.lakes import TestLake
from tests.sources.canal.captured import CapturedCanal
from tests.sources.canal.servers import serving

pytestmark = pytest.mark.spark

LANDING: tuple[tuple[type, str], ...] = ((RecordCommits, "commit"), (CanalClient, "ack"))


def canal_lake(new_lake: Callable[..., TestLake], address: str, **source: object) -> TestLake:
    told = {"type": "canal", "addresses": [address], "destination": "example", **source}
    return new_lake(source=told, start_date="2020-01-01")


@pytest.mark.parametrize("source", SOURCES)
def test_tables_are_as_the_server_shows_them(source: str, new_lake: Callable[..., TestLake]) -> None:
    of = capture(source)
    server = CapturedCanal(of, ring=5)
    with serving(server) as address:
        lake = canal_lake(new_lake, address)
        # In several runs: nothing that one has found may be lost to the next.
        step = 1 + server.batches // 4
        for end in range(step, server.batches + step, step):
            server.end = end
            done = run_all(lake.run())
            assert server.acked == min(end, server.batches)
        before = lake.metadata()
        done = run_all(lake.run())
        assert lake.metadata() == before
    check_tables(lake, done, source, of)
    damage = lake.run().signals.damage()
    assert {table.table: set(columns) for table, columns in damage.items()} == {"t_all": {"c_latin", "c_gbk"}}
    (result,) = [check() for check in build_checks(lake.lake, lake.feed, []) if _TEXT in map(_name, check.check_keys)]
    assert not result.passed and result.severity == dg.AssetCheckSeverity.WARN
    assert "`cdc.t_all`: `c_gbk` in" in str(result.metadata["where"].value)
    records = sorted(lake.machinery("records"), key=lambda row: row["offset"])
    assert [row["offset"] for row in records] == list(range(len(of.entries)))
    assert [row["value"] for row in records] == of.entries


_TEXT = "text_undamaged"


def _name(key: dg.AssetCheckKey) -> str:
    return key.name


def test_a_kill_after_any_commit_or_acknowledgement_changes_nothing(new_lake: Callable[..., TestLake]) -> None:
    of = capture("mysql8.0.12")
    server = CapturedCanal(of, ring=8)
    with serving(server) as address:
        lake = canal_lake(new_lake, address)
        for number, end in zip(itertools.count(1), [*[18] * 8, *[server.batches] * 100], strict=False):
            server.end = end
            with CrashPoint(number, after=bool(number % 2), also=LANDING)() as happened:
                run_all(lake.run())
            if not happened.is_set():
                break
        done = run_all(lake.run())
    check_tables(lake, done, "mysql8.0.12", of)
    records = sorted(lake.machinery("records"), key=lambda row: row["offset"])
    assert [row["value"] for row in records] == of.entries
    events = [(event["segment"], event["line"], event["commit_ts"]) for event in lake.machinery("events")]
    assert len(set(events)) == len(events)
