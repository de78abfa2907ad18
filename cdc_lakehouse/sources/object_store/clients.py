"""The client of each service, built from the configuration."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from obstore.store import AzureStore, GCSStore, S3Store

from cdc_lakehouse.config import AzureStorage, GcsStorage, S3Storage, StorageConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.sources.object_store.location import Location
from cdc_lakehouse.sources.object_store.remote_errors import CLIENT_ERRORS, settings_fault

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

    from cdc_lakehouse.sources.object_store.s3_credentials import S3Credentials

# A sensor's tick waits for it, so an outage is reported after less than a minute; a run is tried again as a whole.
RETRY_TIMEOUT: Final = datetime.timedelta(seconds=45)
RETRIES: RetryConfig = {"max_retries": 8, "retry_timeout": RETRY_TIMEOUT}
# A connection that brings nothing for half a minute is dead; a large file may take much longer than that in all.
TIMEOUTS: ClientConfig = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class StoreClient:
    """A service's client. `credentials` keep the error for which they could not be obtained."""

    store: S3Store | GCSStore | AzureStore
    credentials: S3Credentials | None = None

    @property
    def failure(self) -> CdcError | None:
        """The error for which the last request had no credentials; None where it had them."""
        return None if self.credentials is None else self.credentials.failure


def open_client(location: Location, storage: StorageConfig) -> StoreClient:
    """The client of a bucket. No request is made.

    Raises `ConfigurationError` when a setting is missing or the client does not accept it, and `ValueError` for a local
    directory.
    """
    credentials: S3Credentials | None = None
    provider: dict[str, Any] = {}
    kind: Any
    match location.service:
        case "s3":
            kind, settings = S3Store, storage.s3.of(location.bucket)
            # This imports boto3, which is slow to load.
            from cdc_lakehouse.sources.object_store.s3_credentials import s3_credentials  # noqa: PLC0415

            credentials = s3_credentials(settings)
            config = _s3_config(location, settings, credentials)
            provider = {"credential_provider": credentials}
        case "gs":
            kind, settings = GCSStore, storage.gs.of(location.bucket)
            config = _gcs_config(settings)
        case "azure":
            kind, settings = AzureStore, storage.azure.of(location.bucket)
            config = _azure_config(location, settings)
        case "file":
            raise ValueError("a local directory has no client")
    is_http = settings.endpoint is not None and settings.endpoint.startswith("http://")
    options: ClientConfig = {**TIMEOUTS, "allow_http": is_http}
    try:
        store = kind(location.bucket, config=config, client_options=options, retry_config=RETRIES, **provider)
    except CLIENT_ERRORS as error:
        raise settings_fault(location, error) from None
    return StoreClient(store, credentials)


def _s3_config(location: Location, settings: S3Storage, credentials: S3Credentials | None) -> S3Config:
    region = settings.region or (None if credentials is None else credentials.region) or DEFAULT_REGION
    config: S3Config = {"region": region, "virtual_hosted_style_request": not settings.path_style}
    if settings.endpoint is not None:
        config["endpoint"] = settings.endpoint
        if not settings.path_style:
            # For virtual-hosted requests, the client expects the bucket's own endpoint.
            scheme, _, host = settings.endpoint.partition("://")
            config["endpoint"] = f"{scheme}://{location.bucket}.{host}"
    if credentials is None:
        config["skip_signature"] = True
    return config


def _gcs_config(settings: GcsStorage) -> GCSConfig:
    config: GCSConfig = {}
    if settings.endpoint is not None:
        config["base_url"] = settings.endpoint
    if settings.anonymous:
        config["skip_signature"] = True
    elif settings.service_account_file is not None:
        config["service_account"] = settings.service_account_file
    return config


def _azure_config(location: Location, settings: AzureStorage) -> AzureConfig:
    account = location.account or settings.account
    if account is None:
        raise ConfigurationError(
            f"{location.uri} names no storage account",
            advice="set storage.azure.account, or use abfss://container@account…",
        )
    settings_by_key: dict[str, Any] = {
        "account_name": account,
        "endpoint": settings.endpoint,
        "skip_signature": settings.anonymous or None,
        "account_key": settings.account_key,
        "sas_key": settings.sas_token,
        "tenant_id": settings.tenant_id,
        "client_id": settings.client_id,
        "client_secret": settings.client_secret,
    }
    config: Any = {key: value for key, value in settings_by_key.items() if value is not None}
    return config
