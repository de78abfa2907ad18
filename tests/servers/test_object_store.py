"""One behaviour on every store: a local directory, and buckets on real servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ConfigurationError, ObjectChangedError, ObjectMissingError, SourceError
from tests.boundaries.sources import ObjectStore, StoredObject, open_store, shared_store
from tests.servers.buckets import PREFIX, Bucket, store_config

pytestmark = pytest.mark.server

NAMES = (
    "metadata",
    "A/a",
    "a b/t+x=1%20&/1/CDC000001.json",
    "a.b/~!'()*#?;:@,$/f",
    "a/b-c/1",
    "a/b/1",
    "a/b/2",
    "a/b0",
    'db/[x]{y}^`|"<>/f',
    "db/slash/table/458/2026-01-01/CDC000001.json",
    "db/slash/table/458/2026-01-01/meta/CDC.index",
    "db/slash/table/meta/schema_458_0123456789.json",
    "x/%2F%25/f",
    "ü中/日本 語/1/CDC1.json",
    "𐍈/1",
)


class Directory:
    """A local directory, as if it were a bucket."""

    storage: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, root: Path) -> None:
        self.name, self._root = "local", root
        root.mkdir()

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    def put(self, path: str, content: bytes) -> None:
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.part")
        part.write_bytes(content)
        part.replace(place)

    def delete(self, path: str) -> None:
        (self._root / path).unlink()


@pytest.fixture(params=["local", "s3", "gcs", "azure"])
def bucket(request: pytest.FixtureRequest, new_bucket: Callable[..., Bucket], tmp_path: Path) -> Bucket:
    return Directory(tmp_path / "sink") if request.param == "local" else new_bucket(request.param)


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return open_store(bucket.uri, store_config(bucket))


@pytest.fixture
def filled(bucket: Bucket) -> ObjectStore:
    for name in NAMES:
        bucket.put(name, name.encode())
    return open_store(bucket.uri, store_config(bucket))


def listed(store: ObjectStore, prefix: str = "", after: str | None = None) -> dict[str, StoredObject]:
    return {found.path: found for found in store.list(prefix, after) if isinstance(found, StoredObject)}


def test_every_name_is_listed_and_read(filled: ObjectStore) -> None:
    found = listed(filled)
    assert sorted(found) == sorted(NAMES)
    assert listed(filled) == found
    for name, each in found.items():
        content = name.encode()
        assert each.size == len(content)
        assert filled.read(name, limit=each.size) == content
        assert filled.read(name, limit=each.size, etag=each.etag) == content
        assert filled.head(name, 3, etag=each.etag) == content[:3]
        assert filled.head(name, 1000) == content
        assert b"".join(filled.pieces(name, 5, etag=each.etag)) == b"".join(filled.pieces(name, 5)) == content


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/", "db/slash/", "no/", "ü中/"])
def test_listing_after_a_path_has_the_later_ones(filled: ObjectStore, prefix: str) -> None:
    for after in (None, "", "a", "a/", "a/b", "a/b/", "a/b/1", "a/b/1x", "db/t", "ü中/zzz", "\U0010ffff", *NAMES):
        wanted = {
            name for name in NAMES if name.startswith(prefix) and (after is None or name.encode() > after.encode())
        }
        assert set(listed(filled, prefix, after)) == wanted, after


def test_directories_of_a_prefix_are_listed(filled: ObjectStore) -> None:
    assert filled.directories() == tuple(sorted({name.split("/")[0] for name in NAMES if "/" in name}))
    assert filled.directories("a/") == ("b", "b-c")
    assert filled.directories("db/slash/table/") == ("458", "meta")
    assert filled.directories("db/slash/table/meta/") == filled.directories("no/") == filled.directories("A/") == ()


def test_root_of_a_bucket_can_be_the_source(new_bucket: Callable[..., Bucket]) -> None:
    for service in ("s3", "gcs", "azure"):
        bucket = new_bucket(service, prefix="")
        bucket.put("a/b", b"1")
        bucket.put("metadata", b"22")
        store = open_store(bucket.uri, store_config(bucket))
        assert {path: found.size for path, found in listed(store).items()} == {"a/b": 1, "metadata": 2}
        assert store.directories() == ("a",)
        assert store.read("metadata", limit=2) == b"22"


@pytest.mark.parametrize("service", ["s3", "gcs"])
def test_listing_of_many_pages_is_complete(service: str, new_bucket: Callable[..., Bucket]) -> None:
    """Of 1,000 objects each; Azure's have 5,000."""
    bucket = new_bucket(service)
    store = open_store(bucket.uri, store_config(bucket))
    names = [f"t/{number:05}" for number in range(1100)]
    for name in names:
        bucket.put(name, b"")
    assert sorted(listed(store)) == names
    assert sorted(listed(store, "t/", "t/00998")) == names[999:]


def test_prefix_ends_at_a_slash_and_objects_can_be_empty(bucket: Bucket, store: ObjectStore) -> None:
    store.check()
    assert store.uri == bucket.uri and listed(store) == {} and store.directories() == ()
    bucket.put("sink/empty", b"")
    bucket.put("sink2/f", b"")
    (found,) = listed(store, "sink/").values()
    assert (found.path, found.size) == ("sink/empty", 0)
    assert store.read(found.path, limit=0, etag=found.etag) == store.head(found.path, 5, etag=found.etag) == b""
    assert list(store.pieces(found.path, 5)) == list(store.pieces(found.path, 5, etag=found.etag)) == []


def test_missing_or_too_large_object_is_reported(filled: ObjectStore) -> None:
    for call in (
        lambda: filled.read("a/none", limit=1),
        lambda: filled.head("a/none", 1),
        lambda: next(filled.pieces("a/none", 1)),
    ):
        with pytest.raises(ObjectMissingError, match=r"segment a/none"):
            call()
    with pytest.raises(SourceError, match=r"larger than 7 bytes \[segment metadata\]"):
        filled.read("metadata", limit=7)


def test_object_changed_since_the_listing_is_refused(bucket: Bucket, store: ObjectStore) -> None:
    bucket.put("f", b"first")
    before = listed(store)["f"]
    bucket.put("f", b"other")
    for call in (
        lambda: store.read("f", limit=10, etag=before.etag),
        lambda: store.head("f", 1, etag=before.etag),
        lambda: next(store.pieces("f", 1, etag=before.etag)),
        lambda: shared_store(bucket.uri, store_config(bucket)).read("f", limit=9, etag=before.etag),
    ):
        with pytest.raises(ObjectChangedError, match=r"changed since it was listed \[segment f\]"):
            call()
    now = listed(store)["f"]
    assert now.etag != before.etag
    assert shared_store(bucket.uri, store_config(bucket)).read("f", limit=9, etag=now.etag) == b"other"


def test_large_object_is_read_in_pieces(bucket: Bucket, store: ObjectStore) -> None:
    content = bytes(range(256)) * 40_000
    bucket.put("large", content)
    (found,) = listed(store).values()
    assert store.read("large", limit=found.size, etag=found.etag) == content
    assert store.head("large", 1 << 20) == content[: 1 << 20]
    for size in (1 << 20, len(content) // 2, len(content), len(content) + 1):
        pieces = list(shared_store(bucket.uri, store_config(bucket)).pieces("large", size, etag=found.etag))
        assert b"".join(pieces) == content
        assert {len(piece) for piece in pieces[:-1]} <= {size} and len(pieces[-1]) <= size


def test_object_changed_between_pieces_is_refused(bucket: Bucket, store: ObjectStore) -> None:
    bucket.put("f", b"first")
    pieces = store.pieces("f", 2)
    assert next(pieces) == b"fi"
    bucket.put("f", b"o")
    if isinstance(bucket, Directory):  # It was replaced: what was opened is read to its end.
        assert list(pieces) == [b"rs", b"t"]
        return
    with pytest.raises(ObjectChangedError, match=r"\[segment f\]"):
        list(pieces)


@pytest.mark.parametrize("service", ["s3", "gcs"])
def test_directories_made_by_a_console_are_not_objects(service: str, new_bucket: Callable[..., Bucket]) -> None:
    bucket = new_bucket(service, prefix="sink")
    for name in ("", "db/", "db/t/"):
        bucket.put(name, b"")
    bucket.put("db/t/f", b"x")
    bucket.put("db/t/empty", b"")
    store = open_store(bucket.uri, store_config(bucket))
    assert set(listed(store)) == {"db/t/f", "db/t/empty"}
    assert store.directories() == ("db",)


@pytest.mark.parametrize("service", ["gcs", "azure"])  # The server of S3 keeps objects as files.
@pytest.mark.parametrize("key", ["a//b", "a/./c", "a/../d", "f//", "h/..", "/e"])
def test_unreadable_key_is_reported_by_name(service: str, key: str, new_bucket: Callable[..., Bucket]) -> None:
    bucket = new_bucket(service)
    for name in ("metadata", "a/0", key):
        bucket.put(name, b"x")
    shown = re.escape(f'"{PREFIX}/{key}"')
    with pytest.raises(SourceError, match=rf"no request can be made for {shown} .*: remove it from"):
        list(open_store(bucket.uri, store_config(bucket)).list())


@pytest.mark.parametrize("service", ["s3", "azure"])
def test_missing_bucket_is_reported(service: str, new_bucket: Callable[..., Bucket]) -> None:
    bucket = new_bucket(service)
    store = open_store(bucket.uri.replace(bucket.name, "no-such-bucket"), store_config(bucket))
    for call in (store.check, store.directories, lambda: store.read("f", limit=1)):
        with pytest.raises(SourceError, match=rf"no bucket 'no-such-bucket'.*storage\.{service}") as told:
            call()
        assert told.value.segment is None and not isinstance(told.value, ObjectMissingError)


def test_azure_is_opened_by_an_abfss_uri(new_bucket: Callable[..., Bucket]) -> None:
    bucket = new_bucket("azure")
    bucket.put("metadata", b"x")
    settings = {**bucket.storage["azure"], "account": None}
    uri = f"abfss://{bucket.name}@devstoreaccount1.dfs.core.windows.net/{PREFIX}"
    store = open_store(uri, StorageConfig.model_validate({"azure": settings}))
    assert list(listed(store)) == ["metadata"]
    with pytest.raises(ConfigurationError, match=r"no storage account: set storage\.azure\.account"):
        open_store(bucket.uri, StorageConfig.model_validate({"azure": settings}))
