"""What is stored of a dump that was read of the database, key by key.

The text here is in lakes: a test that fails says that lakes cannot be read, not that the text must follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import SourceError, StoredFormError
from cdc_lakehouse.sources.database.reading import KeyRange, TableDefinition
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.dump.database import (
    End,
    Plan,
    PlannedTable,
    directory_of,
    read_database_dump,
    read_document,
    stored_document,
)
from cdc_lakehouse.sources.object_store import ObjectStore, open_store

STATEMENT = "CREATE TABLE `a` (`id` int NOT NULL, `raw` blob, PRIMARY KEY (`id`))"
BEGIN, UNTIL = DumpPosition(log_file="bin.1", log_offset=4, gtid="g:1", server_id=7), DumpPosition(tso=9)
RANGES = (KeyRange(None, ("1",)), KeyRange(("1",), None))
PLAN = Plan(
    ["*"], BEGIN, 3,
    {
        "d.a": PlannedTable(TableDefinition(TableName("d", "a"), STATEMENT, "2026", 30), "t000001/", BEGIN, RANGES),
        "d.ö": PlannedTable(TableDefinition(TableName("d", "ö"), STATEMENT, ""), "t000002/", UNTIL, RANGES[:1]),
    },
)  # fmt: skip
END = End(UNTIL, ["000001/t000001/000000000-aa.3.done", "000001/t000001/000000001-bb.2.done"], {"d.ö": "why"})
STORED = (
    '{"format": 1, "wanted": ["*"], "position": {"log_file": "bin.1", "log_offset": '
    '4, "gtid": "g:1", "server_id": 7}, "begun": 3, "tables": {"d.a": {"definition": {"name": {"database": "d", '
    '"table": "a"}, "statement": "CREATE TABLE `a` (`id` int NOT NULL, `raw` blob, PRIMARY KEY (`id`))", "created": '
    '"2026", "estimated_rows": 30}, "directory": "t000001/", "position": {"log_file": "bin.1", "log_offset": 4, "gtid":'
    ' "g:1", "server_id": 7}, "ranges": [{"upper": ["1"]}, {"lower": ["1"]}]}'
)
STORED_END = (
    '{"format": 1, "until": {"tso": 9}, "done": ["000001/t000001/000000000-aa.3.done", '
    '"000001/t000001/000000001-bb.2.done"], "failed": {"d.ö": "why"}}'
)


def test_plan_and_end_are_stored_by_these_keys() -> None:
    assert stored_document(PLAN).startswith(f"{STORED}, ") and stored_document(END) == STORED_END


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """Of a dump that has ended; of its second range two tasks read rows."""
    rows = ("000000000-aa-0000", "000000001-bb-0000", "000000001-cc-0000")
    files = {f"t000001/{name}.rows": "…" for name in rows}
    files |= {path.removeprefix("000001/"): "done" for path in [*END.done, "000001/t000001/000000001-cc.9.done"]}
    for path, content in {**files, "plan.json": stored_document(PLAN), "dump.json": stored_document(END)}.items():
        (tmp_path / directory_of(1, path)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / directory_of(1, path)).write_text(content, encoding="utf-8")
    return open_store(tmp_path.as_uri(), StorageConfig())


def test_dump_has_the_ranges_that_its_end_names(store: ObjectStore, tmp_path: Path) -> None:
    # Keys of a later release are ignored; without a number it is form 1.
    (tmp_path / "000001/dump.json").write_text(json.dumps({**json.loads(STORED_END), "of later": 1}))
    plan = stored_document(PLAN).replace('"format": 1', '"of": 1').replace('"directory":', '"later": 1, "directory":')
    (tmp_path / "000001/plan.json").write_text(plan, encoding="utf-8")
    dump = read_database_dump(store, 1)
    assert (dump.position, dump.until) == (BEGIN, UNTIL)
    (table,) = dump.tables
    assert (table.name, table.position, table.rows) == (TableName("d", "a"), BEGIN, 5)
    assert [Path(file.path).name[:12] for file in table.files] == ["000000000-aa", "000000001-bb"]
    (unread,) = dump.unread
    assert unread.name == TableName("d", "ö") and unread.reason.startswith("why; `cdc-lakehouse load --table d.ö`")


@pytest.mark.parametrize("path", ["000000001-bb.2.done", "000000000-aa-0000.rows"])
def test_dump_without_one_of_its_ranges_is_refused(store: ObjectStore, tmp_path: Path, path: str) -> None:
    (tmp_path / "000001/t000001" / path).unlink()
    with pytest.raises(SourceError, match=r"read of d.a is not there.*: remove .*/000001/, and it is read again"):
        read_database_dump(store, 1)


def test_a_part_that_cannot_be_listed_is_named(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "000001/loop").symlink_to("loop")
    with pytest.raises(SourceError, match=r"^what was read of the database cannot be listed: .*/loop\]: remove"):
        read_database_dump(store, 1)


def test_another_form_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "000001/dump.json").write_text('{"format": 2}')
    with pytest.raises(StoredFormError, match="was written in form 2"):
        read_database_dump(store, 1)
    for text in ("{", "[]", "{}"):
        (tmp_path / "000001/dump.json").write_text(text)
        with pytest.raises(SourceError, match=r"is unusable: [^\n]*$"):
            read_document(store, 1, End)
