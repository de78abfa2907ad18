"""The writer makes the bytes that the simulator of TiCDC made: its sinks are read and written again."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import pytest

from tests.boundaries.change_log import TableName, utc_now
from tests.boundaries.sample import SampleRowChange, SinkWriter, Table
from tests.boundaries.sources import LocalStore, list_sink, read_checkpoint, read_schema_file
from tests.kit.sink_layouts import layout_with
from tests.sample import contents

NAMES = ["date_dirs", "multi_schema_change", "pk_updates", "rename_chain", "types_enum_set", "types_text", "types_time"]
DAY = datetime.datetime(2026, 6, 1, 23, 30, tzinfo=datetime.UTC)


def without_chance(content: bytes) -> bytes:
    """Go prints a map in any order: the types of `mysqlType` are put in order."""

    def ordered(match: re.Match[bytes]) -> bytes:
        return b'"mysqlType":{' + b",".join(sorted(match[1].split(b","))) + b"}"

    return re.sub(rb'"mysqlType":\{([^}]*)\}', ordered, content)


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_sink_is_written_byte_for_byte(name: str, data_sets: Path, tmp_path: Path) -> None:
    simulated = data_sets / "canal-json" / name / "tree"
    store = LocalStore(simulated)
    listing = list_sink(store, layout_with())
    writer = SinkWriter(tmp_path)
    tables: dict[tuple[str, str, int], Table] = {}
    for file in listing.schemas:
        change = read_schema_file(store, file)
        table = Table(TableName(change.database, change.table), change.commit_ts, change.columns)
        tables[change.database, change.table, change.commit_ts] = table
        writer.write_ddl(change, DAY)
    for file in sorted(listing.data, key=lambda file: file.path):
        table = tables[file.database, file.table, file.version]
        lines = [json.loads(line) for line in (simulated / file.path).read_bytes().split(b"\r\n")[:-1]]
        for line in lines:
            old = None if line["old"] is None else line["old"][0]
            writer.write([SampleRowChange(line["type"], table, line["_tidb"]["commitTs"], line["data"][0], old)])
        writer.flush(datetime.datetime.fromtimestamp(lines[0]["ts"] / 1000, datetime.UTC))
    writer.checkpoint(read_checkpoint(store, utc_now()))

    written, expected = contents(tmp_path), contents(simulated)
    assert sorted(written) == sorted(expected)
    for path, content in expected.items():
        assert without_chance(written[path]) == without_chance(content), path
