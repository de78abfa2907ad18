"""Nothing is dropped without a row, and each thing is one open row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.quarantine import SCHEMA, Quarantine, Quarantined
from cdc_lakehouse.lake.tables.small_table import SmallTable
from tests.kit.lakes import lake_config
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


# --- What a person gave up ---


def discard_all(quarantine: Quarantine) -> None:
    done = quarantine.discard({row.id for row in quarantine.open()}, "ann", "test data", LATER)
    assert all((row.state, row.resolved_at) == ("discarded", LATER) for row in done)


def test_an_id_is_of_a_thing_at_its_place_whatever_is_said_of_it(quarantine: Runs) -> None:
    rows = [bad("s", 1), bad("s", 1, raw=b"a"), bad("s", 1, raw=b"b"), bad("s", 2), bad("t", 1), bad("s", 1, "Other")]
    rows += [bad("s"), replace(bad("s", 1), count=2)]
    quarantine().replace(nothing, rows, NOON)
    ids = {row.id for row in quarantine().rows}
    assert len(ids) == len(rows) and all(len(id) == 12 for id in ids)
    quarantine().replace(everything, [], LATER)
    quarantine().replace(nothing, [replace(row, message="said otherwise") for row in rows], LATER)
    assert {row.id for row in quarantine().open()} == ids
    # In lists and scripts of people: it must not change with a release.
    assert Quarantined("s", 1, "d", "t", "BadLine", "m", b"a", "open", NOON).id == "3a2827c09e5c"


def test_what_is_discarded_says_by_whom_when_and_why_and_is_not_open(quarantine: Runs) -> None:
    quarantine().replace(nothing, [bad("a", 1), bad("a", 2), replace(bad("b"), count=5)], NOON)
    run = quarantine()
    (given_up,) = run.discard([run.rows[0].id], "ann", "test data", LATER)
    for seen in (run, quarantine()):
        (row,) = seen.discarded()
        assert row == given_up
        assert (row.discarded_by, row.discard_reason, row.resolved_at) == ("ann", "test data", LATER)
        assert (seen.count(), seen.count("discarded"), len(seen.unresolved())) == (6, 1, 3)


def test_the_same_fault_in_the_same_bytes_stays_discarded_and_other_bytes_are_open(quarantine: Runs) -> None:
    found = [bad("a", 1, raw=b"x"), bad("a", 2, raw=b"y"), bad("b")]
    quarantine().replace(nothing, found, NOON)
    discard_all(quarantine())
    again = [replace(row, message="said otherwise") for row in found]
    quarantine().replace(everything, again, LATER)
    assert states(quarantine()) == [("a", 1, "discarded"), ("a", 2, "discarded"), ("b", None, "discarded")]
    quarantine().replace(everything, [bad("a", 1, raw=b"other"), *found[1:]], LATER)
    (row,) = quarantine().open()
    assert (row.line, row.raw) == (1, b"other")


def test_a_discarded_thing_that_is_found_no_more_was_used_after_all(quarantine: Runs) -> None:
    quarantine().replace(nothing, [bad("a", 1)], NOON)
    discard_all(quarantine())
    quarantine().replace(everything, [], LATER)
    (row,) = quarantine().rows
    assert (row.state, row.discarded_by) == ("replayed", "ann")


def test_only_open_rows_are_discarded_and_only_discarded_ones_are_opened_again(
    quarantine: Runs, tmp_path: Path
) -> None:
    quarantine().replace(nothing, [bad("a", 1), bad("a", 2)], NOON)
    quarantine().replace(lambda row: row.line == 2, [], LATER)
    run = quarantine()
    mended, ids = run.rows[1].id, {row.id for row in run.rows}
    before = len(stored(tmp_path, "quarantine").metadata.snapshots)
    assert run.discard({mended, "unknown"}, "ann", "why", LATER) == [] and run.reopen(ids) == []
    assert len(stored(tmp_path, "quarantine").metadata.snapshots) == before
    discard_all(run)
    (opened,) = run.reopen(ids)
    assert opened == Quarantined("a", 1, "d", "t", "BadLine", "it's bad", None, "open", NOON)
    assert states(quarantine()) == [("a", 1, "open"), ("a", 2, "replayed")]


def test_a_decision_is_on_top_of_what_was_read(quarantine: Runs) -> None:
    quarantine().replace(nothing, [bad("a", 1)], NOON)
    person, run = quarantine(), quarantine()
    assert person.open() and run.open()
    discard_all(person)
    with pytest.raises(ConcurrentRunError, match="another run has written to"):
        run.replace(everything, [bad("a", 2)], LATER)
    late, run = quarantine(), quarantine()
    late.rows  # noqa: B018 - It is read before the run writes.
    run.replace(everything, [bad("a", 2)], LATER)
    with pytest.raises(ConcurrentRunError, match="another run has written to"):
        late.reopen({row.id for row in late.rows})


def test_a_table_of_an_earlier_release_is_read_and_gets_the_columns(quarantine: Runs, tmp_path: Path) -> None:
    old = pa.schema([field for field in SCHEMA if not field.name.startswith("discard")])
    row = Quarantined("a", 1, "d", "t", "BadLine", "m", b"x", "open", NOON)
    rows = [row, replace(row, line=2, state="discarded", resolved_at=NOON)]
    columns = [{name: getattr(each, name) for name in old.names} for each in rows]
    SmallTable(Lake(lake_config(tmp_path)), "f", "quarantine", old).write(pa.Table.from_pylist(columns, old))
    assert quarantine().rows == rows
    # What was discarded by hand then is so by the rule of now.
    quarantine().replace(everything, [bad("a", 1, raw=b"x"), bad("a", 2, raw=b"x")], LATER)
    discard_all(quarantine())
    assert [(row.state, row.discarded_by) for row in sorted(quarantine().rows, key=lambda row: row.line or 0)] == [
        ("discarded", "ann"), ("discarded", None),
    ]  # fmt: skip
