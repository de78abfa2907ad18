"""Keyed events on their way to the tasks that apply them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.errors import TransientError
from cdc_lakehouse.lake.current.event_shuffle import EventShuffle, events_of_blocks
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS
from cdc_lakehouse.lake.data_files import StoredFile
from cdc_lakehouse.lake.tables.event_files import EventReader
from tests.kit.duckdb_sql import connection

PLACES: Final = {0: (0, 1), 1: (1, 3), 2: (4, 1)}
"""Of three tables, the second divided among three tasks."""

keyed_events = st.lists(
    st.fixed_dictionaries({
        "table_no": st.sampled_from(sorted(PLACES)),
        "key": st.lists(st.sampled_from(["1", "2", "ä", "", None]), min_size=1, max_size=2),
        "line": st.integers(0, 9),
        "image": st.sampled_from([None, "{}"]),
    }),
    max_size=40,
)  # fmt: skip


def shuffled(rows: list[dict[str, Any]], directory: Path | None) -> dict[int, list[dict[str, Any]]]:
    """What each task gets."""
    shuffle = EventShuffle((), frozenset(), PLACES, None if directory is None else str(directory))
    keyed = pa.Table.from_pylist(rows, KEYED_EVENTS)
    blocks = pa.Table.from_batches([shuffle.divided(connection(), keyed)])
    return {
        task: events_of_blocks(blocks.filter(pc.field("task") == task)).to_pylist()
        for task in blocks.column("task").to_pylist()
    }


@pytest.mark.parametrize("through_files", [True, False])
@given(rows=keyed_events)
def test_each_event_goes_to_the_one_task_of_its_key(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], *, through_files: bool
) -> None:
    directory = tmp_path_factory.mktemp("blocks") if through_files else None
    found = shuffled(rows, directory)
    whole = pa.Table.from_pylist(rows, KEYED_EVENTS).to_pylist()
    assert sorted((row for each in found.values() for row in each), key=repr) == sorted(whole, key=repr)
    tasks_of: dict[tuple[int, tuple[str | None, ...]], set[int]] = {}
    for task, events in found.items():
        for event in events:
            first, count = PLACES[event["table_no"]]
            assert first <= task < first + count
            tasks_of.setdefault((event["table_no"], tuple(event["key"])), set()).add(task)
    assert all(len(tasks) == 1 for tasks in tasks_of.values())


def test_a_divided_table_uses_all_of_its_tasks() -> None:
    rows = [{"table_no": 1, "key": [str(number)], "line": number} for number in range(100)]
    assert sorted(shuffled(rows, None)) == [1, 2, 3]


def test_a_local_disk_that_cannot_be_written_is_transient_and_named(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="Spark's local directory") as caught, errors_of_tasks():
        shuffled([{"table_no": 0, "key": ["1"]}], tmp_path / "away")
    assert "spark.local.dir" in (caught.value.advice or "")


def test_shares_of_a_reader_have_each_file_once_and_about_as_much() -> None:
    files = [StoredFile(f"f{number}", size, 1) for number, size in enumerate([90, 10, 20, 30, 40, 50])]
    reader = EventReader(tuple(files[:4]), Schema(), "file:///x", {})
    shares = replace(reader, earlier=(replace(reader, files=tuple(files[4:])),)).shares(3)
    assert sorted(file.path for share in shares for file in share.files) == ["f0", "f1", "f2", "f3"]
    assert sorted(file.path for share in shares for file in share.earlier[0].files) == ["f4", "f5"]
    sizes = [sum(file.size for file in (*share.files, *share.earlier[0].files)) for share in shares]
    assert sorted(sizes) == [70, 80, 90]
