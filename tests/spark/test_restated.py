"""Rows that a statement moves: what the scenarios of `moved_rows` and `keys` do not have."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.errors import WarehouseFullError
from cdc_lakehouse.pipeline import moved_rows
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, DROP_PARTITION, EXCHANGE, ID, PARTITIONED, HandSink, put, row
from tests.kit.lakes import TestLake, run_all

pytestmark = pytest.mark.spark


def test_emptied_partition_is_evaluated_in_zone_of_feed(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source={**CSV, "time_zone": "Asia/Shanghai"})
    sink = HandSink(lake.sink)
    columns = (ID, SourceColumn("t", ColumnType.of("TIMESTAMP")))
    query = (
        "CREATE TABLE `p` (`id` BIGINT, `t` TIMESTAMP) PARTITION BY RANGE (UNIX_TIMESTAMP(`t`)) (PARTITION p0 "
        "VALUES LESS THAN (UNIX_TIMESTAMP('2024-01-01 00:00:00')), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    )
    sink.schema("p", 1, *columns, action=CREATE, query=query)
    times = ["2023-12-31 23:59:59", "2024-01-01 00:00:00", "2024-01-01 04:00:00"]
    sink.rows("d/p", 1, *(row("I", "p", 3 + n, str(n), f'"{each}"') for n, each in enumerate(times)))
    sink.schema("p", 20, *columns, action=DROP_PARTITION, query="ALTER TABLE `p` DROP PARTITION `p0`")
    sink.checkpoint(30)
    lake.go_through()
    assert [id for id, *_ in lake.rows("p")] == [1, 2]


def test_exchange_that_fails_holds_its_tables_alone(
    new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)
    for table in "uo":
        sink.schema(table, 2, *COLUMNS, action=CREATE, query=f"CREATE TABLE `{table}` LIKE `p`")
        put(sink, table, 2, ("I", 3, 1, 1))
    sink.schema("p", 20, *COLUMNS, action=EXCHANGE, query="ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`u`")
    sink.schema("u", 20, *COLUMNS)
    sink.checkpoint(30)

    def failing(error: Exception) -> Any:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(moved_rows, "_readers", fail)

    for error, reason in ((ValueError("no row"), "ValueError no row"), (MemoryError(), "cannot be written")):
        failing(error)
        held = run_all(lake.run()).applied.held
        assert set(held) == {"d.p#1", "d.u#1"} and all(reason in each for each in held.values())
        assert lake.rows("o") == [(1, 1, "o3")]
    failing(OSError(errno.ENOSPC, "no room"))
    with pytest.raises(WarehouseFullError):
        run_all(lake.run())
    monkeypatch.undo()
    lake.go_through()
    assert (lake.rows("p"), lake.rows("u")) == ([(1, 1, "u3")], [])
