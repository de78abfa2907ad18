"""The end of a file that was cut off is resolved where a later file proves it, and nowhere else. Needs no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.sink_files import resolve_redelivered
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, Table, canal_json
from tests.kit.lakes import TestLake
from tests.lake import CREATE, ID, LATER, NOON, change
from tests.pipeline import DAY, lake_in

ROWS = Table(TableName("d", "a"), 10, (ID,))


def messages(ats: Sequence[int]) -> bytes:
    changes = (SampleRowChange("INSERT", ROWS, 100 + at, {"id": str(at)}) for at in ats)
    return "".join(canal_json(each, DAY) + LINE_END for each in changes).encode()


def path_of(name: str) -> str:
    """`2` is a file's number, `9/06-02/1` also its version and date."""
    version, date, number = ["10", "06-01", name] if "/" not in name else name.split("/")
    return f"d/a/{version}/2026-{date}/CDC00000{number}.json"


CUT = path_of("1")
PART = messages([6]).partition(b'"_tidb"')[0]


@dataclass
class Files:
    """Data files of `a` that have been decoded, with the counts that they gave."""

    lake: TestLake

    def file(self, name: str, ats: Sequence[int], part: bytes = b"", **more: Any) -> None:
        """Rows, and after them the part of one."""
        path, content = path_of(name), messages(ats) + part
        place = self.lake.sink / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        run = self.lake.run()
        (listed,) = [each for each in run.store.list() if getattr(each, "path", "") == path]
        _, _, version, date, name = path.split("/")
        segment = Segment(
            segment=path, kind="file", database="d", table="a", table_version=int(version), feed_date=date,
            file_index=int(name[-8:-5]), size=len(content), etag=getattr(listed, "etag", None), batch=1,
            state="decoded", landed_at=NOON, modified_at=NOON, events=len(ats), quarantined=1 if part else 0,
            min_commit_ts=100 + min(ats, default=0), max_commit_ts=100 + max(ats, default=0),
        )  # fmt: skip
        run.segments.land([replace(segment, **more)])
        if part:
            self.quarantine(Rejected(path, len(ats) + 1, "NotJson", "it is bad", part, "d", "a"))

    def quarantine(self, *rows: Rejected, replaced: bool = False) -> None:
        self.lake.run().quarantine.replace(lambda _: replaced, rows, LATER)

    def resolved(self) -> str:
        """The states of all rows, by segment, and whether the table is held."""
        run = self.lake.run()
        resolve_redelivered(run)
        states = [row.state for row in sorted(self.lake.run().quarantine.rows, key=lambda row: row.segment)]
        run = self.lake.run()
        held = run.holds(run.history.history.incarnations(), 200)
        return " ".join([*states, *(["held"] if held else [])])

    def messages(self) -> list[str]:
        return [row.message for row in self.lake.run().quarantine.rows]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(lake_in(tmp_path))
    files.lake.run().history.record([change(10, "a", CREATE)], NOON)
    files.file("1", [4, 5], PART)
    assert files.resolved() == "open held"
    return files


ALL, SEVENTH = range(3, 8), {"dispatcher": "7", "modified_at": LATER}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ([], ""),
        # It ends with the last whole row, has other rows, or leaves the row out that was cut.
        ([("2", [2, 3, 4, 5], {})], ""),
        ([("2", [4, 6, 7, 8], {})], ""),
        ([("2", [4, 5, 60000, 60001], {})], ""),
        ([("10/05-31/1", ALL, {})], ""),
        ([("9/06-01/1", ALL, {})], ""),
        ([("2", ALL, {"physical_partition": 7})], ""),
        ([("2", ALL, {"state": "landed"})], ""),
        ([("2", ALL, {"part": b"{}\r\n"})], ""),
        ([("2", ALL, {"etag": "it has changed since"})], ""),
        ([("2", ALL, {}), ("1", [4, 5], {"quarantined": 2})], ""),
        # A dispatcher that is no later, and files of two.
        ([("2", ALL, {"dispatcher": "7"})], ""),
        ([("2", [4], SEVENTH), ("3", [5, 6, 7], {**SEVENTH, "dispatcher": "8"})], ""),
        ([("2", [4], {}), ("3", [6, 7], {})], ""),
        # A later number, date, version or dispatcher; the restart can end its files at other rows.
        ([("2", ALL, {})], "2"),
        ([("10/06-02/1", ALL, {})], "10/06-02/1"),
        ([("20/06-01/1", ALL, {})], "20/06-01/1"),
        ([("2", ALL, SEVENTH)], "2"),
        ([("2", [3, 4], {}), ("3", [5, 6, 7], {})], "2 3"),
    ],
)  # fmt: skip
def test_cut_is_proved_by_its_rows_in_later_files(
    files: Files, later: list[tuple[str, Sequence[int], dict[str, Any]]], said: str
) -> None:
    """Otherwise it holds its table."""
    for name, ats, more in later:
        if (name, said) == ("3", "2 3"):
            assert files.resolved() == "open held"
        files.file(name, ats, **more)
    states = files.resolved().split()
    if not said:
        assert (states[0], states[-1]) == ("open", "held")
        return
    assert states[0] == "redelivered"
    verb = "has" if len(said.split()) == 1 else "have"
    names = " and ".join(map(path_of, said.split()))
    assert files.messages() == [f"it is bad. The file was cut off: {names} {verb} its rows again, and more"]
    before = files.lake.metadata()
    assert files.resolved().split() == states and files.lake.metadata() == before


def test_second_cut_is_open_until_its_rows_come_too(files: Files) -> None:
    files.file("2", [4, 5, 6, 7], messages([8])[:40])
    assert files.resolved() == "redelivered open held"
    files.file("3", [4, 5, 6, 7, 8, 9])
    assert files.resolved() == "redelivered redelivered"


def test_line_found_again_is_open_until_proved_anew(files: Files) -> None:
    files.file("2", [4, 5, 6, 7])
    assert files.resolved() == "redelivered"
    (files.lake.sink / path_of("2")).unlink()
    files.quarantine(Rejected(CUT, 3, "NotJson", "it is bad", PART, "d", "a"), replaced=True)
    assert files.resolved() == "open held"
    files.quarantine(replaced=True)
    assert files.resolved() == "replayed"
