"""Read-only access to the stores that hold sinks and dumps: nothing here can write, rename or delete. The interface of
stores to their readers, and the store of a directory of this machine, or of a mounted one (NFS).

How to add a service: a case of `Location` and of `RemoteStore`, settings in `config/storage.py`."""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar

import obstore
from obstore.exceptions import BaseError, InvalidPathError, PreconditionError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import (
    CdcError,
    ConfigurationError,
    ObjectChangedError,
    ObjectMissingError,
    SourceError,
    SourceUnreachableError,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, RetryConfig

    from cdc_lakehouse.sources.object_store.s3_credentials import S3Credentials

_TOO_LARGE: Final = "see what wrote it: a file of this kind is smaller"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object. `path` is relative to the store's root, `size` in bytes; `etag` changes with the content."""

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
        byte order of paths. Earlier objects cost little: they are not read. A prefix without objects gives nothing.
        Raises `SourceUnreachableError` when the root cannot be listed, and `SourceError` for a key that no request can
        be made for: part of it is empty, `.` or `..`, or has control characters."""
        ...

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the directories directly below a directory prefix, sorted. Raises `SourceError` when it
        cannot be listed; a prefix without objects has none."""
        ...

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        """Read a whole object; with `etag`, only the one that was listed with it. Raises `ObjectMissingError`,
        `ObjectChangedError` when it is another one by now or changes while it is read, or `SourceError` when it is
        larger than `limit` bytes."""
        ...

    def head(self, path: str, size: int, *, etag: str | None = None) -> bytes:
        """Return the first `size` bytes of an object (at least 1), fewer when it is shorter. Raises as `read` does."""
        return next(self.pieces(path, size, etag=etag), b"")

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        """Yield a whole object, `size_of_piece` bytes at a time (at least 1); the last piece may be shorter, and an
        empty object has none. No more than one piece is held. Raises as `read` does, at the piece that cannot be read:
        pieces before it are of the same object."""
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
        """Parse an absolute URI (see `config.anchor_uri`). Names are used as they are, not percent-decoded. Raises
        `ConfigurationError` for a service that is not supported, and for a URI that names no bucket."""
        scheme, _, rest = uri.partition("://")
        service = _SERVICES.get(scheme)
        if service is None:
            raise ConfigurationError(f"a store at {scheme}:// is not supported", advice=f"use {_FORMS}")
        if service == "file":
            return cls(uri, service, "", rest)
        if "?" in rest:
            advice = "leave it out; credentials and endpoints stand under storage"
            raise ConfigurationError(f"a {scheme}:// URI has a query", advice=advice)
        bucket, _, prefix = rest.partition("/")
        account = None
        if scheme == "abfss":
            bucket, _, host = bucket.partition("@")
            account = host.partition(".")[0]
            if not account:
                raise ConfigurationError("an abfss:// URI names no account", advice=f"use {_FORMS}")
        if not bucket or "@" in bucket or ":" in bucket:
            said = f"a {scheme}:// URI must name a bucket and nothing before it"
            raise ConfigurationError(said, advice=f"use {_FORMS}")
        return cls(uri.rstrip("/"), service, bucket, prefix.strip("/"), account)


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
            advice = "start the changefeed, or correct the feed's source.uri"
            raise SourceUnreachableError(f"{self._root} is not a directory", advice=advice)

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
            said = f"cannot list the directory: {error.strerror}"
            raise SourceError(said, segment=prefix or None, advice=_RIGHTS) from error

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
            raise SourceError(f"the file is larger than {limit} bytes", segment=path, advice=_TOO_LARGE)
        return content

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None, lines: bool = False) -> Iterator[bytes]:
        """With `lines`, a piece goes on to the next line feed, by up to as much again."""
        try:
            with (self._root / path).open("rb") as file:
                before = os.fstat(file.fileno())
                if etag is not None and _etag(before) != etag:
                    raise ObjectChangedError("the file has changed since it was listed", segment=path)
                left = before.st_size
                while left:
                    size, at = min(size_of_piece, left), file.tell()
                    if lines:
                        file.seek(at + size)
                        size += len(file.readline(min(size_of_piece, left - size)))
                        file.seek(at)
                    piece = file.read(size)
                    left -= len(piece)
                    if len(piece) < size or _etag(before) != _etag(os.fstat(file.fileno())):
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


CLIENT_ERRORS: Final = (BaseError, OSError, ValueError)
"""The client's exceptions: a missing object is an `OSError`, an invalid path or setting a `ValueError`."""

_STATUS: Final = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})")
_CODE: Final = re.compile(r"<Code>\s*(\w{1,64})\s*</Code>|\"code\":\s*\"(\w{1,64})\"")
_KIND: Final = re.compile(r"\bkind: (\w{1,32})")
# Quoted, with control characters escaped.
_KEY: Final = re.compile(r'\bpath: ("(?:[^"\\]|\\.)*")')

_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "FilesystemNotFound"})
_BAD_CREDENTIALS: Final = frozenset({
    "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch",
    "RequestTimeTooSkewed", "InvalidAuthenticationInfo", "AuthenticationFailed", "AccessTokenExpired",
})  # fmt: skip
_OTHER_REGION: Final = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"})
_PASSING: Final = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ServerBusy", "OperationTimedOut"})

# A sensor's tick waits for it, so an outage is reported after less than a minute; a run is tried again as a whole.
RETRIES: RetryConfig = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=45)}
# A connection that brings nothing for half a minute is dead; a large file may take much longer than that in all.
TIMEOUTS: ClientConfig = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
_DEFAULT_REGION: Final = "us-east-1"
_PAGE: Final = 1000
_ATTEMPTS: Final = 4
"""The number of attempts for a body that breaks off. The client itself retries requests without a response."""
_WAIT_SECONDS: Final = 0.5

T = TypeVar("T")


class RemoteStore(ObjectStore):
    """The `ObjectStore` of a bucket of S3, GCS or Azure, or of a prefix of it. An error's text contains URLs (with a
    SAS token: signed ones) and the service's whole response, so only the HTTP status, the service's error code and the
    client's own name of the kind are passed on."""

    def __init__(self, location: Location, storage: StorageConfig) -> None:
        """Make no request. Raise `ConfigurationError` when a setting is missing or the client does not accept it."""
        self._location = location
        self._setting = f"storage.{location.service}"
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._credentials: S3Credentials | None = None  # They keep the error for which they could not be obtained.
        config: dict[str, Any]
        kind: Any
        if location.service == "s3":
            kind, settings = S3Store, storage.s3.of(location.bucket)
            # This imports boto3, which is slow to load.
            from cdc_lakehouse.sources.object_store.s3_credentials import S3Credentials  # noqa: PLC0415

            self._credentials = None if settings.anonymous else S3Credentials(settings)
            endpoint = settings.endpoint
            if endpoint is not None and not settings.path_style:
                # For virtual-hosted requests, the client expects the bucket's own endpoint.
                scheme, _, host = endpoint.partition("://")
                endpoint = f"{scheme}://{location.bucket}.{host}"
            region = settings.region or (self._credentials and self._credentials.region) or _DEFAULT_REGION
            config = {"region": region, "virtual_hosted_style_request": not settings.path_style, "endpoint": endpoint}
        elif location.service == "gs":
            kind, settings = GCSStore, storage.gs.of(location.bucket)
            config = {"base_url": settings.endpoint, "service_account": settings.service_account_file}
        else:
            kind, settings = AzureStore, storage.azure.of(location.bucket)
            if (account := location.account or settings.account) is None:
                said = f"{location.uri} names no storage account"
                raise ConfigurationError(said, advice="set storage.azure.account, or use abfss://container@account…")
            config = {
                "account_name": account, "sas_key": settings.sas_token, "endpoint": settings.endpoint,
                "account_key": settings.account_key, "tenant_id": settings.tenant_id, "client_id": settings.client_id,
                "client_secret": settings.client_secret,
            }  # fmt: skip
        config["skip_signature"] = settings.anonymous or None
        is_http = (settings.endpoint or "").startswith("http://")
        options: dict[str, Any] = {
            "config": {key: value for key, value in config.items() if value is not None},
            "client_options": {**TIMEOUTS, "allow_http": is_http}, "retry_config": RETRIES,
        }  # fmt: skip
        if self._credentials is not None:
            options["credential_provider"] = self._credentials
        try:
            self._client: Any = kind(location.bucket, **options)
        except CLIENT_ERRORS as error:
            # The client's text may contain a setting, so it is not passed on.
            raise ConfigurationError(
                f"the client for {location.uri} cannot be made ({type(error).__name__})",
                advice=f"look at {self._setting}: its endpoint, key files and keys",
            ) from None

    @property
    def uri(self) -> str:
        return self._location.uri

    def check(self) -> None:
        next(iter(self.list()), None)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        yielded, directories, empty = set[str](), set[str](), list[StoredObject]()
        for found in _persist(lambda: self._list(prefix, after)):
            if found.path in yielded:
                continue
            yielded.add(found.path)
            directory = found.path.rpartition("/")[0]
            while directory and directory not in directories:
                directories.add(directory)
                directory = directory.rpartition("/")[0]
            if not found.size:
                empty.append(found)
            else:
                yield found
        # Consoles create a directory as an empty object `d/`, which the client calls `d`: it is none of the sink's.
        yield from (found for found in empty if found.path not in directories)

    def _list(self, prefix: str, after: str | None) -> Iterator[StoredObject]:
        key, offset = self._root + prefix, None if after is None else self._root + after
        try:
            pages: Any = obstore.list(self._client, key.rstrip("/") or None, offset=offset, chunk_size=_PAGE)  # pyright: ignore[reportUnknownMemberType]
            for meta in itertools.chain.from_iterable(pages):
                path: str = meta["path"]
                # Emulators, and stores that only resemble S3, give what lies before as well.
                if path.startswith(key) and (offset is None or path.encode() > offset.encode()):
                    etag = _plain(meta["e_tag"])
                    yield StoredObject(path.removeprefix(self._root), meta["size"], etag, meta["last_modified"])
        except CLIENT_ERRORS as error:
            raise self._fault(error) from None

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        key = self._root + prefix

        def once() -> Iterator[str]:
            try:
                found: Any = obstore.list_with_delimiter(self._client, key.rstrip("/") or None)  # pyright: ignore[reportUnknownMemberType]
            except CLIENT_ERRORS as error:
                raise self._fault(error) from None
            yield from (path.rstrip("/").removeprefix(key) for path in found["common_prefixes"])

        # In the root of a bucket the client leaves out a slash that a key begins with.
        return tuple(sorted(filter(None, _persist(once))))

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        ((content, _, _),) = _persist(lambda: self._read(path, limit, None, etag))
        return content

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        start, size, condition = 0, 1, etag  # Only the first answer says the size.
        while start < size:
            ask = functools.partial(self._read, path, None, (start, start + size_of_piece), condition)
            ((content, size, found),) = _persist(ask)
            if content:
                yield content
            elif start:
                raise ObjectChangedError("the object changes while it is read", segment=path)
            # Without a given ETag, all pieces must be of the same object as the first one.
            start, condition = start + len(content), condition or found or None

    def _read(
        self, path: str, limit: int | None, part: tuple[int, int] | None, etag: str | None
    ) -> Iterator[tuple[bytes, int, str]]:
        """Yield the body of a response, with its object's size in bytes and ETag, empty where it has none."""
        options: GetOptions = {} if part is None else {"range": part}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        try:
            result = obstore.get(self._client, self._root + path, options=options)
        except CLIENT_ERRORS as error:
            # A range that lies beyond the end of an object: an empty one has no first byte.
            if part is not None and _first(_STATUS, str(error)) == "416":
                yield b"", 0, ""
                return
            raise self._fault(error, path) from None
        size = result.meta["size"]
        if limit is not None and size > limit:
            raise SourceError(f"the object is larger than {limit} bytes", segment=path, advice=_TOO_LARGE)
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
        yield content, size, found

    def _fault(self, error: BaseException, path: str | None = None, *, body: bool = False) -> CdcError:
        """Return the project's error for one of the client's. Errors of one object name it; errors of the whole store
        (no bucket, bad credentials) do not."""
        if self._credentials is not None and self._credentials.failure is not None:
            return self._credentials.failure
        text, bucket, setting = str(error), self._location.bucket, self._setting
        status, code = _first(_STATUS, text), _first(_CODE, text)
        said = " ".join(filter(None, [status and f"HTTP {status}", code]))
        said = said or _first(_KIND, text) or type(error).__name__
        if code in _NO_BUCKET or (path is None and status == "404"):
            advice = f"correct source.uri, or endpoint and account in {setting}"
            return SourceError(f"there is no bucket {bucket!r} ({said})", advice=advice)
        if isinstance(error, FileNotFoundError) or (path is not None and status == "404"):
            return ObjectMissingError("the object is not there", segment=path)
        if isinstance(error, PreconditionError) or status == "412":
            return ObjectChangedError("the object has changed since it was listed", segment=path)
        if code in _BAD_CREDENTIALS or status == "401" or isinstance(error, UnauthenticatedError):
            advice = f"renew or correct those of {setting}, or of the environment where it names none"
            return SourceError(f"the bucket {bucket!r} does not take the credentials ({said})", advice=advice)
        if status == "403":
            what = "list the bucket" if path is None else "read an object of the bucket"
            advice = f"allow the identity of {setting} to list the bucket and to read its objects"
            return SourceError(f"no permission to {what} {bucket!r} ({said})", segment=path, advice=advice)
        if code in _OTHER_REGION or status in ("301", "307") or "Received redirect" in text:
            advice = f"set {setting}.region to the bucket's"
            return SourceError(f"the bucket {bucket!r} is in another region ({said})", advice=advice)
        if isinstance(error, ValueError | InvalidPathError):
            key = _first(_KEY, text) or (self.uri if path is None else f'"{path}"')
            said = f"no request can be made for {key} of the bucket {bucket!r}: "
            said += "part of the key is empty, '.' or '..', or has control characters"
            advice = "remove it from the source's prefix, or point source.uri below it"
            return SourceError(said, segment=path, advice=advice)
        if status is None or status[0] == "5" or status in ("408", "429") or code in _PASSING:
            # A response began and did not end: the client retries requests without a response, but not those.
            if body or "response body" in text:
                return _BrokenBodyError(f"an answer of the bucket {bucket!r} broke off", segment=path)
            return SourceUnreachableError(f"the bucket {bucket!r} cannot be read for now ({said})", segment=path)
        advice = f"look at {setting}"
        return SourceError(f"the bucket {bucket!r} refuses the request ({said})", segment=path, advice=advice)


class _BrokenBodyError(SourceUnreachableError):
    """A body was truncated."""


def _persist(call: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yield what a request gives, from its beginning again after each body that breaks off."""
    for attempt in itertools.count(1):
        try:
            yield from call()
            return
        except _BrokenBodyError as error:
            if attempt == _ATTEMPTS:
                raise SourceUnreachableError(error.message, segment=error.segment) from None
            time.sleep(_WAIT_SECONDS * 2**attempt)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else next(filter(None, match.groups()))


def _plain(etag: str | None) -> str:
    """Remove the quotes of an ETag: some services quote it in a listing, some do not; all do in the response to a
    read."""
    return (etag or "").removeprefix("W/").strip('"')


def open_store(uri: str, storage: StorageConfig | None = None) -> ObjectStore:
    """Open the store at an absolute URI (see `config.anchor_uri`). No request is made yet. Raises `ConfigurationError`
    as `Location.of` and `RemoteStore` do."""
    location = Location.of(uri)
    if location.service == "file":
        return LocalStore(Path(location.prefix))
    return RemoteStore(location, storage or StorageConfig())


def shared_store(root: str, storage: StorageConfig) -> ObjectStore:
    """Return the store at the URI `root`: one for each process, to reuse its connections and credentials."""
    return _shared_store(root, storage.model_dump_json(exclude_unset=True))


@functools.lru_cache(maxsize=8)
def _shared_store(root: str, storage: str) -> ObjectStore:
    return open_store(root, StorageConfig.model_validate_json(storage))


# Segments read in tasks, with the same client that lists them: no Hadoop connector, the same credentials, and never an
# object that is not the listed one.

SEGMENT_LIMIT: Final = (1 << 31) - 1
"""The maximum bytes of an Arrow array."""

_AHEAD_BYTES: Final = 32 * 1024 * 1024
_REQUESTS_AT_ONCE: Final = 8
_PART_BYTES: Final = 8 * 1024 * 1024


class SegmentRef(NamedTuple):
    """A segment as it was listed. `size` is in bytes."""

    path: str
    size: int
    etag: str | None


def read_in_parts(root: str, storage: StorageConfig, segments: Sequence[SegmentRef]) -> Iterator[Iterator[bytes]]:
    """Yield the content of each segment below the URI `root`, in order, in parts. Of a file on a disk one part is in
    memory: memory for the whole takes longer to allocate than to read. It ends with a line: so none is joined again."""
    store = shared_store(root, storage)
    if isinstance(store, LocalStore):
        for segment in segments:
            if segment.size > SEGMENT_LIMIT:
                advice = "let the changefeed write smaller files (file-size)"
                raise SourceError(f"the file is larger than {SEGMENT_LIMIT} bytes", segment=segment.path, advice=advice)
            yield store.pieces(segment.path, _PART_BYTES, etag=segment.etag, lines=True)
        return
    # Whole; small ones are requested ahead, because each response takes time.
    asked: deque[tuple[SegmentRef, Future[bytes]]] = deque()
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        left = deque(segments)
        while asked or left:
            while left and (not asked or sum(each.size for each, _ in asked) + left[0].size <= _AHEAD_BYTES):
                segment = left.popleft()
                content = pool.submit(store.read, segment.path, limit=SEGMENT_LIMIT, etag=segment.etag)
                asked.append((segment, content))
            try:
                yield iter([asked.popleft()[1].result()])
            except CdcError:
                pool.shutdown(cancel_futures=True)
                raise
