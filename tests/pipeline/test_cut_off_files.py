"""The end of a file that was cut off is resolved where a later file proves it, and nowhere else. Needs no JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.sink_files import resolve_redelivered
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, Table, canal_json
from tests.kit.lakes import TestLake
from tests.lake import CREATE, ID, LATER, NOON, change
from tests.pipeline import DAY, lake_in

A = change(10, "a", CREATE)
ROWS = Table(TableName("d", "a"), 10, (ID,))
CUT, AGAIN = (f"d/a/10/2026-06-01/CDC00000{index}.json" for index in (1, 2))


def messages(ats: Sequence[int]) -> bytes:
    changes = (SampleRowChange("INSERT", ROWS, 100 + at, {"id": str(at)}) for at in ats)
    return "".join(canal_json(each, DAY) + LINE_END for each in changes).encode()


@dataclass
class Files:
    """Data files of `a` that have been decoded, with the counts that they gave."""

    lake: TestLake

    def file(self, path: str, ats: Sequence[int], part: bytes = b"", **more: Any) -> None:
        """Rows, and after them the part of one."""
        content = messages(ats) + part
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
            row = Rejected(path, len(ats) + 1, "NotJson", "it is bad", part, "d", "a")
            run.quarantine.replace(lambda _: False, [row], NOON)

    def resolved(self) -> list[str]:
        """The states of all rows, by segment."""
        run = self.lake.run()
        resolve_redelivered(run)
        return [row.state for row in sorted(self.lake.run().quarantine.rows, key=lambda row: row.segment)]

    def is_held(self) -> bool:
        run = self.lake.run()
        return bool(find_holds(run, run.history.history.incarnations(), 200).reasons)


PART = messages([6]).partition(b'"_tidb"')[0]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(lake_in(tmp_path))
    files.lake.run().history.record([A], NOON)
    files.file(CUT, [4, 5], PART)
    assert files.is_held()
    return files


THIRD = "d/a/10/2026-06-01/CDC000003.json"


def missing_between(files: Files) -> None:
    files.file(AGAIN, [4])
    files.file(THIRD, [6, 7])


def of_two_dispatchers(files: Files) -> None:
    files.file(AGAIN, [4], dispatcher="7", modified_at=LATER)
    files.file(THIRD, [5, 6, 7], dispatcher="8", modified_at=LATER)


def mended(files: Files) -> None:
    files.file(AGAIN, [3, 4, 5, 6, 7])
    (files.lake.sink / AGAIN).write_bytes(b"other content")


def two_bad_lines(files: Files) -> None:
    files.file(AGAIN, [3, 4, 5, 6, 7])
    (segment,) = files.lake.run().segments.find([CUT]).values()
    files.lake.run().segments.land([replace(segment, quarantined=2)])


UNPROVED: dict[str, Callable[[Files], None]] = {
    "nothing comes": lambda files: None,
    "it ends with the last whole row": lambda files: files.file(AGAIN, [2, 3, 4, 5]),
    "other rows": lambda files: files.file(AGAIN, [4, 6, 7, 8]),
    "the row that was cut is left out": lambda files: files.file(AGAIN, [4, 5, 60000, 60001]),
    "an earlier file": lambda files: files.file("d/a/10/2026-05-31/CDC000001.json", [4, 5, 6, 7]),
    "an earlier version": lambda files: files.file("d/a/9/2026-06-01/CDC000001.json", [4, 5, 6, 7]),
    "another partition": lambda files: files.file(AGAIN, [4, 5, 6, 7], physical_partition=7),
    "not decoded": lambda files: files.file(AGAIN, [4, 5, 6, 7], state="landed"),
    "with a bad line": lambda files: files.file(AGAIN, [4, 5, 6, 7], b"{}\r\n"),
    "another dispatcher, no later": lambda files: files.file(AGAIN, [4, 5, 6, 7], dispatcher="7"),
    "it has changed since": mended,
    "a row is missing between two files": missing_between,
    "files of two dispatchers": of_two_dispatchers,
    "more bad lines than one": two_bad_lines,
}


@pytest.mark.parametrize("case", UNPROVED)
def test_cut_that_is_not_proved_holds_its_table(files: Files, case: str) -> None:
    UNPROVED[case](files)
    assert files.resolved()[0] == "open" and files.is_held()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (AGAIN, {}),
        ("d/a/10/2026-06-02/CDC000001.json", {}),
        ("d/a/20/2026-06-01/CDC000001.json", {}),
        (AGAIN, {"dispatcher": "7", "modified_at": LATER}),
    ],
)
def test_cut_is_proved_by_later_number_date_or_version(files: Files, path: str, more: dict[str, Any]) -> None:
    files.file(path, [3, 4, 5, 6, 7], **more)
    assert files.resolved() == ["redelivered"]
    (row,) = files.lake.run().quarantine.rows
    assert row.message == f"it is bad. The file was cut off: {path} has its rows again, and more"
    before = files.lake.metadata()
    assert files.resolved() == ["redelivered"] and files.lake.metadata() == before


def test_cut_is_proved_by_rows_over_two_files(files: Files) -> None:
    """The restart ends its files at other rows."""
    files.file(AGAIN, [3, 4])
    assert files.resolved() == ["open"] and files.is_held()
    files.file(THIRD, [5, 6, 7])
    assert files.resolved() == ["redelivered"] and not files.is_held()
    (row,) = files.lake.run().quarantine.rows
    assert f"{AGAIN} and {THIRD} have its rows again" in row.message


def test_second_cut_is_open_until_its_rows_come_too(files: Files) -> None:
    files.file(AGAIN, [4, 5, 6, 7], messages([8])[:40])
    assert files.resolved() == ["redelivered", "open"] and files.is_held()
    files.file(THIRD, [4, 5, 6, 7, 8, 9])
    assert files.resolved() == ["redelivered", "redelivered"] and not files.is_held()


def test_line_found_again_is_open_until_proved_anew(files: Files) -> None:
    files.file(AGAIN, [4, 5, 6, 7])
    assert files.resolved() == ["redelivered"]
    (files.lake.sink / AGAIN).unlink()
    row = Rejected(CUT, 3, "NotJson", "it is bad", PART, "d", "a")
    files.lake.run().quarantine.replace(lambda _: True, [row], LATER)
    assert files.resolved() == ["open"]
    files.lake.run().quarantine.replace(lambda _: True, [], LATER)
    assert files.resolved() == ["replayed"]
