"""A real directory as the store: what is listed, read, and said when it cannot be."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import (
    ConfigurationError,
    ObjectChangedError,
    ObjectMissingError,
    SourceError,
    SourceUnreachableError,
)
from cdc_lakehouse.sources.object_store import LocalStore, StoredObject, UnreadableDirectory, open_store, segment_pieces
from tests.kit.cases import shown

# Of `mkdir -p`, this often, makes a path that the system refuses to open by its whole name, even to root.
DEEP = ("d" * 200,) * 25


def listed(store: LocalStore) -> dict[str, int | str]:
    return {each.path: each.size if isinstance(each, StoredObject) else each.reason for each in store.list()}


def etags(store: LocalStore) -> dict[str, str]:
    return {each.path: each.etag for each in store.list() if isinstance(each, StoredObject)}


@contextlib.contextmanager
def working_directory(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def make_too_deep(directory: Path) -> None:
    with working_directory(directory):
        for name in DEEP:
            Path(name).mkdir()
            os.chdir(name)
        Path("lost").touch()


def test_everything_below_the_root_is_listed(tmp_path: Path) -> None:
    contents = {"metadata": b"{}", "a b/日本.x/1/CDC.json": b"12345", ".hidden": b"", "A/a": b"1", "a/A": b"22"}
    for path, content in contents.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "empty").mkdir()
    assert listed(LocalStore(tmp_path)) == {path: len(content) for path, content in contents.items()}


def replaced(path: Path) -> None:
    """By a file of the same size, as TiCDC rewrites `metadata`."""
    other = path.with_name("other")
    other.write_bytes(b"y" * 8)
    os.utime(other, ns=(0, path.stat().st_mtime_ns + 1))
    other.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        replaced,
        lambda path: (path.write_bytes(b"x" * 9), os.utime(path, ns=(0, 10**18))),
        lambda path: os.utime(path, ns=(0, 10**18 + 1)),
    ],
)
def test_the_etag_changes_with_the_file(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)
    os.utime(path, ns=(0, 10**18))
    store = LocalStore(tmp_path)
    before = etags(store)
    assert before == etags(store)
    change(path)
    assert before != etags(store)


def test_listing_and_reading_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"content")
    before = [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))]
    store = LocalStore(tmp_path)
    store.check()
    listed(store)
    assert store.read("d/f", limit=7) == b"content"
    assert [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))] == before


# --- Parts of it ---

PATHS = ("A", "a-b", "a.b/1", "a/b.c", "a/b/1", "a/b/2", "a/é", "a/\uffff", "a/𐍈", "a0", "b/c/d/e", "~")


@pytest.fixture
def parted(tmp_path: Path) -> LocalStore:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "empty").mkdir()
    return LocalStore(tmp_path)


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/", "b/", "b/c/", "empty/", "no/", "A/"])
@pytest.mark.parametrize(
    "after", [None, "", "\0", "a", "a/", "a/b/", "a/b/1x", "a/zzz", "b/c/d/e/f", "\U0010ffff", *PATHS]
)
def test_what_is_listed_after_a_path(parted: LocalStore, prefix: str, after: str | None) -> None:
    everything = [each.path for each in parted.list()]
    assert everything == sorted(everything, key=str.encode)
    expected = [
        path for path in everything if path.startswith(prefix) and (after is None or path.encode() > after.encode())
    ]
    assert [each.path for each in parted.list(prefix, after)] == expected


def test_what_lies_before_is_not_looked_at(parted: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    scandir = os.scandir

    def watched(path: Path) -> object:
        looked.append(str(path.relative_to(parted.uri.removeprefix("file://"))))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", watched)
        assert [each.path for each in parted.list("", "b/c/d")] == ["b/c/d/e", "~"]
    assert looked == [".", "b", "b/c", "b/c/d", "empty"]


@pytest.mark.parametrize(
    ("prefix", "names"),
    [("", ("a", "a.b", "b", "empty")), ("a/", ("b",)), ("a/b/", ()), ("b/", ("c",)), ("no/", ()), ("A/", ())],
)
def test_the_directories_of_a_prefix(parted: LocalStore, prefix: str, names: tuple[str, ...]) -> None:
    assert parted.directories(prefix) == names


def test_a_link_to_a_directory_is_one(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "loop").symlink_to("loop")
    assert LocalStore(tmp_path).directories() == ("d", "link")
    assert [each.path for each in LocalStore(tmp_path).list("link/")] == ["link/f"]


@pytest.mark.parametrize(
    ("root", "prefix", "error", "said"),
    [("", "a/b", ValueError, "'a/b'"), ("sink", "a/", SourceUnreachableError, "sink is not a directory")],
)
def test_a_prefix_that_is_none(tmp_path: Path, root: str, prefix: str, error: type[Exception], said: str) -> None:
    store = LocalStore(tmp_path / root)
    for call in (store.directories, lambda prefix: list(store.list(prefix))):
        with pytest.raises(error, match=said):
            call(prefix)


# --- What cannot be listed ---


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("sink", r"sink is not a directory.*source.uri"),
        ("file", r"file is not a directory.*source.uri"),
        ("x" * 300, "File name too long"),
    ],
    ids=shown,
)
def test_a_root_that_is_no_directory(tmp_path: Path, root: str, said: str) -> None:
    (tmp_path / "file").write_text("a file")
    store = LocalStore(tmp_path / root)
    for call in (store.check, lambda: listed(store)):
        with pytest.raises(SourceUnreachableError, match=said):
            call()


def test_a_directory_that_cannot_be_listed_is_told_and_the_rest_listed(tmp_path: Path) -> None:
    make_too_deep(tmp_path)
    (tmp_path / "a").touch()
    (tmp_path / "z").touch()
    found = list(LocalStore(tmp_path).list())
    assert [each.path for each in found if isinstance(each, StoredObject)] == ["a", "z"]
    (unreadable,) = [each for each in found if isinstance(each, UnreadableDirectory)]
    assert "/".join(DEEP).startswith(unreadable.path) and unreadable.reason == "File name too long"


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may list everything: for a while it is nobody."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_directory_without_permission() -> None:
    # Not in tmp_path, which is for the user alone who runs the tests.
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "db").mkdir(mode=0)
        (root / "metadata").write_bytes(b"{}")
        store = LocalStore(root)
        with unprivileged():
            assert listed(store) == {"metadata": 2, "db": "Permission denied"}
            assert list(store.list("db/")) == [UnreadableDirectory("db", "Permission denied")]
            with pytest.raises(SourceError, match=r"Permission denied \[segment db/\]"):
                store.directories("db/")


def test_a_link_that_leads_nowhere_is_told_only_where_it_loops(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "z").touch()
    assert listed(LocalStore(tmp_path)) == {"loop": "Too many levels of symbolic links", "z": 0}


@pytest.mark.parametrize(("make", "remove"), [(Path.touch, Path.unlink), (Path.mkdir, Path.rmdir)], ids=shown)
def test_what_goes_while_listing_is_left_out(tmp_path: Path, make: Any, remove: Any) -> None:
    """TiCDC removes the directories of dates that have expired."""
    (tmp_path / "a").touch()
    make(tmp_path / "b")
    (tmp_path / "c").touch()
    listing = iter(LocalStore(tmp_path).list())
    first = next(listing)
    remove(tmp_path / "b")
    assert [each.path for each in (first, *listing)] == ["a", "c"]


# --- Reading ---


@pytest.fixture
def with_file(tmp_path: Path) -> LocalStore:
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    (tmp_path / "d").mkdir()
    return LocalStore(tmp_path)


def test_a_file_up_to_the_limit_is_read_whole(with_file: LocalStore) -> None:
    etag = etags(with_file)["f"]
    assert with_file.read("f", limit=3) == with_file.read("f", limit=3, etag=etag) == b"abc"
    assert with_file.read("f", limit=4) == b"abc"
    assert with_file.read("empty", limit=0) == b""
    assert with_file.head("f", 2, etag=etag) == b"ab"
    assert [with_file.head("f", size) for size in (0, 2, 3, 9)] == [b"", b"ab", b"abc", b"abc"]


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("f", SourceError, "larger than 2 bytes"),
        ("d/f", ObjectMissingError, ""),
        ("d", SourceError, "Is a directory"),
        ("f/x", SourceError, "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_read(with_file: LocalStore, path: str, error: type[SourceError], said: str) -> None:
    with pytest.raises(error, match=rf"{said}.*\[segment {path}\]") as refused:
        with_file.read(path, limit=2)
    assert isinstance(refused.value, ObjectMissingError) == (error is ObjectMissingError)
    assert refused.value.segment == path


def test_a_file_that_is_another_one_by_now(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8)
    store = LocalStore(tmp_path)
    etag = etags(store)["f"]
    replaced(path)
    reads = (
        lambda: store.read("f", limit=8, etag=etag),
        lambda: store.head("f", 1, etag=etag),
        lambda: next(store.pieces("f", 4, etag=etag)),
    )
    for read in reads:
        with pytest.raises(ObjectChangedError, match=r"changed since it was listed \[segment f\]"):
            read()


@pytest.mark.parametrize("content", [b"", b"xy", b"abcd"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    fstat, looked = os.fstat, list[os.stat_result]()

    def changing(descriptor: int) -> os.stat_result:
        looked.append(fstat(descriptor))
        if len(looked) == 1:
            path.write_bytes(content)
            os.utime(path, ns=(0, looked[0].st_mtime_ns + 1))
        return looked[-1]

    monkeypatch.setattr(os, "fstat", changing)
    with pytest.raises(ObjectChangedError, match=r"changes while it is read \[segment f\]"):
        LocalStore(tmp_path).read("f", limit=10)


@pytest.mark.parametrize(
    ("size", "pieces"), [(1, [b"a", b"b", b"c"]), (2, [b"ab", b"c"]), (3, [b"abc"]), (9, [b"abc"])]
)
def test_a_file_in_pieces(with_file: LocalStore, size: int, pieces: list[bytes]) -> None:
    assert list(with_file.pieces("f", size)) == pieces
    assert list(with_file.pieces("f", size, etag=etags(with_file)["f"])) == pieces
    assert list(with_file.pieces("empty", size)) == []


@pytest.mark.parametrize(("path", "error"), [("d/f", ObjectMissingError), ("d", SourceError)])
def test_pieces_of_no_file(with_file: LocalStore, path: str, error: type[SourceError]) -> None:
    with pytest.raises(error, match=rf"\[segment {path}\]"):
        list(with_file.pieces(path, 2))


@pytest.mark.parametrize("content", [b"", b"ab", b"abxd", b"abcdef"])
def test_a_file_that_changes_between_its_pieces(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcd")
    pieces = LocalStore(tmp_path).pieces("f", 2)
    assert next(pieces) == b"ab"
    path.write_bytes(content)
    os.utime(path, ns=(0, 10**18))
    with pytest.raises(ObjectChangedError, match=r"changes while it is read \[segment f\]"):
        next(pieces)


def test_a_file_that_is_replaced_between_its_pieces_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcdefgh")
    pieces = LocalStore(tmp_path).pieces("f", 4)
    assert next(pieces) == b"abcd"
    replaced(path)
    assert list(pieces) == [b"efgh"]


def test_pieces_of_a_segment(with_file: LocalStore) -> None:
    pieces = segment_pieces(with_file.uri, StorageConfig.nothing(), "f", etags(with_file)["f"], size_of_piece=2)
    assert list(pieces) == [b"ab", b"c"]


# --- Opening ---


def test_a_file_uri_opens_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "a b é"
    root.mkdir()
    (root / "f").touch()
    store = open_store(f"file://{root}")
    assert store.uri == f"file://{root}" and [each.path for each in store.list()] == ["f"]


@pytest.mark.parametrize("scheme", ["s3", "gs", "hdfs"])
def test_a_storage_that_is_not_supported(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{scheme}://.*file://"):
        open_store(f"{scheme}://key@bucket/sink")
