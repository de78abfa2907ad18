"""A bucket of S3, GCS or Azure, or the part of it below a prefix.

The names directly below a prefix of a bucket, also those that the client cannot express.

The client fails a whole listing for one key with an empty part, `.` or `..`. PyArrow's file systems return such keys,
but no ETags: so they list the names where the client fails, and the client requests each object with a usable name.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import InvalidPathError

from cdc_lakehouse.config import AzureStorage, GcsStorage, S3Storage, StorageConfig
from cdc_lakehouse.errors import CdcError, ObjectChangedError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.object_store.clients import (
    CLIENT_ERRORS,
    DEFAULT_REGION,
    RETRY_TIMEOUT,
    UNREADABLE_NAME,
    StoreClient,
    beyond_the_end,
    broke_off,
    fault,
)
from cdc_lakehouse.sources.object_store.store import (
    TOO_LARGE,
    Location,
    StoredObject,
    UnreadableDirectory,
    UnreadableName,
    require_directory_prefix,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta


# pyright: standard
# PyArrow's file systems have no types.


_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 30
_UNREADABLE: Final = re.compile(r"\.{0,2}|.*[\x00-\x1f\x7f].*", re.DOTALL)
"""Names that the client accepts in no path."""


@dataclass(frozen=True, slots=True)
class BucketNames:
    """Names directly below a prefix, sorted. Names in `unreadable` are not in the other two lists."""

    directories: list[str]
    files: list[str]
    unreadable: list[str]


def names_below(location: Location, storage: StorageConfig, client: StoreClient, key: str) -> BucketNames | None:
    """Return the names below a prefix of keys, which is empty or ends in `/`; None where PyArrow cannot list it."""
    import pyarrow as pa  # noqa: PLC0415 - with the SDKs of three services, and seldom needed
    from pyarrow import fs  # noqa: PLC0415

    # Of GCS only a listing of all that lies below has directories; of Azure such a one does not end at `a//b`.
    deep = location.service == "gs"
    base = f"{location.bucket}/{key}".rstrip("/")
    try:
        selector = fs.FileSelector(base, recursive=deep, allow_not_found=True)
        found = _file_system(fs, location, storage, client).get_file_info(selector)
    except (CdcError, pa.ArrowException, OSError, ValueError, TypeError):
        return None
    directories, files, unreadable = set[str](), set[str](), set[str]()
    for each in found:
        name, below, _ = each.path.removeprefix(base).removeprefix("/").partition("/")
        is_directory = bool(below) or each.type != fs.FileType.File
        if _UNREADABLE.fullmatch(name):
            unreadable.add(f"{name}/" if is_directory else name)
        else:
            (directories if is_directory else files).add(name)
    return BucketNames(sorted(directories), sorted(files), sorted(unreadable))


def _file_system(fs: Any, location: Location, storage: StorageConfig, client: StoreClient) -> Any:
    match location.service:
        case "s3":
            return _s3(fs, storage.s3.of(location.bucket), client)
        case "gs":
            return _gcs(fs, storage.gs.of(location.bucket))
        case "azure":
            return _azure(fs, location, storage.azure.of(location.bucket))
        case "file":
            raise ValueError("a local directory has no client")


def _s3(fs: Any, settings: S3Storage, client: StoreClient) -> Any:
    credentials = client.credentials
    signed: dict[str, Any] = {"anonymous": True}
    if credentials is not None:
        found = credentials()
        signed = {
            "access_key": found["access_key_id"],
            "secret_key": found["secret_access_key"],
            "session_token": found.get("token"),
        }
    return fs.S3FileSystem(
        **signed,
        region=settings.region or (None if credentials is None else credentials.region) or DEFAULT_REGION,
        endpoint_override=settings.endpoint,
        force_virtual_addressing=not settings.path_style and settings.endpoint is not None,
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_READ_SECONDS,
    )


def _gcs(fs: Any, settings: GcsStorage) -> Any:
    name_key_file(settings)
    scheme, host = _parts(settings.endpoint)
    return fs.GcsFileSystem(
        anonymous=settings.anonymous, scheme=scheme, endpoint_override=host, retry_time_limit=RETRY_TIMEOUT
    )


def _azure(fs: Any, location: Location, settings: AzureStorage) -> Any:
    if settings.anonymous:
        raise ValueError("PyArrow signs every request to Azure")
    account = location.account or settings.account
    scheme, host = _parts(settings.endpoint)
    if host is not None and host.startswith(f"{account}."):
        host = host.removeprefix(account or "")  # Else the account would be a part of the path, as emulators have it.
    return fs.AzureFileSystem(
        account,
        account_key=settings.account_key,
        sas_token=settings.sas_token,
        tenant_id=settings.tenant_id,
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        blob_storage_scheme=scheme,
        blob_storage_authority=host,
        dfs_storage_scheme=scheme,
        dfs_storage_authority=host,
    )


def _parts(endpoint: str | None) -> tuple[str | None, str | None]:
    """Scheme and host of an endpoint."""
    url = None if endpoint is None else urlsplit(endpoint)
    return (None, None) if url is None else (url.scheme, url.netloc)


def name_key_file(settings: GcsStorage) -> None:
    """Set the environment variable for the key file: PyArrow and Iceberg take a key file only from there, as Google's
    libraries do."""
    if settings.service_account_file is not None:
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = settings.service_account_file


# pyright: standard
# The types of obstore name those of a package that is not needed here.


T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 4
"""The number of attempts for a body that breaks off. The client itself retries requests without a response."""
_WAIT_SECONDS: Final = 0.5
_HEADS_AT_ONCE: Final = 16


class _Body(NamedTuple):
    """The body of a response, with its object's size in bytes and ETag, empty where it has none."""

    content: bytes
    size: int
    etag: str


class RemoteStore:
    """The `ObjectStore` of a bucket, or of a prefix of it."""

    def __init__(self, location: Location, client: StoreClient, storage: StorageConfig) -> None:
        self._location = location
        self._client = client
        self._storage = storage
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
                for found in self._list_readable(prefix, after):
                    if found.path in yielded:
                        continue
                    yielded.add(found.path)
                    _add_directories(found.path, directories)
                    if isinstance(found, StoredObject) and not found.size:
                        empty.append(found)
                    else:
                        yield found
                break
            except _BrokenBodyError as error:
                self._wait(attempt, error)
        # Consoles create a directory as an empty object `d/`, which the client calls `d`: it does not belong to the
        # sink.
        yield from (found for found in empty if found.path not in directories)

    def _list_readable(self, prefix: str, after: str | None) -> Iterator[StoredObject | UnreadableName]:
        """Yield the listing without names that the client does not accept, and these names. For such a name the client
        fails the listing of everything around it; then each neighbour is listed by itself, so that some objects come
        twice."""
        try:
            yield from self._list(prefix, after)
        except InvalidPathError as error:
            names = self._names_below(prefix, error)
        else:
            return
        for name in names.unreadable:
            if _reaches_behind(prefix + name, after):
                yield UnreadableName(prefix + name, UNREADABLE_NAME)
        paths = [prefix + name for name in names.files]
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            yield from filter(None, pool.map(self._head, [path for path in paths if _is_after(path, after)]))
        for name in names.directories:
            path = f"{prefix}{name}/"
            if _reaches_behind(path, after):
                yield from self._list_readable(path, after)

    def _names_below(self, prefix: str, error: InvalidPathError) -> BucketNames:
        names = names_below(self._location, self._storage, self._client, self._root + prefix)
        if names is None:
            raise self._fault(error) from None
        return names

    def _head(self, path: str) -> StoredObject | None:
        try:
            return self._found(obstore.head(self._client.store, self._root + path))
        except FileNotFoundError:
            return None  # Expired between the listing and the look.
        except CLIENT_ERRORS as error:
            raise self._fault(error, path) from None

    def _found(self, meta: ObjectMeta) -> StoredObject:
        path = meta["path"].removeprefix(self._root)
        return StoredObject(path, meta["size"], _plain(meta["e_tag"]), meta["last_modified"])

    def _list(self, prefix: str, after: str | None) -> Iterator[StoredObject]:
        """Yield the listing. Raise `InvalidPathError` when it has a name that the client does not accept."""
        key, offset = self._root + prefix, None if after is None else self._root + after
        try:
            for page in obstore.list(self._client.store, key.rstrip("/") or None, offset=offset, chunk_size=_PAGE):
                for found in page:
                    # Emulators, and stores that only resemble S3, give what lies before as well.
                    if found["path"].startswith(key) and _is_after(found["path"], offset):
                        yield self._found(found)
        except InvalidPathError:
            raise
        except CLIENT_ERRORS as error:
            raise self._fault(error) from None

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        require_directory_prefix(prefix)
        key = self._root + prefix

        def once() -> tuple[str, ...]:
            try:
                found = obstore.list_with_delimiter(self._client.store, key.rstrip("/") or None)
            except InvalidPathError as error:
                return tuple(self._names_below(prefix, error).directories)
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


def _is_after(path: str, after: str | None) -> bool:
    return after is None or path.encode() > after.encode()


def _reaches_behind(path: str, after: str | None) -> bool:
    """Whether a path, or where it ends in `/` anything below it, sorts after another one."""
    return _is_after(path, after) or (path.endswith("/") and (after or "").startswith(path))


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
