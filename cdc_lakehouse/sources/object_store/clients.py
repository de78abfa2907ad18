"""The client of each service, as the configuration says how it is reached."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from obstore.store import AzureStore, GCSStore, S3Store

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.sources.object_store.location import Location
from cdc_lakehouse.sources.object_store.remote_errors import CLIENT_ERRORS, settings_fault
from cdc_lakehouse.sources.object_store.s3_credentials import S3Credentials, s3_credentials

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

# A sensor's tick waits for it, so an outage is reported after less than a minute; a run is tried again as a whole.
RETRIES: RetryConfig = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=45)}
# A connection that brings nothing for half a minute is dead; a large file may take much longer than that in all.
TIMEOUTS: ClientConfig = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
_DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class Client:
    """A service's client; `credentials` know why they could not be had."""

    store: S3Store | GCSStore | AzureStore
    credentials: S3Credentials | None = None

    @property
    def failure(self) -> CdcError | None:
        return None if self.credentials is None else self.credentials.failure


def open_client(location: Location, storage: StorageConfig) -> Client:
    match location.service:
        case "s3":
            return _s3(location, storage)
        case "gs":
            return _gcs(location, storage)
        case "azure":
            return _azure(location, storage)
        case "file":
            raise ValueError("a local directory has no client")


def _options(endpoint: str | None) -> ClientConfig:
    return {**TIMEOUTS, "allow_http": endpoint is not None and endpoint.startswith("http://")}


def _s3(location: Location, storage: StorageConfig) -> Client:
    settings = storage.s3.of(location.bucket)
    credentials = s3_credentials(settings)
    region = settings.region or (None if credentials is None else credentials.region) or _DEFAULT_REGION
    config: S3Config = {"region": region, "virtual_hosted_style_request": not settings.path_style}
    if settings.endpoint is not None:
        config["endpoint"] = settings.endpoint
        if not settings.path_style:
            # To the client an endpoint of virtual-hosted requests is the bucket's own.
            scheme, _, host = settings.endpoint.partition("://")
            config["endpoint"] = f"{scheme}://{location.bucket}.{host}"
    if credentials is None:
        config["skip_signature"] = True
    try:
        store = S3Store(
            location.bucket,
            config=config,
            client_options=_options(settings.endpoint),
            retry_config=RETRIES,
            credential_provider=credentials,
        )
    except CLIENT_ERRORS as error:
        raise settings_fault(location, error) from None
    return Client(store, credentials)


def _gcs(location: Location, storage: StorageConfig) -> Client:
    settings = storage.gs.of(location.bucket)
    config: GCSConfig = {}
    if settings.endpoint is not None:
        config["base_url"] = settings.endpoint
    if settings.anonymous:
        config["skip_signature"] = True
    elif settings.service_account_file is not None:
        config["service_account"] = settings.service_account_file
    try:
        store = GCSStore(
            location.bucket, config=config, client_options=_options(settings.endpoint), retry_config=RETRIES
        )
    except CLIENT_ERRORS as error:
        raise settings_fault(location, error) from None
    return Client(store)


def _azure(location: Location, storage: StorageConfig) -> Client:
    settings = storage.azure.of(location.bucket)
    account = location.account or settings.account
    if account is None:
        raise ConfigurationError(
            f"{location.uri} names no storage account",
            advice="set storage.azure.account, or use abfss://container@account…",
        )
    config: AzureConfig = {"account_name": account}
    if settings.endpoint is not None:
        config["endpoint"] = settings.endpoint
    if settings.anonymous:
        config["skip_signature"] = True
    if settings.account_key is not None:
        config["account_key"] = settings.account_key
    if settings.sas_token is not None:
        config["sas_key"] = settings.sas_token
    if settings.tenant_id is not None:
        config["tenant_id"] = settings.tenant_id
    if settings.client_id is not None:
        config["client_id"] = settings.client_id
    if settings.client_secret is not None:
        config["client_secret"] = settings.client_secret
    try:
        store = AzureStore(
            location.bucket, config=config, client_options=_options(settings.endpoint), retry_config=RETRIES
        )
    except CLIENT_ERRORS as error:
        raise settings_fault(location, error) from None
    return Client(store)
