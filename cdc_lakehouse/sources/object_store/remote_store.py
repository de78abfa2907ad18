# pyright: standard
# The types of obstore name those of a package that is not needed here.
"""A bucket of S3, GCS or Azure, or the part of it below a prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import obstore

from cdc_lakehouse.errors import ObjectChangedError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.object_store.clients import Client
from cdc_lakehouse.sources.object_store.location import Location
from cdc_lakehouse.sources.object_store.remote_faults import CLIENT_ERRORS, beyond_the_end, fault
from cdc_lakehouse.sources.object_store.store import StoredObject, require_directory_prefix

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 4
"""Of a body that breaks off. Requests that are not answered are tried again by the client itself."""
_WAIT_SECONDS: Final = 0.5


class RemoteStore:
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
        offset = None if after is None else self._root + after
        pages = self._call(None, lambda: self._list(self._root + prefix, offset))
        low = b"" if after is None else after.encode()
        while (page := self._call(None, lambda: next(pages, None))) is not None:
            for found in page:
                path = found["path"].removeprefix(self._root)
                # Emulators, and stores that only resemble S3, give what lies before as well.
                if path.startswith(prefix) and path.encode() > low:
                    yield StoredObject(path, found["size"], _plain(found["e_tag"]), found["last_modified"])

    def _list(self, key: str, offset: str | None) -> Iterator[Sequence[ObjectMeta]]:
        return iter(obstore.list(self._client.store, key.rstrip("/") or None, offset=offset, chunk_size=_PAGE))

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        require_directory_prefix(prefix)
        key = self._root + prefix
        found = self._call(None, lambda: obstore.list_with_delimiter(self._client.store, key.rstrip("/") or None))
        return tuple(sorted(each.rstrip("/").removeprefix(key) for each in found["common_prefixes"]))

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        return self._read(path, limit, {}, etag)

    def head(self, path: str, size: int, *, etag: str | None = None) -> bytes:
        return self._read(path, None, {"range": (0, size)}, etag) if size > 0 else b""

    def _read(self, path: str, limit: int | None, options: GetOptions, etag: str | None) -> bytes:
        if etag is not None:
            options = {**options, "if_match": f'"{etag}"'}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._read_once(path, limit, options, etag)
            except _BrokenBodyError as error:
                if attempt == _ATTEMPTS:
                    raise SourceUnreachableError(error.message, segment=path) from None
                time.sleep(_WAIT_SECONDS * 2**attempt)
        raise AssertionError("not reached")

    def _read_once(self, path: str, limit: int | None, options: GetOptions, etag: str | None) -> bytes:
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
            problem = self._fault(error, path)
            if isinstance(problem, SourceUnreachableError):
                raise _BrokenBodyError(f"an object of the bucket {self._location.bucket!r} broke off") from None
            raise problem from None
        if len(content) != end - start:
            raise _BrokenBodyError(f"{len(content)} of the {end - start} bytes of an object came")
        return content

    def _call(self, path: str | None, call: Callable[[], T]) -> T:
        try:
            return call()
        except CLIENT_ERRORS as error:
            raise self._fault(error, path) from None

    def _fault(self, error: BaseException, path: str | None) -> Exception:
        return self._client.failure or fault(self._location, error, path)


class _BrokenBodyError(SourceUnreachableError):
    """A body that ended before its end."""


def _plain(etag: str | None) -> str:
    """Some services quote it in a listing, some do not; all do in the answer to a read."""
    return (etag or "").removeprefix("W/").strip('"')
