"""Types, times, partitions and columns: what functions give (`cases/values/*.txt`), and what holds of all values; what
rows that are older than a column hold in it (MySQL manual, "Data Type Default Values", "ALTER TABLE").

`cases/defaults/*.txt`: a case is a column's declaration and, behind `|`, the text of its default in a schema file. The
results are the value in the column's older rows, or why there is none: with the statement, without it, and by the
statement alone, as topics and Canal servers have it; one line where they are the same.

`cases/stored/stored.txt`: a version and a change as lakes have them. A test that fails says that the form is another:
`FORMAT` must rise with it."""

import datetime
import itertools
from collections.abc import Iterator
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
from cdc_lakehouse.changelog.defaults import UTC, default_text, initial_default, of_schema_file
from cdc_lakehouse.changelog.mysql_types import ColumnType, iceberg_type, promotable, type_change, type_text
from cdc_lakehouse.changelog.schema import Column, SchemaChange, SourceColumn, TableName, TableVersion, column_diff
from cdc_lakehouse.changelog.stored import from_json, to_json
from cdc_lakehouse.changelog.versions import kind_of_action
from tests.changelog.statements import (
    CREATE,
    DROP,
    DROP_DATABASE,
    RENAME,
    SEEN,
    change,
    declared,
    is_same_default,
    partitioned_by,
    show,
)  # fmt: skip
from tests.kit import golden, truth
from tests.kit.case_files import Case, bytes_of, evaluated, read_cases, text_of
from tests.kit.waiting import memory_below

# --- Types ---


def types_changed(types: str) -> str:
    old, new = (declared(text).type for text in types.split(" → "))
    assert (type_change(old, old), type_change(new, new)) == ("none", "none")
    return type_change(old, new)


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


# --- Partitions ---


def altered(clause: str, *statements: str) -> Partitioning | None:
    found: Partitioning | None = partitioned_by(clause)
    for statement in statements:
        found = after(found, parse(f"ALTER TABLE t {statement}"))
    return found


def rows(name: str, clause: str, *statements: str) -> str:
    found = altered(clause, *statements)
    assert found is not None
    return show(rows_of(found, name))


# --- Columns ---

INT = ColumnType.of("INT")
A, B, C, D = (Column(id, name, INT) for id, name in enumerate("abcd", 1))


def version(*columns: Column, key: tuple[int, ...] = (1,)) -> TableVersion:
    return TableVersion(1, TableName("my db", "t.x"), "my db.t.x#1", "seen", "none", "", "", columns, key)


@given(st.permutations([A, B, C, D]))
def test_columns_that_did_not_move_keep_their_order(order: list[Column]) -> None:
    moved = {line[2] for line in column_diff(version(A, B, C, D), version(*order)) if line.endswith("(moved)")}
    stayed = [column for column in order if column.name not in moved]
    assert stayed == sorted(stayed, key=lambda column: column.id)
    assert len(moved) <= 3 and (not moved) == (order == [A, B, C, D])


# --- Statements ---

PAST = history.History()
PAST.apply([
    change(1, "old.a", CREATE, "CREATE TABLE old.a (id INT)", "id"), change(2, "old.a", DROP, "DROP TABLE old.a"),
    change(10, "db.s", CREATE, "CREATE TABLE db.s (id INT)", "id"), change(20, "old.b", 25, "FLASHBACK TABLE a TO b"),
    change(20, "db.t", RENAME, "RENAME TABLE db.s TO db.t"), change(30, "gone", DROP_DATABASE, "…"),
])  # fmt: skip


# --- Cases ---

NAMES: dict[str, Any] = {
    **vars(mysql_types), **vars(positions), "replace": replace, "Column": Column, "HashRows": HashRows,
    "BIGINT": ColumnType.of("BIGINT"), "INT": INT, "A": A, "B": B, "C": C, "D": D, "version": version,
    "V": version(Column(3, "Id", INT), Column(1, "Straße", INT), Column(2, "v", INT, carried=False), key=(1, 3)),
    "changed": lambda before, later: "; ".join(column_diff(before, later)) or "nothing", "rows": rows,
    "at": datetime.datetime.fromisoformat, "now": datetime.datetime.fromisoformat("2026-06-01T12:00:00.123456Z"),
    "TableName": TableName, "parse": parse,
    "parsed": lambda text, **options: "; ".join(map(show, parse(bytes_of(text).decode(), **options))),
    "parse_type": parse_type, "show": show,
    "TICDC_PRINTS": r"ALTER TABLE t ADD a VARCHAR(9) DEFAULT _UTF8MB4'C:\' COMMENT '\n''s'",
    "partitions": lambda *of: [each.name for each in getattr(altered(NAMES["RANGE"], *of), "partitions", ())],
    "kinds": lambda statement, action: (kind_of_action(action), *{each.kind for each in parse(statement)}),
    "late": lambda *words: PAST.is_late(change(*words)), "SEEN": SEEN, "LIFE": PAST.incarnations()["db.s#1"],
    "kind_of_action": kind_of_action, "types_changed": types_changed,
    "promotions": lambda kinds: ", ".join(
        f"{old} to {new}" for old, new in itertools.permutations(kinds.split("; "), 2) if promotable(old, new)
    ),
    "iceberg": lambda text: iceberg_type(declared(text).type), "type_of_words": type_of_words,
    "of_message": lambda text: iceberg_type(history.message_type(text)),
    "seconds": lambda n: datetime.timedelta(seconds=n), "stored": lambda text: from_json(TableVersion, text),
    "older": lambda kind: initial_default(SourceColumn("c", ColumnType.of(kind), nullable=False), None),
    "RANGE": "RANGE (a) (PARTITION p0 VALUES LESS THAN (10), PARTITION P1 VALUES LESS THAN (20), "
             "PARTITION `p 2` VALUES LESS THAN (MAXVALUE))",
    "TWO": "RANGE COLUMNS (a, b) (PARTITION p VALUES LESS THAN (1, 5), PARTITION q VALUES LESS THAN (1, MAXVALUE))",
    "LIST": "LIST (a) (PARTITION x VALUES IN (1, 2), PARTITION y VALUES IN (NULL, 3), "
            "PARTITION rest VALUES IN (DEFAULT))",
}  # fmt: skip


@pytest.mark.parametrize("case", read_cases(*sorted(Path(__file__).parent.glob("cases/values/*.txt"))), ids=str)
def test_function_gives_the_values_of_the_case(case: Case, update: bool) -> None:
    case.compare(evaluated(case, NAMES), update=update)


# --- Defaults ---


def test_default_takes_no_memory_for_the_length_of_its_type() -> None:
    with memory_below(1 << 20):
        column = SourceColumn("c", ColumnType.of("LONGTEXT", length=2**32 - 1), nullable=False)
        assert initial_default(column, None) == ("", None)


DEFAULTS = read_cases(*sorted(Path(__file__).parent.glob("cases/defaults/*.txt")))


def results_of(case: Case) -> Iterator[str]:
    (line,) = case.own
    text, given, source = line.partition(" |")
    definition, alone = (declared(text, backslash_escapes=escapes) for escapes in (False, True))
    nullable = definition.nullable is not False
    default = bytes_of(source[1:]).decode() if given else None
    column = of_schema_file(SourceColumn("c", definition.type, nullable=nullable, default=default))
    printed = SourceColumn("c", alone.type, nullable=nullable, default=default_text(alone.default, alone.type))
    found: dict[str, str] = {}
    for name, (initial, reason) in (
        ("with the statement: ", initial_default(column, definition)),
        ("without it: ", initial_default(column, None)),
        ("by the statement: ", initial_default(printed, alone)),
    ):
        found[name] = text_of(f"{initial!r}{'' if reason is None else f', {reason}'}")
    yield from [found.popitem()[1]] if len(set(found.values())) == 1 else map("".join, found.items())


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_older_rows_hold_default(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


def _as_tidb(printed: str | None, kind: str) -> str | None:
    """A default of information_schema as TiDB has it in schema files: bytes, those of a BIT too. It loses what is not
    UTF-8 of a VARBINARY; of a BIT it is Go's JSON that does."""
    if printed is not None and kind.startswith("bit"):
        number = int(printed[2:-1], 2)
        return (number.to_bytes(number.bit_length() // 8 + 1).lstrip(b"\0") or b"\0").decode(errors="replace")
    is_bytes = printed is not None and "b" in kind and printed.startswith("0x")
    return bytes.fromhex(printed[2:]).decode(errors="replace") if is_bytes and "bin" in kind else printed


def _meaning(text: str | None, kind: str) -> Any:
    return text if golden.is_zero_date(text, kind) else golden.value(text, kind)


def test_older_rows_hold_what_mysql_answered() -> None:
    """By the statement alone, and with a schema file; and the default is printed as the server does."""
    wrong = list[Any]()
    for question in golden.read("defaults"):
        kind = question["column"].lower()
        for literal, answer in question["defaults"].items():
            if answer is None:
                continue
            printed, held = answer
            definition = declared(question["column"] + f" DEFAULT {literal}" * bool(literal))
            column = SourceColumn("c", definition.type, nullable=definition.nullable is not False)
            text = default_text(definition.default, definition.type)
            if not is_same_default(printed, text, definition.type):
                wrong.append((kind, literal, "printed", printed, text))
            for default in (text, text if kind.startswith("float") else _as_tidb(printed, kind)):
                source = replace(column, default=default)
                initial, reason = initial_default(source if default == text else of_schema_file(source), definition)
                here = None if initial is None else initial.removesuffix(UTC)
                if here is not None and truth.iceberg_type(kind) == "binary":
                    here = f"0x{here.encode('latin-1').hex()}"
                if reason is None if printed and held is None else _meaning(here, kind) != _meaning(held, kind):
                    wrong.append((kind, literal, "held", held, initial, reason))
    assert not wrong


# --- Stored form ---


@given(st.from_type(TableVersion) | st.from_type(SchemaChange), st.from_type(Partitioning))
def test_stored_value_is_read_as_it_was(value: TableVersion | SchemaChange, partitioning: Partitioning) -> None:
    value = replace(value, partitioning=partitioning) if isinstance(value, TableVersion) else value
    assert from_json(type(value), to_json(value)) == value


def test_stored_form_is_that_of_its_number() -> None:
    kinds = {kind.__name__: kind for kind in (TableVersion, SchemaChange)}
    for line in (Path(__file__).parent / "cases/stored/stored.txt").read_text().splitlines():
        name, text = line.split(" ", 1)
        assert to_json(from_json(kinds[name], text)) == text
