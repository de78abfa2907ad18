"""Whatever place of the binlog a dump is of, exactly what is before it has at most the commit-ts of the place."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.canal_records import EntryRecords, commit_ts_of, find_binlog_position
from cdc_lakehouse.sources.canal.client import Round
from cdc_lakehouse.sources.canal.positions import BinlogPosition, BinlogSearch, placed
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.canal_captures import capture
from tests.kit.lakes import lake_config

FEED = FeedConfig.model_validate({
    "name": "shop", "start_date": "2020-01-01",
    "source": {"type": "canal", "addresses": ["canal-1:11111"], "destination": "example"},
})  # fmt: skip


class Landed:
    """The first entries of a captured session, in batches of so many."""

    def __init__(self, root: Path, count: int, size: int = 50) -> None:
        self.lake = Lake(lake_config(root))
        self.entries = capture("mysql8.0.12").entries[:count]
        self.commit_ts: list[list[int]] = []
        self.seeds: dict[int, int] = {}
        last = 0
        for number, start in enumerate(range(0, count, size), start=1):
            batch = self.entries[start : start + size]
            EntryRecords(self.lake, FEED, number).append(Round(1, tuple(map(placed, batch)), ()))
            self.seeds[number] = last
            found = [list(commit_ts_of(batch[: end + 1], last)) for end in range(len(batch))]
            for before, after in itertools.pairwise([[], *found]):
                self.commit_ts.append(after[len(before) :])
            last = found[-1][-1] if found[-1] else last

    def find(self, position: BinlogPosition) -> BinlogSearch:
        return find_binlog_position(self.lake, "shop", "example", position, self.seeds.__getitem__)

    def headers(self) -> list[wire.Header]:
        return [wire.Entry.FromString(entry).header for entry in self.entries]


def at(header: wire.Header, further: int = 0) -> BinlogPosition:
    return BinlogPosition.of(header.logfile_name, header.logfile_offset + further)


def test_what_is_before_a_place_has_at_most_its_commit_ts(tmp_path: Path) -> None:
    landed = Landed(tmp_path, 120)
    for number, header in list(enumerate(landed.headers()))[1::17]:
        found = landed.find(at(header))
        before = [each for told in landed.commit_ts[:number] for each in told]
        behind = [each for told in landed.commit_ts[number:] for each in told]
        assert found.reached and found.covered and found.commit_ts is not None
        assert max(before, default=0) <= found.commit_ts < min(behind)
        between = landed.find(at(header, -1))
        assert (found.commit_ts, found.values) == (between.commit_ts, between.values), "between two entries"


def test_a_place_that_the_log_has_not_reached(tmp_path: Path) -> None:
    landed = Landed(tmp_path, 120)
    last = landed.headers()[-1]
    found = landed.find(at(last, 100_000))
    assert (found.reached, found.commit_ts, found.last) == (False, None, at(last))


def test_the_end_of_a_transaction_is_reached_with_it(tmp_path: Path) -> None:
    entries = [wire.Entry.FromString(entry) for entry in capture("mysql8.0.12").entries[:120]]
    count = next(n for n, entry in enumerate(entries, start=1) if entry.entry_type == wire.TRANSACTION_END and n > 20)
    landed, header = Landed(tmp_path, count), entries[count - 1].header
    found = landed.find(at(header, header.event_length))
    assert found.reached and found.commit_ts == max(each for told in landed.commit_ts for each in told)
    assert not landed.find(at(header, header.event_length + 1)).reached


def test_a_log_that_begins_behind_the_place(tmp_path: Path) -> None:
    landed = Landed(tmp_path, 60)
    first = landed.headers()[0]
    found = landed.find(at(first, -1))
    assert (found.covered, found.first) == (False, at(first))
    assert found.commit_ts == min(each for told in landed.commit_ts for each in told) - 1
    assert landed.find(at(first)).covered


def test_the_binlog_of_another_server(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="these are not files of one binlog"):
        Landed(tmp_path, 20).find(BinlogPosition.of("other-bin.000001", 4))
    with pytest.raises(SourceError, match="it does not end in a number"):
        BinlogPosition.of("binlog", 4)


def test_entry_without_a_time_is_sought_in_no_file_of_others(tmp_path: Path) -> None:
    landed = Landed(tmp_path, 120)
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    untimed = wire.Entry.FromString(landed.entries[60])
    untimed.header.ClearField("execute_time")
    again = Round(1, (placed(untimed.SerializeToString()),), ())
    assert [EntryRecords(landed.lake, FEED, number).append(again) for number in (4, 5)] == [1, 0]
