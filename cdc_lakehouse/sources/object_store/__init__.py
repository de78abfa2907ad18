"""Read-only access to the store that holds a sink. Nothing here can write, rename or delete.

How to add a service: a case of `Location` in `store`, a client in `remote_store`, settings in `config/storage.py`.
"""

from cdc_lakehouse.sources.object_store.opening import SEGMENT_LIMIT, open_store, read_segment, segment_pieces
from cdc_lakehouse.sources.object_store.store import (
    LocalStore,
    Location,
    ObjectStore,
    StoredObject,
    UnreadableDirectory,
)

__all__ = [
    "SEGMENT_LIMIT", "LocalStore", "Location", "ObjectStore", "StoredObject", "UnreadableDirectory",
    "open_store", "read_segment", "segment_pieces",
]  # fmt: skip
