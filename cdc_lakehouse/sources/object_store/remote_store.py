# pyright: standard
# The types of obstore name those of a package that is not needed here.
"""A bucket of S3, GCS or Azure, or the part of it below a prefix."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import obstore

from cdc_lakehouse.errors import CdcError, ObjectChangedError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.object_store.clients import Client
from cdc_lakehouse.sources.object_store.location import Location
from cdc_lakehouse.sources.object_store.remote_errors import CLIENT_ERRORS, beyond_the_end, broke_off, fault
from cdc_lakehouse.sources.object_store.store import StoredObject, require_directory_prefix

if TYPE_CHECKING:
    from obstore import GetOptions

T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 4
"""Of a body that breaks off. Requests that are not answered are tried again by the client itself."""
_WAIT_SECONDS: Final = 0.5


class RemoteStore:
    """The `ObjectStore` of a bucket, or of what lies below a prefix of it."""

    def __init__(self, location: Location, client: Client) -> None:
        self._location = location
        self._client = client
        self._root = f"{location.prefix}/" if location.prefix else ""

    @property
    def uri(self) -> str:
        return self._location.uri

    def check(self) -> None:
        next(iter(self.list()), None)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject]:
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
                    if found.size:
                        yield found
                    else:
                        empty.append(found)
                break
            except _BrokenBodyError as error:
                self._wait(attempt, error)
        # Consoles make a directory by an empty object `d/`, which the client calls `d`: it is none of the sink's.
        yield from (found for found in empty if found.path not in directories)

    def _list(self, prefix: str, after: str | None) -> Iterator[StoredObject]:
        key, offset = self._root + prefix, None if after is None else self._root + after
        low = b"" if after is None else after.encode()
        try:
            for page in obstore.list(self._client.store, key.rstrip("/") or None, offset=offset, chunk_size=_PAGE):
                for found in page:
                    path = found["path"].removeprefix(self._root)
                    # Emulators, and stores that only resemble S3, give what lies before as well.
                    if found["path"].startswith(key) and path.encode() > low:
                        yield StoredObject(path, found["size"], _plain(found["e_tag"]), found["last_modified"])
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
            return tuple(sorted(path.rstrip("/").removeprefix(key) for path in found["common_prefixes"]))

        return self._persist(once)

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        return self._persist(lambda: self._read(path, limit, {}, etag))

    def head(self, path: str, size: int, *, etag: str | None = None) -> bytes:
        return self._persist(lambda: self._read(path, None, {"range": (0, size)}, etag)) if size > 0 else b""

    def _read(self, path: str, limit: int | None, options: GetOptions, etag: str | None) -> bytes:
        if etag is not None:
            options = {**options, "if_match": f'"{etag}"'}
        try:
            result = obstore.get(self._client.store, self._root + path, options=options)
        except CLIENT_ERRORS as error:
            if "range" in options and beyond_the_end(error):
                return b""
            raise self._fault(error, path) from None
        if limit is not None and result.meta["size"] > limit:
            raise SourceError(f"the object is larger than {limit} bytes", segment=path)
        # A store that does not know conditions answers with what it has.
        if etag is not None and _plain(result.meta["e_tag"]) != etag:
            raise ObjectChangedError("the object has changed since it was listed", segment=path)
        start, end = result.range
        try:
            content = bytes(result.bytes())
        except CLIENT_ERRORS as error:
            raise self._fault(error, path, body=True) from None
        if len(content) != end - start:
            raise _BrokenBodyError(f"{len(content)} of the {end - start} bytes of an object came", segment=path)
        return content

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
    """A body that ended before its end."""


def _add_directories(path: str, directories: set[str]) -> None:
    """Add the directories that a path lies in. Where one is known, those above it are known too."""
    directory = path.rpartition("/")[0]
    while directory and directory not in directories:
        directories.add(directory)
        directory = directory.rpartition("/")[0]


def _plain(etag: str | None) -> str:
    """An ETag without quotes: some services quote it in a listing, some do not; all do in the answer to a read."""
    return (etag or "").removeprefix("W/").strip('"')
