"""A bucket of S3, GCS or Azure, or the part of it below a prefix, and the client of each service.

An error's text contains URLs (with a SAS token: signed ones) and the service's whole response, so only the HTTP status,
the service's error code and the client's own name of the kind are passed on.
"""

# pyright: standard
# The types of obstore name those of a package that is not needed here.

from __future__ import annotations

import datetime
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from cdc_lakehouse.sources.object_store.store import TOO_LARGE, Location, ObjectStore, StoredObject, UnreadableDirectory

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, RetryConfig

    from cdc_lakehouse.sources.object_store.s3_credentials import S3Credentials

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


def fault(location: Location, error: BaseException, path: str | None = None) -> CdcError:
    """Return the project's error for one of the client's. Errors of one object name it; errors of the whole store (no
    bucket, bad credentials) do not."""
    text = str(error)
    status = _first(_STATUS, text)
    code = _first(_CODE, text)
    said = " ".join(filter(None, [status and f"HTTP {status}", code])) or _first(_KIND, text) or type(error).__name__
    setting, bucket = location.setting, location.bucket
    if code in _NO_BUCKET or (path is None and status == "404"):
        return SourceError(
            f"there is no bucket {bucket!r} ({said})",
            advice=f"correct source.uri, or endpoint and account in {setting}",
        )
    if isinstance(error, FileNotFoundError) or (path is not None and status == "404"):
        return ObjectMissingError("the object is not there", segment=path)
    if isinstance(error, PreconditionError) or status == "412":
        return ObjectChangedError("the object has changed since it was listed", segment=path)
    if code in _BAD_CREDENTIALS or status == "401" or isinstance(error, UnauthenticatedError):
        return SourceError(
            f"the bucket {bucket!r} does not take the credentials ({said})",
            advice=f"renew or correct those of {setting}, or of the environment where it names none",
        )
    if status == "403":
        what = "list the bucket" if path is None else "read an object of the bucket"
        return SourceError(
            f"no permission to {what} {bucket!r} ({said})",
            segment=path,
            advice=f"allow the identity of {setting} to list the bucket and to read its objects",
        )
    if code in _OTHER_REGION or status in ("301", "307") or "Received redirect" in text:
        return SourceError(
            f"the bucket {bucket!r} is in another region ({said})", advice=f"set {setting}.region to the bucket's"
        )
    if isinstance(error, ValueError | InvalidPathError):
        key = _first(_KEY, text) or (location.uri if path is None else f'"{path}"')
        return SourceError(
            f"no request can be made for {key} of the bucket {bucket!r}: part of the key is empty, '.' or '..', or has "
            "control characters",
            segment=path,
            advice="remove it from the source's prefix, or point source.uri below it",
        )
    if status is None or status[0] == "5" or status in ("408", "429") or code in _PASSING:
        return SourceUnreachableError(f"the bucket {bucket!r} cannot be read for now ({said})", segment=path)
    return SourceError(f"the bucket {bucket!r} refuses the request ({said})", segment=path, advice=f"look at {setting}")


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else next(filter(None, match.groups()))


# A sensor's tick waits for it, so an outage is reported after less than a minute; a run is tried again as a whole.
RETRIES: RetryConfig = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=45)}
# A connection that brings nothing for half a minute is dead; a large file may take much longer than that in all.
TIMEOUTS: ClientConfig = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
_DEFAULT_REGION: Final = "us-east-1"


def open_remote_store(location: Location, storage: StorageConfig) -> RemoteStore:
    """Open the store of a bucket. No request is made.

    Raises `ConfigurationError` when a setting is missing or the client does not accept it, and `ValueError` for a local
    directory.
    """
    credentials: S3Credentials | None = None
    config: dict[str, Any] = {}
    kind: Any
    match location.service:
        case "s3":
            kind, settings = S3Store, storage.s3.of(location.bucket)
            # This imports boto3, which is slow to load.
            from cdc_lakehouse.sources.object_store.s3_credentials import s3_credentials  # noqa: PLC0415

            credentials = s3_credentials(settings)
            region = settings.region or (None if credentials is None else credentials.region) or _DEFAULT_REGION
            config |= {"region": region, "virtual_hosted_style_request": not settings.path_style}
            config["endpoint"] = settings.endpoint
            if settings.endpoint is not None and not settings.path_style:
                # For virtual-hosted requests, the client expects the bucket's own endpoint.
                scheme, _, host = settings.endpoint.partition("://")
                config["endpoint"] = f"{scheme}://{location.bucket}.{host}"
            config["skip_signature"] = credentials is None or None
        case "gs":
            kind, settings = GCSStore, storage.gs.of(location.bucket)
            key_file = None if settings.anonymous else settings.service_account_file
            config |= {"base_url": settings.endpoint, "service_account": key_file}
            config["skip_signature"] = settings.anonymous or None
        case "azure":
            kind, settings = AzureStore, storage.azure.of(location.bucket)
            if (account := location.account or settings.account) is None:
                raise ConfigurationError(
                    f"{location.uri} names no storage account",
                    advice="set storage.azure.account, or use abfss://container@account…",
                )
            config |= {"account_name": account, "sas_key": settings.sas_token, "endpoint": settings.endpoint}
            config |= {
                key: getattr(settings, key) for key in ("account_key", "tenant_id", "client_id", "client_secret")
            }
            config["skip_signature"] = settings.anonymous or None
        case "file":
            raise ValueError("a local directory has no client")
    is_http = settings.endpoint is not None and settings.endpoint.startswith("http://")
    options: dict[str, Any] = {
        "config": {key: value for key, value in config.items() if value is not None},
        "client_options": {**TIMEOUTS, "allow_http": is_http}, "retry_config": RETRIES,
    }  # fmt: skip
    if credentials is not None:
        options["credential_provider"] = credentials
    try:
        store = kind(location.bucket, **options)
    except CLIENT_ERRORS as error:
        # The client's text may contain a setting, so it is not passed on.
        raise ConfigurationError(
            f"the client for {location.uri} cannot be made ({type(error).__name__})",
            advice=f"look at {location.setting}: its endpoint, key files and keys",
        ) from None
    return RemoteStore(location, store, credentials)


# The store.

T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 4
"""The number of attempts for a body that breaks off. The client itself retries requests without a response."""
_WAIT_SECONDS: Final = 0.5


class RemoteStore(ObjectStore):
    """The `ObjectStore` of a bucket, or of a prefix of it."""

    def __init__(
        self, location: Location, client: S3Store | GCSStore | AzureStore, credentials: S3Credentials | None
    ) -> None:
        self._location = location
        self._client = client
        self._credentials = credentials  # They keep the error for which they could not be obtained.
        self._root = f"{location.prefix}/" if location.prefix else ""

    @property
    def uri(self) -> str:
        return self._location.uri

    def check(self) -> None:
        next(iter(self.list()), None)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        yielded: set[str] = set()
        directories: set[str] = set()
        empty: list[StoredObject] = []
        for attempt in itertools.count(1):
            try:
                for found in self._list(prefix, after):
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
                break
            except _BrokenBodyError as error:
                self._wait(attempt, error)
        # Consoles create a directory as an empty object `d/`, which the client calls `d`: it does not belong to the
        # sink.
        yield from (found for found in empty if found.path not in directories)

    def _list(self, prefix: str, after: str | None) -> Iterator[StoredObject]:
        key, offset = self._root + prefix, None if after is None else self._root + after
        try:
            for page in obstore.list(self._client, key.rstrip("/") or None, offset=offset, chunk_size=_PAGE):
                for meta in page:
                    path = meta["path"]
                    # Emulators, and stores that only resemble S3, give what lies before as well.
                    if path.startswith(key) and (offset is None or path.encode() > offset.encode()):
                        etag = _plain(meta["e_tag"])
                        yield StoredObject(path.removeprefix(self._root), meta["size"], etag, meta["last_modified"])
        except CLIENT_ERRORS as error:
            raise self._fault(error) from None

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        key = self._root + prefix

        def once() -> tuple[str, ...]:
            try:
                found = obstore.list_with_delimiter(self._client, key.rstrip("/") or None)
            except CLIENT_ERRORS as error:
                raise self._fault(error) from None
            names = (path.rstrip("/").removeprefix(key) for path in found["common_prefixes"])
            # In the root of a bucket the client leaves out a slash that a key begins with.
            return tuple(sorted(filter(None, names)))

        return self._persist(once)

    def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
        return self._persist(lambda: self._read(path, limit, None, etag))[0]

    def pieces(self, path: str, size_of_piece: int, *, etag: str | None = None) -> Iterator[bytes]:
        start, size, condition = 0, 1, etag  # Only the first answer says the size.
        while start < size:
            ask = functools.partial(self._read, path, None, (start, start + size_of_piece), condition)
            content, size, found = self._persist(ask)
            if content:
                yield content
            elif start:
                raise ObjectChangedError("the object changes while it is read", segment=path)
            # Without a given ETag, all pieces must be of the same object as the first one.
            start, condition = start + len(content), condition or found or None

    def _read(
        self, path: str, limit: int | None, part: tuple[int, int] | None, etag: str | None
    ) -> tuple[bytes, int, str]:
        """Return the body of a response, with its object's size in bytes and ETag, empty where it has none."""
        options: GetOptions = {} if part is None else {"range": part}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        try:
            result = obstore.get(self._client, self._root + path, options=options)
        except CLIENT_ERRORS as error:
            # A range that lies beyond the end of an object: an empty one has no first byte.
            if part is not None and _first(_STATUS, str(error)) == "416":
                return b"", 0, ""
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
        return content, size, found

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
        if self._credentials is not None and self._credentials.failure is not None:
            return self._credentials.failure
        cause = fault(self._location, error, path)
        # A response began and did not end: the client retries requests without a response, but not those.
        if isinstance(cause, SourceUnreachableError) and (body or "response body" in str(error)):
            return _BrokenBodyError(f"an answer of the bucket {self._location.bucket!r} broke off", segment=path)
        return cause


class _BrokenBodyError(SourceUnreachableError):
    """A body was truncated."""


def _plain(etag: str | None) -> str:
    """Remove the quotes of an ETag: some services quote it in a listing, some do not; all do in the response to a
    read."""
    return (etag or "").removeprefix("W/").strip('"')
