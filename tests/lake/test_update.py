"""Events and versions become rows: `cases/update/*.txt`, played as the driver does small work, as tasks do large work,
and in one run.

`@ table = COLUMNS`, or a line `table COLUMNS`, begins a table (`id int key, v varchar(20)`), `@ format: JSON` says how
its source writes values, `@ policy = hold` that unusable rows stop it, `@ apart: true` that one run of all differs.
Lines are events, `TS OP NAME=TEXT …` (`∅` is NULL, `TS*` an event of the feed's own), with `< NAME=TEXT …` for the row
before and `in SEGMENT`; `was` before one: what the segment had before it was decoded again. `alter TS COLUMNS` is a
version, whose `w … from v` is `v` renamed; `run` ends a run, `recompute above TS SEGMENT …` is one that reads all
events again. Results are the rows with their commit-ts, events that cannot be used, and what the last run counts.

Those of `cases/moved.txt` are the live rows' texts, as a statement moves them. Then events by the key of their row,
their images as columns, and plans of schema changes.
"""

import functools
import itertools
import json
import pickle
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, IcebergType, LongType, NestedField, PrimitiveType, StringType
from pyroaring import BitMap64

from cdc_lakehouse.lake.current.typed_rows import LakeColumn, Plan, plan_evolution
from cdc_lakehouse.lake.iceberg_java import SchemaOperation
from tests.boundaries import update as product
from tests.boundaries.update import EventReader, TableVersion, keyed_events, typed_rows, update_tasks
from tests.changelog.statements import declared, partitioned_by
from tests.kit.case_files import Case, bytes_of, read_cases
from tests.lake import written

IO: Final = PyArrowFileIO()
_COLUMN: Final = re.compile(r"(\S+) (.*?)( key)?(?: default (\S+))?(?: from (\S+))?")
_COMMAS: Final = re.compile(r", (?![^()]*\))")
_TYPES: Final[dict[Any, IcebergType]] = {pa.string(): StringType(), pa.int64(): LongType(), pa.bool_(): BooleanType()}
_CHANGES: Final = pa.schema([product.EVENTS.field(name) for name in product.CHANGE_COLUMNS])
_EVENTS: Final = Schema(*(NestedField(n, each.name, _TYPES[each.type]) for n, each in enumerate(_CHANGES, 1)))


def version_of(commit_ts: int, text: str, before: TableVersion | None = None, name: str = "t") -> TableVersion:
    """Columns keep the id that their name had."""
    known = {column.name: column for column in before.columns} if before else {}
    columns, keys = list[product.Column](), list[int]()
    for each in _COMMAS.split(text):
        name_of, kind, key, default, origin = _COLUMN.fullmatch(each).groups()  # type: ignore[union-attr]
        old, found = known.get(bytes_of(origin or name_of).decode()), declared(kind)
        id = old.id if old else max([0, *(column.id for column in (*known.values(), *columns))]) + 1
        initial = old.initial if old else bytes_of(default).decode() if default else None
        of_lake = {"initial": initial, "carried": not found.virtual}
        columns.append(product.Column(id, bytes_of(name_of).decode(), found.type, **of_lake))
        keys += [id] if key else []
    of = product.TableName("d", name)
    since = commit_ts if before else 0
    return TableVersion(commit_ts, of, "d.t#1", "alter", "evolve", "", "", tuple(columns), key=tuple(keys), since=since)


def stored_file(path: Path, schema: Schema, rows: pa.Table) -> product.StoredFile:
    told = json.loads(product.write_file(IO, str(path), schema, rows, {"write.parquet.row-group-limit": "1000"}))
    return product.StoredFile(str(path), told["file-size-in-bytes"], rows.num_rows)


def image(words: Sequence[str]) -> str | None:
    pairs = (word.partition("=")[::2] for word in words)
    return product.image_text(
        {bytes_of(name).decode(): None if text == "∅" else bytes_of(text).decode() for name, text in pairs}
    )


_LINE: Final = re.compile(r"(was )?(\d+)(\*?) ([IURD])(?: (.*?))?(?: in (\S+))?")


def event(line: str, number: int) -> tuple[bool, dict[str, Any]]:
    """Whether it was there before its segment was decoded again, and the event."""
    was, ts, synthetic, op, words, segment = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
    texts = shlex.split(words or "")
    place = texts.index("<") if "<" in texts else len(texts)
    made, old = image(texts[:place]), image(texts[place + 1 :]) if place < len(texts) else None
    return bool(was), {
        "schema_name": "d", "table_name": "t", "op": op, "commit_ts": int(ts), "before": made if op == "D" else old,
        "after": None if op == "D" else made, "segment": segment or "s", "line": number,
        product.SYNTHETIC: bool(synthetic),
    }  # fmt: skip


def task_results(
    plan: update_tasks.TableUpdate | update_tasks.FileRewrite, *blocks: keyed_events.Block
) -> list[update_tasks.UpdatedTable]:
    work = functools.partial(update_tasks.update_tables, {})
    return pickle.loads(pickle.dumps([*keyed_events.work_in_task(work, [plan], blocks)]))


@dataclass
class Play:
    """A table in a directory. What was stored is one file, `rows` by the columns of `stored_as`."""

    directory: Path
    settings: Mapping[str, Any]
    in_tasks: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    stored_as: TableVersion | None = None
    found: update_tasks.UpdatedTable | None = None
    rejections: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0

    def __post_init__(self) -> None:
        self.versions = [version_of(1, self.settings["table"])] if "table" in self.settings else []
        self.format = product.ValueFormat(**self.settings.get("format", {}))
        self.events, self.all_events, self.earlier = (list[dict[str, Any]]() for _ in range(3))

    def steps(self, lines: Sequence[str], *, at_once: bool = False) -> list[str]:
        for number, line in enumerate(lines, 1):
            word, _, rest = line.partition(" ")
            if word == "table":
                self.versions = [version_of(1, rest)]
            elif word == "alter":
                ts, _, columns = rest.partition(" ")
                self.versions.append(version_of(int(ts), columns, self.versions[-1]))
            elif word == "recompute":
                above, *segments = rest.removeprefix("above ").split()
                self.run(product.row_stage(int(above)), segments)
            elif word != "run":
                was, made = event(line, number)
                (self.earlier if was else self.events).append(made)
            elif not at_once:
                self.run()
        if self.events or not self.runs:
            self.run()
        return [*self.results(counted=not at_once)]

    def results(self, *, counted: bool) -> Iterator[str]:
        assert self.found is not None
        now = [typed_rows.lake_name(column) for column in self.versions[-1].columns]
        rows = ((", ".join(written(row[name]) for name in now), row[typed_rows.COMMIT_TS]) for row in self.rows)
        yield from sorted(f"{values} @{ts}" for values, ts in rows)
        for row in update_tasks.summarized(self.rejections):
            times = f" ×{row['count']}" if row["count"] > 1 else ""
            yield f"bad {row['segment']} {row['line']}{times} {row['after']}: {row['why']}"
        if self.is_stopped(self.found):
            yield f"stops: {self.found.failure or ('keys may be one' if self.found.collides else 'bad rows')}"
        elif counted:
            yield " ".join(["counts", *(f"{n} {name}" for name, n in self.found.counts._asdict().items() if n)])

    def is_stopped(self, found: update_tasks.UpdatedTable) -> bool:
        is_held = self.settings.get("policy") == "hold"
        return bool(found.failure or found.collides or (found.rejections and is_held))

    def schema(self, version: TableVersion) -> Schema:
        types = ((c, PrimitiveType.model_validate(self.format.type_of(c.type))) for c in version.columns)
        fields = [NestedField(c.id, typed_rows.lake_name(c), type) for c, type in types]
        return Schema(*fields, NestedField(1 << 20, typed_rows.COMMIT_TS, LongType()))

    def reader(self, events: Sequence[dict[str, Any]], *earlier: EventReader) -> EventReader:
        """Several files, as batches leave them."""
        self.runs += 1
        shares = [events[n::2] for n in (0, 1) if events[n::2]]
        files = [
            stored_file(self.directory / f"events{self.runs}-{n}", _EVENTS, pa.Table.from_pylist([*share], _CHANGES))
            for n, share in enumerate(shares)
        ]
        return EventReader(tuple(files), product.TableFiles(_EVENTS, f"file://{self.directory}"), earlier)

    def prepared(
        self, above: int | None = None, redecoded: Iterable[str] = ()
    ) -> tuple[update_tasks.TableUpdate, EventReader]:
        self.all_events += self.events
        events, self.events = (self.events if above is None else self.all_events), []
        now, stored = self.versions[-1], update_tasks.StoredTable()
        if self.stored_as is not None and self.rows:
            old, number = self.schema(self.stored_as), self.versions.index(self.stored_as)
            file = stored_file(self.directory / f"rows{self.runs}", old, pa.Table.from_pylist(self.rows))
            own = {f"c{column.id}": typed_rows.lake_name(column) for column in self.stored_as.columns}
            stored = update_tasks.StoredTable((file,), old, own, number)
        own = tuple(column for id in now.key if (column := now.column(id)))
        source = update_tasks.FeedTable(product.Incarnation("d.t#1", tuple(self.versions)), own, self.format, 0)
        update = update_tasks.TableUpdate(
            0, source, f"file://{self.directory}", self.schema(now), stored=stored, recomputed_above=above,
            redecoded=frozenset(redecoded), tells_collisions=above is None,
            skips_rejected=self.settings.get("policy") != "hold",
            spans=source.spans(0, 0, product.row_stage(1 << 40)), events=len(events),
            rewrites=bool(stored.files) and self.stored_as is not None and self.stored_as.columns != now.columns,
        )  # fmt: skip
        return update, self.reader(events, *([self.reader(self.earlier)] if above is not None and self.earlier else []))

    def run(self, above: int | None = None, redecoded: Iterable[str] = ()) -> None:
        now, (table, reader) = self.versions[-1], self.prepared(above, redecoded)
        found = self.found = (self.by_tasks if self.in_tasks else self.by_driver)(table, reader)
        self.rejections += found.rejections
        if not self.is_stopped(found):
            gone = next(iter(found.deleted.values()), ())
            left = [] if table.rewrites else [row for place, row in enumerate(self.rows) if place not in gone]
            self.rows = [*left, *self.read(found.rewritten), *self.read(found.files)]
            self.stored_as = now
        keys = [tuple(row[name] for name in now.key_names) for row in self.rows if self.stored_as == now]
        assert len({*keys}) == len(keys) or any(None in each for each in keys), keys

    def read(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """By the names that the fields have, which are not those in the file."""
        found, schema = list[dict[str, Any]](), self.schema(self.versions[-1])
        for file in files:
            rows = pq.read_table(json.loads(file)["file-path"].removeprefix("file://"))
            ids = [int(each.metadata[b"PARQUET:field_id"]) for each in rows.schema]
            found += rows.rename_columns([str(schema.find_column_name(id)) for id in ids]).to_pylist()
        return found

    def by_driver(self, table: update_tasks.TableUpdate, reader: EventReader) -> update_tasks.UpdatedTable:
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
        return update_tasks.update_in_job(lambda: session, {}, [table], reader)[0]

    def by_tasks(self, table: update_tasks.TableUpdate, reader: EventReader) -> update_tasks.UpdatedTable:
        """Two tasks: each has a share of the events where no key is in both; otherwise events come in blocks, through
        files or not. One writes existing rows again."""
        found = table.updated()
        parts = [part for share in reader.shares(2) for part in update_tasks.update_by_share({}, [table], share)]
        apart = [] if table.recomputed_above is not None else update_tasks.parts_apart({}, parts)
        for result in apart:
            found.add(pickle.loads(pickle.dumps(result)))
        blocks = list[tuple[int, keyed_events.Block]]()
        for directory, share in zip((None, str(self.directory)), reader.shares(2), strict=True):
            for keyed in keyed_events.read_keyed_events(share, table.spans, table.redecoded):
                blocks += keyed_events.divided(keyed, {0: (0, 2)}, directory)
        for task in () if apart else (0, 1):
            for result in task_results(table, *(block for number, block in blocks if number == task)):
                found.add(result)
        if table.rewrites and found.failure is None and not found.collides:
            gone = found.deleted.get(table.stored.files[0].path, BitMap64())
            for result in task_results(update_tasks.FileRewrite(table, table.stored.files[0], gone)):
                found.add(result)
        return found


@pytest.mark.parametrize("case", read_cases(*sorted(Path(__file__).parent.glob("cases/update/*.txt"))), ids=str)
def test_rows_follow_from_events_and_versions(case: Case, tmp_path: Path, update: bool) -> None:
    def played(way: str, *, in_tasks: bool = False, at_once: bool = False) -> list[str]:
        (tmp_path / way).mkdir()
        return Play(tmp_path / way, case.settings, in_tasks).steps(case.own, at_once=at_once)

    found, is_apart = played("driver"), case.settings.get("apart")
    case.compare(found, update=update)
    assert played("tasks", in_tasks=True) == found
    if not any(line.startswith("recompute") for line in case.own) and not is_apart:
        assert played("at-once", at_once=True) == [line for line in found if not line.startswith("counts")]


_INSERT: Final = re.compile(r"table .*|\d+\*? [IR] .*")
_FILE: Final[Any] = SimpleNamespace(
    context=SimpleNamespace(database="d", table="t"), segment=SimpleNamespace(segment="s")
)


def test_keys_of_a_partition_emptied_long_ago_are_computed_again(tmp_path: Path) -> None:
    scheme = partitioned_by("RANGE (p) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)")

    class Emptied(Play):
        def prepared(
            self, above: int | None = None, redecoded: Iterable[str] = ()
        ) -> tuple[update_tasks.TableUpdate, EventReader]:
            (table, reader), first = super().prepared(above, redecoded), self.versions[0]
            emptied = typed_rows.PartitionRows(scheme, ("p0",), typed_rows.Target(first.carried, (first,), self.format))
            return replace(table, emptied=(emptied,) * (len(self.versions) - 1)), reader

    play = Emptied(tmp_path, {"table": "id int key, p int, v int"})
    play.steps(["10 I id=1 p=1 v=1", "11 I id=2 p=20 v=2", "11 I id=3 p=30 v=2", "run"])
    play.steps(["alter 50 id int key, p int, v int", "60 U id=2 p=20 v=3", "run"])
    play.rows = [row for row in play.rows if row["id"] != 1]
    found = play.steps(["12 U id=1 v=5 in again", "61 U id=2 v=7 in again", "recompute above 100 again"])
    assert found[:-1] == ["2, 20, 7 @61", "3, 30, 2 @11"], found


def test_rows_typed_while_decoded_are_those_of_events(tmp_path: Path) -> None:
    """The INSERTs that cases begin with, each as a row of a dump. What is unusual is not typed."""
    typed = 0
    for number, case in enumerate(read_cases(*sorted(Path(__file__).parent.glob("cases/update/*.txt")))):
        lines = [*itertools.takewhile(_INSERT.fullmatch, case.own)]
        if not any(line[0].isdigit() for line in lines):
            continue
        (directory := tmp_path / str(number)).mkdir()
        play = Play(directory, {**case.settings, "policy": "hold"})
        play.steps(lines)
        assert play.found is not None
        if play.found.collides:
            continue  # A new table takes both rows.
        rows = play.rows
        play.rows, play.stored_as = [], None
        task = update_tasks.TypingTask({("d", "t"): replace(play.prepared()[0], tells_collisions=False)}, {}, 1000, 1)
        for made in play.all_events:
            image = typed_rows.image_of(made["after"])
            texts = {f"{product.TEXT_OF}{name}": pa.array([text], pa.string()) for name, text in image.items()}
            about = {name: pa.array([made[name]], pa.int64()) for name in ("line", "commit_ts")}
            task.add(_FILE, pa.RecordBatch.from_pydict({**about, **texts}))
        parts = task.parts()
        if sum(part.counts.rows for part in parts) == len(play.all_events) and update_tasks.parts_apart({}, parts):
            found = play.read([file for part in parts for file in part.files])
            assert sorted(map(str, found)) == sorted(map(str, rows)), case
            typed += 1
    assert typed > 20


def typed_parts(
    updates: Mapping[str, update_tasks.TableUpdate], text: str, *, room: int = 100
) -> list[update_tasks.UpdatedTable]:
    """What a task makes of rows: `a=1,2` are two of the table `a`."""
    task = update_tasks.TypingTask({("d", name): update for name, update in updates.items()}, {}, room, 1)
    for name, ids in (words.split("=") for words in text.split()):
        about = {each: pa.array([1] * len(ids.split(",")), pa.int64()) for each in ("line", "commit_ts")}
        rows = pa.RecordBatch.from_pydict({**about, f"{product.TEXT_OF}id": pa.array(ids.split(","), pa.string())})
        of_table = SimpleNamespace(context=SimpleNamespace(database="d", table=name), segment=_FILE.segment)
        task.add(of_table, rows)  # type: ignore[arg-type]
    return task.parts()


def updates_in(directory: Path) -> dict[str, update_tasks.TableUpdate]:
    play = Play(directory, {"table": "id int key", "policy": "hold"})
    made = replace(play.prepared()[0], tells_collisions=False)
    lives = {name: product.Incarnation("d.t#1", (version_of(1, "id int key", name=name),)) for name in "ab"}
    return {
        name: replace(
            made, table_no=number, table=replace(made.table, life=life), location=f"file://{directory}/{name}"
        )
        for number, (name, life) in enumerate(lives.items())
    }


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/typed.txt"), ids=str)
def test_tables_typed_whole_are_taken(case: Case, tmp_path: Path, update: bool) -> None:
    """`rows that tasks type | rows of the dump | tables as they are planned`: the results are the tables of the files
    that are left."""
    tasks, rows, planned = case.own[0].split(" | ")
    updates, plans = updates_in(tmp_path), list[update_tasks.TableUpdate]()
    typed = [(updates["ab"[part.table_no]], part) for task in tasks.split(" / ") for part in typed_parts(updates, task)]
    for number, (name, _, changed) in enumerate(words.partition("-") for words in planned.split()):
        again = pickle.loads(pickle.dumps(updates[name]))  # Who plans makes an update of its own.
        plans.append(replace(again, table_no=number, properties={"write.x": "1"} if changed else {}))
    counts = {product.TableName("d", name): int(count) for name, count in (words.split("=") for words in rows.split())}
    found = update_tasks.typed_beforehand({}, typed, plans, counts)
    left = sorted(path.relative_to(tmp_path).parts[0] for name in "ab" for path in (tmp_path / name).rglob("*.parquet"))
    assert left == sorted(each.name.table for each in found.values() for _ in each.files)
    case.compare([" ".join(left)], update=update)
    assert all(each.counts.rows == counts[each.name] for each in found.values())


@pytest.mark.parametrize("memory", [True, False])
def test_table_that_cannot_count_is_given_up(memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves neither hashes nor files: there are more rows than keys are compared, or memory runs out."""

    if not memory:
        monkeypatch.setattr(keyed_events, "latest_changes", Mock(side_effect=MemoryError))
    parts = typed_parts(updates_in(tmp_path), "b=1 a=1,2 b=2 a=3,4,5 a=6", room=6)
    about = {(part.name.table, part.counts.rows, len(part.files), part.keys is None) for part in parts}
    assert about == ({("b", 1, 1, False), ("a", 0, 0, True)} if memory else {("a", 0, 0, True), ("b", 0, 0, True)})
    assert len([*(tmp_path / "a").rglob("*.parquet")]) == 0


_ODD: Final = ("0x1F", "0X1f", "+5", " 5", "-", "-0", "007", "1_0", "1e3", "٣", str(2**62), str(2**63), str(2**64))
_KEYS: Final = st.lists(st.sampled_from(_ODD) | st.integers(-9, 9).map(str) | st.text(max_size=2), min_size=1)


@pytest.mark.parametrize("kind", ["int", "bigint unsigned", "varchar(9)"])
@given(_KEYS | st.lists(st.integers(0, 9).map(str), min_size=1), _KEYS)
def test_parts_share_numbers_of_keys_that_both_have(kind: str, one: list[str], other: list[str]) -> None:
    """Whatever their other keys are."""
    parts = list[set[int]]()
    for texts in (one, other):
        lines, keys = pa.array(range(0, 2 * len(texts), 2), pa.int64()), [[text] for text in texts]
        columns = [pa.array(keys, pa.list_(pa.string())), lines, lines.cast(pa.bool_()), lines.cast(pa.string()), lines]
        events = pa.table(columns, ["key", "stage", "upsert", "segment", "line"])
        is_latest, numbers = keyed_events.latest_changes(events, version_of(1, f"id {kind} key").columns, "t")
        last = {text: place for place, text in enumerate(texts)}
        assert is_latest.tolist() == [last[text] == place for place, text in enumerate(texts)]
        parts.append({*keyed_events.unpacked(keyed_events.packed(numbers)).tolist()})
        assert [*numbers] == sorted(parts[-1])
    assert parts[0] & parts[1] or {*one}.isdisjoint(other)


class Moved(Play):
    texts: pa.Table

    def run(self, above: int | None = None, redecoded: Iterable[str] = ()) -> None:
        table, reader = self.prepared(above, redecoded)
        events = pa.concat_tables(keyed_events.read_keyed_events(reader, table.spans))
        _, self.texts, self.found = update_tasks.folded_texts(table, {}, events)
        self.rejections = self.found.rejections

    def results(self, *, counted: bool) -> Iterator[str]:
        names = [column.name for column in self.versions[-1].columns]
        yield from sorted(
            str(product.image_text(dict(zip(names, row.values(), strict=True)))) for row in self.texts.to_pylist()
        )
        yield from (f"bad {row['line']} {row['after']}: {row['why']}" for row in self.rejections)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/moved.txt"), ids=str)
def test_moved_rows_have_the_texts_of_their_events(case: Case, tmp_path: Path, update: bool) -> None:
    case.compare(Moved(tmp_path, case.settings).steps(case.own), update=update)


# --- Much of it ---


def feed(play: Play, op: str, *images: Mapping[str, str | None], at: int = 1) -> Play:
    """Changes, each at a later commit-ts, whose texts are too long for lines."""
    for number, each in enumerate(images, at):
        _, made = event(f"{number} {op}", number)
        play.events.append({**made, "after": product.image_text(dict(each))})
    return play


def with_room(monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    """Databases have so much memory: with all that they have by default, what goes beyond it takes seconds."""
    monkeypatch.setattr(product.duckdb_sql, "_MEMORY", memory)
    monkeypatch.setattr(product.duckdb_sql, "_idle", {})


def test_plan_of_many_versions_is_as_large_as_their_types(tmp_path: Path) -> None:
    """Each of 400 versions gives one of 50 columns another type."""
    play = Play(tmp_path, {"table": ", ".join(["id int key", *(f"c{n} varchar(20)" for n in range(50))])})
    for number in range(1, 400):
        columns = [*play.versions[-1].columns]
        column = columns[number % 50 + 1]
        columns[number % 50 + 1] = replace(column, type=replace(column.type, length=20 + number))
        play.versions.append(replace(play.versions[0], commit_ts=number + 1, since=number + 1, columns=tuple(columns)))
    row, _ = play.steps([f"1 I id=1 {' '.join(f'c{n}=x' for n in range(50))}", "500 U id=1 c7=y"])
    assert row == f"1, {', '.join(repr('y' if n == 7 else 'x') for n in range(50))} @500"


@pytest.mark.parametrize("row_group", [1 << 20, 1 << 30])
def test_file_that_is_written_again_stays_one(tmp_path: Path, row_group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its rows are more than are read at once."""
    monkeypatch.setattr("cdc_lakehouse.lake.files.ROW_GROUP_BYTES", row_group)
    play = Play(tmp_path, {"table": "id int key, v longtext"})
    feed(play, "I", *({"id": str(n), "v": f"{n:02}" * 500_000} for n in range(30))).run()
    play.steps(["alter 50 id int key, v longtext, n int default 7", *(f"51 D id={n}" for n in (0, 3, 29))])
    assert play.found is not None and len(play.found.rewritten) == 1
    assert [(row["id"], row["v"][:2], row["n"]) for row in sorted(play.rows, key=lambda row: row["id"])] == [
        (n, f"{n:02}", 7) for n in range(30) if n not in (0, 3, 29)
    ]


def test_queries_do_not_grow_with_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB plans an expression in milliseconds. Rows are whole and partial ones."""
    planned, query = list[int](), product.duckdb_sql.query

    def counted(statement: str, **relations: Any) -> pa.Table:
        planned[-1] += len(statement)
        return query(statement, **relations)

    monkeypatch.setattr(product.duckdb_sql, "query", counted)
    for count in (100, 1000):
        kinds = [("int", "7", "7"), ("varchar(20)", "ü", "'ü'"), ("date", "2024-02-29", "date(2024, 2, 29)")]
        given = [kinds[n % 3] for n in range(1, count)]
        columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(given, 1))
        texts = {f"c{n}": text for n, (_, text, _) in enumerate(given, 1)}
        play = Play(tmp_path, {"table": f"id int key, {columns}"})
        planned.append(0)
        feed(play, "I", *({"id": str(n), **dict.fromkeys(texts)} for n in (1, 2))).run()
        planned.append(0)
        feed(play, "U", {"id": "1", **texts}, {"id": "2", "c3": "5"}, at=3).run()
        first, second, _ = play.steps([])
        assert first == f"1, {', '.join(shown for _, _, shown in given)} @3"
        assert second == f"2, None, None, 5, {', '.join(['None'] * (count - 4))} @4"
    assert 0 < planned[3] == planned[1]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[26_000] * 2048, [10] * 3000 + [20_000_000] + [26_000] * 2048 + [10] * 3000])
def test_many_long_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int]) -> None:
    """As many rows as DuckDB works on at once: it cannot put texts of theirs on disk. Then updates leave them out, or
    say them again."""
    play = Play(tmp_path, {"table": "id int key, v longtext, b int"})
    feed(play, "I", *({"id": str(n), "v": chr(97 + n % 26) * size, "b": None} for n, size in enumerate(lengths)))
    with_room(monkeypatch, "190MB")
    play.run()
    expected = [(n, chr(97 + n % 26) * size, None) for n, size in enumerate(lengths)]
    assert sorted((row["id"], row["v"], row["b"]) for row in play.rows) == expected
    for said in ({"b": "1"}, {"v": "z" * 26_000}):
        feed(play, "U", *({"id": str(n), **said} for n in range(1, 2048)), at=10_000).run()
        known = {row["id"]: row for row in play.rows}
        for n, text, _ in expected[1:2048]:
            assert (known[n]["v"], known[n]["b"]) == (said.get("v", text), 1)


def test_table_that_has_no_room_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed, plans = list[pa.Table](), list[update_tasks.TableUpdate]()
    play = Play(tmp_path, {})
    for number, (count, length) in enumerate([(1, 1), (1500, 26_000), (1, 2)]):
        play = Play(tmp_path / str(number), {"table": "id int key, v longtext"})
        play.directory.mkdir()
        table, reader = feed(play, "I", *({"id": str(n), "v": "x" * length} for n in range(count))).prepared()
        keyed += keyed_events.read_keyed_events(reader, [replace(span, table_no=number) for span in table.spans])
        plans.append(replace(table, table_no=number))
    with_room(monkeypatch, "30MB")
    found = [*update_tasks.update_tables({}, plans, pa.concat_tables(keyed))]
    assert [(each.table_no, len(each.files), each.failure is None) for each in found] == [
        (0, 1, True), (1, 0, False), (2, 1, True),
    ]  # fmt: skip
    assert (found[1].failure or "").startswith("memory ran out while the table was updated. The next run tries again")
    assert [row["v"] for row in play.read(found[2].files)] == ["xx"]


# --- Events by the key of the row that they change, on their way to the tasks that apply them ---

Image = dict[str, str | None] | None
ODD_NAMES: Final = [
    "*", "a.b", "", "0", "#", "$", "$.a", "[0]", "a/b", "~", "~1", "~0", "/", "//", "'", '"', "\\", "a b", "名", "😀",
    "VARCHAR",
]  # fmt: skip


def row_event(
    op: str, before: Image, after: Image, commit_ts: int = 10, table: str = "t", *, synthetic: bool = False
) -> dict[str, Any]:
    return {
        "schema_name": "d", "table_name": table, "op": op, "commit_ts": commit_ts, "before": product.image_text(before),
        "after": product.image_text(after), "segment": "s", "line": 7, product.SYNTHETIC: synthetic,
    }  # fmt: skip


def keyed(events: Sequence[dict[str, Any]], *spans: keyed_events.KeyedSpan) -> list[dict[str, Any]]:
    """Keyed events, the same where Python reads the images, as it does with large ones, and where the texts in
    all columns of the first image are read, too."""
    changes = pa.Table.from_pylist(list(events), _CHANGES)
    found = keyed_events.KeyedSpans(spans).keyed(changes)
    with patch.object(keyed_events, "LARGE_IMAGE", -1):
        assert keyed_events.KeyedSpans(spans).keyed(changes).equals(found)
    columns = {*json.loads(next((each["after"] for each in events), None) or "{}")}
    version = replace(AVB, columns=tuple(replace(AVB.columns[0], name=name) for name in columns))
    own = [replace(span, version=version) for span in spans]
    texts = keyed_events.KeyedSpans(own).keyed(changes)
    assert texts.select(found.column_names).equals(found)
    for row in texts.to_pylist() if texts.schema != found.schema else ():
        assert json.loads(row["image"]) == {name: row[f"{product.TEXT_OF}{name}"] for name in columns}
    assert found.schema == keyed_events.KEYED_EVENTS
    return found.to_pylist()


NAMES: Final = ("id", "a/b", "~", "v")
names = st.sampled_from(NAMES) | st.sampled_from(ODD_NAMES)
images = st.none() | st.dictionaries(names, st.sampled_from(["1", "2", "", "null", "\0😀", None]))


@st.composite
def spans_of(draw: st.DrawFn) -> list[keyed_events.KeyedSpan]:
    found: list[keyed_events.KeyedSpan] = []
    for number, table in enumerate("tuv"):
        ends = sorted(draw(st.sets(st.integers(0, 26), max_size=6)))
        for version, (above, upto) in enumerate(itertools.pairwise(ends)):
            if draw(st.booleans()):
                key = tuple((name, None) for name in draw(st.lists(names, max_size=3, unique=True)))
                found.append(keyed_events.KeyedSpan(number, version, "d", table, above, upto, key))
    return draw(st.permutations(found))


def expected(
    event: dict[str, Any], spans: Sequence[keyed_events.KeyedSpan], before: Image, after: Image
) -> list[dict[str, Any]]:
    stage = 2 * event["commit_ts"] + event[product.SYNTHETIC]
    found: list[dict[str, Any]] = []
    for each in spans:
        if each.table != event["table_name"] or not each.above < stage <= each.upto:
            continue
        image = before if after is None else after
        key = [(image or {}).get(name) for name, _ in each.key]
        row = {
            "table_no": each.table_no, "key": key, "stage": stage, "upsert": event["op"] != "D",
            "is_insert": event["op"] == "I", "version_no": each.version_no, "commit_ts": event["commit_ts"],
            "image": event["after"], "segment": "s", "line": 7,
        }  # fmt: skip
        found.append(row)
        if event["op"] == "U" and before is not None:
            old = [before.get(name, part) for (name, _), part in zip(each.key, key, strict=True)]
            if old != key:
                found.append({**row, "key": old, "upsert": False, "image": None})
    return found


_TWO: Final = [keyed_events.KeyedSpan(0, 3, "d", "t", 0, 100, (("a", None), ("b", None)))]


@given(st.lists(st.tuples(st.sampled_from("IUD"), images, images, st.integers(1, 12), st.sampled_from("tuw"),
                          st.booleans()), max_size=12), spans_of())  # fmt: skip
@example([("U", {"a": "2"}, {"a": "1", "b": None}, 9, "t", False), ("D", {"a": "1"}, None, 10, "t", True),
          ("U", {"b": "2"}, {"a": "1", "b": "3"}, 9, "t", False), ("U", {}, {"a": "1"}, 9, "t", False)],
         _TWO)  # fmt: skip
@example(
    [("I", None, {"a": "1", "b": '"\\😀'}, 9, "t", False), ("I", None, {"b": None, "a": "2"}, 9, "t", False)], _TWO
)
@example([("U", dict.fromkeys(ODD_NAMES, "1\0😀"), dict.fromkeys(ODD_NAMES, "2"), 9, "t", False)],
         [keyed_events.KeyedSpan(0, 0, "d", "t", 0, 100, tuple((name, None) for name in ODD_NAMES))])  # fmt: skip
def test_events_are_keyed_by_the_spans_they_are_in(rows: list[Any], spans: list[keyed_events.KeyedSpan]) -> None:
    events = [row_event(op, before, after, ts, table, synthetic=moved) for op, before, after, ts, table, moved in rows]
    wanted = [
        each
        for made, (_, before, after, *_) in zip(events, rows, strict=True)
        for each in expected(made, spans, before, after)
    ]
    assert sorted(map(repr, keyed(events, *spans))) == sorted(map(repr, wanted))


def test_texts_of_inserts_are_read_with_their_keys_unless_one_is_large() -> None:
    span = replace(_TWO[0], version=version_of(1, "a varchar(9) key, b varchar(9) key"))
    for length in (1, keyed_events.LARGE_IMAGE + 1):
        rows = [row_event("I", None, {"a": str(n), "b": "x" * (length if n else 1)}, 9, "t") for n in range(2)]
        found = keyed_events.KeyedSpans([span]).keyed(pa.Table.from_pylist(rows, _CHANGES))
        assert (f"{product.TEXT_OF}b" in found.column_names) == (length == 1), length


# --- Shares of tasks ---


def test_table_with_a_part_that_failed_is_not_apart() -> None:
    """It may have a key of another part."""
    keys, name = keyed_events.packed(np.array([1], np.uint64)), product.TableName("d", "t")
    parts = [update_tasks.UpdatedTable(number, name, failure=why, keys=None if why else keys)
             for number, why in ((0, "no room"), (0, None), (1, None))]  # fmt: skip
    assert [part.table_no for part in update_tasks.parts_apart({}, parts)] == [1]


def test_shares_of_a_reader_have_each_file_once_and_equal_sizes() -> None:
    files = [product.StoredFile(f"f{number}", size, 1) for number, size in enumerate([90, 10, 20, 30, 40, 50])]
    reader = EventReader(tuple(files[:4]), product.TableFiles(Schema(), "file:///x"))
    shares = replace(reader, earlier=(replace(reader, files=tuple(files[4:])),)).shares(3)
    assert sorted(file.path for share in shares for file in share.files) == ["f0", "f1", "f2", "f3"]
    assert sorted(file.path for share in shares for file in share.earlier[0].files) == ["f4", "f5"]
    sizes = [sum(file.size for file in (*share.files, *share.earlier[0].files)) for share in shares]
    assert sorted(sizes) == [70, 80, 90]


# --- Images as columns ---

AVB: Final = version_of(1, "a varchar(20), v varchar(20) AS ('x'), b varchar(20)")


def columns_of(*images: str | None, wanted: Set[int] = frozenset({1, 2, 3})) -> list[dict[str, Any]]:
    """A row for each image: the same in one query, as among many usual ones, and image by image."""

    def read(*images: str | None) -> list[dict[str, Any]]:
        events = pa.table({"image": pa.array(images, pa.string())})
        texts, strange, absent = typed_rows.row_images(events, AVB, {*wanted})
        return pa.table({**texts, "strange": strange, "absent": absent}).to_pylist()

    usual, whole = [product.image_text(dict.fromkeys("avb", "x"))] * 300, read(*images)
    assert whole == read(*images, *usual)[: len(images)]
    assert whole == [row for image in images for row in read(image)]
    return whole


def test_absent_and_repeated_members_of_images() -> None:
    usual, none = '{"a":"1","b":"2"}', {"t1": None, "t3": None, "strange": False, "absent": True}
    row = {"t1": "1", "t3": "2", "strange": False, "absent": False}
    assert columns_of(usual, None, "{}", '{"a":"1","b":"2","a":"1"}') == [row, none, none, {**row, "strange": True}]
    assert columns_of(usual, wanted={3, 9}) == [{"t3": "2", "strange": False, "absent": False}]
    assert columns_of(usual, wanted=set()) == [{"strange": False, "absent": False}]


# --- Plans of schema changes, carried out on a table that is a list of columns. As in Iceberg, the names in one step
# of a plan are those before the step. ---

META = "_commit_ts"
TYPES = ["int", "long", "string", "decimal(10,2)", "decimal(12,2)", "timestamp"]
WIDENS = {("int", "long"), ("decimal(10,2)", "decimal(12,2)")}


@dataclass(frozen=True)
class Stored:
    """`field` is what Iceberg knows a column by: it is the same as long as values are read in place."""

    field: int
    name: str
    type: str


def carried_out(columns: list[Stored], operations: tuple[SchemaOperation, ...]) -> list[Stored]:
    """One `updateSchema()`: fails on a name that is not there, and on one that is there twice afterwards."""
    found, fields = [*columns], {column.name: column.field for column in columns}

    def place(name: str) -> int:
        return [column.field for column in found].index(fields[name])

    for operation in operations:
        name, type, after = operation.name, operation.type, operation.after
        match operation.do:
            case "add":
                # Iceberg takes no name that stands before the step; Spark makes no difference in case.
                assert name.lower() not in {known.lower() for known in fields}
                found.append(Stored(max(each.field for each in [*columns, *found]) + 1, name, type))
            case "drop":
                del found[place(name)]
            case "rename":
                found[place(name)] = replace(found[place(name)], name=operation.new_name)
            case "widen":
                assert (found[place(name)].type, type) in WIDENS
                found[place(name)] = replace(found[place(name)], type=type)
            case "move":
                moved = found.pop([column.name for column in found].index(name))
                names = [column.name for column in found]
                found.insert(0 if after is None else names.index(after) + 1, moved)
    assert len({column.name for column in found}) == len(found)
    return found


@st.composite
def columns(draw: st.DrawFn) -> list[LakeColumn]:
    ids = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6, unique=True))
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=len(ids), max_size=len(ids), unique=True))
    return [LakeColumn(id, name, draw(st.sampled_from(TYPES))) for id, name in zip(ids, names, strict=True)]


@given(
    columns(), columns(), st.frozensets(st.integers(1, 8), max_size=2), st.lists(st.sampled_from("xyz"), unique=True)
)
def test_plan_ends_at_target_with_values_in_place_or_rewritten(
    current: list[LakeColumn], target: list[LakeColumn], converted: frozenset[int], leftover: list[str]
) -> None:
    """The lake's own columns stand behind, those that are left over go."""
    others = [(META, "long"), *((name, "int") for name in leftover)]
    order = [*((c.name, c.type) for c in current), *others]
    plan = plan_evolution(current, target, [name for name, _ in order], converted, leftover)
    table = [Stored(number, *each) for number, each in enumerate(order)]
    for step in plan.steps:
        table = carried_out(table, step)
    assert [(c.name, c.type) for c in table] == [*((c.name, c.type) for c in target), (META, "long")]
    known = {column.id: (number, column.type) for number, column in enumerate(current)}
    for stored, column in zip(table, target, strict=False):
        field, type = known.get(column.id, (None, ""))
        stays = (type == column.type or (type, column.type) in WIDENS) and column.id not in converted
        assert (stored.field == field) == stays and (stored.field < len(current)) == stays
        assert (column.id in plan.rewritten) == (field is not None and not stays)
    assert plan_evolution(target, target, [*(c.name for c in target), META]) == Plan((), ())


def test_default_is_of_new_columns_where_the_format_has_any() -> None:
    """Without defaults rows are written again."""
    have, target = [LakeColumn(1, "a", "int", 7)], [LakeColumn(1, "a", "string", "7"), LakeColumn(2, "b", "int", 5)]
    for current, defaults, expected, rewritten in (
        (have, True, [("a", None), ("b", 5)], (1,)),
        (target[:1], False, [("b", None)], (2,)),
        (target[:1], True, [("b", 5)], ()),
    ):
        plan = plan_evolution(current, target, ["a"], defaults=defaults)
        added = [(add.name, add.default) for step in plan.steps for add in step if add.do == "add"]
        assert (added, plan.rewritten) == (expected, rewritten)
