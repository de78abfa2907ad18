"""Landing of a Canal server's entries: each once and in order, whatever ends when. No JVM."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.pipeline import canal
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests import LONG
from tests.kit.kills import KillAtCall, KillAtCommit
from tests.kit.lakes import TestLake
from tests.pipeline import lake_in
from tests.sources.canal.servers import Binlog, HandMadeCanal, binlog_of, binlogs, closed_port, number_of, serving

KILLS = [
    None,
    *(KillAtCommit(number) for number in (1, 2, 3, 4, 5)),
    *(KillAtCall(CanalClient, "ack", number, after) for number in (1, 3) for after in (False, True)),
]


def canal_lake(directory: Path, address: str, **source: Any) -> TestLake:
    told = {"type": "canal", "addresses": [address], "destination": "example", "batch_size": 3, **source}
    return lake_in(directory, source=told, start_date="2020-01-01")


def numbers(lake: TestLake) -> list[int]:
    records = sorted(lake.machinery("records"), key=lambda row: row["offset"])
    assert [row["offset"] for row in records] == list(range(len(records)))
    return [number_of(row["value"]) for row in records]


steps = st.fixed_dictionaries({
    "entries": st.integers(0, 25),
    "cuts": st.lists(st.integers(0, 900), max_size=3),
    "kill": st.sampled_from(KILLS),
    "back": st.integers(-3, 6),
    "ring": st.sampled_from([3, 8, 1000]),
})  # fmt: skip


@pytest.mark.slow
def test_each_entry_lands_once_and_in_order() -> None:
    kills: Counter[bool] = Counter()

    # What fails is not made smaller: each example is many commits.
    @settings(max_examples=100 if LONG else 10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(binlogs, st.lists(steps, min_size=1, max_size=5))
    def lands(log: Binlog, steps: list[dict[str, Any]]) -> None:
        kills.update(landed_in_steps(log, steps))

    lands()
    assert kills[True] > 4, "the others are of landings that have less to do"


def landed_in_steps(log: Binlog, steps: list[dict[str, Any]]) -> Iterator[bool]:
    """Tells of each kill whether it happened."""
    server = HandMadeCanal([])
    entries, there = list(log.entries), 0
    with tempfile.TemporaryDirectory() as directory, serving(server) as address:
        lake = canal_lake(Path(directory), address)
        for step in [*steps, {"entries": len(entries), "cuts": [], "kill": None, "back": -1, "ring": 5}]:
            if step["back"] >= 0:
                # It is started again, and does not know what was acknowledged last.
                server.acked = [start for start in log.starts if start <= server.acked][-1 - step["back"] :][0]
                entries[server.acked :] = map(log.told_anew, entries[server.acked :])
            there += step["entries"]
            server.entries, server.ring = entries[:there], step["ring"]
            server.cut(*step["cuts"])
            if step["kill"] is None:
                lake.run().source.land()
            else:
                with step["kill"](lake) as killed:
                    lake.run().source.land()
                yield killed.happened
        assert server.acked == len(entries)
        assert numbers(lake) == list(range(len(entries)))
        segments = lake.machinery("segments")
        assert sum(row["size"] for row in segments) == sum(row["size"] for row in lake.machinery("records"))
        before = lake.metadata()
        lake.run().source.land()
        assert lake.metadata() == before


LOG = binlog_of([{"kind": "mysql", "rows": 40, "seconds": 1, "rotated": False}] * 3)


@pytest.mark.parametrize("get", range(1, 6))
def test_entries_land_in_order_beside_another_client(tmp_path: Path, get: int) -> None:
    """It takes some after the run has connected, between two batches, or before the run asks whether there is more."""
    server = HandMadeCanal(list(LOG.entries[:20]), others={get}, ring=5)
    with serving(server) as address:
        lake = canal_lake(tmp_path, address)
        lake.run().source.land()
    assert server.heard[wire.GET] >= get and numbers(lake) == list(range(20)) and server.acked == 20


@pytest.mark.parametrize(("bounds", "most"), [({"max_entries": 20}, 23), ({"max_bytes": 1500}, 40)])
def test_a_run_takes_no_more_than_its_bounds(tmp_path: Path, bounds: dict[str, int], most: int) -> None:
    server = HandMadeCanal(list(LOG.entries))
    with serving(server) as address:
        lake = canal_lake(tmp_path, address, **bounds)
        for _ in range(2):
            before = server.acked
            lake.run().source.land()
            assert 0 < server.acked - before <= most < len(LOG.entries)
    assert numbers(lake) == list(range(server.acked))


def test_a_run_ends_in_time_where_the_source_never_rests(tmp_path: Path) -> None:
    """Its entries are those of before the run, as far as clocks go, and there are always more."""
    server = HandMadeCanal(
        list(binlog_of([{"kind": "ddl", "rows": 1, "seconds": 0, "rotated": False}] * 30_000).entries)
    )
    with serving(server) as address:
        lake = canal_lake(tmp_path, address, max_seconds=1, batch_size=1)
        lake.run().source.land()
    assert 0 < server.acked < len(server.entries) and numbers(lake) == list(range(server.acked))


def test_a_server_that_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = canal_lake(tmp_path, closed_port())
    monkeypatch.setattr(canal, "_PATIENCE_SECONDS", 0.1)
    with pytest.raises(SourceUnreachableError, match="cannot be reached"):
        lake.run().source.land()
    assert lake.metadata() == {}


@pytest.mark.parametrize("kind", ["ddl", "mysql", "mariadb", "compressed"])
def test_entries_of_a_stuck_server_land_once_and_are_reported(tmp_path: Path, kind: str) -> None:
    """It connects to its database again and again, and each time sends the last event that it could read."""
    shape = {"kind": kind, "rows": 2, "seconds": 1, "rotated": False}
    log = binlog_of([shape, shape])
    last = list(log.entries[log.starts[-1] :])
    server = HandMadeCanal([*log.entries, *last, *last])
    with serving(server) as address:
        lake = canal_lake(tmp_path, address)
        assert lake.run().source.land().faults == ()
        for _ in range(5):
            assert numbers(lake) == list(range(len(log.entries)))
            server.entries += last
            landed = lake.run().source.land()
        assert numbers(lake) == list(range(len(log.entries))) and not landed.new
        (fault,) = landed.faults
        assert "stuck after bin.000001:" in fault and "tsdb" in fault
        status = FeedRun(lake.feed, lake.lake).source.status()
        assert str(status.error) == fault and status.landed_entries == len(log.entries)
        before = lake.metadata()
        server.entries += last
        lake.run().source.land()
        assert lake.metadata() == before
        server.entries += binlog_of([shape, shape, shape]).entries[len(log.entries) :]
        assert lake.run().source.land().faults == ()
