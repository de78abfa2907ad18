"""What is stored of a dump that was read of the database, key by key, and that files of before are read.

The text here is in lakes: a test that fails says that lakes cannot be read, not that the text must follow."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import SourceError, StoredFormError
from cdc_lakehouse.sources.database.reading import TableDefinition
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.dump.database import (
    DUMP,
    CompletedRange,
    read_database_dump,
    read_document,
    stored_dump,
    stored_table,
)
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, open_store

STATEMENT = "CREATE TABLE `a` (`id` int NOT NULL, `raw` blob, PRIMARY KEY (`id`))"
FIRST, SECOND = "000001/t000001/000000000-aa-0000.rows", "000001/t000001/000000001-bb-0000.rows"
BEGIN, UNTIL = DumpPosition(log_file="bin.1", log_offset=4, gtid="g:1", server_id=7), DumpPosition(tso=9)
STORED = (
    '{"format": 1, "position": {"log_file": "bin.1", "log_offset": 4, "gtid": "g:1", "server_id": 7}, "until": {"tso": '
    '9}, "started": "2026-06-10 01:02:03", "tables": [{"database": "d", "table": "a", "position": {"log_file": '
    '"bin.1", "log_offset": 4, "gtid": "g:1", "server_id": 7}, "schema": "000001/t000001/schema.sql", '
    '"columns": ["id", "raw"], "encoded": ["raw"], "files": [["000001/t000001/000000000-aa-0000.rows", 3], '
    '["000001/t000001/000000001-bb-0000.rows", 2]], "rows": 5, "unread": null}, {"database": "d", "table": "ö", '
    '"position": {"tso": 9}, "schema": "000001/t000002/schema.sql", "columns": [], "encoded": [], "files": [], "rows": '
    '0, "unread": "why"}]}'
)


def of_before(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "format"}


def of_later(document: dict[str, Any]) -> dict[str, Any]:
    position = {**document["position"], "of later": 1}
    tables = [{**each, "of later": 1, "position": {**each["position"], "of later": 1}} for each in document["tables"]]
    until = {**document["until"], "of later": 1}
    return {**document, "of later": 1, "position": position, "until": until, "tables": tables}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    for path, content in {
        FIRST: "123", SECOND: "12",
        "000001/t000001/schema.sql": f"{STATEMENT};\n", "000001/t000002/schema.sql": "CREATE TABLE `ö` …;\n",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content, encoding="utf-8")
    return open_store(tmp_path.as_uri(), StorageConfig())


def test_what_is_stored() -> None:
    now = datetime.datetime.now(datetime.UTC)
    ranges = {
        1: CompletedRange((StoredObject(SECOND, 2, "", now),), 2, now),
        0: CompletedRange((StoredObject(FIRST, 3, "", now),), 3, now),
    }
    tables = [
        stored_table(TableDefinition(TableName("d", "a"), STATEMENT, ""), BEGIN, "000001/t000001/", ranges, None),
        stored_table(TableDefinition(TableName("d", "ö"), "CREATE …", ""), UNTIL, "000001/t000002/", {}, "why"),
    ]
    assert stored_dump(BEGIN, UNTIL, "2026-06-10 01:02:03", tables) == STORED


@pytest.mark.parametrize("form", [dict, of_before, of_later])
def test_it_is_read(store: ObjectStore, tmp_path: Path, form: Any) -> None:
    (tmp_path / "000001" / DUMP).write_text(json.dumps(form(json.loads(STORED))))
    dump = read_database_dump(store, 1)
    assert (dump.position, dump.until, dump.started) == (BEGIN, UNTIL, "2026-06-10 01:02:03")
    (table,), (unread,) = dump.tables, dump.unread
    assert (table.name, table.position, table.rows) == (TableName("d", "a"), BEGIN, 5)
    assert [file.path for file in table.files] == [FIRST, SECOND]
    assert unread.name == TableName("d", "ö") and unread.reason.startswith("why; ")


def test_another_form_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "000001" / DUMP).write_text('{"format": 2}')
    with pytest.raises(StoredFormError, match="was written in form 2"):
        read_database_dump(store, 1)
    for text in ("{", "[]"):
        (tmp_path / "000001" / DUMP).write_text(text)
        with pytest.raises(SourceError, match="cannot be used"):
            read_document(store, 1, DUMP)
