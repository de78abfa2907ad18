"""A feed of a Canal server, with sessions that were captured, through the whole pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_lakehouse.pipeline.steps import run_all
from tests.canal_captures import SOURCES, capture
from tests.canal_truth import check_tables
from tests.lakes import TestLake
from tests.sources.canal.captured import CapturedCanal
from tests.sources.canal.servers import serving

pytestmark = pytest.mark.spark


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
    records = sorted(lake.machinery("records"), key=lambda row: row["offset"])
    assert [row["offset"] for row in records] == list(range(len(of.entries)))
    assert [row["value"] for row in records] == of.entries
