"""Settings with which PyIceberg and Iceberg on Spark reach the warehouse, made from the `storage` section of the
configuration.

Iceberg's own FileIO is used, not Hadoop's file systems: one bundle of the service's SDK, and only these settings."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc_lakehouse.config.storage import AzureStorage, GcsStorage, StorageConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sources.object_store import Location

# The newest published release of each; they hold the services' SDKs only, so they may be older than the runtime.
_AWS_BUNDLE: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
_GCP_BUNDLE: Final = "org.apache.iceberg:iceberg-gcp-bundle:1.11.0"
_AZURE_BUNDLE: Final = "org.apache.iceberg:iceberg-azure-bundle:1.10.0"

# Hadoop's own file system starts a `chmod` process for each file that it creates; this one sets the mode in Java.
LOCAL_PACKAGES: Final = ("com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",)
LOCAL_FILE_SYSTEM: Final = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"

_AWS_PROVIDERS: Final = "software.amazon.awssdk.auth.credentials"
_DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True)
class FileIO:
    """How a catalog reaches the warehouse: its properties, and system properties of the JVM, from which the service's
    SDK takes credentials. `repr` shows neither: they hold secrets. `expires_at` is the expiry of the credentials."""

    properties: dict[str, str] = field(repr=False)
    system: dict[str, str] = field(default_factory=dict, repr=False)
    expires_at: datetime.datetime | None = None


def packages(warehouse: str) -> tuple[str, ...]:
    """Return the jars that a warehouse needs in addition to Iceberg's own."""
    bundles = {"s3": (_AWS_BUNDLE,), "gs": (_GCP_BUNDLE,), "abfss": (_AZURE_BUNDLE,), "file": LOCAL_PACKAGES}
    return bundles.get(_scheme(warehouse), ())


def pyiceberg_file_io(warehouse: str, storage: StorageConfig) -> FileIO:
    properties, expires_at = dict[str, str | None](), None
    match _scheme(warehouse):
        case "s3":
            settings = storage.s3.of(Location.of(warehouse).bucket)
            region = settings.region
            # PyArrow's own chain reads environment, default profile and instance, and renews what it has from these.
            if any(getattr(settings, key) is not None for key in settings.CREDENTIALS):
                # The import loads boto3, which is slow.
                from cdc_lakehouse.sources.object_store.s3_credentials import S3Credentials  # noqa: PLC0415

                provide = S3Credentials(settings)
                region, credential = region or provide.region, provide()
                expires_at = credential["expires_at"]
                properties = {
                    "s3.access-key-id": credential["access_key_id"],
                    "s3.secret-access-key": credential["secret_access_key"],
                    "s3.session-token": credential.get("token"),
                }
            if region is None and settings.endpoint is not None:
                region = _DEFAULT_REGION
            properties |= {
                "s3.force-virtual-addressing": str(not settings.path_style and settings.endpoint is not None),
                "s3.endpoint": settings.endpoint,
                "s3.anonymous": "true" if settings.anonymous else None,
                "s3.region": region,
            }
        case "gs":
            settings = _gs(warehouse, storage)
            properties = {"gcs.service.host": settings.endpoint}
            if settings.anonymous:
                # PyArrow always sends a token; an emulator accepts any.
                properties |= {"gcs.oauth2.token": "anonymous", "gcs.oauth2.token-expires-at": "4102444800000"}
        case "abfss":
            location, settings = _azure(warehouse, storage)
            properties = {
                "adls.account-name": location.account,
                "adls.account-key": settings.account_key,
                "adls.sas-token": settings.sas_token,
                "adls.tenant-id": settings.tenant_id if settings.client_secret is not None else None,
                "adls.client-id": settings.client_id,
                "adls.client-secret": settings.client_secret,
            }
    return FileIO(_given(properties), expires_at=expires_at)


def spark_file_io(warehouse: str, storage: StorageConfig) -> FileIO:
    named, system = dict[str, str | None](), dict[str, str | None]()
    match _scheme(warehouse):
        case "s3":
            settings = storage.s3.of(Location.of(warehouse).bucket)
            provider = None
            if settings.anonymous:
                provider = f"{_AWS_PROVIDERS}.AnonymousCredentialsProvider"
            elif settings.profile is not None:
                provider = f"{_AWS_PROVIDERS}.ProfileCredentialsProvider"
                system = {"aws.profile": settings.profile}
            named = {
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
                "s3.path-style-access": str(settings.path_style).lower(),
                "s3.endpoint": settings.endpoint,
                "client.region": settings.region or (None if settings.endpoint is None else _DEFAULT_REGION),
                "client.credentials-provider": provider,
                "s3.access-key-id": settings.access_key_id,
                "s3.secret-access-key": settings.secret_access_key,
                "s3.session-token": settings.session_token,
            }
        case "gs":
            settings = _gs(warehouse, storage)
            named = {
                "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO",
                "gcs.service.host": settings.endpoint,
                "gcs.no-auth": "true" if settings.anonymous else None,
            }
        case "abfss":
            location, settings = _azure(warehouse, storage)
            host = location.uri.partition("@")[2].partition("/")[0]
            has_key = settings.account_key is not None and location.account is not None
            named = {
                "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
                f"adls.sas-token.{host}": settings.sas_token,
                "adls.auth.shared-key.account.name": location.account if has_key else None,
                "adls.auth.shared-key.account.key": settings.account_key if has_key else None,
            }
            system = {
                "AZURE_TENANT_ID": settings.tenant_id,
                "AZURE_CLIENT_ID": settings.client_id,
                "AZURE_CLIENT_SECRET": settings.client_secret,
            }
    return FileIO(_given(named), _given(system))


def _scheme(warehouse: str) -> str:
    scheme = warehouse.partition("://")[0] if "://" in warehouse else "file"
    if scheme in ("azure", "azblob", "gcs"):
        raise ConfigurationError(
            f"Iceberg has no warehouse at {scheme}://",
            advice="write lake.warehouse as gs://bucket/… or abfss://container@account.dfs.core.windows.net/…",
        )
    return scheme


def _given(properties: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if value is not None}


def _gs(warehouse: str, storage: StorageConfig) -> GcsStorage:
    settings = storage.gs.of(Location.of(warehouse).bucket)
    if settings.service_account_file is not None:
        # PyArrow and Iceberg take a key file only from there, as Google's libraries do.
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = settings.service_account_file
    return settings


def _azure(warehouse: str, storage: StorageConfig) -> tuple[Location, AzureStorage]:
    location = Location.of(warehouse)
    settings = storage.azure.of(location.bucket)
    if settings.endpoint is not None or settings.anonymous:
        raise ConfigurationError(
            "a warehouse on Azure is reached at the host in its URI, with credentials",
            advice=f"set storage.azure.buckets.{location.bucket} without endpoint and anonymous",
        )
    return location, settings
