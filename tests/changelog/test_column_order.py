from __future__ import annotations

import pytest

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.column_order import misordered
from cdc_lakehouse.changelog.observed_schema import DdlLog, Sight, Statement

CREATE = Statement(10, "d", "t", "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "a")


def sight(at: int, *columns: str) -> Sight:
    return Sight(at, "d", "t", tuple((name, "int") for name in columns), None, f"row{at}")


def holds(*told: Statement | Sight) -> list[tuple[int, str]]:
    changes = list(DdlLog(escapes=True).changes(told))
    found = list(misordered(changes, (each for each in told if isinstance(each, Sight))))
    assert all(each.action == ddl_kinds.NOT_UNDERSTOOD and "tsdb" in str(each.fault) for each in found)
    return [(each.commit_ts, each.table) for each in found]


@pytest.mark.parametrize(
    "columns", [("id", "v", "w"), ("ID", "V", "w"), ("id", "w"), ("w",), ("id", "x", "v", "w"), ()]
)
def test_what_is_in_the_tables_order(columns: tuple[str, ...]) -> None:
    assert holds(CREATE, sight(20, *columns)) == []


@pytest.mark.parametrize("columns", [("id", "w", "v"), ("v", "id"), ("w", "x", "id")])
def test_what_is_not_holds_the_table(columns: tuple[str, ...]) -> None:
    assert holds(CREATE, sight(20, *columns)) == [(19, "t")]


def test_the_order_is_that_of_the_rows_point_of_the_log() -> None:
    move = Statement(30, "d", "t", "ALTER TABLE t MODIFY w INT FIRST", "b")
    exchange = Statement(50, "d", "t", "ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN w TO v", "c")
    rows = [sight(20, "id", "v", "w"), sight(40, "w", "id", "v"), sight(60, "v", "id", "w")]
    assert holds(CREATE, move, exchange, *rows) == []
    assert holds(CREATE, move, exchange, *rows, sight(25, "w", "id", "v"), sight(45, "v", "id", "w")) == [
        (24, "t"),
        (44, "t"),
    ]


def test_of_a_table_whose_create_is_not_in_the_log_the_first_row_tells() -> None:
    assert holds(sight(20, "b", "a"), sight(30, "b", "a"), sight(40, "a", "b")) == [(39, "t")]


def test_a_table_that_is_dropped_or_renamed_is_another_one() -> None:
    drop = Statement(30, "d", "t", "DROP TABLE t", "b")
    assert holds(CREATE, drop, sight(40, "w", "v", "id")) == []
    renamed = Statement(30, "d", "u", "RENAME TABLE t TO u", "b")
    again = Statement(35, "d", "t", "CREATE TABLE t (w INT PRIMARY KEY, v INT)", "c")
    assert holds(CREATE, renamed, again, sight(40, "w", "v")) == []
