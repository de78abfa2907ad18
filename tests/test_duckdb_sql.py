"""DuckDB's SQL as text: literals are the values that they are of, and a bound value is what it was."""

from __future__ import annotations

import datetime
import math
import os
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.duckdb_sql import database, duckdb_type, identifier, literal, query, text_literal
from tests.kit.duckdb_sql import connection

AN_HOUR = datetime.timezone(datetime.timedelta(hours=1))

LITERALS: list[tuple[Any, str]] = [
    (None, "int"), (None, "list<float>"), (None, "decimal(10,2)"),
    (-5, "int"), (2**63 - 1, "long"), (-(2**63), "long"), (Decimal(2**64 - 1), "decimal(20,0)"),
    (Decimal("-0.50"), "decimal(10,2)"), (Decimal("9" * 38), "decimal(38,0)"), (Decimal("1E-38"), "decimal(38,38)"),
    (0.1, "double"), (5e-324, "double"), (-1.7976931348623157e308, "double"), (math.inf, "double"),
    (-math.inf, "float"), (0.5, "float"), (True, "boolean"),
    ("", "string"), ("it's \"\\ \\x41 \n ? $1 -- \0 é😀", "string"), ("\0", "string"),
    (b"", "binary"), (bytes(range(256)), "binary"),
    (datetime.date(1, 1, 1), "date"), (datetime.date(9999, 12, 31), "date"),
    (datetime.datetime(1, 1, 1, 0, 0, 0, 1), "timestamp"),  # noqa: DTZ001
    (datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), "timestamp"),  # noqa: DTZ001
    (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "timestamptz"),
    (datetime.datetime(2024, 1, 1, 0, 30, tzinfo=AN_HOUR), "timestamptz"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "iceberg"), LITERALS)
def test_a_literal_is_its_value(value: Any, iceberg: str) -> None:
    query = f"SELECT {literal(value, iceberg)}, typeof({literal(value, iceberg)})"
    # All rows: DuckDB does nothing else on a connection with an unfinished result.
    ((found, kind),) = connection().execute(query).fetchall()
    assert found == value
    assert kind.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ") == duckdb_type(iceberg)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_a_literal_and_a_name(text: str) -> None:
    # MySQL has no names with U+0000.
    name = text.replace("\0", "") or "x"
    cursor = connection().execute(f"SELECT {text_literal(text)} AS {identifier(name)}")
    assert cursor.description[0][0] == name
    assert cursor.fetchall() == [(text,)]


def test_a_database_is_used_again_but_for_one_that_failed() -> None:
    with database() as first, database() as second:
        assert first is not second
        assert query(first, "SELECT n FROM rows", rows=pa.table({"n": [1]})).to_pylist() == [{"n": 1}]
    with database() as again:
        assert again in (first, second)
        with pytest.raises(duckdb.CatalogException):
            again.sql("SELECT n FROM rows")
    with pytest.raises(RuntimeError), database() as failed:
        raise RuntimeError
    with database() as other:
        assert other is not failed


def test_a_join_with_a_reader_keeps_its_right_side() -> None:
    keys = pa.table({"key": [1, 2]})
    with database() as own:
        read = pa.RecordBatchReader.from_batches(keys.schema, iter(keys.to_batches()))
        explained = query(own, "EXPLAIN SELECT * FROM stored SEMI JOIN keys USING (key)", stored=read, keys=keys)
    plan = explained.column("explain_value")[0].as_py()
    assert "Join Type: SEMI" in plan
    assert "RIGHT_SEMI" not in plan


def test_a_process_that_was_forked_has_databases_of_its_own() -> None:
    with database() as connection:
        pass
    pid = os.fork()
    if not pid:
        with database() as own:
            os._exit(own is connection)
    assert os.waitpid(pid, 0)[1] == 0
