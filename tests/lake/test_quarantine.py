"""Nothing is dropped without a row, and each thing is one open row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.quarantine import Quarantine, Quarantined
from tests.lake import LATER, NOON, runs, stored

Runs = Callable[[], Quarantine]


def bad(segment: str, line: int | None = None, error_class: str = "BadLine", raw: bytes | None = None) -> Rejected:
    return Rejected(segment, line, error_class, "it's bad", raw, "d", "t")


def nothing(_: Quarantined) -> bool:
    return False


def everything(_: Quarantined) -> bool:
    return True


@pytest.fixture
def quarantine(tmp_path: Path) -> Runs:
    return runs(Quarantine, tmp_path)


def states(quarantine: Quarantine) -> list[tuple[str, int | None, str]]:
    return sorted((row.segment, row.line, row.state) for row in quarantine.rows)


def test_nothing_found_makes_no_table(quarantine: Runs, tmp_path: Path) -> None:
    run = quarantine()
    run.replace(everything, [], NOON)
    assert run.open() == []
    assert stored(tmp_path, "quarantine") is None


@pytest.mark.parametrize("raw", [None, b"", b"\x00\xff\xfe{", b"x" * 65536])
def test_a_row_is_there_as_it_was_found(quarantine: Runs, raw: bytes | None) -> None:
    quarantine().replace(nothing, [bad("s/'%\n", 3, raw=raw)], NOON)
    assert quarantine().rows == [Quarantined("s/'%\n", 3, "d", "t", "BadLine", "it's bad", raw, "open", NOON)]


def test_what_is_open_keeps_its_row(quarantine: Runs) -> None:
    quarantine().replace(nothing, [bad("s", 1), bad("s", 1), bad("s", None)], NOON)
    again = replace(bad("s", 1), message="said otherwise")
    quarantine().replace(everything, [bad("s", None), again, bad("s", 2), bad("s", 1, "Other")], LATER)
    rows = {(row.segment, row.line, row.error_class): (row.message, row.quarantined_at) for row in quarantine().open()}
    old, new = ("it's bad", NOON), ("it's bad", LATER)
    assert rows == {
        ("s", 1, "BadLine"): old, ("s", None, "BadLine"): old, ("s", 2, "BadLine"): new, ("s", 1, "Other"): new,
    }  # fmt: skip


def test_other_content_or_another_count_is_another_thing(quarantine: Runs) -> None:
    quarantine().replace(nothing, [bad("s", 1, raw=b"a"), replace(bad("s", 2), count=5)], NOON)
    assert quarantine().count() == 6
    quarantine().replace(everything, [bad("s", 1, raw=b"b"), replace(bad("s", 2), count=7)], LATER)
    assert [(row.raw, row.count, row.state) for row in quarantine().rows] == [
        (b"a", 1, "replayed"), (None, 5, "replayed"), (b"b", 1, "open"), (None, 7, "open"),
    ]  # fmt: skip


def test_open_rows_of_the_scope_are_resolved_and_all_rows_are_kept(quarantine: Runs) -> None:
    run = quarantine()
    run.replace(nothing, [bad("a", 1), bad("a", 2), bad("b", 1)], NOON)
    run.replace(lambda row: row.segment == "a", [bad("a", 2)], LATER)
    for seen in (run, quarantine()):
        assert states(seen) == [("a", 1, "replayed"), ("a", 2, "open"), ("b", 1, "open")]
        assert [row.resolved_at for row in seen.rows] == [LATER, None, None]


def test_a_replacement_is_one_commit_and_none_where_nothing_changes(quarantine: Runs, tmp_path: Path) -> None:
    def commits() -> int:
        return len(stored(tmp_path, "quarantine").metadata.snapshots)

    quarantine().replace(nothing, [bad("a", 1)], NOON)
    before = commits()
    quarantine().replace(everything, [bad("a", 1)], LATER)
    assert commits() == before
    quarantine().replace(everything, [bad("a", 2)], LATER)
    assert states(quarantine()) == [("a", 1, "replayed"), ("a", 2, "open")]


def test_what_was_mended_and_is_bad_again_is_a_new_row(quarantine: Runs) -> None:
    quarantine().replace(nothing, [bad("a", 1)], NOON)
    quarantine().replace(everything, [], LATER)
    quarantine().replace(nothing, [bad("a", 1)], LATER)
    assert states(quarantine()) == [("a", 1, "open"), ("a", 1, "replayed")]
