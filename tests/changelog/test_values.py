"""Types, times, partitions and columns: what functions give (`cases/values/*.txt`), and what holds of all values."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog import history, mysql_types, positions
from cdc_lakehouse.changelog.ddl.clauses import Partitioning
from cdc_lakehouse.changelog.ddl.partitions import HashRows, after, rows_of
from cdc_lakehouse.changelog.ddl.statements import parse, parse_type
from cdc_lakehouse.changelog.mysql_types import ColumnType, iceberg_type, promotable, type_change, type_text
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion, column_diff
from cdc_lakehouse.changelog.versions import kind_of_action
from tests.changelog.ddl.cases import show
from tests.changelog.statements import declared, partitioned_by
from tests.kit.case_files import Case, bytes_of, evaluated, read_cases

# --- Types ---


def types_changed(types: str) -> str:
    old, new = (declared(text).type for text in types.split(" → "))
    assert (type_change(old, old), type_change(new, new)) == ("none", "none")
    return type_change(old, new)


def promotions(kinds: str) -> str:
    pairs = itertools.permutations(kinds.split("; "), 2)
    return ", ".join(f"{old} to {new}" for old, new in pairs if promotable(old, new))


def type_of_words(words: str) -> str:
    (found,) = {show(ColumnType.of(written)) for written in (words.lower(), words.upper(), words.title())}
    return found


LABELS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).map(str.rstrip), min_size=1)
TYPES = st.one_of(
    st.sampled_from(["tinyint(1)", "smallint", "year", "float", "double unsigned", "date", "json", "longblob", "text"]),
    st.integers(1, 64).map("bit({})".format),
    st.integers(1, 6).flatmap(lambda f: st.sampled_from([f"datetime({f})", f"timestamp({f})", f"time({f})"])),
    st.integers(1, 65).flatmap(lambda p: st.integers(0, min(p, 30)).map(lambda s: f"decimal({p},{s})")),
    st.integers(1, 255).flatmap(lambda n: st.sampled_from([f"char({n})", f"varbinary({n})", f"vector({n})"])),
    st.sampled_from(["int unsigned", "bigint unsigned zerofill", "decimal(5,2) unsigned zerofill"]),
)


@given(TYPES, st.sampled_from(["enum", "set"]), LABELS)
def test_text_of_a_type_says_the_type(text: str, name: str, labels: list[str]) -> None:
    assert type_text(declared(text).type) == text
    kind = ColumnType(name, elements=tuple(labels))
    assert declared(type_text(kind)).type == kind


# --- Times ---


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


# --- Partitions ---


def altered(clause: str, *statements: str) -> Partitioning | None:
    found: Partitioning | None = partitioned_by(clause)
    for statement in statements:
        found = after(found, parse(f"ALTER TABLE t {statement}"))
    return found


def names(found: Partitioning | None) -> list[str]:
    return [] if found is None else [partition.name for partition in found.partitions]


def rows(name: str, clause: str, *statements: str) -> str:
    found = altered(clause, *statements)
    assert found is not None
    return show(rows_of(found, name))


# --- Columns ---

INT = ColumnType.of("INT")
A, B, C, D = (Column(id, name, INT) for id, name in enumerate("abcd", 1))


def version(*columns: Column, key: tuple[int, ...] = (1,)) -> TableVersion:
    return TableVersion(1, TableName("my db", "t.x"), "my db.t.x#1", "seen", "none", "", "", columns, key)


def changed(before: TableVersion, later: TableVersion) -> str:
    return "; ".join(column_diff(before, later)) or "nothing"


@given(st.permutations([A, B, C, D]))
def test_columns_that_did_not_move_keep_their_order(order: list[Column]) -> None:
    moved = {line[2] for line in column_diff(version(A, B, C, D), version(*order)) if line.endswith("(moved)")}
    stayed = [column for column in order if column.name not in moved]
    assert stayed == sorted(stayed, key=lambda column: column.id)
    assert len(moved) <= 3 and (not moved) == (order == [A, B, C, D])


# --- Statements ---


def parsed(statement: str, **options: bool) -> str:
    return "; ".join(map(show, parse(bytes_of(statement).decode(), **options)))


# --- Cases ---

NAMES: dict[str, Any] = {
    **vars(mysql_types), **vars(positions), "replace": replace, "Column": Column, "HashRows": HashRows,
    "BIGINT": ColumnType.of("BIGINT"), "INT": INT, "A": A, "B": B, "C": C, "D": D, "version": version,
    "V": version(Column(3, "Id", INT), Column(1, "Straße", INT), Column(2, "v", INT, carried=False), key=(1, 3)),
    "changed": changed, "rows": rows, "at": at, "now": at("2026-06-01T12:00:00.123456Z"),
    "parse": parse, "parsed": parsed, "parse_type": parse_type, "show": show,
    "TICDC_PRINTS": r"ALTER TABLE t ADD a VARCHAR(9) DEFAULT _UTF8MB4'C:\' COMMENT '\n''s'",
    "partitions": lambda *statements: names(altered(NAMES["RANGE"], *statements)),
    "kinds": lambda statement, action: (kind_of_action(action), *{each.kind for each in parse(statement)}),
    "kind_of_action": kind_of_action, "types_changed": types_changed, "promotions": promotions,
    "iceberg": lambda text: iceberg_type(declared(text).type), "type_of_words": type_of_words,
    "of_message": lambda text: iceberg_type(history.message_type(text)),
    "seconds": lambda n: datetime.timedelta(seconds=n),
    "RANGE": "RANGE (a) (PARTITION p0 VALUES LESS THAN (10), PARTITION P1 VALUES LESS THAN (20), "
             "PARTITION `p 2` VALUES LESS THAN (MAXVALUE))",
    "TWO": "RANGE COLUMNS (a, b) (PARTITION p VALUES LESS THAN (1, 5), PARTITION q VALUES LESS THAN (1, MAXVALUE))",
    "LIST": "LIST (a) (PARTITION x VALUES IN (1, 2), PARTITION y VALUES IN (NULL, 3), "
            "PARTITION rest VALUES IN (DEFAULT))",
}  # fmt: skip


@pytest.mark.parametrize("case", read_cases(*sorted(Path(__file__).parent.glob("cases/values/*.txt"))), ids=str)
def test_function_gives_the_values_of_the_case(case: Case, update: bool) -> None:
    case.compare(evaluated(case, NAMES), update=update)
