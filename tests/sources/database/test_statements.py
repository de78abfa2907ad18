"""What is sent to a source database: names quoted, sessions that only read, and TiDB as of a TSO."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.row_texts import form_of
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.sources.database.row_texts import value_text
from cdc_lakehouse.sources.database.statements import (
    ComparedColumn,
    ComparedTable,
    begin_statements,
    end_statements,
    session_statements,
)

TABLE = ComparedTable(
    TableName("d`b", "a.t"), (ComparedColumn("k", "`k`", "plain"), ComparedColumn("v", "`v`", "long_bytes")), 1, 7
)


def test_tidb_is_read_as_of_a_tso_and_mysql_in_a_transaction() -> None:
    assert begin_statements(452912345678901234, is_tidb=True) == ("SET @@tidb_snapshot = '452912345678901234'",)
    assert end_statements(is_tidb=True) == ("SET @@tidb_snapshot = ''",)
    assert begin_statements(5, is_tidb=False)[-1] == "START TRANSACTION WITH CONSISTENT SNAPSHOT"
    assert end_statements(is_tidb=False) == ("COMMIT",)


@pytest.mark.parametrize("is_tidb", [False, True])
def test_sessions_are_in_utc_and_only_read(is_tidb: bool) -> None:
    statements = session_statements(is_tidb=is_tidb)
    assert "SET SESSION time_zone = '+00:00'" in statements
    # TiDB does not know the statement, and writes nothing in a session with a snapshot.
    assert ("SET SESSION TRANSACTION READ ONLY" in statements) is not is_tidb


def test_checksums_are_one_row_a_bucket() -> None:
    assert TABLE.checksum_statement() == (
        "SELECT bucket, COUNT(*), SUM(hash) FROM ("
        "SELECT CAST(CONV(LEFT(MD5(CONCAT_WS(',', IFNULL(`k`, 'N'))), 8), 16, 10) AS UNSIGNED) % 7 AS bucket, "
        "CAST(CONV(LEFT(MD5(CONCAT_WS(',', IFNULL(`k`, 'N'), IFNULL(MD5(`v`), 'N'))), 16), 16, 10) AS UNSIGNED) "
        "AS hash FROM `d``b`.`a.t`) AS hashes GROUP BY bucket"
    )


def test_rows_are_those_of_some_buckets_or_of_all() -> None:
    assert " WHERE " not in TABLE.row_statement(None)
    statement = TABLE.row_statement([1, 5])
    assert statement.endswith(" AS UNSIGNED) % 7 IN (1, 5) ORDER BY 1") and "`d``b`.`a.t`" in statement


def test_types_without_a_common_text_have_no_form() -> None:
    assert [form_of(ColumnType(name)) for name in ("point", "geometry", "vector", "a newer type")] == [None] * 4


def test_zero_dates_are_null_only_by_policy() -> None:
    column = ColumnType.of("DATE")
    assert value_text("`d`", column, zero_dates="null").startswith("IF(YEAR(`d`) > 0 AND ")
    assert value_text("`d`", column, zero_dates="string") == "CONVERT(CAST(`d` AS CHAR) USING utf8mb4)"
