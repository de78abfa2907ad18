"""A bucket of S3, GCS or Azure, or the part of it below a prefix."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import obstore

from cdc_lakehouse.errors import CdcError, ObjectChangedError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.object_store.clients import CLIENT_ERRORS, StoreClient, beyond_the_end, broke_off, fault
from cdc_lakehouse.sources.object_store.store import (
    TOO_LARGE,
    Location,
    StoredObject,
    UnreadableDirectory,
    require_directory_prefix,
)

if TYPE_CHECKING:
    from obstore import GetOptions

# pyright: standard
# The types of obstore name those of a package that is not needed here.


T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 4
"""The number of attempts for a body that breaks off. The client itself retries requests without a response."""
_WAIT_SECONDS: Final = 0.5


class _Body(NamedTuple):
    """The body of a response, with its object's size in bytes and ETag, empty where it has none."""

    content: bytes
    size: int
    etag: str


class RemoteStore:
    """The `ObjectStore` of a bucket, or of a prefix of it."""

    def __init__(self, location: Location, client: StoreClient) -> None:
        self._location = location
        self._client = client
        self._root = f"{location.prefix}/" if location.prefix else ""

    @property
    def uri(self) -> str:
        return self._location.uri

    def check(self) -> None:
        next(iter(self.list()), None)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        require_directory_prefix(prefix)
        yielded: set[str] = set()
        directories: set[str] = set()
        empty: list[StoredObject] = []
        for attempt in itertools.count(1):
            try:
                for found in self._list(prefix, after):
                    if found.path in yielded:
                        continue
                    yielded.add(found.path)
                    _add_directories(found.path, directories)
                    if not found.size:
                        empty.append(found)
                    else:
                        yield found
                break
            except _BrokenBodyError as error:
                self._wait(attempt, error)
        # Consoles create a directory as an empty object `d/`, which the client calls `d`: it does not belong to the
        # sink.
        yield from (found for found in empty if found.path not in directories)

    def _list(self, prefix: str, after: str | None) -> Iterator[StoredObject]:
        key, offset = self._root + prefix, None if after is None else self._root + after
        try:
            for page in obstore.list(self._client.store, key.rstrip("/") or None, offset=offset, chunk_size=_PAGE):
                for meta in page:
                    path = meta["path"]
                    # Emulators, and stores that only resemble S3, give what lies before as well.
                    if path.startswith(key) and (offset is None or path.encode() > offset.encode()):
                        etag = _plain(meta["e_tag"])
                        yield StoredObject(path.removeprefix(self._root), meta["size"], etag, meta["last_modified"])
        except CLIENT_ERRORS as error:
            raise self._fault(error) from None

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        require_directory_prefix(prefix)
        key = self._root + prefix

        def once() -> tuple[str, ...]:
            try:
                found = obstore.list_with_delimiter(self._client.store, key.rstrip("/") or None)
            except CLIENT_ERRORS as error:
                raise self._fault(error) from None
            names = (path.rstrip("/").removeprefix(key) for path in found["common_prefixes"])
            # In the root of a bucket the client leaves out a slash that a key begins with.
            return tuple(sorted(filter(None, names)))

        return self._persist(once)

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        return self._persist(lambda: self._read(path, limit, None, etag)).content

    def head(self, path: str, size: int, *, etag: str | None = None) -> bytes:
        return self._persist(lambda: self._read(path, None, (0, size), etag)).content if size > 0 else b""

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        start, size, condition = 0, 1, etag  # Only the first answer says the size.
        while start < size:
            body = self._persist(functools.partial(self._read, path, None, (start, start + size_of_piece), condition))
            if body.content:
                yield body.content
            elif start:
                raise ObjectChangedError("the object changes while it is read", segment=path)
            # Without a given ETag, all pieces must be of the same object as the first one.
            start, size, condition = start + len(body.content), body.size, condition or body.etag or None

    def _read(self, path: str, limit: int | None, part: tuple[int, int] | None, etag: str | None) -> _Body:
        options: GetOptions = {} if part is None else {"range": part}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        try:
            result = obstore.get(self._client.store, self._root + path, options=options)
        except CLIENT_ERRORS as error:
            if part is not None and beyond_the_end(error):
                return _Body(b"", 0, "")
            raise self._fault(error, path) from None
        size = result.meta["size"]
        if limit is not None and size > limit:
            raise SourceError(f"the object is larger than {limit} bytes", segment=path, advice=TOO_LARGE)
        # A store that does not support conditions returns the object that it has.
        found = _plain(result.meta["e_tag"])
        if etag is not None and found != etag:
            raise ObjectChangedError("the object has changed since it was listed", segment=path)
        start, end = result.range
        try:
            content = bytes(result.bytes())
        except CLIENT_ERRORS as error:
            raise self._fault(error, path, body=True) from None
        if len(content) != end - start:
            raise _BrokenBodyError(f"{len(content)} of the {end - start} bytes of an object came", segment=path)
        return _Body(content, size, found)

    def _persist(self, call: Callable[[], T]) -> T:
        for attempt in itertools.count(1):
            try:
                return call()
            except _BrokenBodyError as error:
                self._wait(attempt, error)
        raise AssertionError("not reached")

    @staticmethod
    def _wait(attempt: int, error: CdcError) -> None:
        if attempt == _ATTEMPTS:
            raise SourceUnreachableError(error.message, segment=error.segment) from None
        time.sleep(_WAIT_SECONDS * 2**attempt)

    def _fault(self, error: BaseException, path: str | None = None, *, body: bool = False) -> CdcError:
        if self._client.failure is not None:
            return self._client.failure
        cause = fault(self._location, error, path)
        if isinstance(cause, SourceUnreachableError) and (body or broke_off(error)):
            return _BrokenBodyError(f"an answer of the bucket {self._location.bucket!r} broke off", segment=path)
        return cause


class _BrokenBodyError(SourceUnreachableError):
    """A body was truncated."""


def _add_directories(path: str, directories: set[str]) -> None:
    """Add the directories that a path lies in. Where one is known, those above it are known too."""
    directory = path.rpartition("/")[0]
    while directory and directory not in directories:
        directories.add(directory)
        directory = directory.rpartition("/")[0]


def _plain(etag: str | None) -> str:
    """Remove the quotes of an ETag: some services quote it in a listing, some do not; all do in the response to a
    read."""
    return (etag or "").removeprefix("W/").strip('"')
