"""Opening of the store for a URI; and whole segments, read in tasks of other processes, which open their own store."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.sources.object_store.clients import open_client
from cdc_lakehouse.sources.object_store.local_store import LocalStore
from cdc_lakehouse.sources.object_store.location import Location
from cdc_lakehouse.sources.object_store.remote_store import RemoteStore
from cdc_lakehouse.sources.object_store.store import ObjectStore


def open_store(uri: str, storage: StorageConfig | None = None) -> ObjectStore:
    """Open the store at an absolute URI (see `config.anchor_uri`). No request is made yet.

    Raises `ConfigurationError` as `Location.of` and `clients.open_client` do.
    """
    location = Location.of(uri)
    if location.service == "file":
        return LocalStore(Path(location.prefix))
    storage = storage or StorageConfig.nothing()
    return RemoteStore(location, open_client(location, storage), storage)


SEGMENT_LIMIT: Final = (1 << 31) - 1
"""The maximum bytes of an Arrow array."""


def read_segment(
    root: str, storage: StorageConfig, path: str, etag: str | None, *, limit: int = SEGMENT_LIMIT
) -> bytes:
    """Read the segment at `path` below the URI `root`, as it was when it was listed with `etag`. Raises as
    `ObjectStore.read` does."""
    return _store(root, storage.model_dump_json(exclude_unset=True)).read(path, limit=limit, etag=etag)


def segment_pieces(
    root: str, storage: StorageConfig, path: str, etag: str | None, *, size_of_piece: int
) -> Iterator[bytes]:
    """Yield the content that `read_segment` returns, in pieces. Raises as `ObjectStore.pieces` does."""
    store = _store(root, storage.model_dump_json(exclude_unset=True))
    return store.pieces(path, size_of_piece, etag=etag)


@functools.lru_cache(maxsize=8)
def _store(root: str, storage: str) -> ObjectStore:
    """Keep one client for each store and process, to reuse its connections and credentials."""
    return open_store(root, StorageConfig.model_validate_json(storage))
