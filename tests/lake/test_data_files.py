"""Data files: what is written is read by field id, and what statistics leave out has none of the rows looked for."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64

from cdc_lakehouse.errors import StoredFormError
from cdc_lakehouse.lake.deletes import StoredVector, write_vectors
from cdc_lakehouse.lake.files import DataFileWriter, StoredFile, column, live_files, may_contain, read_rows, write_file

IO = PyArrowFileIO()
UTC = datetime.UTC

TYPES: dict[str, IcebergType] = {
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "small": DecimalType(9, 2),
    "middle": DecimalType(18, 4),
    "large": DecimalType(38, 10),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "datetime": TimestampType(),
    "timestamp": TimestamptzType(),
    "vector": ListType(100, FloatType(), element_required=False),
    "flag": BooleanType(),
}
SCHEMA = Schema(*(NestedField(number, name, type) for number, (name, type) in enumerate(TYPES.items(), start=1)))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "small": decimals(9, 2),
    "middle": decimals(18, 4),
    "large": decimals(38, 10),
    "string": st.text(st.characters(codec="utf-8"), max_size=40)
    | st.text(st.sampled_from("a\ud7ff\ue000\U0010ffff"), min_size=15, max_size=20),
    "binary": st.binary(max_size=40) | st.binary(max_size=3).map(lambda end: b"\xff" * 15 + end),
    "date": st.dates(),
    "datetime": st.datetimes(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "vector": st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=3),
    "flag": st.booleans(),
}
ORDERED = [name for name in TYPES if name != "vector"]


def id_of(name: str) -> int:
    return SCHEMA.find_field(name).field_id


def arrow(rows: Sequence[dict[str, Any]], names: Sequence[str] = tuple(TYPES)) -> pa.Table:
    types = {
        "small": pa.decimal128(9, 2), "middle": pa.decimal128(18, 4), "large": pa.decimal128(38, 10),
        "float": pa.float32(), "double": pa.float64(), "int": pa.int32(), "long": pa.int64(), "string": pa.string(),
        "binary": pa.binary(), "date": pa.date32(), "datetime": pa.timestamp("us"),
        "timestamp": pa.timestamp("us", "Etc/UTC"), "vector": pa.list_(pa.float32()), "flag": pa.bool_(),
    }  # fmt: skip
    return pa.table({name: pa.array([row.get(name) for row in rows], types[name]) for name in names})


def stored(text: str, vector: StoredVector | None = None) -> StoredFile:
    """A file as a table's manifest has it."""
    file = json.loads(text)
    lower, upper = (
        {id: bytes.fromhex(value) for id, value in zip(file[key]["keys"], file[key]["values"], strict=True)}
        for key in ("lower-bounds", "upper-bounds")
    )
    bounds = {id: (lower.get(id), upper.get(id)) for id in lower | upper}
    return StoredFile(
        file["file-path"], file["file-size-in-bytes"], file["record-count"], bounds, () if vector is None else (vector,)
    )


def delete(path: Path, file: StoredFile, positions: Sequence[int]) -> StoredFile:
    (text,) = write_vectors(IO, str(path), {file.path: BitMap64(positions)})
    seen = json.loads(text)
    vector = StoredVector(str(path), seen["content-offset"], seen["content-size-in-bytes"], len(positions), text)
    return StoredFile(file.path, file.size, file.record_count, file.bounds, (vector,))


def read(file: StoredFile, schema: Schema, field_ids: Sequence[int], **options: Any) -> list[dict[str, Any]]:
    return [row for part in read_rows(IO, file, schema, field_ids, **options) for row in part.to_pylist()]


rows_of = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=8
)


@settings(max_examples=30)
@given(rows=rows_of)
def test_rows_are_read_as_they_were_written_and_lie_within_their_bounds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = str(tmp_path_factory.mktemp("files") / "a.parquet")
    # Row groups of their own: bounds are those of all of them.
    text = write_file(IO, path, SCHEMA, arrow(rows), {"write.parquet.row-group-limit": "3"})
    file = stored(text)
    assert file.record_count == len(rows)
    assert file.size == Path(path).stat().st_size
    expected = [
        {**{column(id_of(name)): row[name] for name in TYPES}, "position": number} for number, row in enumerate(rows)
    ]
    assert read(file, SCHEMA, [id_of(name) for name in TYPES]) == expected
    for name in ORDERED:
        field = SCHEMA.find_field(name)
        values = [row[name] for row in rows if row[name] is not None]
        assert (field.field_id in file.bounds) == bool(values)
        for value in values:
            assert may_contain(file, field, value, value)
            found = read(file, SCHEMA, [field.field_id], between={field.field_id: (value, value)})
            assert value in [row[column(field.field_id)] for row in found]
        if values and name not in ("string", "binary"):
            lower, upper = file.bounds[field.field_id]
            assert lower is not None and upper is not None
            low, high = (from_bytes(field.field_type, bound) for bound in (lower, upper))
            if name not in ("date", "datetime", "timestamp"):
                assert (low, high) == (min(values), max(values))
    metrics = json.loads(text)
    nulls = dict(zip(*metrics["null-value-counts"].values(), strict=True))
    assert {name: nulls[id_of(name)] for name in ORDERED} == {
        name: sum(row[name] is None for row in rows) for name in ORDERED
    }


@settings(max_examples=30)
@given(rows=rows_of, other=st.fixed_dictionaries({name: VALUES[name] for name in ORDERED}))
def test_what_is_left_out_has_no_value_of_the_range(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], other: dict[str, Any]
) -> None:
    path = str(tmp_path_factory.mktemp("files") / "a.parquet")
    file = stored(write_file(IO, path, SCHEMA, arrow(rows), {"write.parquet.row-group-limit": "1"}))
    for name in ORDERED:
        field = SCHEMA.find_field(name)
        values = [row[name] for row in rows if row[name] is not None]
        low, high = sorted([other[name], values[0] if values else other[name]])
        inside = [value for value in values if low <= value <= high]
        assert may_contain(file, field, low, high) or not inside
        for ends in ((low, high), (None, high), (low, None)):
            found = read(file, SCHEMA, [field.field_id], between={field.field_id: ends})
            wanted = [v for v in values if (ends[0] is None or v >= ends[0]) and (ends[1] is None or v <= ends[1])]
            seen = [row[column(field.field_id)] for row in found]
            assert all(value in seen for value in wanted)


def test_row_groups_out_of_the_range_are_not_read_and_positions_stay(tmp_path: Path) -> None:
    schema = Schema(NestedField(7, "id", LongType()), NestedField(9, "name", StringType()))
    rows = pa.table({"id": range(1000), "name": [f"{n:04}" for n in range(1000)]})
    file = stored(write_file(IO, str(tmp_path / "a"), schema, rows, {"write.parquet.row-group-limit": "100"}))
    for between in ({7: (250, 320)}, {9: ("0250", "0320")}, {7: (200, 399), 9: ("0100", "0320")}):
        found = read(file, schema, [7, 9], between=between)
        assert [row["f7"] for row in found] == [row["position"] for row in found] == list(range(200, 400))
    assert read(file, schema, [7], between={7: (5000, 6000)}) == []
    assert not may_contain(file, schema.find_field(7), 1000, None)
    assert may_contain(file, schema.find_field(7), 999, None)
    assert not may_contain(file, schema.find_field(7), None, -1)
    assert not may_contain(file, schema.find_field(9), "1", "2")


@settings(max_examples=40)
@given(deleted=st.sets(st.integers(0, 999)), group=st.integers(1, 1200))
def test_deleted_rows_are_left_out(tmp_path_factory: pytest.TempPathFactory, deleted: set[int], group: int) -> None:
    directory = tmp_path_factory.mktemp("files")
    schema = Schema(NestedField(1, "id", LongType()))
    rows = pa.table({"id": range(0, 2000, 2)})
    text = write_file(IO, str(directory / "a"), schema, rows, {"write.parquet.row-group-limit": str(group)})
    file = stored(text)
    if deleted:
        file = delete(directory / "v", file, sorted(deleted))
    assert file.live_rows == 1000 - len(deleted)
    expected = [{"f1": 2 * n, "position": n} for n in range(1000) if n not in deleted]
    assert read(file, schema, [1]) == expected


def test_columns_are_found_by_id_with_the_types_and_defaults_of_today(tmp_path: Path) -> None:
    before = Schema(
        NestedField(1, "a", IntegerType()),
        NestedField(2, "b", FloatType()),
        NestedField(3, "c", DecimalType(5, 2)),
        NestedField(4, "d", StringType()),
        NestedField(5, "e", ListType(50, FloatType(), element_required=False)),
    )
    rows = pa.table(
        {"a": [1, 2], "b": [0.5, None], "c": [Decimal("1.20"), Decimal("-3.40")], "d": ["x", "y"], "e": [[1.0], None]}
    )
    file = stored(write_file(IO, str(tmp_path / "a"), before, rows, {}))
    after = Schema.model_validate(
        {
            "type": "struct",
            "fields": [
                {"id": 10, "name": "a", "type": "date", "required": False, "initial-default": "2020-01-02"},
                {"id": 11, "name": "n", "type": "string", "required": False},
                {"id": 12, "name": "l", "type": "decimal(38, 3)", "required": False, "initial-default": "1.500"},
                {"id": 13, "name": "z", "type": "timestamptz", "required": False,
                 "initial-default": "2020-01-01T00:00:00+00:00"},
                {"id": 14, "name": "y", "type": "binary", "required": False, "initial-default": "00FF"},
                {"id": 5, "name": "e", "required": False,
                 "type": {"type": "list", "element-id": 50, "element": "float", "element-required": False}},
                {"id": 3, "name": "b", "type": "decimal(12, 2)", "required": False},
                {"id": 2, "name": "d", "type": "double", "required": False},
                {"id": 1, "name": "x.y", "type": "long", "required": False},
            ],
        }
    )  # fmt: skip
    after = pickle.loads(pickle.dumps(after))
    (part,) = read_rows(IO, file, after, [1, 2, 3, 5, 10, 11, 12, 13, 14])
    assert part.to_pylist() == [
        {"f1": 1, "f2": 0.5, "f3": Decimal("1.20"), "f5": [1.0], "position": 0}
        | (new := {"f10": datetime.date(2020, 1, 2), "f11": None, "f12": Decimal("1.500"),
                   "f13": datetime.datetime(2020, 1, 1, tzinfo=UTC), "f14": b"\x00\xff"}),
        {"f1": 2, "f2": None, "f3": Decimal("-3.40"), "f5": None, "position": 1} | new,
    ]  # fmt: skip
    types = {name: str(part.schema.field(name).type) for name in ("f1", "f2", "f3", "f10", "f13")}
    assert types == {
        "f1": "int64", "f2": "double", "f3": "decimal128(12, 2)", "f10": "date32[day]", "f13": "timestamp[us, tz=UTC]",
    }  # fmt: skip
    # Bounds of before, of an int and a float, are understood as those of a long and a double.
    assert may_contain(file, after.find_field(1), 2, 2**40)
    assert not may_contain(file, after.find_field(1), 3, 2**40)
    assert not may_contain(file, after.find_field(2), 0.6, None)
    assert not may_contain(file, after.find_field(3), Decimal("1.21"), None)
    assert read(file, after, [1], between={1: (3, 2**40)}) == []
    assert len(read(file, after, [1], between={10: (datetime.date(1999, 1, 1), datetime.date(1999, 1, 1))})) == 2
    # Only columns that the file lacks: the rows are counted all the same.
    assert [row["position"] for row in read(delete(tmp_path / "v", file, [0]), after, [11])] == [1]
    assert [row["position"] for row in read(file, after, [])] == [0, 1]
    with pytest.raises(ValueError, match="field id 99"):
        read(file, after, [99])


ODD_NAMES = ["a", "a.b", "a_x2Eb", "a b", 'q"uo`te\'', "1", "_1", "订单", "é", "e\u0301", "a.b.c", "list.element",
             "n" * 64, "😀" * 32, "\\", "%", "A", ";drop"]  # fmt: skip


def test_any_name_is_the_name_of_a_column(tmp_path: Path) -> None:
    schema = Schema(*(NestedField(number, name, LongType()) for number, name in enumerate(ODD_NAMES, start=1)))
    rows = pa.table({name: [number, number + 100] for number, name in enumerate(ODD_NAMES, start=1)})
    mode = {"write.metadata.metrics.column.a.b": "counts", "write.metadata.metrics.column.%": "none"}
    text = write_file(IO, str(tmp_path / "a"), schema, rows, mode)
    file = stored(text)
    (part,) = read_rows(IO, file, schema, range(1, len(ODD_NAMES) + 1))
    assert part.to_pylist()[0] == {**{f"f{n}": n for n in range(1, len(ODD_NAMES) + 1)}, "position": 0}
    without = {ODD_NAMES.index(name) + 1 for name in ("a.b", "%")}
    assert set(file.bounds) == set(range(1, len(ODD_NAMES) + 1)) - without
    counted = set(json.loads(text)["value-counts"]["keys"])
    assert counted == set(range(1, len(ODD_NAMES) + 1)) - {ODD_NAMES.index("%") + 1}
    names = pq.read_schema(tmp_path / "a").names
    assert len(set(names)) == len(ODD_NAMES)
    assert not any("." in name for name in names)


def test_names_with_dots_in_a_file_of_another_writer_are_read_right(tmp_path: Path) -> None:
    def field(name: str, id: int, type: pa.DataType) -> pa.Field:
        return pa.field(name, type, metadata={"PARQUET:field_id": str(id)})

    inner = pa.struct([pa.field("b", pa.int64(), metadata={"PARQUET:field_id": "4"}), pa.field("c", pa.int64())])
    written = pa.schema([field("a", 1, inner), field("a.b", 2, pa.int64()), field("x", 3, pa.int64())])
    rows = pa.Table.from_pylist([{"a": {"b": 7, "c": 8}, "a.b": 5, "x": 6}], schema=written)
    pq.write_table(rows, tmp_path / "a")
    schema = Schema(NestedField(2, "a.b", LongType()), NestedField(3, "x", LongType()))
    file = StoredFile(str(tmp_path / "a"), 0, 1)
    assert read(file, schema, [3, 2]) == [{"f3": 6, "f2": 5, "position": 0}]
    assert read(file, schema, [2], between={3: (7, 8)}) == read(file, schema, [2], between={2: (7, 8)}) == []
    assert len(read(file, schema, [2], between={3: (6, 6), 2: (5, 5)})) == 1


def test_a_text_too_long_for_statistics_leaves_the_column_without_bounds(tmp_path: Path) -> None:
    """And not with those of the other row groups."""
    schema = Schema(NestedField(1, "a", StringType()), NestedField(2, "b", LongType()))
    rows = pa.table({"a": ["m", "z" * 5000, "n", None], "b": [1, 2, 3, None]})
    file = stored(write_file(IO, str(tmp_path / "a"), schema, rows, {"write.parquet.row-group-limit": "1"}))
    assert set(file.bounds) == {2}
    assert may_contain(file, schema.find_field(1), "x", "x")
    assert [row["f1"] for row in read(file, schema, [1], between={1: ("z", None)})] == ["z" * 5000, None]


def test_numbers_that_are_none_have_no_say_in_bounds(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", DoubleType()))
    nan = float("nan")
    file = stored(write_file(IO, str(tmp_path / "a"), schema, pa.table({"a": [nan, 1.0, nan, 2.0]}), {}))
    assert not may_contain(file, schema.find_field(1), 3.0, 4.0)
    only = stored(write_file(IO, str(tmp_path / "b"), schema, pa.table({"a": [nan]}), {}))
    assert only.bounds == {}


def test_a_value_is_looked_for_as_its_column_can_have_it(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", FloatType()), NestedField(2, "b", DecimalType(10, 2)))
    rows = pa.table({"a": [0.1], "b": [Decimal("2.00")]})
    file = stored(write_file(IO, str(tmp_path / "a"), schema, rows, {}))
    for field, value in ((1, 0.1), (2, 2), (2, Decimal(2)), (2, Decimal("2.0000"))):
        assert may_contain(file, schema.find_field(field), value, value)
        assert len(read(file, schema, [1], between={field: (value, value)})) == 1
    for field, value in ((1, 0.2), (1, 1e300), (2, 3), (2, Decimal("2.001"))):
        assert not may_contain(file, schema.find_field(field), value, value)
        assert read(file, schema, [1], between={field: (value, value)}) == []


def test_dates_that_python_does_not_have_are_written_and_bounded(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "d", DateType()), NestedField(2, "t", TimestampType()))
    rows = pa.table({
        "d": pa.array([-800_000, 5_000_000], pa.int32()).cast(pa.date32()),
        "t": pa.array([-(2**62), 2**62], pa.int64()).cast(pa.timestamp("us")),
    })  # fmt: skip
    file = stored(write_file(IO, str(tmp_path / "a"), schema, rows, {}))
    assert may_contain(file, schema.find_field(1), datetime.date(2020, 1, 1), datetime.date(2020, 1, 1))
    (part,) = read_rows(IO, file, schema, [1, 2], between={1: (datetime.date(2020, 1, 1), None)})
    assert part.column("f2").cast(pa.int64()).to_pylist() == [-(2**62), 2**62]


def test_what_does_not_fit_the_schema_is_not_written(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", DecimalType(5, 2)))

    def write(**columns: list[Any]) -> None:
        write_file(IO, str(tmp_path / "a"), schema, pa.table(columns), {})

    with pytest.raises(ValueError, match="has rows"):
        write(a=[])
    with pytest.raises(ValueError, match=r"no columns \['c'\]"):
        write(a=[1], c=[1])
    with pytest.raises(pa.ArrowInvalid):
        write(a=[2**31])
    with pytest.raises(pa.ArrowInvalid):
        write(b=[Decimal("1000.00")])
    with pytest.raises(pa.ArrowInvalid):
        write(b=[Decimal("1.005")])


def test_the_table_says_how_files_are_compressed(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", StringType()))
    rows = pa.table({"a": [str(number) * 10 for number in range(20_000)]})
    sizes = {}
    for codec, level in (("zstd", "1"), ("zstd", "15"), ("uncompressed", None), ("gzip", None)):
        properties = {"write.parquet.compression-codec": codec, "write.metadata.metrics.default": "none"}
        if level is not None:
            properties["write.parquet.compression-level"] = level
        file = stored(write_file(IO, str(tmp_path / "a"), schema, rows, properties))
        seen = pq.read_metadata(tmp_path / "a").row_group(0).column(0).compression
        assert seen == {"zstd": "ZSTD", "uncompressed": "UNCOMPRESSED", "gzip": "GZIP"}[codec]
        assert file.bounds == {}
        sizes[codec, level] = file.size
    assert sizes["zstd", "15"] < sizes["zstd", "1"] < sizes["uncompressed", None]


def test_row_groups_are_not_larger_than_the_table_allows(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", LongType()))
    rows = pa.table({"a": range(10_000)})
    for properties, groups in (
        ({}, 1),
        ({"write.parquet.row-group-size-bytes": "20000"}, 4),
        ({"write.parquet.row-group-limit": "5000"}, 2),
    ):
        text = write_file(IO, str(tmp_path / "a"), schema, rows, properties)
        assert pq.read_metadata(tmp_path / "a").num_row_groups == groups == len(json.loads(text)["split-offsets"])


def test_wide_rows_are_read_few_at_a_time(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()))
    rows = pa.table({"a": range(40), "b": [f"{number:07d}" * 150_000 for number in range(40)]})
    file = stored(write_file(IO, str(tmp_path / "a"), schema, rows, {}))
    parts = list(read_rows(IO, file, schema, [1, 2]))
    assert len(parts) > 2 and max(part.nbytes for part in parts) <= 17 << 20
    assert [row["position"] for part in parts for row in part.to_pylist()] == [*range(40)]
    assert pa.concat_tables(parts).column(column(2)).cast(pa.string()).equals(rows.column("b"))
    (part,) = read_rows(IO, file, schema, [1])
    assert part.num_rows == 40


def test_columns_of_repeated_texts_are_the_same_however_they_come(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "a b", StringType()), NestedField(2, "c", StringType()), NestedField(3, "n", LongType())
    )
    texts = [["x", "y", None, "x"], ["y"], [None, None], ["", "\U0001f600"]]
    tables = [
        pa.table(
            {"a b": pa.chunked_array([pa.array(texts[0]).dictionary_encode(), pa.array(["z"]).dictionary_encode()])}
        ),
        pa.table({"a b": pa.array(texts[1], pa.large_string()), "n": [1]}),
        pa.table({"a b": pa.nulls(2), "c": pa.nulls(2)}),
        pa.table({"a b": pa.array(texts[3], pa.large_string()).dictionary_encode(), "c": ["1", "2"]}),
    ]
    found: list[pa.Table] = []
    for repeated in ((), ("a b", "c")):
        path = str(tmp_path / f"of {len(repeated)}")
        writer = DataFileWriter(IO, path, schema, {}, plain=("n",), repeated=repeated)
        for table in tables:
            writer.write(table)
        text = json.loads(writer.close())
        found.append(pa.concat_tables(read_rows(IO, stored(json.dumps(text)), schema, [1, 2, 3])))
        assert text["null-value-counts"] == {"keys": [1, 2, 3], "values": [3, 8, 9]}
        assert bytes.fromhex(text["upper-bounds"]["values"][0]).decode() == "\U0001f600"
    assert found[0].equals(found[1])
    assert found[0].column(column(1)).to_pylist() == ["x", "y", None, "x", "z", "y", None, None, "", "\U0001f600"]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = InMemoryCatalog("test", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    return catalog


def test_the_files_of_a_table_are_those_of_its_snapshot(catalog: Catalog) -> None:
    table = catalog.create_table("n.t", Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType())))
    assert live_files(table) == []
    for part in ([1, 2], [10, 20], [30]):
        table.append(pa.table({"a": part, "b": [str(each) for each in part]}))
    files = live_files(table)
    assert sorted(file.record_count for file in files) == [1, 2, 2]
    assert {row["f1"] for file in files for row in read(file, table.schema(), [1])} == {1, 2, 10, 20, 30}
    found = [file for file in files if may_contain(file, table.schema().find_field("a"), 15, 25)]
    assert len(found) == 1
    assert [row["f2"] for row in read(found[0], table.schema(), [2])] == ["10", "20"]
    assert all(file.size == Path(file.path.removeprefix("file://")).stat().st_size for file in files)
    assert {id for file in live_files(table, [2]) for id in file.bounds} == {2}
    assert all(file.bounds == {} for file in live_files(table, []))
    assert pickle.loads(pickle.dumps(files)) == files
    table.delete("a >= 10")
    assert [file.record_count for file in live_files(table)] == [2]


def test_a_partitioned_table_is_another_writers(catalog: Catalog) -> None:
    table = catalog.create_table("n.t", Schema(NestedField(1, "a", LongType())))
    with table.update_spec() as update:
        update.add_identity("a")
    table.append(pa.table({"a": [1]}))
    with pytest.raises(StoredFormError, match="partitioned"):
        live_files(table)
