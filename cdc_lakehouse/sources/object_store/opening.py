"""Which store a URI names."""

from __future__ import annotations

from pathlib import Path

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sources.object_store.local_store import LocalStore
from cdc_lakehouse.sources.object_store.store import ObjectStore


def open_store(uri: str, storage: StorageConfig | None = None) -> ObjectStore:
    """The store at an absolute URI (see `config.anchor_uri`)."""
    if uri.startswith("file://"):
        return LocalStore(Path(uri.removeprefix("file://")))
    scheme = uri.partition("://")[0]
    raise ConfigurationError(f"a source at {scheme}:// is not supported", advice="use a path or file://")
