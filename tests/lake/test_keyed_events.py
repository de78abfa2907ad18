"""Events by the key of the row that they change, on their way to the tasks that apply them, and their images as
columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from cdc_lakehouse.errors import TransientError
from tests.boundaries.update import (
    CHANGE_COLUMNS,
    EVENTS,
    KEYED_EVENTS,
    SYNTHETIC,
    Column,
    ColumnType,
    EventReader,
    EventShuffle,
    KeyedSpan,
    KeyedSpans,
    StoredFile,
    TableName,
    TableVersion,
    commit_ts_range,
    errors_of_tasks,
    events_of_blocks,
    image_text,
    keyed_events,
    row_images,
    row_stage,
    synthetic_stage,
)
from tests.kit.duckdb_sql import connection

Image = dict[str, str | None] | None
SCHEMA: Final = pa.schema([EVENTS.field(name) for name in CHANGE_COLUMNS])
ODD_NAMES: Final = [
    "*", "a.b", "", "0", "#", "$", "$.a", "[0]", "a/b", "~", "~1", "~0", "/", "//", "'", '"', "\\", "a b", "名", "😀",
    "VARCHAR",
]  # fmt: skip

# --- Keys ---


def event(
    op: str, before: Image, after: Image, commit_ts: int = 10, table: str = "t", *, synthetic: bool = False
) -> dict[str, Any]:
    return {
        "schema_name": "d", "table_name": table, "op": op, "commit_ts": commit_ts, "before": image_text(before),
        "after": image_text(after), "segment": "s", "line": 7, SYNTHETIC: synthetic,
    }  # fmt: skip


def keyed(events: Sequence[dict[str, Any]], *spans: KeyedSpan) -> list[dict[str, Any]]:
    """Keyed events, which are the same where Python reads the images, as it does with large ones."""
    found = KeyedSpans(spans).keyed(connection(), pa.Table.from_pylist(list(events), SCHEMA))
    with patch.object(keyed_events, "LARGE_IMAGE", -1):
        assert KeyedSpans(spans).keyed(connection(), pa.Table.from_pylist(list(events), SCHEMA)).equals(found)
    assert found.schema == KEYED_EVENTS
    return found.to_pylist()


NAMES: Final = ("id", "a/b", "~", "v")
names = st.sampled_from(NAMES) | st.sampled_from(ODD_NAMES)
images = st.none() | st.dictionaries(names, st.sampled_from(["1", "2", "", "null", "\0😀", None]))


@st.composite
def spans_of(draw: st.DrawFn) -> list[KeyedSpan]:
    found: list[KeyedSpan] = []
    for number, table in enumerate("tuv"):
        ends = sorted(draw(st.sets(st.integers(0, 26), max_size=6)))
        for version, (above, upto) in enumerate(itertools.pairwise(ends)):
            if draw(st.booleans()):
                key = tuple(draw(st.lists(names, max_size=3, unique=True)))
                found.append(KeyedSpan(number, version, "d", table, above, upto, key))
    return draw(st.permutations(found))


def expected(event: dict[str, Any], spans: Sequence[KeyedSpan], before: Image, after: Image) -> list[dict[str, Any]]:
    stage = 2 * event["commit_ts"] + event[SYNTHETIC]
    found: list[dict[str, Any]] = []
    for each in spans:
        if each.table != event["table_name"] or not each.above < stage <= each.upto:
            continue
        image = before if after is None else after
        key = [(image or {}).get(name) for name in each.key_columns]
        row = {
            "table_no": each.table_no, "key": key, "stage": stage, "upsert": event["op"] != "D",
            "is_insert": event["op"] == "I", "version_no": each.version_no, "commit_ts": event["commit_ts"],
            "image": event["after"], "segment": "s", "line": 7,
        }  # fmt: skip
        found.append(row)
        if event["op"] == "U" and before is not None:
            old = [before.get(name, part) for name, part in zip(each.key_columns, key, strict=True)]
            if old != key:
                found.append({**row, "key": old, "upsert": False, "image": None})
    return found


_TWO: Final = [KeyedSpan(0, 3, "d", "t", 0, 100, ("a", "b"))]


@given(st.lists(st.tuples(st.sampled_from("IUD"), images, images, st.integers(1, 12), st.sampled_from("tuw"),
                          st.booleans()), max_size=12), spans_of())  # fmt: skip
@example([("U", {"a": "2"}, {"a": "1", "b": None}, 9, "t", False), ("D", {"a": "1"}, None, 10, "t", True),
          ("U", {"b": "2"}, {"a": "1", "b": "3"}, 9, "t", False), ("U", {}, {"a": "1"}, 9, "t", False)],
         _TWO)  # fmt: skip
@example([("U", dict.fromkeys(ODD_NAMES, "1\0😀"), dict.fromkeys(ODD_NAMES, "2"), 9, "t", False)],
         [KeyedSpan(0, 0, "d", "t", 0, 100, tuple(ODD_NAMES))])  # fmt: skip
def test_events_are_keyed_by_the_spans_they_are_in(rows: list[Any], spans: list[KeyedSpan]) -> None:
    events = [event(op, before, after, ts, table, synthetic=moved) for op, before, after, ts, table, moved in rows]
    wanted = [
        each
        for made, (_, before, after, *_) in zip(events, rows, strict=True)
        for each in expected(made, spans, before, after)
    ]
    assert sorted(map(repr, keyed(events, *spans))) == sorted(map(repr, wanted))


@pytest.mark.parametrize(("above", "upto"), [(0, 20), (0, 21), (1, 20), (1, 21), (19, 20), (18, 19)])
def test_commit_ts_range_is_as_narrow_as_possible(above: int, upto: int) -> None:
    # Files of what was applied before are not read again for the one commit-ts at which it ended.
    stages = range(above + 1, upto + 1)
    found = commit_ts_range([KeyedSpan(0, 0, "d", "t", above, upto, ("id",))])
    assert found == (min(stages) // 2, max(stages) // 2)
    assert found[0] == 10 or above != synthetic_stage(9)
    assert row_stage(10) == 20


# --- Shares of tasks ---

PLACES: Final = {0: (0, 1), 1: (1, 3), 2: (4, 1)}
"""Of three tables, the second divided among three tasks."""

keyed_rows = st.lists(
    st.fixed_dictionaries({
        "table_no": st.sampled_from(sorted(PLACES)),
        "key": st.lists(st.sampled_from(["1", "2", "ä", "", None]), min_size=1, max_size=2),
        "line": st.integers(0, 9),
        "image": st.sampled_from([None, "{}"]),
    }),
    max_size=40,
)  # fmt: skip


def shuffled(rows: list[dict[str, Any]], directory: Path | None) -> dict[int, list[dict[str, Any]]]:
    """The events of each task."""
    shuffle = EventShuffle((), frozenset(), PLACES, None if directory is None else str(directory))
    blocks = pa.Table.from_batches([shuffle.divided(connection(), pa.Table.from_pylist(rows, KEYED_EVENTS))])
    return {
        task: events_of_blocks(blocks.filter(pc.field("task") == task)).to_pylist()
        for task in blocks.column("task").to_pylist()
    }


@pytest.mark.parametrize("through_files", [True, False])
@given(rows=keyed_rows)
@example(rows=[{"table_no": 1, "key": [str(number)], "line": number} for number in range(100)])
def test_each_event_goes_to_the_one_task_of_its_key(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], *, through_files: bool
) -> None:
    found = shuffled(rows, tmp_path_factory.mktemp("blocks") if through_files else None)
    whole = pa.Table.from_pylist(rows, KEYED_EVENTS).to_pylist()
    assert sorted((row for each in found.values() for row in each), key=repr) == sorted(whole, key=repr)
    tasks_of: dict[tuple[int, tuple[str | None, ...]], set[int]] = {}
    for task, events in found.items():
        for each in events:
            first, count = PLACES[each["table_no"]]
            assert first <= task < first + count
            tasks_of.setdefault((each["table_no"], tuple(each["key"])), set()).add(task)
    assert all(len(tasks) == 1 for tasks in tasks_of.values())
    assert len(rows) < 100 or sorted(found) == [1, 2, 3], "a divided table uses all of its tasks"


def test_unwritable_local_disk_is_transient_and_named(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="Spark's local directory") as caught, errors_of_tasks():
        shuffled([{"table_no": 0, "key": ["1"]}], tmp_path / "away")
    assert "spark.local.dir" in (caught.value.advice or "")


def test_shares_of_a_reader_have_each_file_once_and_equal_sizes() -> None:
    files = [StoredFile(f"f{number}", size, 1) for number, size in enumerate([90, 10, 20, 30, 40, 50])]
    reader = EventReader(tuple(files[:4]), Schema(), "file:///x", {})
    shares = replace(reader, earlier=(replace(reader, files=tuple(files[4:])),)).shares(3)
    assert sorted(file.path for share in shares for file in share.files) == ["f0", "f1", "f2", "f3"]
    assert sorted(file.path for share in shares for file in share.earlier[0].files) == ["f4", "f5"]
    sizes = [sum(file.size for file in (*share.files, *share.earlier[0].files)) for share in shares]
    assert sorted(sizes) == [70, 80, 90]


# --- Images as columns ---

INT, TEXT = ColumnType.of("int"), ColumnType.of("varchar", length=20)


def version_of(table: str, *columns: Column) -> TableVersion:
    return TableVersion(1, TableName("d", table), f"d.{table}#1", "create", "create", "", "", columns)


def of_names(*names: str, virtual: str | None = None) -> TableVersion:
    return version_of("t", *(Column(id, name, TEXT, carried=name != virtual) for id, name in enumerate(names, 1)))


def read(version: TableVersion, *images: str | None, wanted: set[int] | None = None) -> list[dict[str, Any]]:
    """A row for each image: the same in one query, as among many usual ones, and image by image."""
    whole = _read(version, images, wanted)
    usual = [image_text({column.name: "x" for column in version.columns})] * 300
    assert whole == _read(version, [*images, *usual], wanted)[: len(images)]
    assert whole == [row for image in images for row in _read(version, [image], wanted)]
    return whole


def _read(version: TableVersion, images: Any, wanted: set[int] | None) -> list[dict[str, Any]]:
    events = pa.table({"image": pa.array(images, pa.string())})
    columns = {column.id for column in version.columns} if wanted is None else wanted
    found = row_images(connection(), events, version, columns)
    return pa.table({**found.texts, "strange": found.strange, "absent": found.absent}).to_pylist()


AVB: Final = of_names("a", "v", "b", virtual="v")
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "v", "w", "A"]), texts), max_size=6))
@example([{"a": "1", "b": None}, {"b": "", "a": "null"}, {"a": '1\0😀\ue000\\"\u2028', "b": "1e400"}])
@example([{"a": "1", "v": "x", "b": "2"}])
def test_images_are_columns_of_their_version(images: list[dict[str, str | None]]) -> None:
    assert read(AVB, *map(image_text, images)) == [
        {
            "t1": image.get("a"),
            "t3": image.get("b"),
            "strange": bool(image.keys() & {"w", "A"}),
            "absent": not {"a", "b"} <= image.keys(),
        }
        for image in images
    ]


def test_absent_and_repeated_members_of_images() -> None:
    usual, none = '{"a":"1","b":"2"}', {"t1": None, "t3": None, "strange": False, "absent": True}
    row = {"t1": "1", "t3": "2", "strange": False, "absent": False}
    assert read(AVB, usual, None, "{}", '{"a":"1","b":"2","a":"1"}') == [row, none, none, {**row, "strange": True}]
    assert read(AVB, usual, wanted={3, 9}) == [{"t3": "2", "strange": False, "absent": False}]
    assert read(AVB, usual, wanted=set()) == [{"strange": False, "absent": False}]
