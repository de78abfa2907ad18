"""Files of a sink as TiCDC lays them out: `cases/sink.txt` says what each path means, on a real disk. And what only a
directory does as a store; what all stores do is in tests/servers/test_object_store.py."""

import ast
import contextlib
import datetime
import itertools
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse import errors
from cdc_lakehouse.config import DateSeparator, Protocol
from cdc_lakehouse.errors import CdcError, ConfigurationError, ObjectChangedError, SchemaFileError, SourceError
from tests.boundaries import sources
from tests.boundaries.change_log import SchemaChange, SourceColumn
from tests.kit.case_files import Case, bytes_of, read_cases
from tests.kit.hand_sinks import layout_with

CASES = Path(__file__).parent / "cases"
NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
DAY = layout_with()


def _make(root: Path, path: bytes, content: bytes | None, target: str | None) -> None:
    place = root / os.fsdecode(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if target == ".":
        place.mkdir()
    elif target is not None:
        place.symlink_to(os.fsdecode(bytes_of(target)))
    else:
        place.write_bytes(b"x" if content is None else content)


def _results(store: sources.LocalStore, listing: sources.Listing) -> Iterator[str]:
    for file in listing.data:
        parts = {"partition": file.physical_partition, "date": file.feed_date, "dispatcher": file.dispatcher}
        named = "".join(f", {name} {value}" for name, value in parts.items() if value is not None)
        owner = f"{file.database!r} {file.table!r}" if file.table else f"directory {file.directory}"
        yield f"{file.path}: data of {owner}, version {file.version}{named}, index {file.index}"
        assert file.size == 1
    for schema in listing.schemas:
        yield f"{schema.path}: schema in {schema.directory!r}, version {schema.version}, checksum {schema.checksum}"
    for index in listing.indexes:
        try:
            last = sources.read_index(store, index)
        except SourceError as error:
            last = str(error)
        yield f"{index.path}: index of {index.directory!r}, dispatcher {index.dispatcher}, last {last}"
    yield from (f"{each.path}: cannot be listed: {each.reason}" for each in listing.unreadable)
    yield from (f"{path}: unknown" for path in listing.unknown)


@pytest.mark.parametrize("case", read_cases(CASES / "sink.txt"), ids=str)
def test_meaning_of_paths(case: Case, tmp_path: Path, update: bool) -> None:
    """A line is a path, `path = content`, or `path -> target of a link` (`.`: a directory)."""
    layout, reads_checkpoint = DAY, False
    for line in case.given:
        words = line.split()
        if words[0] == "layout":
            protocol = cast("Protocol", words[2])
            layout = layout_with(cast("DateSeparator", words[1]), protocol, table_ids="ids" in words)
            continue
        reads_checkpoint |= line == "no metadata" or line.startswith("metadata ")
        if line != "no metadata":
            path, _, target = line.partition(" -> ")
            path, has_content, content = path.partition(" = ") if not path.endswith(" =") else (path[:-2], "=", "")
            _make(tmp_path, bytes_of(path), bytes_of(content) if has_content else None, target or None)
    store = sources.LocalStore(tmp_path)
    try:
        if reads_checkpoint:
            results = [f"checkpoint-ts {sources.read_checkpoint(store, NOW)}"]
        else:
            results = sorted(_results(store, sources.list_sink(store, layout)))
    except CdcError as error:
        results = [re.sub(r"(is not JSON): .*( \[segment)", r"\1\2", f"{type(error).__name__}: {error}")]
    assert all(len(line) < 600 for line in results)
    case.compare(results, update=update)


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and ".tmp." not in name and len(name.encode()) < 200
)


@settings(deadline=None)
@given(database=NAMES, table=NAMES, version=st.integers(1, (1 << 63) - 1), partition=st.none() | st.integers(1, 10**9))
def test_any_name_of_a_table_is_recognized(
    tmp_path_factory: pytest.TempPathFactory, database: str, table: str, version: int, partition: int | None
) -> None:
    root = tmp_path_factory.mktemp("sink")
    number = "" if partition is None else f"{partition}/"
    for path in ("meta/schema_450000000000000001_0123456789.json", f"{version}/{number}2026-01-31/CDC000001.json"):
        _make(root, f"{database}/{table}/{path}".encode(), None, None)
    (file,) = sources.list_sink(sources.LocalStore(root), DAY).data
    assert (file.database, file.table, file.version, file.physical_partition) == (database, table, version, partition)
    assert file.feed_date == "2026-01-31"


@pytest.mark.parametrize("case", read_cases(CASES / "uris.txt"), ids=str)
def test_uri_names_a_store(case: Case, update: bool) -> None:
    try:
        found = sources.Location.of(case.own[-1])
        result = f"{found.service} bucket={found.bucket} prefix={found.prefix} account={found.account}"
    except ConfigurationError as error:
        result = str(error)
    assert "hunter2" not in result
    case.compare([result], update=update)


# --- Schema files ---

VERSION = 466687623483621431
COLUMN = {"ColumnName": "c", "ColumnType": "INT"}


def indented(value: Any) -> str:
    """As Go prints it, for text without characters that Go escapes."""
    return json.dumps(value, indent=4, ensure_ascii=False)


def document(*columns: dict[str, Any], **changed: Any) -> dict[str, Any]:
    own = {"Table": "t", "Schema": "db", "Version": 1, "TableVersion": VERSION, "Query": "", "Type": 0}
    return {**own, "TableColumns": [dict(column) for column in columns], "TableColumnsTotal": len(columns), **changed}


def checksum(table: dict[str, Any]) -> int:
    columns = sorted(table["TableColumns"] or (), key=lambda column: column["ColumnName"])
    summed = {"Table": table["Table"], "Schema": table["Schema"], "Version": 0, "TableColumns": columns}
    return zlib.crc32(indented({**summed, "TableColumnsTotal": table["TableColumnsTotal"]}).encode())


def read(directory: Path, content: str | bytes, summed: int, version: int = VERSION) -> SchemaChange:
    path = f"db/t/meta/schema_{version}_{summed:010d}.json"
    _make(directory, path, content.encode() if isinstance(content, str) else content, None)
    (file,) = sources.list_sink(sources.LocalStore(directory), DAY).schemas
    return sources.read_schema_file(sources.LocalStore(directory), file)


# What versions of Python say differently.
_OF_PYTHON = re.compile(r"(is not JSON|(?:Type|Attribute|Overflow)Error|invalid literal).*")


def _declared(column: SourceColumn) -> str:
    kind = column.type
    parts = {
        "unsigned": kind.unsigned, "length": kind.length, "scale": kind.scale, "labels": kind.elements,
        "not null": not column.nullable, "key": column.primary_key, "default": column.default, "id": column.source_id,
    }  # fmt: skip
    return " ".join([kind.name, *(f"{name}={value!r}" for name, value in parts.items() if value or value == "")])


@pytest.mark.parametrize("case", read_cases(CASES / "schema_files.txt"), ids=str)
def test_schema_file_is_read(case: Case, tmp_path: Path, update: bool) -> None:
    """A line changes the document (`null` after `-`: takes the key out), one with `column` its only column."""
    table = document(COLUMN)
    summed, version, content = None, VERSION, None
    for line in case.given:
        key, _, value = line.partition(" = ")
        if key == "content":
            content = bytes_of(value)
        elif key == "name has version":
            version = int(value)
        elif key == "checksum is of the whole":
            summed = checksum(document(COLUMN))
        elif key.startswith("- "):
            del table[key[2:]]
        elif key.startswith("column "):
            table["TableColumns"][0][key.removeprefix("column ")] = json.loads(value)
        else:
            table[key] = json.loads(value)
    try:
        summed = checksum(document(COLUMN) if content is not None else table) if summed is None else summed
        content = indented(table).encode("utf-8", "backslashreplace") if content is None else content
        change = read(tmp_path, content, summed, version)
        results = [_declared(column) for column in change.columns]
    except SchemaFileError as error:
        segment, results = error.segment, [_OF_PYTHON.sub(r"\1", error.message)]
    else:
        segment = f"db/t/meta/schema_{version}_{summed:010d}.json"
    assert segment == f"db/t/meta/schema_{version}_{summed:010d}.json"
    case.compare(results, update=update)


@pytest.mark.parametrize("line", (CASES / "go_texts.txt").read_text(encoding="utf-8").splitlines()[1:])
def test_checksum_is_of_the_text_that_go_prints(tmp_path: Path, line: str) -> None:
    value, go = map(ast.literal_eval, line.split("  "))
    text = (
        f'{{\n    "Table": {go},\n    "Schema": "db",\n    "Version": 0,\n    "TableColumns": [\n        {{\n'
        f'            "ColumnName": "c",\n            "ColumnType": "VARCHAR",\n            "ColumnDefault": {go}\n'
        '        }\n    ],\n    "TableColumnsTotal": 1\n}'
    )
    whole = text.replace('"Version": 0', f'"Version": 1, "TableVersion": {VERSION}, "Query": "q", "Type": 3')
    change = read(tmp_path, whole, zlib.crc32(text.encode()))
    assert (change.table, change.columns[0].default) == (value, value)


def test_size_limit_of_schema_files_fits_the_widest_table(tmp_path: Path) -> None:
    """TiDB allows 4,096 columns at most."""
    long = "é" * 60
    table = document(
        *({"ColumnName": f"{long}{n}", "ColumnType": "ENUM", "ColumnElems": [long] * 5} for n in range(4096))
    )
    assert len(indented(table)) < sources.SCHEMA_FILE_LIMIT // 2
    assert len(read(tmp_path / "wide", indented(table), checksum(table)).columns) == 4096
    path = tmp_path / f"large/db/t/meta/schema_{VERSION}_0000000001.json"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(sources.SCHEMA_FILE_LIMIT + 1)
    store = sources.LocalStore(tmp_path / "large")
    (found,) = sources.list_sink(store, DAY).schemas
    with pytest.raises(SourceError, match=f"larger than {sources.SCHEMA_FILE_LIMIT} bytes") as refused:
        sources.read_schema_file(store, found)
    assert refused.value.segment == found.path


# --- A directory as a store ---


def test_linked_directory_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, target in (("link", "d"), ("loop", "loop"), ("gone", "nowhere")):
        (tmp_path / name).symlink_to(target)
    assert sources.LocalStore(tmp_path).directories() == ("d", "link")


def listed(store: sources.LocalStore) -> dict[str, int | str]:
    return {each.path: each.size if isinstance(each, sources.StoredObject) else each.reason for each in store.list()}


def test_etag_changes_with_the_file(tmp_path: Path) -> None:
    """As TiCDC rewrites `metadata`: with the same size."""
    store, path, etags = sources.LocalStore(tmp_path), tmp_path / "file", list[str]()
    for size, changed_ns in ((8, 10**18), (8, 10**18), (8, 10**18 + 1), (9, 10**18 + 1)):
        path.write_bytes(b"x" * size)
        os.utime(path, ns=(0, changed_ns))
        etags += [each.etag for each in store.list() if isinstance(each, sources.StoredObject)]
    assert etags[0] == etags[1] and len(etags) == 4 and len({*etags}) == 3


def test_listing_in_byte_order_skips_earlier_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("A", "a-b", "a/b/1", "a/é", "a/\uffff", "a/𐍈", "a0", "b/c/d/e", "empty/x/y", "~"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    store, looked, scandir = sources.LocalStore(tmp_path), list[str](), os.scandir
    everything = [each.path for each in store.list()]
    assert everything == sorted(everything, key=str.encode) and len(everything) == 10

    def watched(path: Path) -> object:
        looked.append(str(Path(path).relative_to(tmp_path)))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", watched)
        assert [each.path for each in store.list("", "b/c/d")] == ["b/c/d/e", "empty/x/y", "~"]
    assert looked == [".", "b", "b/c", "b/c/d", "empty", "empty/x"]


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("sink", r"sink is not a directory.*source.uri"),
        ("file", r"file is not a directory.*source.uri"),
        ("x" * 300, "File name too long"),
    ],
    ids=["missing", "file", "long"],
)
def test_root_that_is_not_a_directory_is_unreachable(tmp_path: Path, root: str, said: str) -> None:
    (tmp_path / "file").write_text("a file")
    store = sources.LocalStore(tmp_path / root)
    for call in (store.check, lambda: listed(store), store.directories):
        with pytest.raises(errors.SourceUnreachableError, match=said):
            call()


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may list everything: for a while it is nobody."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


def test_directory_without_permission_is_reported() -> None:
    # Not in tmp_path, which is for the user alone who runs the tests.
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "db").mkdir(mode=0)
        (root / "metadata").write_bytes(b"{}")
        store = sources.LocalStore(root)
        with unprivileged():
            assert listed(store) == {"metadata": 2, "db": "Permission denied"}
            assert list(store.list("db/")) == [sources.UnreadableDirectory("db", "Permission denied")]
            with pytest.raises(SourceError, match=r"Permission denied \[segment db/\]"):
                store.directories("db/")


@pytest.mark.parametrize(
    ("make", "remove"), [(Path.touch, Path.unlink), (Path.mkdir, Path.rmdir)], ids=["file", "directory"]
)
def test_paths_removed_while_listing_are_left_out(tmp_path: Path, make: Any, remove: Any) -> None:
    """TiCDC removes the directories of dates that have expired."""
    for name, create in (("a", Path.touch), ("b", make), ("c", Path.touch)):
        create(tmp_path / name)
    listing = iter(sources.LocalStore(tmp_path).list())
    first = next(listing)
    remove(tmp_path / "b")
    assert [each.path for each in (first, *listing)] == ["a", "c"]


@pytest.mark.parametrize("content", [b"", b"ab", b"abxd", b"abcdef"])
@pytest.mark.parametrize(("size", "look"), [(10, 1), (2, 2)], ids=["in one piece", "between pieces"])
def test_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, look: int, content: bytes
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcd")
    fstat, looks = os.fstat, itertools.count(1)

    def changing(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if next(looks) == look:
            path.write_bytes(content)
            os.utime(path, ns=(0, 10**18))
        return found

    monkeypatch.setattr(os, "fstat", changing)
    with pytest.raises(ObjectChangedError, match=r"changes while it is read \[segment f\]"):
        list(sources.LocalStore(tmp_path).pieces("f", size))
