"""Listing of a dump's directory."""

from __future__ import annotations

from collections.abc import Iterable

from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory


def list_objects(store: ObjectStore) -> list[StoredObject]:
    """Return everything in the dump, sorted by path. Raises as `ObjectStore.list` does, and `SourceError` when a part
    of it cannot be listed."""
    objects: list[StoredObject] = []
    for found in store.list():
        if isinstance(found, UnreadableDirectory):
            raise DumpError(f"a part of the dump cannot be listed: {found.reason}", segment=found.path)
        objects.append(found)
    return sorted(objects, key=lambda found: found.path)


def refuse_unknown(paths: Iterable[str], tool: str) -> None:
    """Raise `SourceError` for the first of the paths, if there is one."""
    for path in paths:
        raise SourceError(
            f"the directory holds a file that {tool} does not write, or not with this name",
            segment=path,
            advice="dump with the default names of files into an empty directory, and keep other files elsewhere",
        )
