"""Nothing is dropped without a row, and each thing is one open row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.quarantine import Quarantine, Quarantined
from tests.kit.lakes import lake_config
from tests.lake import LATER, NOON


def bad(segment: str, line: int | None = None, error_class: str = "BadLine", raw: bytes | None = None) -> Quarantined:
    return Quarantined(segment, line, "d", "t", error_class, "it's bad", raw, "open", NOON)


@pytest.fixture
def quarantine(tmp_path: Path) -> Callable[[], Quarantine]:
    return lambda: Quarantine(Lake(lake_config(tmp_path)), "f")


def test_nothing_found_makes_no_table(quarantine: Callable[[], Quarantine]) -> None:
    run = quarantine()
    assert (run.add([]), run.resolve(lambda _: True, "replayed", NOON), run.open()) == (0, 0, [])


@pytest.mark.parametrize("raw", [None, b"", b"\x00\xff\xfe{", b"x" * 65536])
def test_a_row_is_there_as_it_was_found(quarantine: Callable[[], Quarantine], raw: bytes | None) -> None:
    quarantine().add([bad("s/'%\n", 3, raw=raw)])
    assert quarantine().rows == [bad("s/'%\n", 3, raw=raw)]


def test_what_is_open_is_not_added_again(quarantine: Callable[[], Quarantine]) -> None:
    run = quarantine()
    assert run.add([bad("s", 1), bad("s", 1), bad("s", None)]) == 2
    assert quarantine().add([bad("s", None), bad("s", 1), bad("s", 2), bad("s", 1, "Other")]) == 2
    identities = {(row.segment, row.line, row.error_class) for row in quarantine().open()}
    assert identities == {("s", 1, "BadLine"), ("s", None, "BadLine"), ("s", 2, "BadLine"), ("s", 1, "Other")}


def test_a_row_that_stands_for_others_counts_them_and_is_told_again_when_they_are_more(
    quarantine: Callable[[], Quarantine],
) -> None:
    run = quarantine()
    assert run.add([bad("s", 1), replace(bad("s", 2), count=5)]) == 2
    assert quarantine().count() == 6
    assert quarantine().add([bad("s", 1), replace(bad("s", 2), count=5)]) == 0
    assert quarantine().add([replace(bad("s", 1), count=3)]) == 1


def test_resolving_takes_the_open_rows_that_match_and_keeps_all_rows(quarantine: Callable[[], Quarantine]) -> None:
    run = quarantine()
    run.add([bad("a", 1), bad("a", 2), bad("b", 1)])
    assert run.resolve(lambda row: row.segment == "a", "replayed", LATER) == 2
    assert run.resolve(lambda row: row.segment == "a", "discarded", LATER) == 0
    for seen in (run, quarantine()):
        states = {(row.segment, row.line): (row.state, row.resolved_at) for row in seen.rows}
        assert states == {("a", 1): ("replayed", LATER), ("a", 2): ("replayed", LATER), ("b", 1): ("open", None)}
        assert [row.segment for row in seen.open()] == ["b"]


def test_what_was_mended_and_is_bad_again_is_a_new_row(quarantine: Callable[[], Quarantine]) -> None:
    quarantine().add([bad("a", 1)])
    quarantine().resolve(lambda _: True, "replayed", LATER)
    assert quarantine().add([bad("a", 1)]) == 1
    assert sorted(row.state for row in quarantine().rows) == ["open", "replayed"]
