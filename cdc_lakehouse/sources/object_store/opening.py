"""Which store a URI names."""

from __future__ import annotations

from pathlib import Path

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.sources.object_store.clients import open_client
from cdc_lakehouse.sources.object_store.local_store import LocalStore
from cdc_lakehouse.sources.object_store.location import Location
from cdc_lakehouse.sources.object_store.remote_store import RemoteStore
from cdc_lakehouse.sources.object_store.store import ObjectStore


def open_store(uri: str, storage: StorageConfig | None = None) -> ObjectStore:
    """The store at an absolute URI (see `config.anchor_uri`)."""
    location = Location.of(uri)
    if location.service == "file":
        return LocalStore(Path(location.prefix))
    return RemoteStore(location, open_client(location, storage or StorageConfig.nothing()))
