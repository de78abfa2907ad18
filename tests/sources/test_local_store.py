"""What is special about a directory as a store; what all stores do is in tests/servers/test_object_store.py."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import ObjectChangedError, SourceError, SourceUnreachableError
from tests.boundaries.sources import LocalStore, StoredObject, UnreadableDirectory


def listed(store: LocalStore) -> dict[str, int | str]:
    return {each.path: each.size if isinstance(each, StoredObject) else each.reason for each in store.list()}


def etags(store: LocalStore) -> dict[str, str]:
    return {each.path: each.etag for each in store.list() if isinstance(each, StoredObject)}


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
def test_etag_changes_with_the_file(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)
    os.utime(path, ns=(0, 10**18))
    store = LocalStore(tmp_path)
    before = etags(store)
    assert before == etags(store)
    change(path)
    assert before != etags(store)


def test_listing_is_in_byte_order_and_skips_earlier_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("A", "a-b", "a/b/1", "a/é", "a/\uffff", "a/𐍈", "a0", "b/c/d/e", "empty/x/y", "~"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    store, looked, scandir = LocalStore(tmp_path), list[str](), os.scandir
    everything = [each.path for each in store.list()]
    assert everything == sorted(everything, key=str.encode) and len(everything) == 10

    def watched(path: Path) -> object:
        looked.append(str(Path(path).relative_to(tmp_path)))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", watched)
        assert [each.path for each in store.list("", "b/c/d")] == ["b/c/d/e", "empty/x/y", "~"]
    assert looked == [".", "b", "b/c", "b/c/d", "empty", "empty/x"]


def test_links_are_followed_and_loops_reported(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    for name, target in (("link", "d"), ("loop", "loop"), ("gone", "nowhere")):
        (tmp_path / name).symlink_to(target)
    store = LocalStore(tmp_path)
    assert store.directories() == ("d", "link")
    assert listed(store) == {"d/f": 0, "link/f": 0, "loop": "Too many levels of symbolic links"}


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
    store = LocalStore(tmp_path / root)
    for call in (store.check, lambda: listed(store), store.directories):
        with pytest.raises(SourceUnreachableError, match=said):
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
        store = LocalStore(root)
        with unprivileged():
            assert listed(store) == {"metadata": 2, "db": "Permission denied"}
            assert list(store.list("db/")) == [UnreadableDirectory("db", "Permission denied")]
            with pytest.raises(SourceError, match=r"Permission denied \[segment db/\]"):
                store.directories("db/")


@pytest.mark.parametrize(
    ("make", "remove"), [(Path.touch, Path.unlink), (Path.mkdir, Path.rmdir)], ids=["file", "directory"]
)
def test_paths_removed_while_listing_are_left_out(tmp_path: Path, make: Any, remove: Any) -> None:
    """TiCDC removes the directories of dates that have expired."""
    for name, create in (("a", Path.touch), ("b", make), ("c", Path.touch)):
        create(tmp_path / name)
    listing = iter(LocalStore(tmp_path).list())
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
        list(LocalStore(tmp_path).pieces("f", size))
