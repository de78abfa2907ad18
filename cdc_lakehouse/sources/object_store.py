"""Read-only access to the store that holds a sink. Nothing here can write, rename or delete."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ConfigurationError, ObjectMissingError, SourceError, SourceUnreachableError


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of the store: path relative to the store's root, size in bytes, and what changes with its content."""

    path: str
    size: int
    etag: str
    modified: datetime.datetime


@dataclass(frozen=True, slots=True)
class UnreadableDirectory:
    """A part of the store that could not be listed, and why."""

    path: str
    reason: str


class ObjectStore(Protocol):
    @property
    def uri(self) -> str: ...

    def check(self) -> None:
        """Raises `SourceUnreachableError` when the root is not there."""
        ...

    def list(self) -> Iterator[StoredObject | UnreadableDirectory]:
        """Everything below the root, in no order. Raises `SourceUnreachableError` when the root cannot be listed."""
        ...

    def read(self, path: str, *, limit: int) -> bytes:
        """The whole object. Raises `ObjectMissingError`, or `SourceError` when it is larger than `limit` bytes."""
        ...

    def head(self, path: str, size: int) -> bytes:
        """The first bytes of an object, fewer when it is shorter. Raises as `read` does."""
        ...


class LocalStore:
    """A directory of this machine (or a mounted one: NFS)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    def check(self) -> None:
        try:
            found = self._root.is_dir()
        except OSError as error:
            raise SourceUnreachableError(f"cannot look at {self._root}: {error.strerror}") from error
        if not found:
            raise SourceUnreachableError(
                f"{self._root} is not a directory", advice="start the changefeed, or correct the feed's source.uri"
            )

    def list(self) -> Iterator[StoredObject | UnreadableDirectory]:
        self.check()
        yield from self._walk(self._root, "")

    def _walk(self, directory: Path, prefix: str) -> Iterator[StoredObject | UnreadableDirectory]:
        try:
            with os.scandir(directory) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            if not prefix:
                raise SourceUnreachableError(f"{directory} is not there any more") from None
            return  # Expired between the listing and the look.
        except OSError as error:
            if not prefix:
                raise SourceUnreachableError(f"cannot list {directory}: {error.strerror}") from error
            yield UnreadableDirectory(prefix.rstrip("/"), error.strerror or type(error).__name__)
            return
        for entry in found:
            path = prefix + entry.name
            try:
                if entry.is_dir():
                    yield from self._walk(directory / entry.name, f"{path}/")
                    continue
                status = entry.stat()
            except FileNotFoundError:
                continue  # Renamed or expired between the listing and the look.
            except OSError as error:
                yield UnreadableDirectory(path, error.strerror or type(error).__name__)
                continue
            modified = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
            yield StoredObject(path, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}", modified)

    def read(self, path: str, *, limit: int) -> bytes:
        content = self.head(path, limit + 1)
        if len(content) > limit:
            raise SourceError(f"the file is larger than {limit} bytes", segment=path)
        return content

    def head(self, path: str, size: int) -> bytes:
        try:
            with (self._root / path).open("rb") as file:
                return file.read(size)
        except FileNotFoundError as error:
            raise ObjectMissingError("the file is not there", segment=path) from error
        except OSError as error:
            raise SourceError(f"cannot read the file: {error.strerror}", segment=path) from error


def open_store(uri: str, storage: StorageConfig | None = None) -> ObjectStore:
    """The store at an absolute URI (see `config.anchor_uri`)."""
    if uri.startswith("file://"):
        return LocalStore(Path(uri.removeprefix("file://")))
    scheme = uri.partition("://")[0]
    raise ConfigurationError(f"a source at {scheme}:// is not supported", advice="use a path or file://")
