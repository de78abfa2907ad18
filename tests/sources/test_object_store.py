"""A real directory as the store: what is listed, read, and said when it cannot be."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.errors import (
    ConfigurationError,
    ObjectChangedError,
    ObjectMissingError,
    SourceError,
    SourceUnreachableError,
)
from cdc_lakehouse.sources.object_store import LocalStore, StoredObject, UnreadableDirectory, open_store

# Of `mkdir -p`, this often, makes a path that the system refuses to open by its whole name, even to root.
DEEP = ("d" * 200,) * 25


def listed(store: LocalStore) -> dict[str, int | str]:
    found = (each for each in store.list())
    return {each.path: each.size if isinstance(each, StoredObject) else each.reason for each in found}


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
    before = [each for each in store.list() if isinstance(each, StoredObject)]
    assert before == list(store.list())
    change(path)
    after = [each for each in store.list() if isinstance(each, StoredObject)]
    assert [each.etag for each in before] != [each.etag for each in after]


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

    monkeypatch.setattr(os, "scandir", watched)
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


def test_a_prefix_is_a_directory(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for call in (store.directories, lambda prefix: list(store.list(prefix))):
        with pytest.raises(ValueError, match="'a/b'"):
            call("a/b")


def test_a_prefix_below_a_root_that_is_not_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "sink")
    for call in (store.directories, lambda prefix: list(store.list(prefix))):
        with pytest.raises(SourceUnreachableError):
            call("a/")


def test_a_prefix_that_may_not_be_listed() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "db").mkdir(mode=0)
        store = LocalStore(root)
        with unprivileged():
            assert list(store.list("db/")) == [UnreadableDirectory("db", "Permission denied")]
            with pytest.raises(SourceError, match=r"Permission denied \[segment db/\]"):
                store.directories("db/")


# --- What cannot be listed ---


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("a file")])
def test_a_root_that_is_no_directory(tmp_path: Path, make: Callable[[Path], object]) -> None:
    root = tmp_path / "sink"
    make(root)
    store = LocalStore(root)
    for call in (store.check, lambda: listed(store)):
        with pytest.raises(SourceUnreachableError, match=r"sink is not a directory.*source.uri"):
            call()


def test_a_root_that_cannot_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreachableError):
        LocalStore(tmp_path / ("x" * 300)).check()


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
        with unprivileged():
            assert listed(LocalStore(root)) == {"metadata": 2, "db": "Permission denied"}


def test_a_link_that_leads_nowhere_is_told_only_where_it_loops(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "z").touch()
    assert listed(LocalStore(tmp_path)) == {"loop": "Too many levels of symbolic links", "z": 0}


def test_a_file_that_goes_while_listing_is_left_out(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    listing = iter(LocalStore(tmp_path).list())
    first = next(listing)
    (tmp_path / "b").unlink()
    assert [each.path for each in (first, *listing)] == ["a", "c"]


def test_a_directory_that_goes_while_listing_is_left_out(tmp_path: Path) -> None:
    """TiCDC removes the directories of dates that have expired."""
    (tmp_path / "a").touch()
    (tmp_path / "b").mkdir()
    listing = iter(LocalStore(tmp_path).list())
    first = next(listing)
    (tmp_path / "b").rmdir()
    assert [each.path for each in (first, *listing)] == ["a"]


# --- Reading ---


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_a_file_up_to_the_limit_is_read_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"x" * size)
    assert LocalStore(tmp_path).read("f", limit=10) == b"x" * size


def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 11)
    with pytest.raises(SourceError, match=r"larger than 10 bytes \[segment f\]"):
        LocalStore(tmp_path).read("f", limit=10)


@pytest.mark.parametrize(("size", "head"), [(0, b""), (2, b"ab"), (3, b"abc"), (9, b"abc")])
def test_the_head_of_a_file(tmp_path: Path, size: int, head: bytes) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert LocalStore(tmp_path).head("f", size) == head


def etag_of(store: LocalStore, path: str) -> str:
    (found,) = [each for each in store.list() if each.path == path]
    assert isinstance(found, StoredObject)
    return found.etag


def test_a_file_that_is_the_listed_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    store = LocalStore(tmp_path)
    etag = etag_of(store, "f")
    assert store.read("f", limit=3, etag=etag) == b"abc"
    assert store.head("f", 2, etag=etag) == b"ab"


def test_a_file_that_is_another_one_by_now(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8)
    store = LocalStore(tmp_path)
    etag = etag_of(store, "f")
    replaced(path)
    for read in (lambda: store.read("f", limit=8, etag=etag), lambda: store.head("f", 1, etag=etag)):
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


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError, match=r"segment d/f"):
        LocalStore(tmp_path).read("d/f", limit=1)


@pytest.mark.parametrize(("path", "reason"), [("d", "Is a directory"), ("f/x", "Not a directory")])
def test_a_path_that_is_no_file(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    with pytest.raises(SourceError, match=reason) as refused:
        LocalStore(tmp_path).read(path, limit=1)
    assert not isinstance(refused.value, ObjectMissingError) and refused.value.segment == path


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
