"""Statements that read a table in ranges of its key."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.database.table_reading import KeyRange, TableDefinition


def table(statement: str, name: str = "t") -> TableDefinition:
    return TableDefinition.of(TableName("d", name), statement, "2024-01-01")


def test_values_are_exact_texts() -> None:
    found = table(
        "CREATE TABLE `t%` (`id` int NOT NULL, `f` float, `b` bit(3), `x` blob, `g` point, `v` int GENERATED ALWAYS AS "
        "(1) VIRTUAL, `s` int GENERATED ALWAYS AS (1) STORED, PRIMARY KEY (`id`))",
        "t%",
    )
    statement, values = found.rows(KeyRange())
    assert (statement % tuple(values)) == (
        "SELECT `id`, `f` + 0e0, LPAD(HEX(`b` + 0), 16, '0'), HEX(`x`), HEX(`g`), `s` FROM `d`.`t%`"
    )
    assert found.encoded == {"b", "x", "g"}


def test_ranges_of_a_key_of_several_columns() -> None:
    found = table(
        "CREATE TABLE t (`a` varchar(9), `b` decimal(5,2), `c` varbinary(4), `n` int, PRIMARY KEY (`a`,`b`,`c`))"
    )
    statement, values = found.rows(KeyRange(("x", "1.50", "00FF"), None))
    assert statement.endswith(
        " WHERE (`a` >= %s AND (`a` > %s OR `a` = %s AND `b` > %s OR `a` = %s AND `b` = %s AND `c` > %s))"
    )
    assert [str(value) for value in values] == ["x", "x", "x", "1.50", "x", "1.50", str(b"\x00\xff")]
    upper, _ = found.rows(KeyRange(None, ("x", "1.50", "00FF")))
    assert upper.endswith("`a` = %s AND `b` = %s AND `c` <= %s))") and "`a` <= %s AND" in upper


@pytest.mark.parametrize(
    ("key", "expected"),
    [("`n`", ("n",)), ("`n`,`e`", ("n",)), ("`e`,`n`", ()), ("`N`,`f`,`a`", ("n",)), ("`a`,`n`", ("a", "n"))],
)
def test_columns_whose_order_is_not_that_of_their_texts_split_nothing(key: str, expected: tuple[str, ...]) -> None:
    columns = "`n` bigint, `e` enum('b','a'), `f` float, `a` char(3)"
    assert table(f"CREATE TABLE t ({columns}, PRIMARY KEY ({key}))").key == expected


@pytest.mark.parametrize(
    ("keys", "expected", "numbered"),
    [
        ("PRIMARY KEY (`n`), UNIQUE KEY (`a`)", ("n",), True),
        ("UNIQUE KEY (`a`)", ("a",), False),
        ("UNIQUE KEY (`n`)", ("n",), True),
        ("UNIQUE KEY (`n`,`a`)", ("n", "a"), False),
        # Its first column is a number, of which many rows may be.
        ("UNIQUE KEY (`n`,`e`)", ("n",), False),
        ("PRIMARY KEY (`e`), UNIQUE KEY (`n`)", ("n",), True),
        ("UNIQUE KEY (`z`), UNIQUE KEY (`n`)", ("n",), True),
        # With rows that are NULL, or in no range; in no order of the index; not unique.
        ("UNIQUE KEY (`z`)", (), False),
        ("UNIQUE KEY (`n`,`z`)", (), False),
        ("UNIQUE KEY (`a`(2))", (), False),
        ("UNIQUE KEY ((`n` + 1))", (), False),
        ("KEY (`n`)", (), False),
    ],
)
def test_the_key_that_ranges_are_of(keys: str, expected: tuple[str, ...], *, numbered: bool) -> None:
    columns = "`n` bigint NOT NULL, `e` enum('b','a') NOT NULL, `a` char(3) NOT NULL, `z` int"
    found = table(f"CREATE TABLE t ({columns}, {keys})")
    assert (found.key, found.is_numbered) == (expected, numbered)


def test_rows_change_no_definition() -> None:
    one = table("CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB AUTO_INCREMENT=41 DEFAULT CHARSET=utf8mb4")
    other = table("CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB AUTO_INCREMENT=97 DEFAULT CHARSET=utf8mb4")
    assert one == other and "AUTO_INCREMENT" not in one.statement
    kept = table("CREATE TABLE `t` (\n  `id` int COMMENT ') AUTO_INCREMENT=1'\n) ENGINE=InnoDB")
    assert "AUTO_INCREMENT=1" in kept.statement


def test_a_statement_that_is_not_understood_names_its_table() -> None:
    assert not table("CREATE TABLE t (id int,,)").is_understood
    with pytest.raises(SourceError, match=r"the CREATE TABLE: .* \[table d.t\]"):
        _ = table("CREATE TABLE t (id int,,)").types
