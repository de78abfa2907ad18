"""Data files and deletes of their rows: what is written is read by field id, by the project and by PyIceberg, what
statistics leave out has none of the rows looked for, and damage is seen."""

import contextlib
import datetime
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io import pyarrow as pyiceberg_io
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import FloatType, ListType, LongType, NestedField
from pyroaring import BitMap64

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import StoredFormError
from cdc_lakehouse.lake import files
from cdc_lakehouse.lake.catalog import Lake
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.lakes import lake_config

IO = PyArrowFileIO()
UTC = datetime.UTC


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


_FLOATS = st.floats(width=32, allow_nan=False)
VECTOR = ListType(100, FloatType(), element_required=False)
TYPES: dict[str, tuple[str | ListType, st.SearchStrategy[Any]]] = {
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", _FLOATS),
    "double": ("double", st.floats(allow_nan=False)),
    "small": ("decimal(9, 2)", decimals(9, 2)),
    "middle": ("decimal(18, 4)", decimals(18, 4)),
    "large": ("decimal(38, 10)", decimals(38, 10)),
    "string": ("string", st.text(st.characters(codec="utf-8"), max_size=40)
               | st.text(st.sampled_from("a\ud7ff\ue000\U0010ffff"), min_size=15, max_size=20)),
    "binary": ("binary", st.binary(max_size=40) | st.binary(max_size=3).map(lambda end: b"\xff" * 15 + end)),
    "date": ("date", st.dates()),
    "datetime": ("timestamp", st.datetimes()),
    "timestamp": ("timestamptz", st.datetimes(timezones=st.just(UTC))),
    "vector": (VECTOR, st.lists(st.none() | _FLOATS, max_size=3)),
    "flag": ("boolean", st.booleans()),
}  # fmt: skip


def schema_of(**types: Any) -> Schema:
    return Schema(*(NestedField(number, name, type) for number, (name, type) in enumerate(types.items(), start=1)))


SCHEMA = schema_of(**{name: type for name, (type, _) in TYPES.items()})
ORDERED = [field for field in SCHEMA.fields if field.name != "vector"]
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), min_size=1, max_size=8
)


def stored(text: str) -> files.StoredFile:
    """A file as a table's manifest has it."""
    file = json.loads(text)
    lower, upper = (
        {id: bytes.fromhex(value) for id, value in zip(file[key]["keys"], file[key]["values"], strict=True)}
        for key in ("lower-bounds", "upper-bounds")
    )
    bounds = {id: (lower.get(id), upper.get(id)) for id in lower | upper}
    return files.StoredFile(file["file-path"], file["file-size-in-bytes"], file["record-count"], bounds)


def stored_deletes(text: str) -> files.StoredDeletes:
    file = json.loads(text)
    is_vector = file["file-format"] != "parquet"
    place = (file["content-offset"], file["content-size-in-bytes"]) if is_vector else None
    return files.StoredDeletes(file["file-path"], file["record-count"], text, place)


def written(path: Path, schema: Schema, rows: pa.Table, **properties: str) -> files.StoredFile:
    """A file of a table with these properties, `_` for `-` in their ends."""
    names = {f"write.parquet.{name.replace('_', '-')}": value for name, value in properties.items()}
    return stored(files.write_file(IO, str(path), schema, rows, names))


def read(file: files.StoredFile, schema: Schema, names: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    return [row for part in files.read_rows(IO, file, schema, names, **options) for row in part.to_pylist()]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    rows=ROWS,
    other=st.fixed_dictionaries({field.name: TYPES[field.name][1] for field in ORDERED}),
    group=st.sampled_from("13"),
)
def test_rows_are_read_as_written_and_found_by_their_bounds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], other: dict[str, Any], group: str
) -> None:
    """Bounds are those of all row groups. Whatever a range leaves out has no value in it."""
    path = tmp_path_factory.mktemp("files") / "a.parquet"
    table = pa.Table.from_pylist(rows, schema_to_pyarrow(SCHEMA, include_field_ids=False))
    text = files.write_file(IO, str(path), SCHEMA, table, {"write.parquet.row-group-limit": group})
    file, metrics = stored(text), json.loads(text)
    assert (file.record_count, file.size) == (len(rows), path.stat().st_size)
    assert files.as_data_file(text).file_format is FileFormat.PARQUET
    assert len(metrics["split-offsets"]) == -(-len(rows) // int(group))
    names = [field.name for field in SCHEMA.fields]
    expected = [{**{name: row[name] for name in names}, "position": number} for number, row in enumerate(rows)]
    assert read(file, SCHEMA, names) == expected
    nulls = dict(zip(*metrics["null-value-counts"].values(), strict=True))
    for field in ORDERED:
        name, id = field.name, field.field_id
        values = [row[name] for row in rows if row[name] is not None]
        assert (id in file.bounds, nulls[id]) == (bool(values), len(rows) - len(values))
        if values and name not in ("string", "binary", "date", "datetime", "timestamp"):
            bounds = [from_bytes(field.field_type, bound or b"") for bound in file.bounds[id]]
            assert bounds == [min(values), max(values)]
        low, high = sorted([other[name], values[0] if values else other[name]])
        for ends in ((low, high), (None, high), (low, None), *((value, value) for value in values[:2])):
            wanted = [v for v in values if (ends[0] is None or v >= ends[0]) and (ends[1] is None or v <= ends[1])]
            # By the statistics of row groups alone.
            seen = [row[name] for row in read(replace(file, bounds={}), SCHEMA, [name], between={name: ends})]
            assert all(value in seen for value in wanted) and (files.may_hold(file, SCHEMA, {id: ends}) or not wanted)


# --- Deleted rows ---

_POSITIONS = st.sets(
    st.integers(0, 1100) | st.integers(2**16 - 3, 2**16 + 3) | st.integers(2**32 - 3, 2**40), min_size=1, max_size=40
) | st.builds(lambda start, size: set(range(start, start + size)), st.integers(0, 2**33), st.integers(1, 3000))
# Columns of a user's table may be called as those of deletes are.
_PROPERTIES = {"write.parquet.compression-codec": "zstd", "write.metadata.metrics.column.pos": "none"}


@given(deleted=st.lists(_POSITIONS, min_size=1, max_size=3), versions=st.sampled_from([(2, 2), (2, 3), (3, 3)]),
       name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=90), group=st.integers(1, 1200))  # fmt: skip
@example(deleted=[set(range(1_000_000))], versions=(3, 3), name="a", group=1000)
@example(deleted=[{1}], versions=(2, 2), name="longer than bounds of texts are", group=1000)
def test_deletes_are_read_alike_and_take_over_earlier_ones(
    tmp_path_factory: pytest.TempPathFactory, deleted: list[set[int]], versions: tuple[int, int], name: str, group: int
) -> None:
    """The last ones are of the second format version. Each data file has one delete file, which PyIceberg reads too,
    and a long run of rows is small."""
    directory = tmp_path_factory.mktemp("files")
    schema = schema_of(id="long")
    real = written(directory / "a", schema, pa.table({"id": range(0, 2000, 2)}), row_group_limit=str(group))
    file, other, gone = files.StoredFile(name, 1, 10**12), files.StoredFile(f"{name} 2", 1, 10**12), set[int]()
    for number, positions in enumerate(deleted, 1):
        version, gone = versions[number == len(deleted)], gone | positions
        wanted = BitMap64(positions)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(files, "_BATCH_ROWS", max(7, len(gone) // 3))
            added, replaced = files.delete_rows(
                IO, str(directory), _PROPERTIES, version, [file, other], {name: wanted, other.path: BitMap64()}
            )
        assert replaced == [each.content_file for each in file.deletes] and wanted == BitMap64(positions)
        (deletes,) = map(stored_deletes, added)
        file = replace(file, deletes=(deletes,))
        assert (deletes.place is not None) == (version == 3)
        assert set(files.read_deleted(IO, file)) == gone and file.deleted_rows == len(gone)
        told, path = json.loads(added[0]), Path(deletes.path.removeprefix("file://"))
        size, count = told["file-size-in-bytes"], told["record-count"]
        assert (told["referenced-data-file"], size, count) == (name, path.stat().st_size, len(gone))
        assert size < 8 * len(gone) + 3000 and (len(gone) < 10**6 or size < 1500)
        if version == 3:
            seen = deletion_vectors_from_puffin_file(PuffinFile(path.read_bytes()))
            # PyIceberg has no positions beyond 32 bits.
            if max(gone) < 2**32:
                assert {each.referenced_data_file: set(each.to_vector().to_pylist()) for each in seen} == {name: gone}
            continue
        assert pq.read_table(path).to_pylist() == [{"file_path": name, "pos": each} for each in sorted(gone)]
        ids = [int(field.metadata[b"PARQUET:field_id"]) for field in pq.read_schema(path)]
        assert (told["content"], ids) == ("position-deletes", [2147483546, 2147483545])
        bounds = [dict(zip(*told[key].values(), strict=True))[ids[0]] for key in ("lower-bounds", "upper-bounds")]
        assert bounds == [name.encode().hex()] * 2, "of the path whole, however long"
        known = DataFile.from_args(file_path=str(path), file_format=FileFormat.PARQUET)
        read_by_pyiceberg = pyiceberg_io._read_deletes(IO, known)
        assert {of: set(found.to_pylist()) for of, found in read_by_pyiceberg.items()} == {name: gone}
    if file.deletes[0].place is not None:
        expected = [{"id": 2 * n, "position": n} for n in range(1000) if n not in gone]
        assert read(replace(real, deletes=file.deletes), schema, ["id"]) == expected


def test_damaged_vector_is_seen(tmp_path: Path) -> None:
    """Each byte that is another, and a place or count that is."""
    first, _ = map(
        stored_deletes, files.write_vectors(IO, str(tmp_path / "v"), {"a": BitMap64([1, 2**33]), "b": BitMap64([1])})
    )
    assert first.place is not None
    offset, size = first.place
    path, content = tmp_path / "v", (tmp_path / "v").read_bytes()
    for position in range(size):
        damaged = bytearray(content)
        damaged[offset + position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(StoredFormError, match=r"/v, offset \d+, cannot be used"):
            files.read_deletes(IO, first, "a")
    path.write_bytes(content)
    for wrong in ({"place": (offset + 1, size)}, {"place": (offset, size - 1)}, {"place": (offset, 0)},
                  {"place": (len(content), size)}, {"cardinality": 4}):  # fmt: skip
        with pytest.raises(StoredFormError, match="cannot be used"):
            files.read_deletes(IO, replace(first, **wrong), "a")
    path.write_bytes(content[: offset + 10])
    with pytest.raises(StoredFormError, match="length"):
        files.read_deletes(IO, first, "a")


def test_damaged_positions_are_seen(tmp_path: Path) -> None:
    (added,), _ = files.delete_rows(IO, f"{tmp_path}", {}, 2, [files.StoredFile("a", 1, 9)], {"a": BitMap64([1, 5])})
    positions = stored_deletes(added)
    path = Path(positions.path)
    with pytest.raises(StoredFormError, match="0 rows of b, not 2"):
        files.read_deletes(IO, positions, "b")
    pq.write_table(pa.table({"file_path": ["a", "a"]}), path)
    for _ in range(2):
        with pytest.raises(StoredFormError, match=r"-deletes\.parquet"):
            files.read_deletes(IO, positions, "a")
        path.write_bytes(path.read_bytes()[:-1])


# --- Single files ---


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/bounds.txt"), ids=str)
def test_file_may_contain_what_its_bounds_do(tmp_path: Path, case: Case, update: bool) -> None:
    """Of a type, values and ranges: those that the file may hold."""

    def held(type: str, values: list[Any], *ranges: tuple[Any, Any]) -> str:
        schema = schema_of(a=type)
        file = written(tmp_path / "a", schema, pa.table({"a": values}), row_group_limit="2")
        found = [ends for ends in ranges if files.may_hold(file, schema, {"a": ends})]
        for ends in (each for each in ranges if each not in found):
            # Nothing is read: by its bounds, and by the statistics of row groups.
            for each in (file, replace(file, bounds={})):
                assert read(each, schema, ["a"], between={"a": ends}) == []
        return " ".join(map(str, found if file.bounds else [*found, "without bounds"]))

    case.compare(evaluated(case, {"held": held, "nan": float("nan"), "Decimal": Decimal}), update=update)


ODD_NAMES = ["a", "a.b", "a_x2Eb", "a b", 'q"uo`te\'', "1", "_1", "订单", "é", "e\u0301", "a.b.c", "list.element",
             "n" * 64, "😀" * 32, "\\", "%", "A", ";drop", "position"]  # fmt: skip


def test_any_name_is_the_name_of_a_column(tmp_path: Path) -> None:
    schema = schema_of(**dict.fromkeys(ODD_NAMES, "long"))
    rows = pa.table({name: [number, number + 100] for number, name in enumerate(ODD_NAMES, start=1)})
    mode = {"write.metadata.metrics.column.a.b": "counts", "write.metadata.metrics.column.%": "none"}
    text = files.write_file(IO, str(tmp_path / "a"), schema, rows, mode)
    file = stored(text)
    (part,) = files.read_rows(IO, file, schema, ODD_NAMES)
    assert part.column_names == [*ODD_NAMES, "position"]
    assert [each[0].as_py() for each in part.columns] == [*range(1, len(ODD_NAMES) + 1), 0]
    without = {ODD_NAMES.index(name) + 1 for name in ("a.b", "%")}
    assert set(file.bounds) == set(range(1, len(ODD_NAMES) + 1)) - without
    counted = set(json.loads(text)["value-counts"]["keys"])
    assert counted == set(range(1, len(ODD_NAMES) + 1)) - {ODD_NAMES.index("%") + 1}
    names = pq.read_schema(tmp_path / "a").names
    assert len(set(names)) == len(ODD_NAMES)
    assert not any("." in name for name in names)


def test_dates_that_python_does_not_have_are_written_and_bounded(tmp_path: Path) -> None:
    schema = schema_of(d="date", t="timestamp")
    rows = pa.table({
        "d": pa.array([-800_000, 5_000_000], pa.int32()).cast(pa.date32()),
        "t": pa.array([-(2**62), 2**62], pa.int64()).cast(pa.timestamp("us")),
    })  # fmt: skip
    file = written(tmp_path / "a", schema, rows)
    assert files.may_hold(file, schema, {"d": (datetime.date(2020, 1, 1),) * 2})
    (part,) = files.read_rows(IO, file, schema, ["d", "t"], between={"d": (datetime.date(2020, 1, 1), None)})
    assert part.column("t").cast(pa.int64()).to_pylist() == [-(2**62), 2**62]


def test_what_does_not_fit_the_schema_is_not_written(tmp_path: Path) -> None:
    for rows, words in (
        ({"a": []}, "has rows"),
        ({"a": [1], "c": [1]}, r"no columns \['c'\]"),
        ({"a": [2**31]}, "not in range"),
        ({"b": [Decimal("1000.00")]}, "rescale|precision|Decimal"),
        ({"b": [Decimal("1.005")]}, "rescale|precision|Decimal"),
    ):
        with pytest.raises(ValueError, match=words):
            written(tmp_path / "a", schema_of(a="int", b="decimal(5, 2)"), pa.table(rows))


def test_files_are_written_as_the_properties_say(tmp_path: Path) -> None:
    rows = pa.table({"a": [str(number) * 10 for number in range(20_000)]})
    sizes = list[int]()
    for properties, codec, groups in (
        ({"compression_codec": "zstd", "compression_level": "15"}, "ZSTD", 1),
        ({"compression_codec": "zstd", "compression_level": "1"}, "ZSTD", 1),
        ({"compression_codec": "uncompressed"}, "UNCOMPRESSED", 1),
        ({"compression_codec": "gzip", "row_group_limit": "5000"}, "GZIP", 4),
        ({"row_group_size_bytes": "300000"}, "ZSTD", 4),
    ):
        sizes.append(written(tmp_path / "a", schema_of(a="string"), rows, **properties).size)
        metadata = pq.read_metadata(tmp_path / "a")
        assert (metadata.row_group(0).column(0).compression, metadata.num_row_groups) == (codec, groups)
    assert sizes[0] < sizes[1] < sizes[2]


def test_wide_rows_are_read_few_at_a_time(tmp_path: Path) -> None:
    schema = schema_of(a="long", b="string")
    rows = pa.table({"a": range(40), "b": [f"{number:07d}" * 150_000 for number in range(40)]})
    file = written(tmp_path / "a", schema, rows)
    parts = list(files.read_rows(IO, file, schema, ["a", "b"]))
    assert len(parts) > 2 and max(part.nbytes for part in parts) <= 17 << 20
    assert [row["position"] for part in parts for row in part.to_pylist()] == [*range(40)]
    assert pa.concat_tables(parts).column("b").cast(pa.string()).equals(rows.column("b"))
    (part,) = files.read_rows(IO, file, schema, ["a"])
    assert part.num_rows == 40


def test_columns_of_repeated_texts_are_the_same_however_they_come(tmp_path: Path) -> None:
    schema = schema_of(**{"a b": "string", "c": "string", "n": "long"})
    texts = [["x", "y", None, "x"], ["y"], [None, None], ["", "\U0001f600"]]
    first = [pa.array(each).dictionary_encode() for each in (texts[0], ["z"])]
    tables = [
        pa.table({"a b": pa.chunked_array(first)}),
        pa.table({"a b": pa.array(texts[1], pa.large_string()), "n": [1]}),
        pa.table({"a b": pa.nulls(2), "c": pa.nulls(2)}),
        pa.table({"a b": pa.array(texts[3], pa.large_string()).dictionary_encode(), "c": ["1", "2"]}),
    ]
    found: list[pa.Table] = []
    for repeated in ((), ("a b", "c")):
        path = str(tmp_path / f"of {len(repeated)}")
        writer = files.DataFileWriter(IO, path, schema, {}, plain=("n",), repeated=repeated)
        for table in tables:
            writer.write(table)
        text = json.loads(writer.close())
        found.append(pa.concat_tables(files.read_rows(IO, stored(json.dumps(text)), schema, ["a b", "c", "n"])))
        assert text["null-value-counts"] == {"keys": [1, 2, 3], "values": [3, 8, 9]}
        assert bytes.fromhex(text["upper-bounds"]["values"][0]).decode() == "\U0001f600"
        group = pq.read_metadata(path).row_group(1)
        assert [group.column(number).has_dictionary_page for number in (0, 2)] == [True, False]
        (part, *_) = files.read_rows(IO, stored(json.dumps(text)), schema, ["n", "c"], as_dictionaries=["c"])
        assert pa.types.is_dictionary(part.schema.field("c").type)
    assert found[0].equals(found[1])
    assert found[0].column("a b").to_pylist() == ["x", "y", None, "x", "z", "y", None, None, "", "\U0001f600"]


def test_files_of_dates_are_flushed_together_closed_at_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sizes that are a thousandth of the usual ones; an error leaves no file, not even an open one."""
    for name in ("ROW_GROUP_BYTES", "_BUFFERED_BYTES", "_FILE_BYTES"):
        monkeypatch.setattr(files, name, getattr(files, name) >> 16)
    table, half = files.TableFiles(schema_of(a="long"), f"file://{tmp_path}"), pa.table({"a": range(64)})
    with files.DatedFiles(table, (), ()) as dated:
        for date in [*"ababcdefc", *"a" * 15]:
            dated.add(date, half)
    found = [(each["partition"][0], pq.read_metadata(each["file-path"][7:])) for each in map(json.loads, dated.written)]
    shown = " ".join(f"{date}:{file.num_rows}/{file.num_row_groups}" for date, file in found)
    assert shown == "a:1024/8 b:128/1 c:128/2 d:64/1 e:64/1 f:64/1 a:64/1"
    with contextlib.suppress(ZeroDivisionError), files.DatedFiles(table, (), (), name="failed") as failed:
        failed.add("a", half)
        raise ZeroDivisionError
    links = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [*tmp_path.rglob("failed*"), *(each for each in links if "failed" in each)]


def test_files_of_a_table_are_those_of_its_snapshot(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("test", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema_of(a="long", b="string"))
    assert files.live_files(table) == []
    for part in ([1, 2], [10, 20], [30]):
        table.append(pa.table({"a": part, "b": [str(each) for each in part]}))
    (found,) = [file for file in files.live_files(table) if files.may_hold(file, table.schema(), {"a": (15, 25)})]
    assert [row["b"] for row in read(found, table.schema(), ["b"])] == ["10", "20"]
    assert found.size == Path(found.path.removeprefix("file://")).stat().st_size
    assert {id for file in files.live_files(table, [2]) for id in file.bounds} == {2}
    assert all(file.bounds == {} for file in files.live_files(table, []))
    table.delete("a >= 10")
    assert [file.record_count for file in files.live_files(table)] == [2]
    with table.update_schema() as change:
        change.add_column("c", LongType())
    lake, storage = Lake(lake_config(tmp_path)), StorageConfig.model_validate({"s3": {"endpoint": "http://now"}})
    first, now = (files.TableFiles.of(table, lake, snapshot) for snapshot in (table.snapshots()[0], None))
    assert [(len(each.schema.fields), each.storage) for each in (first, now)] == [(2, None), (3, None)]
    lake.expires_at = datetime.datetime.now(UTC)
    assert files.TableFiles.of(table, lake).storage is lake.storage, "a task may ask for credentials"
    sent = files.TableFiles(now.schema, "s3://a/t", io={"s3.endpoint": "sent"}, warehouse="s3://a")
    for task, endpoint in ((sent, "sent"), (replace(sent, storage=storage), "http://now")):
        assert task.open().properties["s3.endpoint"] == endpoint
    with table.update_spec() as update:
        update.add_identity("a")
    table.append(pa.table({"a": [1], "b": ["x"]}))
    with pytest.raises(StoredFormError, match="partitioned"):
        files.live_files(table)


def test_deletes_of_a_snapshot_are_those_of_its_data_files(tmp_path: Path) -> None:
    """In manifests of any writer: the data file is named, or is both bounds of `file_path`."""
    catalog = InMemoryCatalog("test", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema_of(a="long"))
    table.append(pa.table({"a": [1]}))
    snapshot = table.current_snapshot()
    assert snapshot is not None

    def live(*entries: dict[str, Any], **options: Any) -> dict[str, files.StoredFile]:
        _write_avro(tmp_path / "m", [{"status": 1} | each for each in entries])
        _write_avro(
            tmp_path / "list", [{"manifest_path": str(tmp_path / "m"), "partition_spec_id": 0, "added_snapshot_id": 7}]
        )
        of = snapshot.model_copy(update={"manifest_list": str(tmp_path / "list")})
        return {file.path: file for file in files.live_files(table, snapshot=of, **options)}

    data = [_entry(name, "parquet", 0) for name in "abcd"]
    vector = _entry("v", "puffin", 1, referenced_data_file="a", content_offset=4, content_size_in_bytes=9)
    named, bounded, gone = (
        _entry("n", "parquet", 1, referenced_data_file="b"),
        _entry("m", "PARQUET", 1, lower_bounds=_path("b"), upper_bounds=_path("b")),
        _entry("g", "puffin", 1, referenced_data_file="x", content_offset=4, content_size_in_bytes=9),
    )
    dangling = list[str]()
    removed = {**_entry("r", "parquet", 1, referenced_data_file="c"), "status": 2}
    found = live(*data[:3], {**data[3], "status": 2}, vector, named, bounded, gone, removed, dangling=dangling)
    assert {path: [(each.path, each.place) for each in file.deletes] for path, file in found.items()} == {
        "a": [("v", (4, 9))], "b": [("n", None), ("m", None)], "c": []
    }  # fmt: skip
    told = {"spec-id": 0, "content": "position-deletes", "partition": [], "file-size-in-bytes": 50, "record-count": 3}
    (deletes,), (content_file,) = found["a"].deletes, dangling
    assert json.loads(deletes.content_file) == told | {
        "file-path": "v", "file-format": "puffin", "referenced-data-file": "a", "content-offset": 4,
        "content-size-in-bytes": 9,
    }  # fmt: skip
    assert (deletes.cardinality, json.loads(content_file)["file-path"]) == (3, "g")
    (of_positions, _) = found["b"].deletes
    assert json.loads(of_positions.content_file) == told | {
        "file-path": "n", "file-format": "parquet", "referenced-data-file": "b"
    }  # fmt: skip
    assert (live(*data, added_by=[8]), [*live(data[0], {**data[1], "status": 0}, added_by=[7])]) == ({}, ["a"])
    for entries, why in (
        ([vector, _entry("n", "parquet", 1, referenced_data_file="a")], r"vector and other deletes \(v\)"),
        ([_entry("e", "parquet", 2, referenced_data_file="a")], r"by position.*\(e\)"),
        ([_entry("o", "orc", 1, referenced_data_file="a")], r"by position.*\(o\)"),
        ([_entry("w", "puffin", 1, content_offset=4, content_size_in_bytes=9)], r"one data file \(w\)"),
        ([_entry("t", "parquet", 1, lower_bounds=_path("a"), upper_bounds=_path("b"))], r"one data file \(t\)"),
        ([_entry("u", "parquet", 1)], r"one data file \(u\)"),
    ):
        with pytest.raises(StoredFormError, match=rf"n\.t has been changed by another writer: .*{why}"):
            live(*data, *entries)


def _path(name: str) -> list[dict[str, Any]]:
    return [{"key": files.DATA_FILE.field_id, "value": name.encode()}]


def _entry(path: str, file_format: str, content: int, **fields: Any) -> dict[str, Any]:
    sizes = {"record_count": 3, "file_size_in_bytes": 50, "partition": {}}
    return {"data_file": {"file_path": path, "file_format": file_format, "content": content, **sizes, **fields}}


def _write_avro(path: Path, records: list[dict[str, Any]]) -> None:
    """A manifest, or a list of manifests. What a record leaves out is null."""
    bound = _record("bound", {"key": "int", "value": "bytes"})
    data_file = {
        **dict.fromkeys(("file_path", "file_format", "referenced_data_file"), "string"),
        **dict.fromkeys(("content", "record_count", "file_size_in_bytes"), "long"),
        **dict.fromkeys(("content_offset", "content_size_in_bytes"), "long"),
        "partition": _record("partition", {}),
        "lower_bounds": {"type": "array", "items": bound},
        "upper_bounds": {"type": "array", "items": "bound"},
    }
    types = dict.fromkeys(("status", "partition_spec_id", "added_snapshot_id"), "long")
    with path.open("wb") as file:
        every = {**types, "manifest_path": "string", "data_file": _record("data_file", data_file)}
        fastavro.writer(file, _record("entry", every), records)


def _record(name: str, types: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": each, "type": ["null", type]} for each, type in types.items()]
    return {"name": name, "type": "record", "fields": fields}
