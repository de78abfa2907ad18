"""The interface of stores to their readers."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from cdc_lakehouse.errors import ConfigurationError

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

        A prefix without objects gives nothing. Raises `SourceUnreachableError` when the root cannot be listed, and
        `SourceError` for a key that no request can be made for: part of it is empty, `.` or `..`.
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


# The parts of a store's URI.

Service = Literal["file", "s3", "gs", "azure"]

# Including the other names that TiCDC accepts in a sink URI.
_SERVICES: Final[dict[str, Service]] = {
    "file": "file", "s3": "s3", "gs": "gs", "gcs": "gs", "azure": "azure", "azblob": "azure", "abfss": "azure",
}  # fmt: skip
_FORMS: Final = "a path, file://…, s3://bucket/…, gs://bucket/…, azure://container/… or abfss://container@account…/…"


@dataclass(frozen=True, slots=True)
class Location:
    """A location in a store. `bucket` is Azure's container, `account` the one that an `abfss` URI names. `prefix` has
    no `/` at its ends; for a local directory it is the whole path."""

    uri: str
    service: Service
    bucket: str
    prefix: str
    account: str | None = None

    @classmethod
    def of(cls, uri: str) -> Location:
        """Parse an absolute URI (see `config.anchor_uri`). Names are used as they are, not percent-decoded.

        Raises `ConfigurationError` for a service that is not supported, and for a URI that names no bucket.
        """
        scheme, _, rest = uri.partition("://")
        service = _SERVICES.get(scheme)
        if service is None:
            raise ConfigurationError(f"a store at {scheme}:// is not supported", advice=f"use {_FORMS}")
        if service == "file":
            return cls(uri, service, "", rest)
        if "?" in rest:
            raise ConfigurationError(
                f"a {scheme}:// URI has a query", advice="leave it out; credentials and endpoints stand under storage"
            )
        bucket, _, prefix = rest.partition("/")
        account = None
        if scheme == "abfss":
            bucket, _, host = bucket.partition("@")
            account = host.partition(".")[0]
            if not account:
                raise ConfigurationError("an abfss:// URI names no account", advice=f"use {_FORMS}")
        if not bucket or "@" in bucket or ":" in bucket:
            raise ConfigurationError(
                f"a {scheme}:// URI must name a bucket and nothing before it", advice=f"use {_FORMS}"
            )
        prefix = prefix.strip("/")
        return cls(uri.rstrip("/"), service, bucket, prefix, account)

    @property
    def setting(self) -> str:
        """The section of the configuration with the settings of the bucket's service."""
        return f"storage.{self.service}"
