"""The interface of stores to their readers."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

TOO_LARGE: Final = "see what wrote it: a file of this kind is smaller"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of the store: its path relative to the store's root, its size in bytes, and an ETag that changes with
    its content."""

    path: str
    size: int
    etag: str
    modified: datetime.datetime


@dataclass(frozen=True, slots=True)
class UnreadableDirectory:
    """A part of the store that could not be listed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnreadableName(UnreadableDirectory):
    """An object, or where the path ends in `/` all that is below it, that no request can be made for: part of its name
    is empty, `.`, `..` or has control characters."""


class ObjectStore(Protocol):
    """Paths are relative to the root and use `/`. A directory prefix ends in `/`; the empty one is the root."""

    @property
    def uri(self) -> str:
        """The root's absolute URI."""
        ...

    def check(self) -> None:
        """Raise `SourceUnreachableError` when the root does not exist."""
        ...

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        """Yield everything below a directory prefix, in no order; with `after`, only what sorts after that path in the
        byte order of paths. Earlier objects cost little: they are not read.

        A prefix without objects gives nothing. Raises `SourceUnreachableError` when the root cannot be listed.
        """
        ...

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the directories directly below a directory prefix, sorted. Raises `SourceError` when it
        cannot be listed; a prefix without objects has none."""
        ...

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        """Read a whole object; with `etag`, only the one that was listed with it.

        Raises `ObjectMissingError`, `ObjectChangedError` when it is another one by now or changes while it is read, or
        `SourceError` when it is larger than `limit` bytes.
        """
        ...

    def head(self, path: str, size: int, *, etag: str | None = None) -> bytes:
        """Return the first `size` bytes of an object, fewer when it is shorter. Raises as `read` does."""
        ...

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        """Yield a whole object, `size_of_piece` bytes at a time (at least 1); the last piece may be shorter, and an
        empty object has none. No more than one piece is held.

        Raises as `read` does, at the piece that cannot be read: pieces before it are of the same object.
        """
        ...


def require_directory_prefix(prefix: str) -> None:
    """Raise `ValueError` for a prefix that is neither empty nor ends in `/`."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"not a directory prefix, which ends in '/': {prefix!r}")
