"""The interface of stores to their readers; and the store of a directory of this machine, or a mounted one (NFS)."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from cdc_lakehouse.errors import (
    ConfigurationError,
    ObjectChangedError,
    ObjectMissingError,
    SourceError,
    SourceUnreachableError,
)

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
        `SourceError` for a key that no request can be made for: part of it is empty, `.` or `..`, or has control
        characters.
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
        """Return the first `size` bytes of an object (at least 1), fewer when it is shorter. Raises as `read` does."""
        return next(self.pieces(path, size, etag=etag), b"")

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        """Yield a whole object, `size_of_piece` bytes at a time (at least 1); the last piece may be shorter, and an
        empty object has none. No more than one piece is held.

        Raises as `read` does, at the piece that cannot be read: pieces before it are of the same object.
        """
        ...


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


_RIGHTS: Final = "see whether the disk is sound, and this user may read there"


class LocalStore(ObjectStore):
    """The `ObjectStore` of a directory. ETags consist of the time of the last change and the size."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    def check(self) -> None:
        try:
            found = self._root.is_dir()
        except OSError as error:
            raise SourceUnreachableError(f"cannot look at {self._root}: {error.strerror}", advice=_RIGHTS) from error
        if not found:
            raise SourceUnreachableError(
                f"{self._root} is not a directory", advice="start the changefeed, or correct the feed's source.uri"
            )

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        self.check()
        yield from self._walk(prefix, b"" if after is None else os.fsencode(after))

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        self.check()
        try:
            with os.scandir(self._root / prefix) as entries:
                return tuple(sorted((entry.name for entry in entries if _is_directory(entry)), key=os.fsencode))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise SourceError(
                f"cannot list the directory: {error.strerror}", segment=prefix or None, advice=_RIGHTS
            ) from error

    def _walk(self, prefix: str, after: bytes) -> Iterator[StoredObject | UnreadableDirectory]:
        """Yield objects in byte order of the paths, in which a directory's name includes its `/`."""
        try:
            with os.scandir(self._root / prefix) as entries:
                names = sorted(
                    os.fsencode(f"{prefix}{entry.name}{'/' if _is_directory(entry) else ''}") for entry in entries
                )
        except FileNotFoundError:
            if not prefix:
                raise SourceUnreachableError(f"{self._root} is not there any more") from None
            return  # Expired between the listing and the look.
        except NotADirectoryError:
            return  # A prefix of the caller's that no directory has.
        except OSError as error:
            if not prefix:
                raise SourceUnreachableError(f"cannot list {self._root}: {error.strerror}", advice=_RIGHTS) from error
            yield UnreadableDirectory(prefix.rstrip("/"), error.strerror or type(error).__name__)
            return
        for encoded in names:
            if encoded <= after and not (encoded.endswith(b"/") and after.startswith(encoded)):
                continue  # With all that is below it.
            path = os.fsdecode(encoded)
            if path.endswith("/"):
                yield from self._walk(path, after)
                continue
            try:
                status = (self._root / path).stat()
            except FileNotFoundError:
                continue  # Renamed or expired between the listing and the look.
            except OSError as error:
                yield UnreadableDirectory(path, error.strerror or type(error).__name__)
                continue
            modified = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
            yield StoredObject(path, status.st_size, _etag(status), modified)

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        content = self.head(path, limit + 1, etag=etag)
        if len(content) > limit:
            raise SourceError(f"the file is larger than {limit} bytes", segment=path, advice=TOO_LARGE)
        return content

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        try:
            with (self._root / path).open("rb") as file:
                before = os.fstat(file.fileno())
                if etag is not None and _etag(before) != etag:
                    raise ObjectChangedError("the file has changed since it was listed", segment=path)
                left = before.st_size
                while left:
                    piece = file.read(min(size_of_piece, left))
                    left -= len(piece)
                    if (left and len(piece) < size_of_piece) or _etag(before) != _etag(os.fstat(file.fileno())):
                        raise ObjectChangedError("the file changes while it is read", segment=path)
                    yield piece
        except FileNotFoundError as error:
            raise ObjectMissingError("the file is not there", segment=path) from error
        except OSError as error:
            raise SourceError(f"cannot read the file: {error.strerror}", segment=path, advice=_RIGHTS) from error


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # A link that cannot be followed: reported when it is read as a file.
