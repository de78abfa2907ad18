"""Keys of buckets that no request can be made for: part of their name is empty, `.` or `..`."""

from __future__ import annotations

import pytest

from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources.dump.listing import list_objects
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableName, open_store
from cdc_lakehouse.sources.sink.paths import list_sink
from tests.kit.sink_layouts import layout_with
from tests.sources.s3_server import BUCKET, s3_server

GOOD = ("metadata", "a/.h", "a/0", "a/A", "a/b/1", "a/b/2", "a/...", "h/ok", "x/y/z/1")
BAD = {
    "a//b": "a//", "a//c/d": "a//", "a/./c": "a/./", "a/../d": "a/../", "f//": "f//", "h/.": "h/.",
    "h/..": "h/..", "x/y/z//.": "x/y/z//",
}  # fmt: skip
"""How each is told."""


def listed(store: ObjectStore, prefix: str = "", after: str | None = None) -> tuple[list[str], list[str]]:
    """What can be read, and what not."""
    found = list(store.list(prefix, after))
    good = [each.path for each in found if isinstance(each, StoredObject)]
    bad = [each.path for each in found if isinstance(each, UnreadableName)]
    assert len(good) + len(bad) == len({each.path for each in found}) == len(found)
    return sorted(good), sorted(bad)


@pytest.mark.parametrize("root", ["", "sink/of/"])
@pytest.mark.parametrize("bad", [*([key] for key in BAD), list(BAD)])
@pytest.mark.parametrize("page", [2, 1000])
def test_they_are_told_and_all_else_is_listed(root: str, bad: list[str], page: int) -> None:
    with s3_server({root + name: name.encode() for name in [*GOOD, *bad]}, page) as storage:
        store = open_store(f"s3://{BUCKET}/{root}", storage)
        assert listed(store) == (sorted(GOOD), sorted({BAD[key] for key in bad}))
        store.check()
        assert store.directories() == tuple(
            sorted({name.split("/")[0] for name in [*GOOD, *bad] if "/" in name} - {""})
        )
        assert store.directories("a/") == ("b",)
        for found in store.list():
            if isinstance(found, StoredObject):
                assert store.read(found.path, limit=found.size, etag=found.etag) == found.path.encode()


def test_what_is_listed_after_a_path() -> None:
    with s3_server(dict.fromkeys([*GOOD, *BAD], b"x")) as storage:
        store = open_store(f"s3://{BUCKET}", storage)
        for after in ("a", "a/", "a/b/1", "a/b0", "g", "h/ok", "x/y/z/0", "x/y/z/1", "y"):
            for prefix in ("", "a/", "x/"):
                good, bad = listed(store, prefix, after)
                assert good == sorted(name for name in GOOD if name.startswith(prefix) and name > after), after
                assert set(bad) >= {told for key, told in BAD.items() if key.startswith(prefix) and key > after}


def test_a_directory_that_a_console_made_is_none() -> None:
    with s3_server({"sink/": b"", "sink/db/": b"", "sink/db/f": b"x", "sink/db/x//y": b"x"}) as storage:
        store = open_store(f"s3://{BUCKET}/sink", storage)
        assert listed(store) == (["db/f"], ["db/x//"])
        assert store.directories() == ("db",)


def test_a_root_with_such_a_name_cannot_be_listed() -> None:
    with s3_server({"sink//of/f": b"x"}) as storage:
        store = open_store(f"s3://{BUCKET}/sink//of", storage)
        with pytest.raises(
            SourceError, match=r"cannot be read: part of its name is empty.* point source\.uri below it"
        ):
            listed(store)


def test_the_empty_name_at_the_top_of_a_source() -> None:
    with s3_server({"sink//e": b"x", "sink/f": b"x", "sink/d/f": b"x"}) as storage:
        assert listed(open_store(f"s3://{BUCKET}/sink", storage)) == (["d/f", "f"], ["/"])
    with s3_server({"/d/f": b"x", "e/f": b"x"}) as storage:
        assert open_store(f"s3://{BUCKET}", storage).directories() == ("e",)


@pytest.mark.parametrize("bad", ["d//t/7/2026-01-31/CDC000001.json", "d/t/7/2026-01-31/../x"])
def test_such_a_name_is_of_no_sink(bad: str) -> None:
    file = "d/t/7/2026-01-31/CDC000001.json"
    with s3_server({file: b"{}", bad: b"x"}) as storage:
        store = open_store(f"s3://{BUCKET}", storage)
        listing = list_sink(store, layout_with())
        assert len(listing.unknown) == 1 and bad.startswith(listing.unknown[0])
        assert [found.path for found in listing.data] == [file] and not listing.unreadable


def test_such_a_name_is_of_no_dump() -> None:
    with s3_server({"metadata": b"x", "a//b": b"x"}) as storage, pytest.raises(DumpError, match=r"segment a//\]"):
        list_objects(open_store(f"s3://{BUCKET}", storage))
