# pyright: standard
# PyArrow's file systems have no types.
"""The names directly below a prefix of a bucket, also those that the client cannot express.

The client fails a whole listing for one key with an empty part, `.` or `..`. PyArrow's file systems return such keys,
but no ETags: so they list the names where the client fails, and the client requests each object with a usable name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from cdc_lakehouse.config import AzureStorage, GcsStorage, S3Storage, StorageConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.sources.object_store.clients import DEFAULT_REGION, RETRY_TIMEOUT, StoreClient
from cdc_lakehouse.sources.object_store.location import Location

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
