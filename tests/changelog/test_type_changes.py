"""What becomes of stored values when a column's type changes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.mysql_types import promotable, type_change
from tests.changelog.statements import declared

ICEBERG = [
    "int", "long", "float", "double", "decimal(10,0)", "decimal(10,2)", "decimal(12,2)", "decimal(20,0)", "date",
    "timestamp", "timestamptz", "string", "binary", "list<float>",
]  # fmt: skip
# Iceberg specification, "Schema Evolution", "Valid primitive type promotions". Of date → timestamp (v3) no use is made.
PROMOTIONS = {
    ("int", "long"), ("float", "double"), ("decimal(10,0)", "decimal(20,0)"), ("decimal(10,2)", "decimal(12,2)"),
}  # fmt: skip


def test_promotions_of_the_specification() -> None:
    same_decimal = {(kind, kind) for kind in ICEBERG if kind.startswith("decimal")}
    assert {pair for pair in itertools.product(ICEBERG, ICEBERG) if promotable(*pair)} == PROMOTIONS | same_decimal


@given(st.tuples(*[st.integers(1, 38)] * 2), st.tuples(*[st.integers(0, 38)] * 2))
def test_a_decimal_may_only_gain_digits_before_the_point(precisions: tuple[int, ...], scales: tuple[int, ...]) -> None:
    (p, q), (r, s) = precisions, scales
    assert promotable(f"decimal({p},{r})", f"decimal({q}, {s})") == (r == s and p <= q)


def change(old: str, new: str) -> str:
    return type_change(declared(old).type, declared(new).type)


NONE = [
    "tinyint → int", "smallint unsigned → mediumint", "int(11) → int(5)", "int unsigned → bigint",
    "tinyint → tinyint(1)", "varchar(10) → varchar(50)", "char(5) → varchar(5)", "varchar(9) → longtext",
    "tinytext → text", "blob → longblob", "varbinary(5) → blob", "binary(4) → varbinary(4)",
    "datetime → datetime(3)", "timestamp(3) → timestamp(6)", "enum('a') → enum('a','b')",
    "enum('b') → enum('a','b')", "set('a') → set('a','b')", "enum('a') → varchar(9)", "set('a','b') → text",
    "bit(3) → bit(9)", "double(9,2) → double(9,3)", "double(9,2) → double",
    "varchar(9) character set latin1 → varchar(9) character set utf8", "char(9) → char(9)",
    "decimal(40,2) → decimal(50,2)", "json → json", "vector(2) → vector(3)",
]  # fmt: skip
WIDEN = [
    "tinyint → bigint", "int → bigint", "smallint unsigned → int unsigned",
    "decimal(10,2) → decimal(12,2)", "decimal(5) → decimal(38)", "float → double",
]  # fmt: skip
CONVERT = [
    "bigint → int", "int unsigned → int", "int → bigint unsigned", "bigint unsigned → bigint", "int → varchar(20)",
    "varchar(20) → int", "int → decimal(10,0)", "decimal(10,2) → decimal(10,3)", "decimal(12,2) → decimal(10,2)",
    "decimal(38,2) → decimal(39,2)", "decimal(40,2) → decimal(40,3)", "decimal(10,2) → double", "double → float",
    "datetime(6) → datetime", "timestamp(6) → timestamp(3)", "time → time(3)", "time(3) → time",
    "date → datetime", "datetime → timestamp", "datetime → date", "text → json", "json → text", "text → blob",
    "blob → text", "varchar(5) → varbinary(5)", "binary(4) → binary(8)", "varbinary(4) → binary(8)",
    "varchar(5) → enum('a')", "enum('a') → set('a')", "enum('a') → int", "bit(8) → bit(64)", "bit(8) → int",
    "int → float", "varchar(20) → datetime", "text → vector",
    "int → int unsigned", "smallint → int unsigned", "int → smallint", "varchar(9) → char(9)",
    "varchar(9) → varchar(8)", "binary(8) → binary(4)",
    "text → varchar(9)", "varchar(99) → tinytext", "longtext → text", "blob → tinyblob", "varbinary(9) → varbinary(8)",
    "binary(4) → binary(8)", "double → double(9,2)", "double(9,3) → double(9,2)", "float → double(9,2)",
    "double → double unsigned", "decimal(50,2) → decimal(49,2)", "decimal(50,2) → decimal(50,2) unsigned",
    "bit(9) → bit(8)", "enum('a','b') → enum('a')", "enum('a') → enum('A')", "set('a','b') → set('b')",
    "enum('abc') → varchar(2)", "varchar(9) → varchar(9) character set latin1",
    "varchar(9) character set utf8mb4 → varchar(9) character set utf8",
]  # fmt: skip


@pytest.mark.parametrize(
    ("types", "kind"),
    [(types, kind) for kind, group in (("none", NONE), ("widen", WIDEN), ("convert", CONVERT)) for types in group],
)
def test_what_values_go_through(types: str, kind: str) -> None:
    old, new = types.split(" → ")
    assert (change(old, new), change(old, old), change(new, new)) == (kind, "none", "none")
