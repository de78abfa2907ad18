"""Values, by type: `cases/values/*.txt`. A case is a column's type, or the types that a column had one after the other
(`int → bigint`), with how the feed has its values in JSON behind `@`, then a value a line; each result is of one value.

`parsing`: texts of the source, and the values that they mean. `writing`: values, and the texts that the source has of
them. `conversions`: values of the first type, and what MySQL's ALTER TABLE makes of them. `partitions`: rows of the
named columns, and whether a partition of the subject has them. Values are literals of Python, texts are as they stand.

And DuckDB's SQL as text: literals are the values that they are of, and a bound value is what it was.
"""

import datetime
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.mysql_types import ColumnType, type_change
from cdc_lakehouse.changelog.schema import Column
from cdc_lakehouse.duckdb_sql import cast, database, duckdb_type, identifier, let, literal, query, text_literal
from cdc_lakehouse.errors import DdlError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.typed_rows import PartitionRows, Target, any_of, integers
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, conversions, convert_through
from tests.changelog.statements import ProductTables, declared, partitioned_by
from tests.kit import golden, truth
from tests.kit.case_files import Case, bytes_of, read_cases, text_of
from tests.lake import moment, utc, written

CASES = {file.stem: read_cases(file) for file in sorted(Path(__file__).parent.glob("cases/values/*.txt"))}
_AN_HOUR: Final = datetime.timezone(datetime.timedelta(hours=1))
_NAMES: Final = {"Decimal": Decimal, "date": datetime.date, "moment": moment, "utc": utc, "AN_HOUR": _AN_HOUR}


def answer(query: str) -> list[tuple[Any, ...]]:
    with database() as own:
        return own.execute(query).fetchall()


def rows_of(values: Iterable[Any], iceberg: str, *expressions: str, name: str = "value") -> list[tuple[Any, ...]]:
    """The expressions, a tuple for each of the values. They find the value in the column `name`."""
    listed = ", ".join(f"({number}, {literal(value, iceberg)})" for number, value in enumerate(values))
    table = f"(VALUES {listed}) AS t(number, {identifier(name)})"
    return answer(f"SELECT {', '.join(expressions)} FROM {table} ORDER BY number")


def type_of(text: str) -> ColumnType:
    try:
        return declared(text).type
    except DdlSyntaxError:
        return ColumnType.of(text)  # A type of a message, which need not say all.


def header(case: Case) -> tuple[list[ColumnType], ValueFormat]:
    types, _, how = case.own[0].partition(" @ ")
    return [type_of(each) for each in types.split(" → ")], ValueFormat(**json.loads(how or "{}"))


def values_of(case: Case) -> list[Any]:
    return [eval(line, dict(_NAMES)) for line in case.own[1:]]


def parsed(case: Case) -> Iterator[str]:
    """Also: what is written of the value is read as the same again, and has the type of its column; and Arrow reads
    integers as DuckDB does, or not at all."""
    (column,), how = header(case)
    texts = [bytes_of(line).decode() for line in case.own[1:]]
    value = value_parsing.value("text", column, how)
    failed, zero = value_parsing.unread("text", value, column, how)

    def again(typed: str) -> str:
        return let(value_parsing.text(typed, column, how), lambda text: value_parsing.value(text, column, how))

    typed = f"typeof({value}) = typeof({cast('NULL', how.type_of(column))})"
    found = rows_of([*texts, None], "string", value, failed, zero or "false", let(value, again), typed, name="text")
    assert found[-1] == (None, False, False, None, True)
    for text, (read, is_failed, is_zero, same, is_typed) in zip(texts, found, strict=False):
        assert (same, is_typed) == (read, True) and (read is None) == (is_failed or is_zero)
        by_arrow = integers(pa.array([text]), (column,), how)
        is_usual = column.name in ("int", "bigint") and re.fullmatch(r"-?[1-9]\d{0,8}", text)
        assert not is_usual if by_arrow is None else by_arrow.to_pylist() == [read] and not is_failed
        yield "cannot be read" if is_failed else "a zero date" if is_zero else text_of(written(read))


def texts_of(case: Case) -> Iterator[str]:
    (column,), how = header(case)
    values, kind = [*values_of(case), None], how.type_of(column)
    found = rows_of(values, kind, value_parsing.text("value", column, how), "value", "typeof(value)")
    assert found[-1][:2] == (None, None)
    for value, (text, read, type_of_it) in zip(values[:-1], found, strict=False):
        assert read == value and type_of_it.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ") == duckdb_type(kind)
        yield text_of(text)


def changes(values: list[Any], kind: str, types: Sequence[ColumnType], how: ValueFormat) -> list[tuple[Any, ...]]:
    """Of each value: what it becomes, whether it is lost, and whether it is a zero date. The values are of an Iceberg
    type, as the literals of which they are cast to the first type."""
    old, new = how.type_of(types[0]), how.type_of(types[-1])
    relation, result, lost, zeros = conversions("(SELECT *, value AS v0 FROM t)", types, how)
    through = convert_through("value", types, how)
    listed = ", ".join(f"({number}, {literal(value, kind)})" for number, value in enumerate([*values, None]))
    flags = [f"coalesce({each}, false)" for each in (any_of(lost), any_of(zeros))]
    shown = ", ".join([cast(result, new), *flags, through, f"typeof({through}) = typeof({cast('NULL', new)})"])
    given = f"SELECT number, {cast('value', old)} AS value FROM (VALUES {listed}) AS t(number, value)"
    query = f"WITH t AS ({given}) SELECT {shown} FROM {relation} ORDER BY number"
    *found, null = answer(query)
    assert null == (None, False, False, None, True)
    for value, is_lost, is_zero, changed, is_typed in found:
        assert is_typed and (value == changed or is_lost or is_zero)
        assert value is None or not (is_lost or is_zero)
    return [each[:3] for each in found]


def converted(case: Case) -> Iterator[str]:
    types, how = header(case)
    try:
        found = changes(values_of(case), how.type_of(types[0]), types, how)
    except DdlError:
        assert type_change(types[0], types[-1]) == "convert"
        yield "refused"
        return
    for value, is_lost, is_zero in found:
        yield "lost" if is_lost else "a zero date" if is_zero else text_of(written(value))


def condition_of(
    scheme: Any, partition: str, types: Mapping[str, ColumnType], how: ValueFormat, value: str = '"{}"'
) -> str:
    columns = tuple(Column(number, name, kind) for number, (name, kind) in enumerate(types.items(), 1))
    return PartitionRows(scheme, (partition,), Target(columns, (), how)).condition(lambda each: value.format(each.name))


def placed(case: Case) -> Iterator[str]:
    settings = case.settings
    how = ValueFormat(**settings.get("format", {}))
    types = {name: declared(text).type for name, text in settings["columns"].items()}
    partition, *lines = case.own
    rows = [eval(line, dict(_NAMES)) for line in lines]
    kinds = [how.type_of(each) for each in types.values()]
    listed = ", ".join(
        f"({number}, {', '.join(literal(value, kind) for value, kind in zip(row, kinds, strict=True))})"
        for number, row in enumerate(rows)
    )
    try:
        scheme = partitioned_by(settings["by"])
        condition = condition_of(scheme, partition, types, how)
    except DdlError as error:
        yield f"refused: {error.message}"
        return
    names = ", ".join(map(identifier, ("number", *types)))
    query = f"SELECT {condition} FROM (VALUES {listed}) AS t({names}) ORDER BY number"
    shown = {True: "in it", False: "not in it", None: "uncertain"}
    yield from (shown[value] for (value,) in answer(query))


KINDS: Final = {"parsing": parsed, "writing": texts_of, "conversions": converted, "partitions": placed}


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind in KINDS for case in CASES[kind]], ids=str)
def test_values_are_those_of_the_case(kind: str, case: Case, update: bool) -> None:
    case.compare(list(KINDS[kind](case)), update=update)


_IN_OWN_WAY: Final = re.compile("float|double|.*zerofill")


@pytest.mark.slow
@pytest.mark.parametrize("database", ["mysql", "tidb"])
def test_value_is_converted_as_mysql_does(database: Literal["mysql", "tidb"]) -> None:
    """But for those that are `lost` in `golden/conversions.jsonl`, and where the server is not followed, which has
    another result `here`. TiDB has its own texts of some numbers; and as its collations are not known, texts are lost
    there that may be other spellings of labels."""
    wrong = list[Any]()
    for question in golden.read("conversions"):
        old, new = question["types"][0], question["types"][-1]
        if database == "tidb" and "char" in new and _IN_OWN_WAY.match(old):
            continue
        types, how = [*map(type_of, question["types"])], ValueFormat(question.get("zone", "UTC"), database=database)
        texts, kind = list(question["values"]), "binary" if how.type_of(types[0]) == "binary" else "string"
        given = [golden.value(text, old) if kind == "binary" else text for text in texts]
        for text, (value, is_lost, is_zero) in zip(texts, changes(given, kind, types, how), strict=True):
            answer = question.get("here", {}).get(text, question["values"][text])
            is_label = all(f"'{part}'" in new for part in text.split(","))
            spelt = database == "tidb" and new.startswith(("enum", "set")) and not is_label
            if is_lost and (spelt or text in question.get("lost", ())):
                continue
            if is_lost or (truth.seen_value(value, new), is_zero) != (
                golden.value(answer, new),
                golden.is_zero_date(answer, new),
            ):
                wrong.append((question["types"], text, answer, value, is_lost, is_zero))
    assert not wrong


@pytest.mark.slow
def test_partition_has_the_rows_that_mysql_removes_with_it() -> None:
    """By `golden/partitions.jsonl`, where the collation of a column, which is not known, does not matter."""
    wrong, counts = list[Any](), Counter[str]()
    for question in golden.read("partitions"):
        here, how = ProductTables("d"), ValueFormat(question.get("zone", "UTC"), database="mysql")
        here.run(question["table"])
        (version,) = here.tables
        types = {column.name.lower(): column.type for column in version.carried}
        read = [f"{value_parsing.value(name, kind, how)} AS {name}_value" for name, kind in types.items()]
        rows = pa.Table.from_pylist([dict(zip(types, row, strict=False)) for row in question["rows"]])
        rows = rows.cast(pa.schema([(name, pa.string()) for name in rows.column_names]))
        try:
            assert version.partitioning is not None
            condition = condition_of(version.partitioning, question["partition"], types, how, "{}_value")
        except DdlError as error:
            wrong.append((question["table"], str(error)))
            continue
        query = f"SELECT id, {condition} AS gone FROM (SELECT *, {', '.join(read)} FROM rows)"
        found = dict(zip(*duckdb_sql.query(query, rows=rows).to_pydict().values(), strict=True))
        known = None not in found.values()
        counts["compared" if known else "uncertain"] += 1
        if known and {id for id, gone in found.items() if gone} != set(question["gone"]):
            wrong.append((question["table"], question["partition"], found))
    assert not wrong
    assert counts["compared"] > 0.5 * counts.total(), counts


ALL_TYPES: Final = [
    type_of(text)
    for text in (
        "tinyint", "bigint", "bigint unsigned", "bit(64)", "year", "float", "double", "decimal(10,2)", "decimal(3,3)",
        "decimal(60,4)", "varchar(60)", "json", "blob", "binary(4)", "date", "time", "time(3)", "datetime",
        "datetime(6)", "timestamp", "enum('a','b')", "set('a','b')", "set('b','a')",
    )
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"database": "mysql", "zone": "America/New_York"}, {"zero_dates": "string"}])
def test_null_stays_null_and_has_the_new_type(how: dict[str, Any]) -> None:
    """Of every pair that there is a conversion for."""
    read, expressions = ValueFormat(**how), list[str]()
    for old, new in itertools.permutations(ALL_TYPES, 2):
        try:
            null = convert_through(cast("NULL", read.type_of(old)), [old, new], read)
        except DdlError:
            continue
        typed = cast("NULL", read.type_of(new))
        expressions.append(let(null, f"{{0}} IS NULL AND typeof({{0}}) = typeof({typed})".format))
    assert len(expressions) > 300
    for start in range(0, len(expressions), 100):
        assert set(rows_of([None], "int", *expressions[start : start + 100])[0]) == {True}


# --- DuckDB's SQL ---


def test_rows_with_long_texts_come_in_parts() -> None:
    lengths = [10] * 3000 + [20 << 20] + [26_000] * 2048 + [10] * 3000
    rows = pa.table({"v": ["x" * length for length in lengths]})
    parts = [*duckdb_sql.slices(rows)]
    large = duckdb_sql.slices(rows.cast(pa.schema([("v", pa.large_string())])))
    assert [part.num_rows for part in large] == [part.num_rows for part in parts]
    assert [len(text) for part in parts for text in part.column("v").to_pylist()] == lengths
    assert len([part for part in parts if part.num_rows > 1 and part.nbytes > 17 << 20]) == 0
    assert [part.num_rows for part in duckdb_sql.slices(pa.table({"v": ["x"] * 9000}))] == [9000]


def test_literal_that_no_text_shows_has_value_and_type() -> None:
    for value, iceberg, kind in (
        (True, "boolean", "BOOLEAN"), (b"", "binary", "BLOB"), (None, "int", "INTEGER"),
        (None, "decimal(10,2)", "DECIMAL(10,2)"), (None, "list<float>", "FLOAT[]"),
    ):  # fmt: skip
        assert rows_of([value], iceberg, "value", "typeof(value)") == [(value, kind)]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_a_literal_and_a_name(text: str) -> None:
    # MySQL has no names with U+0000.
    name = text.replace("\0", "") or "x"
    assert query(f"SELECT {text_literal(text)} AS {identifier(name)}").to_pylist() == [{name: text}]


def test_a_database_is_used_again_but_for_one_that_failed() -> None:
    with database() as first, database() as second:
        assert first is not second
    assert query("SELECT n FROM rows", rows=pa.table({"n": [1]})).to_pylist() == [{"n": 1}]
    with database() as again:
        assert again in (first, second)
        with pytest.raises(duckdb.CatalogException):
            again.sql("SELECT n FROM rows")
    with pytest.raises(RuntimeError), database() as failed:
        raise RuntimeError
    with pytest.raises(duckdb.InvalidInputException), database() as sound:
        sound.execute("SELECT error('a value')")
    with database() as other:
        assert other is sound
        assert other is not failed


def test_a_join_with_a_reader_keeps_its_right_side() -> None:
    keys = pa.table({"key": [1, 2]})
    read = pa.RecordBatchReader.from_batches(keys.schema, iter(keys.to_batches()))
    explained = query("EXPLAIN SELECT * FROM stored SEMI JOIN keys USING (key)", stored=read, keys=keys)
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
