"""The feed's own tables, as the next run finds them."""

import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.lakes import TestLake, rewrite
from tests.lake import ID, LATER, NOON, runs, segment, stored, text


@pytest.mark.parametrize("said", ['{"removed": 1, "later": 2}', "{", "7"])
def test_count_of_removed_events_in_another_form_is_refused(lake: TestLake, said: str) -> None:
    lake.lake.ensure_namespace(f"cdc_{lake.name}")
    events = f"cdc_{lake.name}", "events"
    lake.lake.catalog.create_table(events, pa.schema({"op": pa.string()}), properties={"cdc.superseded": said})
    with pytest.raises(StoredFormError, match=r"property cdc\.superseded of the events of feed .* cannot be read"):
        own.removal_of(lake.lake, lake.name)


CASES = Path(__file__).parent / "cases"


# --- Segments ---

A, B, C = (segment(f"d/t/1/CDC00000{number}.json", file_index=number) for number in (1, 2, 3))
FULL = segment(
    "d b/订'单/7/2026-06-01/CDC_12_000009.json", batch=4, state="decoded",
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
        rows = seen.select(pc.field("batch") > 0)
        assert sorted(rows, key=lambda row: row.batch) == [done[0], second, done[1], full]
        assert seen.undecoded("file") == {2: [second]} and seen.batch == 3
    again = replace(A, batch=4, etag="changed", replaces='[[1, 5, "e"]]')
    run.land([again])
    for seen in (run, segments()):
        assert seen.find([A.segment, "d/t/1/another"]) == {A.segment: again}
        assert seen.rows.num_rows == 4 and seen.undecoded("file") == {2: [second], 4: [again]}


def replayed(first: int, *batches: int, **fields: Any) -> own.segments.Segment:
    """`A` in its first batch, and decoded again in others, each after a commit with the snapshot 100 + batch."""
    row = replace(A, batch=first, **fields)
    for batch in batches:
        appended = own.segments.Appended(batch - 1, frozenset(), 100 + batch)
        row = own.segments.replayed_segment(replace(row, state="decoded"), batch, appended, NOON)
    return row


def gaps(**numbers: tuple[int, ...]) -> dict[str, tuple[Any, ...]]:
    """The missing numbers, by the place of a file: `VERSION_DISPATCHER`."""
    rows = [
        segment(f"d/t/{version[1:]}/{dispatcher}-{index}", file_index=index, dispatcher=dispatcher or None)
        for place, indexes in numbers.items()
        for version, _, dispatcher in [place.partition("_")]
        for index in indexes
    ]
    found = own.segments.index_gaps(own.segments.as_rows(rows))
    return {str(gap): (gap.missing, gap.table, gap.table_version) for gap in found}


def holding(*tables: str) -> list[str]:
    offsets = replace(A, segment="offsets", kind="offsets", database=None, table=None)
    rows = own.segments.as_rows([A, segment("d/u/1/CDC000001.json"), offsets])
    may_hold = own.segments.may_hold(own.TableName("d", table) for table in tables)
    return rows.filter(may_hold)["segment"].to_pylist()


@pytest.mark.parametrize("case", read_cases(CASES / "segments.txt"), ids=str)
def test_rows_of_segments_answer(case: Case, update: bool) -> None:
    names = ("Appended", "applied_content", "contents_of", "has_other_content", "earlier_state")
    known = {name: getattr(own.segments, name) for name in names}
    known |= {"gaps": gaps, "holding": holding, "replayed": replayed, "replace": replace}
    case.compare(evaluated(case, known), update=update)


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


@pytest.mark.parametrize("case", read_cases(CASES / "quarantine.txt"), ids=str)
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
    assert quarantine().rows == [discarded] and quarantine().open() == []
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


# --- Cuts, and the history of schemas ---

HOUR = datetime.timedelta(hours=1)


class Cuts:
    """Each step is another run's."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.run = directory, runs(own.Checkpoints, directory)

    def hours(self, count: int) -> datetime.datetime:
        return NOON + count * HOUR

    def row(self, table: str, rows: int = 1, snapshot: int | None = 2**62, *, hours: int = 0) -> own.CutRow:
        return own.CutRow(0, "d", table, snapshot, rows, self.hours(hours))

    def publish(self, at: int, *rows: own.CutRow, **cut: Any) -> None:
        run = self.run()
        run.publish(own.Cut(at, **cut), [replace(row, checkpoint_ts=at) for row in rows])
        assert (run.last(), shown_cuts(run)) == (self.run().last(), self.cuts())

    def cuts(self) -> str:
        return shown_cuts(self.run())

    def rewrite(self) -> str:
        rewrite(stored(self._directory, "checkpoints"))
        return self.snapshots()

    def snapshots(self) -> str:
        table = stored(self._directory, "checkpoints")
        return f"{len(table.snapshots())} snapshots, {len(table.metadata.metadata_log)} commits"

    def lose_files(self) -> None:
        for file in self._directory.rglob("*.parquet"):
            file.unlink()


def shown_cuts(run: own.Checkpoints) -> str:
    rows = {at: sorted(run.rows(at), key=lambda row: row.table) for at in (10, 20, 30)}
    cuts = {at: [(row.table, row.row_count, row.snapshot_id) for row in of] for at, of in rows.items()}
    assert [at for at, rows in cuts.items() if rows] == run.published()
    return repr(cuts).replace(str(2**62), "2**62")


class Histories:
    def __init__(self, directory: Path) -> None:
        self._directory, self._run = directory, runs(own.SchemaHistory, directory)
        self.columns, self.replace = [ID, *map(text, "xyz")], replace

    def record(self, *changes: own.SchemaChange, late: bool = False) -> list[str]:
        run = self._run()
        made, again = run.record(changes, LATER if late else NOON), self._run()
        assert again.history.versions == run.history.versions and again.changes == run.changes
        return [f"{version.commit_ts} {version.effect}" for version in made]

    def lives(self) -> Iterator[str]:
        for id, life in self._run().history.incarnations().items():
            of_life = ((v.name, v.commit_ts, v.effect, [column.name for column in v.columns]) for v in life.versions)
            yield f"{id}: {', '.join(' '.join(map(str, version)) for version in of_life)}"

    def rows(self, *columns: str) -> Iterator[str]:
        """What people see; of a change whether it is stored, of times by how many hours they are late."""
        table = stored(self._directory, "schema_history")
        for row in [] if table is None else sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["number"]):
            row |= {"change": row["change"] is not None, "applied_at": (row["applied_at"] - NOON) // HOUR}
            row["repeats"] = Counter(each["change"] for each in row["repeats"] or ())
            yield "; ".join(str(row[name]) for name in ("number", *columns))


@pytest.mark.slow
@pytest.mark.parametrize("case", read_cases(*(CASES / f"{name}.txt" for name in ("cuts", "history"))), ids=str)
def test_cuts_and_histories_after_steps(tmp_path: Path, case: Case, update: bool) -> None:
    play, results = {"cuts": Cuts, "history": Histories}[case.file.stem](tmp_path), list[str]()
    names = vars(base) | {name: getattr(play, name) for name in dir(play) if not name.startswith("_")}
    for line in case.own:
        try:
            found = eval(line, names)
        except FileNotFoundError:
            found = "FileNotFoundError"
        results += [] if found is None else [str(found)] if not isinstance(found, Iterator) else list(found)
    case.compare(results, update=update)


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


def test_frontier_is_as_written_and_stale_write_refused(tmp_path: Path) -> None:
    frontiers = runs(own.Frontiers, tmp_path)
    assert frontiers().last() is None
    for frontier in (FRONTIER, replace(FRONTIER, oldest_date=None, unclear=True), replace(FRONTIER, tables=())):
        slow = frontiers()
        slow.last()
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
