"""The lake (warehouse, catalog, Spark), and access to object stores.

One section of storage is for sources and warehouse, and for the object-store client, PyIceberg and Spark. Without it,
each cloud's own credential chain is used: for S3 boto3's (environment, profile, role, web identity), for GCS the
application default credentials, for Azure the environment and the managed identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from cdc_lakehouse.config.section import FilePath, Section, TextSettings, Uri, key


class SparkConfig(Section):
    """Settings of the Spark session."""

    master: str = key("local[*]", "Spark master URL.")
    conf: TextSettings = key(dict, "Further Spark settings, by Spark's own names.", repr=False)


class CatalogConfig(BaseModel):
    """The properties of the catalog, under PyIceberg's names. Properties without a field here are passed on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["sql", "rest", "glue", "hive"] = key(..., "The kind of catalog.")
    uri: str | None = key(None, "Where the catalog is (not for glue).")

    @field_validator("uri")
    @classmethod
    def _absolute(cls, value: str | None, info: ValidationInfo) -> str | None:
        path = value.removeprefix("sqlite:///") if value is not None and info.data.get("type") == "sql" else value
        if path is None or path == value or info.context is None:
            return value
        return f"sqlite:///{os.path.normpath(info.context / path)}"

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Any property may be a secret.
        yield "type", self.type

    @model_validator(mode="after")
    def _needs_uri(self) -> Self:
        if self.uri is None and self.type != "glue":
            raise ValueError(f"a catalog of type {self.type} needs a uri")
        return self

    @property
    def properties(self) -> dict[str, str]:
        """All of the catalog's properties except its type, as text."""
        extra = {str(k): str(v) for k, v in (self.__pydantic_extra__ or {}).items()}
        return extra if self.uri is None else {"uri": self.uri, **extra}


class CutsConfig(Section):
    """How long the cuts before the newest one remain readable: tags keep their snapshots."""

    keep_all_hours: int = key(24, "Hours for which every earlier cut keeps a tag on each changed table; 0: none.", ge=0)
    keep_daily_days: int = key(30, "Days for which the last cut of each day (UTC) keeps a tag; 0: none.", ge=0)


class LakeConfig(Section):
    """The location of the tables, and the engine that writes them."""

    warehouse: Uri = key(..., "Where tables are stored: a path, or a URI of an object store.")
    catalog: CatalogConfig = key(..., "The Iceberg catalog.")
    spark: SparkConfig = key(SparkConfig, "The Spark session of a run.")
    cuts: CutsConfig = key(CutsConfig, "Cuts that stay readable.")


class _Account(Section):
    """Settings of a service. `buckets` holds the differences for single buckets."""

    CREDENTIALS: ClassVar[tuple[str, ...]] = ()
    """The keys of credentials. A bucket that sets one of them inherits none of the service's."""

    endpoint: str | None = key(None, "URL of the service, where it is not the cloud's own.")
    anonymous: bool = key(False, "Requests are not signed.")

    def of(self, bucket: str) -> Self:
        """Return the settings for one bucket: the service's, overridden by the bucket's own."""
        buckets: dict[str, _Account] = getattr(self, "buckets", {})
        if bucket not in buckets:
            return self
        given: dict[str, Any] = buckets[bucket].model_dump(exclude_unset=True)
        if {"anonymous", *self.CREDENTIALS} & set(given):
            given = {"anonymous": False, **dict.fromkeys(self.CREDENTIALS), **given}
        return self.model_copy(update=given)

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is None or value.startswith(("http://", "https://")):
            return value and value.rstrip("/")
        raise ValueError("must begin with https:// or http://")

    @model_validator(mode="after")
    def _anonymous_or_not(self) -> Self:
        given = [key for key in self.CREDENTIALS if getattr(self, key) is not None]
        if self.anonymous and given:
            raise ValueError(f"anonymous requests have no {given[0]}")
        return self


_BUCKETS: Final = "Settings of one bucket (Azure: container), with the same keys."


class _S3Settings(_Account):
    CREDENTIALS: ClassVar[tuple[str, ...]] = ("profile", "access_key_id", "secret_access_key", "session_token")

    region: str | None = key(None, "Region of the bucket.")
    path_style: bool = key(False, "The bucket is in the path of a URL, not in the host.")
    profile: str | None = key(None, "Profile of the shared AWS files; it can assume a role.")
    access_key_id: str | None = key(None, "Access key.", repr=False)
    secret_access_key: str | None = key(None, "The access key's secret.", repr=False)
    session_token: str | None = key(None, "Session token of a temporary access key.", repr=False)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token belongs to an access_key_id")
        if self.access_key_id is not None and self.profile is not None:
            raise ValueError("profile and access_key_id exclude each other")
        return self


class S3Storage(_S3Settings):
    """`s3://bucket/…`."""

    buckets: dict[str, _S3Settings] = key(dict, _BUCKETS)


class _GcsSettings(_Account):
    CREDENTIALS: ClassVar[tuple[str, ...]] = ("service_account_file",)

    service_account_file: FilePath | None = key(None, "Key file of a service account.")


class GcsStorage(_GcsSettings):
    """`gs://bucket/…`."""

    buckets: dict[str, _GcsSettings] = key(dict, _BUCKETS)


class _AzureSettings(_Account):
    CREDENTIALS: ClassVar[tuple[str, ...]] = ("account_key", "sas_token", "tenant_id", "client_id", "client_secret")

    account: str | None = key(None, "Storage account, where the URI does not name it.")
    account_key: str | None = key(None, "Key of the account.", repr=False)
    sas_token: str | None = key(None, "Shared access signature.", repr=False)
    tenant_id: str | None = key(None, "Tenant of the service principal.")
    client_id: str | None = key(None, "Service principal, or alone: a managed identity.")
    client_secret: str | None = key(None, "Secret of the service principal.", repr=False)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = [key for key in ("account_key", "sas_token", "client_secret") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other")
        if self.client_secret is not None and None in (self.tenant_id, self.client_id):
            raise ValueError("client_secret needs tenant_id and client_id")
        return self


class AzureStorage(_AzureSettings):
    """`azure://container/…` and `abfss://container@account.dfs.core.windows.net/…`; `buckets` are containers."""

    buckets: dict[str, _AzureSettings] = key(dict, _BUCKETS)


class StorageConfig(Section):
    """Access to buckets, by service. With nothing set, each cloud's own defaults apply."""

    s3: S3Storage = key(S3Storage, "`s3://` URIs.")
    gs: GcsStorage = key(GcsStorage, "`gs://` URIs.")
    azure: AzureStorage = key(AzureStorage, "`azure://` and `abfss://` URIs.")
