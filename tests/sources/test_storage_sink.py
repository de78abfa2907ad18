"""Paths of a sink as TiCDC lays them out, on a real disk."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS, tso
from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.errors import CheckpointError, ObjectMissingError, SourceError
from cdc_lakehouse.sources.object_store import LocalStore, UnreadableDirectory
from cdc_lakehouse.sources.sink.paths import DataFile, Listing, SinkLayout, list_sink, read_checkpoint, read_index
from tests.kit import data_sets as packed
from tests.kit.cases import shown
from tests.kit.sink_layouts import layout_with

SEPARATORS: tuple[DateSeparator, ...] = get_args(DateSeparator)
DATES: dict[DateSeparator, str | None] = {"none": None, "year": "2026", "month": "2026-01", "day": "2026-01-31"}
DISPATCHER = "76588717784795383582973671518555784591"
FIRST = "CDC00000000000000000001.json"
SCHEMA = "meta/schema_450000000000000001_0123456789.json"


def sink(directory: Path, *paths: str) -> LocalStore:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(b"x")
    return LocalStore(directory)


def listing_of(directory: Path, *paths: str, separator: DateSeparator = "day") -> Listing:
    return list_sink(sink(directory, *paths), layout_with(separator))


def joined(*parts: str | None) -> str:
    return "/".join(part for part in parts if part is not None)


def place(file: DataFile) -> tuple[str, str, int, int | None, str | None]:
    return file.database, file.table, file.version, file.physical_partition, file.feed_date


# --- Data files ---


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("partition", [None, "247"])
@pytest.mark.parametrize("dispatcher", [None, DISPATCHER], ids=["", "dispatcher"])
@pytest.mark.parametrize("with_schema", [True, False], ids=["schema", ""])
def test_every_layout(
    tmp_path: Path, separator: DateSeparator, partition: str | None, dispatcher: str | None, with_schema: bool
) -> None:
    name = FIRST if dispatcher is None else f"CDC_{dispatcher}_00000000000000000001.json"
    path = joined("db", "t", "450000000000000001", partition, DATES[separator], name)
    listing = listing_of(tmp_path, path, *[f"db/t/{SCHEMA}"][: int(with_schema)], separator=separator)
    (file,) = listing.data
    number = None if partition is None else int(partition)
    assert place(file) == ("db", "t", 450000000000000001, number, DATES[separator])
    assert (file.path, file.dispatcher, file.index, file.size) == (path, dispatcher, 1, 1)
    assert listing.unknown == [] and listing.unreadable == []


DATABASES = ["db", "my db", "a.b", "Ünï", "日本", "UPPER", "12345", "meta", "2026-01-31"]
TABLES = [
    "with space", "dot.ted", "dash-ed", "日本", "UPPER", "meta", "12345", "2026-01-31", "quo'te", "a/b", "meta/meta",
    "metadata", "CDC000001.json", "x.tmp.y", "schema_1_0123456789.json", "t/meta", "7/8", " ", "%2F", "a\\b",
]  # fmt: skip


@pytest.mark.parametrize(
    ("database", "table"), [*zip(itertools.cycle(DATABASES), TABLES), ("meta", "meta"), ("2026-01-31", "2026-01-31")]
)
def test_odd_names_are_told_by_their_schema_file(tmp_path: Path, database: str, table: str) -> None:
    listing = listing_of(
        tmp_path, f"{database}/{SCHEMA}", f"{database}/{table}/{SCHEMA}", f"{database}/{table}/7/2026-02-01/{FIRST}"
    )
    assert [place(file) for file in listing.data] == [(database, table, 7, None, "2026-02-01")]
    assert sorted(schema.directory for schema in listing.schemas) == [database, f"{database}/{table}"]
    assert listing.unknown == []


def test_a_table_may_lie_below_another(tmp_path: Path) -> None:
    """Tables `t` and `t/7`: the deepest directory with a schema file owns the data."""
    files = [f"db/t/7/2026-01-31/{FIRST}", f"db/t/7/9/2026-01-31/{FIRST}"]
    listing = listing_of(tmp_path, f"db/t/{SCHEMA}", f"db/t/7/{SCHEMA}", *files)
    of_t, of_t_7 = ("db", "t", 7, None, "2026-01-31"), ("db", "t/7", 9, None, "2026-01-31")
    assert [place(file) for file in listing.data] == [of_t, of_t_7]


@pytest.mark.parametrize("digits", [6, 12, 20])
def test_the_width_of_the_index_is_configurable(tmp_path: Path, digits: int) -> None:
    (file,) = listing_of(tmp_path, f"db/t/7/2026-01-31/CDC{42:0{digits}d}.json").data
    assert file.index == 42


# What no rule explains is told; what is still being written is passed over.
UNKNOWN = [
    "db/t/7/2026-01-31/CDC00001.json",
    "db/t/7/2026-01-31/CDC000000000000000000001.json",
    "db/t/7/2026-01-31/CDC000001.parquet",
    "db/t/7/2026-01-31/cdc000001.json",
    "db/t/7/2026-01-31/CDC000001.json.gz",
    "db/t/v7/2026-01-31/CDC000001.json",
    "db/t/7/2026-01-31/extra/CDC000001.json",
    *("7/2026-01-31/CDC000001.json", "t/7/2026-01-31/CDC000001.json"),
    *("db/meta/schema_7_123.json", "db/t/meta/schema_7.json", "db/metadata", "README"),
]
UNFINISHED = [f"db/t/7/2026-01-31/{FIRST}", f"db/t/{SCHEMA}", "db/t/7/2026-01-31/meta/CDC.index", "metadata"]


@pytest.mark.parametrize(
    ("path", "unknown"),
    [
        *((path, [path]) for path in UNKNOWN),
        *((f"{path}.tmp.5b8a8a3e-1e5f-4f0e-a2ad-2a1d3a1c0d11", []) for path in UNFINISHED),
    ],
    ids=shown,
)
def test_a_path_that_is_no_file_of_the_sink(tmp_path: Path, path: str, unknown: list[str]) -> None:
    assert listing_of(tmp_path, path, "metadata") == Listing(unknown=unknown)


# The number of a physical partition may look like a year: a sink of years read as one without dates cannot be told.
MISTAKEN = [pair for pair in itertools.permutations(SEPARATORS, 2) if pair != ("year", "none")]


@pytest.mark.parametrize(("written", "configured"), MISTAKEN)
@pytest.mark.parametrize("with_schema", [True, False], ids=["schema", ""])
def test_another_date_separator_is_refused(
    tmp_path: Path, written: DateSeparator, configured: DateSeparator, with_schema: bool
) -> None:
    path = joined("db", "t", "450000000000000001", DATES[written], FIRST)
    with pytest.raises(SourceError, match=f"date-separator {written}.* says {configured}") as refused:
        listing_of(tmp_path, path, *[f"db/t/{SCHEMA}"][: int(with_schema)], separator=configured)
    assert refused.value.segment == path and f"date_separator to {written}" in str(refused.value.advice)


@pytest.mark.parametrize(
    ("layout", "path", "said"),
    [
        (layout_with(), "db/t/7/2026-01-31/CDC000001.csv", "source.protocol to csv"),
        (layout_with(protocol="csv"), "db/t/7/2026-01-31/CDC000001.json", "source.protocol to canal-json"),
        (layout_with(), "112/7/2026-01-31/CDC000001.json", "source.use_table_id_as_path to true"),
        (layout_with(table_ids=True), "db/t/7/2026-01-31/CDC000001.json", "source.use_table_id_as_path to false"),
    ],
)
def test_another_option_is_refused(tmp_path: Path, layout: SinkLayout, path: str, said: str) -> None:
    with pytest.raises(SourceError) as refused:
        list_sink(sink(tmp_path, path), layout)
    assert refused.value.segment == path and said in str(refused.value.advice)


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("partition", [None, "247"])
def test_directories_called_by_the_ids_of_tables(
    tmp_path: Path, separator: DateSeparator, partition: str | None
) -> None:
    path = joined("112", "450000000000000001", partition, DATES[separator], "CDC000001.csv")
    listing = list_sink(sink(tmp_path, path, f"112/{SCHEMA}"), layout_with(separator, "csv", table_ids=True))
    (file,) = listing.data
    number = None if partition is None else int(partition)
    assert (file.directory, *place(file)) == ("112", "", "", 450000000000000001, number, DATES[separator])
    assert [schema.directory for schema in listing.schemas] == ["112"]


def test_the_layout_before_v7_1(tmp_path: Path) -> None:
    paths = ["db/t/7/CDC000001.csv", "db/t/7/schema.json", "db/t/9/schema.json"]
    listing = list_sink(sink(tmp_path, *paths), layout_with("none", "csv"))
    assert [place(file) for file in listing.data] == [("db", "t", 7, None, None)]
    schemas = sorted((schema.directory, schema.version, schema.checksum) for schema in listing.schemas)
    assert schemas == [("db/t", 7, None), ("db/t", 9, None)] and listing.unknown == []


# --- Schema and index files ---


def test_a_schema_file_is_known_by_its_name(tmp_path: Path) -> None:
    (schema,) = listing_of(tmp_path, "db/t/meta/schema_450000000000000001_0000000042.json").schemas
    assert (schema.directory, schema.version, schema.checksum) == ("db/t", 450000000000000001, 42)


OF_DISPATCHER = f"CDC_{DISPATCHER}"


@pytest.mark.parametrize(
    ("directory", "name", "dispatcher", "content", "last"),
    [
        ("db/t/7/2026-01-31", "CDC.index", None, "CDC000002.json\n", "CDC000002.json"),
        ("db/meta/7", "CDC.index", None, "CDC000002.json", "CDC000002.json"),
        *(
            (
                each,
                f"{OF_DISPATCHER}.index",
                DISPATCHER,
                f"{OF_DISPATCHER}_000003.json\n",
                f"{OF_DISPATCHER}_000003.json",
            )
            for each in ("my db/日本/7/247/2026", "db/meta/7")
        ),
    ],
)
def test_an_index_names_the_last_file_beside_it(
    tmp_path: Path, directory: str, name: str, dispatcher: str | None, content: str, last: str
) -> None:
    store = sink(tmp_path, f"{directory}/meta/{name}")
    (tmp_path / directory / "meta" / name).write_text(content, encoding="utf-8")
    (index,) = list_sink(store, layout_with()).indexes
    assert (index.directory, index.dispatcher) == (directory, dispatcher)
    assert read_index(store, index) == f"{directory}/{last}"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"CDC.json", b"../CDC000001.json", b"\xff\x00", b"CDC000001.json CDC000002.json", b"x" * 5000, None],
    ids=shown,
)
def test_an_index_that_names_no_file(tmp_path: Path, content: bytes | None) -> None:
    path = "db/t/7/2026-01-31/meta/CDC.index"
    store = sink(tmp_path, path)
    (index,) = list_sink(store, layout_with()).indexes
    if content is None:
        (tmp_path / path).unlink()
    else:
        (tmp_path / path).write_bytes(content)
    with pytest.raises(ObjectMissingError if content is None else SourceError) as refused:
        read_index(store, index)
    assert refused.value.segment == path


def test_a_part_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    store = sink(tmp_path, f"db/t/7/2026-01-31/{FIRST}")
    (tmp_path / "db/u").symlink_to("u")
    listing = list_sink(store, layout_with())
    assert listing.unreadable == [UnreadableDirectory("db/u", "Too many levels of symbolic links")]
    assert [file.table for file in listing.data] == ["t"]


@pytest.mark.parametrize(
    "path",
    [
        b"note\xff.txt", b"d\xff/t/7/2026-01-31/CDC000001.json", b"db/t\xff/meta/schema_7_0123456789.json",
        b"db/t/7/\xff/meta/CDC.index", b"d\xff/CDC000001.json.tmp.1",
    ],
)  # fmt: skip
def test_a_name_that_is_not_utf8_is_of_no_sink(tmp_path: Path, path: bytes) -> None:
    store = sink(tmp_path, os.fsdecode(path), f"db/t/7/2026-01-31/{FIRST}")
    listing = list_sink(store, layout_with())
    assert listing.unknown == [path.decode(errors="backslashreplace")]
    assert [file.table for file in listing.data] == ["t"] and listing.schemas == [] and listing.indexes == []


def test_a_directory_that_cannot_be_listed_is_told_by_a_name_that_can_be_written(tmp_path: Path) -> None:
    store = sink(tmp_path, f"db/t/7/2026-01-31/{FIRST}")
    (tmp_path / os.fsdecode(b"db/\xff")).symlink_to(os.fsdecode(b"\xff"))
    (unreadable,) = list_sink(store, layout_with()).unreadable
    assert unreadable.path == "db/\\xff"


# --- The checkpoint ---


def checkpoint(directory: Path, content: bytes) -> int:
    (directory / "metadata").write_bytes(content)
    return read_checkpoint(LocalStore(directory), NOW)


NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
DAY_TS = 24 * 60 * 60 * 1000 << 18


@pytest.mark.parametrize("value", [1, 466687623288586256, tso(NOW) + DAY_TS])
def test_the_checkpoint(tmp_path: Path, value: int) -> None:
    assert checkpoint(tmp_path, b'{"checkpoint-ts":%d}' % value) == value


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe\x00", b"null", b"[]", b"7", b'"checkpoint-ts"', b"{}", b'{"checkpoint_ts":7}',
        b'{"checkpoint-ts":null}', b'{"checkpoint-ts":true}', b'{"checkpoint-ts":"466687623288586256"}',
        b'{"checkpoint-ts":7.0}', b'{"checkpoint-ts":NaN}', b'{"checkpoint-ts":[7]}', b'{"checkpoint-ts":0}',
        b'{"checkpoint-ts":-7}', b'{"checkpoint-ts":9223372036854775808}', b'{"checkpoint-ts":' + b"9" * 5000 + b"}",
        b'{"checkpoint-ts":7}{"checkpoint-ts":8}', b"\0" * 100, b"[" * 60_000,
    ],
    ids=shown,
)  # fmt: skip
def test_a_file_that_holds_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CheckpointError) as refused:
        checkpoint(tmp_path, content)
    assert refused.value.segment == "metadata" and len(str(refused.value)) < 6000


@pytest.mark.parametrize("value", [tso(NOW) + DAY_TS + (1 << 18), END_TS - 1])
def test_a_checkpoint_far_beyond_the_time_of_reading_is_none(tmp_path: Path, value: int) -> None:
    """Believed once, it would be the feed's clock for good."""
    with pytest.raises(CheckpointError, match=r"more than a day after it was read.*set right the clock"):
        checkpoint(tmp_path, b'{"checkpoint-ts":%d}' % value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b'{"checkpoint-ts":7}' + b" " * (1 << 16)), "larger than"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: None, r"no metadata file .*source\.uri"),
    ],
    ids=["too large", "a directory", "none"],
)
def test_metadata_that_is_no_file_of_a_checkpoint(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    make(tmp_path / "metadata")
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(LocalStore(tmp_path), NOW)


# --- Sinks of the data sets ---


@pytest.mark.parametrize("name", packed.names("canal-json"))
def test_paths_say_what_the_files_say(data_sets: Path, name: str) -> None:
    dataset = data_sets / "canal-json" / name
    separator = json.loads((dataset / "expected.json").read_text(encoding="utf-8"))["sink"]["date"]
    tree = dataset / "tree"
    listing = list_sink(LocalStore(tree), layout_with(separator))
    assert listing.unknown == [] and listing.unreadable == []

    files = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    told = [file.path for file in (*listing.data, *listing.schemas, *listing.indexes)]
    assert set(told) == {path for path in files if path != "metadata" and not re.search(r"\.tmp\.[^/]*$", path)}
    assert len(told) == len(set(told))

    for file in listing.data:
        event = json.loads((tree / file.path).read_bytes().partition(b"\r\n")[0])
        assert (file.database, file.table) == (event["database"], event["table"])
    for schema in listing.schemas:
        document = json.loads((tree / schema.path).read_bytes())
        named = (document["Schema"], document["Table"] or None)
        assert (schema.directory, schema.version) == (joined(*named), document["TableVersion"])


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and ".tmp." not in name and len(name.encode()) < 200
)


@settings(deadline=None)
@given(database=NAMES, table=NAMES, version=st.integers(1, (1 << 63) - 1), partition=st.none() | st.integers(1, 10**9))
def test_any_name_goes_through(
    tmp_path_factory: pytest.TempPathFactory, database: str, table: str, version: int, partition: int | None
) -> None:
    number = None if partition is None else str(partition)
    path = joined(database, table, str(version), number, "2026-01-31", FIRST)
    listing = listing_of(tmp_path_factory.mktemp("sink"), f"{database}/{table}/{SCHEMA}", path)
    assert [place(file) for file in listing.data] == [(database, table, version, partition, "2026-01-31")]
