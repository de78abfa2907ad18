"""Read-only access to the store that holds a sink. Nothing here can write, rename or delete."""

from cdc_lakehouse.sources.object_store.local_store import LocalStore
from cdc_lakehouse.sources.object_store.opening import open_store
from cdc_lakehouse.sources.object_store.store import ObjectStore, StoredObject, UnreadableDirectory

__all__ = ["LocalStore", "ObjectStore", "StoredObject", "UnreadableDirectory", "open_store"]
