"""Where topics of TiCDC begin, by their first messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.pipeline.topics import beginnings_of
from cdc_lakehouse.sources.record_log import LogPartition

FIRST = 466_100_000_000_000_000
PLACE = LogPartition("t", 0)


def message(type: str, **tidb: int) -> tuple[None, bytes]:
    said: dict[str, Any] = {
        "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": type == "QUERY", "type": type, "es": 1,
        "ts": 1, "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int"}, "data": [{"id": "1"}], "old": None,
        "_tidb": tidb,
    }  # fmt: skip
    return None, json.dumps(said).encode()


def row(ts: int) -> tuple[None, bytes]:
    return message("INSERT", commitTs=FIRST + ts)


def watermark(ts: int) -> tuple[None, bytes]:
    return message("TIDB_WATERMARK", watermarkTs=FIRST + ts)


BROKEN = (None, b"{")


@pytest.mark.parametrize(
    ("offset", "messages", "began", "complete"),
    [
        (0, [watermark(5), row(9)], 5, None),
        (0, [row(9), row(3), watermark(5), row(1)], 3, None),
        (0, [BROKEN, row(9)], 9, None),
        (0, [], None, None),
        (7, [row(3), watermark(5), watermark(6)], 3, 5),
        # It does not show.
        (7, [row(3)], 3, None),
    ],
)
def test_by_the_first_watermark_and_what_is_before_it(
    offset: int, messages: list[tuple[None, bytes]], began: int | None, complete: int | None
) -> None:
    decode = format_of("ticdc-canal-json").decoder({})
    (found,) = beginnings_of({PLACE: offset}, {PLACE: messages}, decode)
    assert found.began_at == (None if began is None else FIRST + began)
    assert found.complete_from == (None if complete is None else FIRST + complete)
