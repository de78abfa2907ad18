"""Keys of buckets that no request can be made for: part of their name is empty, `.` or `..`."""

from __future__ import annotations

import pytest

from cdc_lakehouse.errors import DumpError, SourceError
from tests.boundaries.sources import ObjectStore, StoredObject, UnreadableName, list_objects, list_sink, open_store
from tests.kit.sink_layouts import layout_with
from tests.sources.s3_server import BUCKET, s3_server

GOOD = ("metadata", "a/.h", "a/0", "a/A", "a/b/1", "a/b/2", "a/...", "h/ok", "x/y/z/1")
# How each is reported.
BAD = {
    "a//b": "a//", "a//c/d": "a//", "a/./c": "a/./", "a/../d": "a/../", "f//": "f//", "h/.": "h/.",
    "h/..": "h/..", "x/y/z//.": "x/y/z//",
}  # fmt: skip


def listed(store: ObjectStore, prefix: str = "", after: str | None = None) -> tuple[list[str], list[str]]:
    found = list(store.list(prefix, after))
    good = [each.path for each in found if isinstance(each, StoredObject)]
    bad = [each.path for each in found if isinstance(each, UnreadableName)]
    assert len(good) + len(bad) == len({each.path for each in found}) == len(found)
    return sorted(good), sorted(bad)


@pytest.mark.parametrize("root", ["", "sink/of/"])
@pytest.mark.parametrize("bad", [*([key] for key in BAD), list(BAD)])
@pytest.mark.parametrize("page", [2, 1000])
def test_unreadable_names_are_reported_and_others_listed(root: str, bad: list[str], page: int) -> None:
    names = [*GOOD, *bad]
    with s3_server({root + name: name.encode() for name in names}, page) as storage:
        store = open_store(f"s3://{BUCKET}/{root}", storage)
        store.check()
        assert listed(store) == (sorted(GOOD), sorted({BAD[key] for key in bad}))
        assert store.directories() == tuple(sorted({name.split("/")[0] for name in names if "/" in name} - {""}))
        assert store.directories("a/") == ("b",)
        for path in GOOD:
            assert store.read(path, limit=len(path)) == path.encode()
        for after in ("a", "a/b/1", "a/b0", "g", "h/ok", "x/y/z/0", "y"):
            for prefix in ("", "a/", "x/"):
                good, reported = listed(store, prefix, after)
                assert good == sorted(name for name in GOOD if name.startswith(prefix) and name > after), after
                assert {BAD[key] for key in bad if key.startswith(prefix) and key > after} <= set(reported)


@pytest.mark.parametrize(
    ("objects", "root", "names", "directories"),
    [
        # Directories that a console made.
        (("sink/", "sink/db/", "sink/db/f", "sink/db/x//y"), "sink", (["db/f"], ["db/x//"]), ("db",)),
        # The empty name at the top.
        (("sink//e", "sink/f", "sink/d/f"), "sink", (["d/f", "f"], ["/"]), ("d",)),
        (("/d/f", "e/f"), "", None, ("e",)),
    ],
)
def test_empty_names_are_not_directories(
    objects: tuple[str, ...], root: str, names: tuple[list[str], list[str]] | None, directories: tuple[str, ...]
) -> None:
    with s3_server({name: b"" if name.endswith("/") else b"x" for name in objects}) as storage:
        store = open_store(f"s3://{BUCKET}/{root}".rstrip("/"), storage)
        assert store.directories() == directories
        assert names is None or listed(store) == names


def test_unreadable_name_is_of_no_sink_no_dump_and_no_root() -> None:
    file = "d/t/7/2026-01-31/CDC000001.json"
    for bad in ("d//t/7/2026-01-31/CDC000001.json", "d/t/7/2026-01-31/../x"):
        with s3_server({file: b"{}", bad: b"x"}) as storage:
            listing = list_sink(open_store(f"s3://{BUCKET}", storage), layout_with())
            assert len(listing.unknown) == 1 and bad.startswith(listing.unknown[0])
            assert [found.path for found in listing.data] == [file] and not listing.unreadable
    with s3_server({"metadata": b"x", "a//b": b"x"}) as storage, pytest.raises(DumpError, match=r"segment a//\]"):
        list_objects(open_store(f"s3://{BUCKET}", storage))
    with s3_server({"sink//of/f": b"x"}) as storage:
        store = open_store(f"s3://{BUCKET}/sink//of", storage)
        with pytest.raises(SourceError, match=r"part of its name is empty.* point source\.uri below it"):
            listed(store)
