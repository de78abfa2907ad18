"""A sink without commit-ts is told so once; a file without it is a bad file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.pipeline.sink import _require_commit_ts
from tests.kit.lakes import TestLake
from tests.pipeline import Sink

WITHOUT = '{"type": "INSERT", "database": "d", "table": "t", "data": [{"id": "1"}]}\r\n'


def look(lake: TestLake, *contents: str) -> None:
    """Files of these contents, an empty text for a good one, and what is said of them before they are decoded."""
    sink = Sink(lake.sink, "t", checkpoint=10)
    for at, content in enumerate(contents, 1):
        path = sink.file("t", at=at)
        if content:
            (lake.sink / path).write_text(content)
    run = lake.run()
    new = run.source.land().new
    assert len(new) == len(contents)
    _require_commit_ts(run, new)


def test_a_sink_that_has_it_nowhere_is_told_so(lake: TestLake) -> None:
    with pytest.raises(SourceError, match="enable-tidb-extension=true") as told:
        look(lake, WITHOUT, WITHOUT)
    assert (told.value.segment or "").endswith("CDC00000000000000000001.json")


def test_a_file_without_it_among_others_is_left_to_the_decoder(lake: TestLake) -> None:
    look(lake, WITHOUT, "")


@pytest.mark.parametrize("content", [WITHOUT, "[" * 100_000], ids=["without", "nested too deep"])
def test_a_file_without_it_in_a_feed_that_has_events_is_left_to_the_decoder(lake: TestLake, content: str) -> None:
    rows = pa.table({"segment": ["before"]})
    lake.lake.catalog.create_namespace_if_not_exists(f"cdc_{lake.name}")
    lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), rows.schema).append(rows)
    look(lake, content)


def test_a_line_that_is_no_message_says_nothing_of_the_sink(lake: TestLake) -> None:
    look(lake, "[" * 100_000)
