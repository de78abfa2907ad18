"""The feed's own tables, as the next run finds them."""

from __future__ import annotations

import datetime
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.history import History, LogEntry, schema_changes
from cdc_lakehouse.decoders.topic_reader import PartitionSummary, origin_of
from cdc_lakehouse.errors import ConcurrentRunError, StoredFormError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.tables.source_metadata import SCHEMA, Position, Signal, Signals
from tests import lake as base
from tests.boundaries import small_tables as own
from tests.kit.case_files import Case, read_cases
from tests.kit.lakes import TestLake
from tests.kit.other_writer import rewrite
from tests.lake import ADD_COLUMN, CREATE, DROP, ID, LATER, NOON, change, runs, segment, stored, text


@pytest.mark.parametrize("said", ['{"removed": 1, "later": 2}', "{", "7"])
def test_count_of_removed_events_in_another_form_is_refused(lake: TestLake, said: str) -> None:
    lake.lake.ensure_namespace(f"cdc_{lake.name}")
    events = f"cdc_{lake.name}", "events"
    lake.lake.catalog.create_table(events, pa.schema({"op": pa.string()}), properties={"cdc.superseded": said})
    with pytest.raises(StoredFormError, match=r"property cdc\.superseded of the events of feed .* cannot be read"):
        own.removal_of(lake.lake, lake.name)


# --- Segments ---

A, B, C = (segment(f"d/t/1/CDC00000{number}.json", file_index=number) for number in (1, 2, 3))
FULL = segment(
    "d b/订'单/7/2026-06-01/CDC_12_000009.json", 4, "decoded",
    physical_partition=77, feed_date="2026-06-01", dispatcher="12", file_index=9, decoded_at=LATER,
    events=6, inserts=3, updates=2, deletes=1, quarantined=0, min_commit_ts=2**62, max_commit_ts=2**63 - 1,
    replaces='[[3, 9223372036854775807, "e"]]',
)  # fmt: skip


def test_segments_through_their_states(tmp_path: Path) -> None:
    segments = runs(own.segments.Segments, tmp_path)
    run = segments()
    assert (run.rows.num_rows, run.batch, run.undecoded("file"), run.etags(["a"])) == (0, 0, {}, [None])
    second, third, full = replace(C, batch=2), replace(B, batch=3), replace(FULL, batch=3)
    for landed in ([second], [third, full], [A]):
        run.land(landed)
    assert list(segments().undecoded("file").items()) == [(1, [A]), (2, [second]), (3, [third])]
    done = [replace(each, state="decoded", decoded_at=LATER, events=1) for each in (A, third)]
    run.mark_decoded(done[:1])
    run.mark_decoded([done[1], full])
    for seen in (run, segments()):
        rows = own.segments.as_segments(seen.rows)
        assert sorted(rows, key=lambda row: row.batch) == [done[0], second, done[1], full]
        assert seen.undecoded("file") == {2: [second]} and seen.batch == 3
    again = replace(A, batch=4, etag="changed", replaces='[[1, 5, "e"]]')
    run.land([again])
    for seen in (run, segments()):
        assert seen.find([A.segment, "d/t/1/another"]) == {A.segment: again}
        assert seen.rows.num_rows == 4 and seen.undecoded("file") == {2: [second], 4: [again]}


def test_segments_of_tables_include_those_of_any_table(tmp_path: Path) -> None:
    segments = runs(own.segments.Segments, tmp_path)
    run = segments()
    offsets = own.segments.Segment(
        segment="x/0/1", kind="offsets", size=1, batch=1, state="landed", landed_at=NOON, record_batch=1
    )
    run.land([A, segment("d/u/1/CDC000001.json"), offsets])
    assert run.select(own.segments.may_hold([own.TableName("d", "t")])) == [A, offsets]
    assert run.select(own.segments.may_hold([])) == [offsets]


def test_gaps_are_of_a_directory_and_dispatcher() -> None:
    numbers = {("d/t/1", None): (1, 2), ("d/t/2", None): (2,), ("d/t/3/2026-06-01", "8"): (1,),
               ("d/t/3/2026-06-01", "9"): (2, 4)}  # fmt: skip
    rows = [
        segment(f"{path}/{dispatcher}-{index}", file_index=index, dispatcher=dispatcher)
        for (path, dispatcher), indexes in numbers.items()
        for index in indexes
    ]
    gaps = own.segments.index_gaps(own.segments.as_rows(rows))
    assert {str(gap): gap.missing for gap in gaps} == {"d/t/2": (1,), "d/t/3/2026-06-01 (dispatcher 9)": (1, 3)}
    assert [(gap.table, gap.table_version) for gap in gaps] == [("t", 2), ("t", 3)]


def replayed(row: own.segments.Segment, *batches: int) -> own.segments.Segment:
    for batch in batches:
        appended = own.segments.Appended(batch - 1, frozenset(), 100 + batch)
        row = own.segments.replayed_segment(replace(row, state="decoded"), batch, appended, NOON)
    return row


def test_content_is_found_by_applied_batch() -> None:
    twice = replayed(replace(A, batch=3), 5, 9)
    assert own.segments.contents_of(twice.replaces) == [(3, 105), (5, 109)]
    assert [own.segments.applied_content(twice, batch) for batch in (2, 3, 4, 5, 8)] == [None, 105, 105, 109, 109]
    # What landed and is in no commit has left nothing; who applied a commit that is not marked is not known.
    unmarked, marked = (own.segments.Appended(n, frozenset({done}), 90) for n, done in ((8, 7), (9, 9)))
    assert own.segments.replaced_contents(replace(twice, state="landed"), unmarked) == twice.replaces
    thrice = own.segments.replaced_contents(twice, marked)
    assert own.segments.contents_of(thrice) == [(3, 105), (5, 109), (9, 90)]
    assert own.segments.replaced_contents(A, own.segments.Appended()) == "[]"
    often = replayed(replace(A, batch=1), *range(2, 20))
    assert len(own.segments.contents_of(often.replaces)) == 8, "the oldest are not kept"
    assert [own.segments.applied_content(often, batch) for batch in (0, 1, 11, 12, 18)] == [None, 0, 0, 113, 119]


def test_other_content_is_known_however_often_it_lands() -> None:
    row = replayed(replace(A, batch=1), *range(2, 20))
    assert not own.segments.has_other_content(row)
    row = replace(row, etag="other")
    for batch in range(20, 40):
        assert own.segments.has_other_content(row) and not own.segments.has_other_content(replace(row, kind="dump"))
        row = replayed(row, batch)


# --- Quarantine ---


def bad(thing: str, message: str = "it's bad") -> own.Rejected:
    """`a1=x*5!Other`: line 1 of segment `a` with the bytes `x`, five times, of another class of errors."""
    place, _, error_class = thing.partition("!")
    place, _, count = place.partition("*")
    place, equals, raw = place.partition("=")
    line = int(place[1:]) if place[1:] else None
    found = own.Rejected(place[0], line, error_class or "BadLine", message, raw.encode() if equals else None, "d", "t")
    return replace(found, count=int(count or 1))


def shown(row: own.Quarantined) -> str:
    raw = "" if row.raw is None else f"={row.raw.decode()}"
    count = "" if row.count == 1 else f"*{row.count}"
    error_class = "" if row.error_class == "BadLine" else f"!{row.error_class}"
    return f"{row.segment}{'' if row.line is None else row.line}{raw}{count}{error_class} {row.state}"


def step(run: own.Quarantine, what: str) -> None:
    """What is found of all segments (`-`: nothing), `in a:` of one; or what a person decides of all that is there."""
    if what in ("discard", "reopen"):
        ids = {row.id for row in run.rows}
        _ = run.discard(ids, "ann", "test data", LATER) if what == "discard" else run.reopen(ids)
        return
    scope, _, things = what.rpartition(": ")
    run.replace(
        lambda row: scope in ("", f"in {row.segment}"), [bad(each) for each in things.removeprefix("-").split()], LATER
    )


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/quarantine.txt"), ids=str)
def test_quarantine_after_steps(tmp_path: Path, case: Case, update: bool) -> None:
    quarantine, states = runs(own.Quarantine, tmp_path), list[str]()
    for what in case.own:
        before, commits = states, commits_of(tmp_path)
        run = quarantine()
        step(run, what)
        states = sorted(map(shown, run.rows))
        assert sorted(map(shown, quarantine().rows)) == states
        assert commits_of(tmp_path) - commits == (states != before), "one commit, none where nothing changes"
    case.compare(states, update=update)


def commits_of(directory: Path) -> int:
    table = stored(directory, "quarantine")
    return 0 if table is None else len(table.metadata.snapshots)


@pytest.mark.parametrize("raw", [None, b"", b"\x00\xff\xfe{", b"x" * 65536])
def test_quarantined_row_keeps_bytes_and_first_message(tmp_path: Path, raw: bytes | None) -> None:
    quarantine = runs(own.Quarantine, tmp_path)
    found = replace(bad("s3"), segment="s/'%\n", raw=raw)
    quarantine().replace(lambda _: False, [found], NOON)
    quarantine().replace(lambda _: True, [replace(found, message="said otherwise")], LATER)
    row = own.Quarantined("s/'%\n", 3, "BadLine", "it's bad", raw, "d", "t", state="open", quarantined_at=NOON)
    assert quarantine().rows == [row]
    (discarded,) = quarantine().discard({row.id, "unknown"}, "ann", "test data", LATER)
    assert quarantine().discarded() == [discarded] and quarantine().open() == []
    decision = {"discarded_by": "ann", "discard_reason": "test data", "resolved_at": LATER}
    assert discarded == replace(row, state="discarded", **decision)
    assert (quarantine().count(), quarantine().count("discarded"), quarantine().unresolved()) == (0, 1, [discarded])
    assert quarantine().reopen({row.id}) == [row] == quarantine().rows
    quarantine().replace(lambda _: True, [], LATER)
    assert quarantine().rows == [replace(row, state="replayed", resolved_at=LATER)]


def test_quarantine_ids_stay_with_place_and_bytes(tmp_path: Path) -> None:
    quarantine = runs(own.Quarantine, tmp_path)
    things = ["s1", "s1=a", "s1=b", "s2", "t1", "s1!Other", "s", "s1*2"]
    quarantine().replace(lambda _: False, [bad(each) for each in things], NOON)
    ids = {row.id for row in quarantine().rows}
    assert len(ids) == len(things) and all(len(id) == 12 for id in ids) and quarantine().count() == 9
    quarantine().replace(lambda _: True, [], LATER)
    quarantine().replace(lambda _: False, [bad(each, "said otherwise") for each in things], LATER)
    assert {row.id for row in quarantine().open()} == ids
    # Ids are in lists and scripts of people: they must not change with a release.
    assert own.Quarantined("s", 1, "BadLine", "m", b"a", state="open", quarantined_at=NOON).id == "3a2827c09e5c"


# --- Cuts ---

HOUR = datetime.timedelta(hours=1)


def row(checkpoint_ts: int, table: str, rows: int = 1) -> own.CutRow:
    return own.CutRow(checkpoint_ts, "d", table, 2**62, rows, NOON)


def cut_rows(run: own.Checkpoints, checkpoint_ts: int) -> list[own.CutRow]:
    return sorted(run.rows(checkpoint_ts), key=lambda row: row.table)


def test_cuts_replace_those_of_their_checkpoint(tmp_path: Path) -> None:
    checkpoints = runs(own.Checkpoints, tmp_path)
    run = checkpoints()
    run.publish(own.Cut(10), [row(10, "a"), row(10, "b")])
    empty = own.CutRow(20, "d", "t", None, 0, LATER)  # A table that never had a row has no snapshot.
    run.publish(own.Cut(20, batch=1, held=(("x", "y"),)), [row(20, "a", 5), empty])
    assert cut_rows(checkpoints(), 20) == [row(20, "a", 5), empty]
    run.publish(own.Cut(20, batch=2), [row(20, "a", 7), row(20, "b", 8)])
    # Made, and three cuts: readers of the current snapshot never see a cut half replaced.
    assert len(stored(tmp_path, "checkpoints").metadata.metadata_log) == 3
    for seen in (run, checkpoints()):
        assert seen.last() == own.Cut(20, batch=2)
        assert cut_rows(seen, 10) == [row(10, "a"), row(10, "b")]
        assert cut_rows(seen, 20) == [row(20, "a", 7), row(20, "b", 8)]
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    assert checkpoints().last() == own.Cut(20, batch=2), "the newest cut needs no data file"
    with pytest.raises(FileNotFoundError):
        checkpoints().rows(10)


def test_newest_cut_is_found_after_another_writers_rewrite(tmp_path: Path) -> None:
    checkpoints = runs(own.Checkpoints, tmp_path)
    cut = own.Cut(20, 3, 2, "s", (("d.t#1", "it's held"),))
    checkpoints().publish(own.Cut(10), [row(10, "a")])
    checkpoints().publish(cut, [row(20, "a")])
    rewrite(stored(tmp_path, "checkpoints"))
    assert len(stored(tmp_path, "checkpoints").snapshots()) == 1
    assert checkpoints().last() == cut and checkpoints().published() == [10, 20]
    checkpoints().publish(replace(cut, held=()), [row(20, "a", 5), row(20, "t")])
    assert cut_rows(checkpoints(), 20) == [row(20, "a", 5), row(20, "t")]


def test_old_cuts_are_forgotten_but_newest_and_held_tables(tmp_path: Path) -> None:
    checkpoints = runs(own.Checkpoints, tmp_path)

    def publish(ts: int, *rows: own.CutRow) -> None:
        checkpoints().publish(own.Cut(ts, batch=ts, settings="s", held=(("h", "why"),)), rows)

    publish(10, own.CutRow(10, "d", "t", 1, 5, NOON), own.CutRow(10, "d", "held", 2, 5, NOON))
    publish(20, own.CutRow(20, "d", "t", 3, 5, NOON + HOUR))
    publish(30, own.CutRow(30, "d", "t", 4, 6, NOON + 2 * HOUR))
    now = checkpoints()
    assert now.named_snapshots(NOON + HOUR) == {2, 3, 4}
    assert now.forget(NOON + HOUR, dry_run=True) == 1
    last = now.last()
    assert now.forget(NOON + 9 * HOUR) == 2
    now = checkpoints()
    assert now.last() == last
    assert [[row.snapshot_id for row in now.rows(ts)] for ts in (10, 20, 30)] == [[2], [], [4]]
    assert not now.show_instead("d", "t", {3: 9})
    assert now.show_instead("d", "t", {4: 9})
    now = checkpoints()
    assert now.last() == last and now.rows(30) == [own.CutRow(30, "d", "t", 9, 6, NOON + 2 * HOUR)]
    assert now.forget(NOON + 9 * HOUR) == 0


# --- The history of schemas ---

STORY = [
    change(10, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)"),
    change(20, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x")),
    change(30, "b", base.RENAME, "RENAME TABLE d.a TO d.b", ID, text("x")),
    change(40, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)"),
    change(50, "b", base.TRUNCATE, "TRUNCATE TABLE b", ID, text("x")),
    change(60, "a", DROP, "DROP TABLE a"),
    change(70, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY, y VARCHAR(20))", ID, text("y")),
]
INCARNATIONS = {
    "d.a#1": [("d.a", 10, "create", ["id"]), ("d.a", 20, "evolve", ["id", "x"]), ("d.b", 30, "move", ["id", "x"]),
              ("d.b", 50, "empty", ["id", "x"])],
    "d.a#2": [("d.a", 40, "create", ["id"]), ("d.a", 60, "drop", ["id"])],
    "d.a#3": [("d.a", 70, "create", ["id", "y"])],
}  # fmt: skip


def incarnations(history: own.SchemaHistory) -> dict[str, list[tuple[str, int, str, list[str]]]]:
    return {
        id: [(str(v.name), v.commit_ts, v.effect, [column.name for column in v.columns]) for v in life.versions]
        for id, life in history.history.incarnations().items()
    }


def history_rows(directory: Path) -> list[dict[str, Any]]:
    rows = stored(directory, "schema_history").scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["number"])


def test_schema_history_is_read_as_recorded(tmp_path: Path) -> None:
    history = runs(own.SchemaHistory, tmp_path)
    assert history().record([], NOON) == [] and stored(tmp_path, "schema_history") is None
    first = history()
    made = first.record(STORY, NOON)
    assert [version.commit_ts for version in made] == [10, 20, 30, 40, 50, 60, 70]
    assert incarnations(first) == incarnations(history()) == INCARNATIONS
    assert history().history.versions == first.history.versions == made
    assert history().changes.keys() == {each.origin for each in STORY}
    renamed = history_rows(tmp_path)[2]
    shown = renamed["statement"], renamed["effect"], renamed["previous_table"], renamed["primary_key"]
    assert shown == ("RENAME TABLE d.a TO d.b", "move", "a", ["id"])
    assert renamed["columns"] == [
        {"id": 1, "name": "id", "type": "bigint", "nullable": False, "key": True, "initial_default": None},
        {"id": 2, "name": "x", "type": "varchar(20)", "nullable": True, "key": False, "initial_default": None},
    ]


def test_schema_history_restarts_without_changes_add_no_rows(tmp_path: Path) -> None:
    history = runs(own.SchemaHistory, tmp_path)
    history().record(STORY, NOON)
    before = history().history.versions
    for restart in range(100, 140):
        again = replace(change(restart, "a", 0, "", ID, text("y")), kind="columns")
        assert history().record([again], LATER) == []
    rows = history_rows(tmp_path)
    assert history().history.versions == before and len(rows) == len(STORY)
    assert {each["change"] for row in rows for each in row["repeats"]} == {None}, "a place and a time, no columns"
    assert len(history().changes) == len(STORY) + 40, "their files are not read again"
    # After a change that comes late, from before the restarts, the schema that they show is a change.
    late = change(120, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN z VARCHAR(20)", ID, text("y"), text("z"))
    made = history().record([replace(late, commit_ts=119, origin="late")], LATER)
    assert [version.commit_ts for version in made] == [119]
    assert [each.commit_ts for each in history().history.versions][-2:] == [119, 120]


def test_late_change_keeps_times_of_applied_ones(tmp_path: Path) -> None:
    history = runs(own.SchemaHistory, tmp_path)
    history().record([STORY[0], *STORY[2:]], NOON)
    made = history().record([STORY[1]], LATER)
    assert [(version.commit_ts, version.effect) for version in made] == [(20, "evolve")]
    applied = {row["origin"]: row["applied_at"] for row in history_rows(tmp_path)}
    assert applied == {each.origin: LATER if each is STORY[1] else NOON for each in STORY}


def test_change_of_several_tables_is_stored_once(tmp_path: Path) -> None:
    history = runs(own.SchemaHistory, tmp_path)
    gone = change(20, "", base.DROP_DATABASE, "DROP DATABASE d")
    history().record([change(10, "a", CREATE), change(11, "b", CREATE), gone], NOON)
    rows = [row for row in history_rows(tmp_path) if row["origin"] == gone.origin]
    assert [(row["table"], row["change"] is not None) for row in rows] == [("", True), ("a", False), ("b", False)]
    assert {life.dropped_ts for life in history().history.incarnations().values()} == {20}


# --- The frontier ---

FRONTIER = own.Frontier(
    (
        own.KnownTable("d b/订'单", 2**40, 2**62, True, ("7", "7/77"), (
            own.FileSequence("7/77/2026-06-01", "12", 9, "CDC_12_9", "CDC_12_8", "e", "f"),
            own.FileSequence("7/77/2026-06-02", None, 1, "CDC1", "", "e", None),
        )),
        own.KnownTable("d/empty", 0, 0, False, (), ()),
    ),
    "2026-05-30",
    "digest",
    NOON,
)  # fmt: skip


@pytest.mark.parametrize(
    "frontier", [FRONTIER, replace(FRONTIER, oldest_date=None, unclear=True), replace(FRONTIER, tables=())]
)
def test_frontier_is_as_written_and_stale_write_refused(tmp_path: Path, frontier: own.Frontier) -> None:
    frontiers = runs(own.Frontiers, tmp_path)
    assert frontiers().last() is None
    frontiers().write(FRONTIER)
    slow = frontiers()
    assert slow.last() == FRONTIER
    frontiers().write(frontier)
    assert frontiers().last() == frontier
    with pytest.raises(ConcurrentRunError):
        slow.write(FRONTIER)


SHAPES = {
    "a": (("id", "int"), ("a", "int")),
    "ab": (("id", "int"), ("a", "int"), ("b", "int")),
    "a as text": (("id", "int"), ("a", "varchar")),
}
BEFORE = {("x", n): (34, 34 + n) for n in range(4)}
STATEMENTS = ("ALTER TABLE t ADD b INT", "ALTER TABLE t DROP b", "DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)")


def observed(ts: int, shape: str) -> LogEntry:
    return LogEntry(ts, "d", "t", origin_of("x", 0, ts, ts), columns=SHAPES[shape], key=("id",))


def finds(*log: LogEntry) -> PartitionSummary:
    """An entry's offset is its commit-ts."""
    return PartitionSummary(
        0,
        0,
        statements=[(entry.commit_ts, entry) for entry in log if entry.text is not None],
        observed={n: (entry.commit_ts, entry) for n, entry in enumerate(log) if entry.text is None},
    )


def statement(ts: int, text: str) -> LogEntry:
    return LogEntry(ts, "d", "t", origin_of("x", 0, ts, ts), text)


def test_signals_many_batches_leave_one_position_a_partition(lake: TestLake) -> None:
    """A run makes objects of what is news, not of each batch before it; without news of the batches before the first
    that can be decoded again, a position of each partition is left."""
    for batch in range(1, 36):
        told = {
            ("x", n, batch): replace(finds(observed(10, "a")), last_ts=batch, watermark=batch + n) for n in range(4)
        }
        Signals(lake.lake, lake.name).write(batch, told)
    signals = Signals(lake.lake, lake.name)
    assert [row.kind for row in signals.rows] == ["columns"] and len(signals.position_rows) == 140
    assert signals.positions_before(35) == BEFORE and signals.last_ts(35) == 34
    signals.summarize(35)
    assert len(signals.position_rows) == 8 and len(lake.machinery("signals")) == 9
    again = Signals(lake.lake, lake.name)
    assert (again.positions(), again.positions_before(35)) == (signals.positions(), BEFORE)
    stored = lake.lake.load(system_table(lake.name, "signals"))
    assert stored is not None and len(stored.metadata.snapshots) <= 30 and len(list(stored.scan().plan_files())) <= 16


TOLD = st.lists(st.sampled_from([*SHAPES, *STATEMENTS]), min_size=1, max_size=12)


@given(TOLD, st.randoms(use_true_random=False))
def test_what_is_left_out_changes_no_schema(told: list[str], rng: Any) -> None:
    """In any number of batches and partitions, each with a part of the log."""
    log = [observed(ts, each) if each in SHAPES else statement(ts, each) for ts, each in enumerate(told, 10)]
    signals = Signals.__new__(Signals)
    signals._table, signals._stored = _NoTable(), SCHEMA.empty_table()  # type: ignore[assignment]
    cuts = sorted(rng.randrange(len(log) + 1) for _ in range(3))
    for batch, (first, end) in enumerate(zip([0, *cuts], [*cuts, len(log)], strict=True), 1):
        parts: list[list[Any]] = [[], []]
        for each in log[first:end]:
            parts[rng.randrange(2)].append(each)
        signals.write(batch, {("x", number, batch): finds(*part) for number, part in enumerate(parts)})
    assert made(signals.schema_signals()) == made(log)


class _NoTable:
    def write(self, *_: Any, **__: Any) -> None:
        pass


def made(told: Any) -> list[tuple[Any, ...]]:
    """Versions of the table; those that only hold it count once, for it stays held."""
    history = History()
    versions = history.apply(schema_changes(told, escapes=True))
    found = [(each.commit_ts, each.effect, each.columns) for each in versions if each.hold is None]
    held = [(each.commit_ts, each.hold) for each in versions if each.hold is not None]
    return [*found, *held[:1]]


SOME_TS = st.none() | st.integers(1, 20)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), SOME_TS, SOME_TS), max_size=12), st.integers(1, 8))
def test_positions_that_are_one_a_partition_say_what_they_said(
    rows: list[tuple[int, int, int | None, int | None]], before: int
) -> None:
    signals = Signals.__new__(Signals)
    found = {
        (n % 9, partition): Signal(n % 9, "position", "x", partition, None, ts, watermark, ended)
        for n, (partition, ts, watermark, ended) in enumerate(rows)
    }
    positions = pa.Table.from_pylist([asdict(each) for each in found.values()], SCHEMA)
    signals._table, signals._stored = _NoTable(), positions  # type: ignore[assignment]

    def said() -> list[object]:
        later = range(before, 10)
        return [signals.positions(), *((signals.last_ts(n), signals.positions_before(n)) for n in later)]

    expected, count = said(), len(signals.position_rows)
    assert signals.positions() == _positions_by_row(list(found.values()))
    outdated = signals.outdated(before)
    signals.summarize(before)
    assert said() == expected and signals.outdated(before) == 0
    assert count - outdated <= len(signals.position_rows) <= count - outdated + 2


def _positions_by_row(rows: list[Signal]) -> dict[tuple[str, int], Position]:
    found: dict[tuple[str, int], Position] = {}
    for row in sorted(rows, key=lambda row: row.batch):
        known = found.get((row.topic, row.partition), Position(0, 0, None))
        ended_ts = known.ended_ts if row.ended_ts is None else row.ended_ts
        last_ts, watermark = max(row.commit_ts, known.last_ts), max(row.watermark or 0, known.watermark)
        found[row.topic, row.partition] = Position(last_ts, watermark, ended_ts)
    return found


def test_tables_of_a_topic_with_a_rename_typed_in_another_case_are_the_source_s(lake: TestLake) -> None:
    signals = Signals(lake.lake, lake.name)
    signals.write(1, {("x", 0, 1): finds(observed(10, "a"), LogEntry(20, "d", "u", "x", "RENAME TABLE T TO u"))})
    assert signals.tables("x") == {own.TableName("d", "t")}
