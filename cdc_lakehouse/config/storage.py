"""How object stores are reached: one section for sources and warehouse, for the object-store client, for PyIceberg and
for Spark.

Where nothing is said, each cloud's own chain of credentials is used: for S3 boto3's (environment, profile, role, web
identity), for GCS the application default credentials, for Azure the environment and the managed identity.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from cdc_lakehouse.config.section import Section


class _Account(Section):
    """Settings that several buckets have in common; `buckets` has what is other for one of them."""

    CREDENTIALS: ClassVar[tuple[str, ...]] = ()
    """Keys that say who asks: a bucket that has one of them has none of the service's."""

    endpoint: str | None = Field(None, description="URL of the service, where it is not the cloud's own.")
    anonymous: bool = Field(False, description="Requests are not signed.")

    def anchored(self, base: Path) -> Self:
        """With the paths of its files absolute, relative to `base`."""
        found: dict[str, Any] = {}
        for key in self.model_fields_set:
            value: Any = getattr(self, key)
            if key == "buckets":
                found[key] = {bucket: settings.anchored(base) for bucket, settings in value.items()}
            elif key.endswith("_file") and value is not None:
                found[key] = os.path.normpath(base / value)
        return self.model_copy(update=found)

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


_Settings = TypeVar("_Settings", bound=_Account)


def _of_bucket(service: _Settings, bucket: _Account | None) -> _Settings:
    if bucket is None:
        return service
    told: dict[str, Any] = bucket.model_dump(exclude_unset=True)
    who = {"anonymous", *service.CREDENTIALS}
    if who & set(told):
        told = {"anonymous": False, **dict.fromkeys(service.CREDENTIALS), **told}
    return service.model_copy(update=told)


class _S3Settings(_Account):
    CREDENTIALS: ClassVar[tuple[str, ...]] = (
        "profile", "role_arn", "external_id", "web_identity_token_file",
        "access_key_id", "secret_access_key", "session_token",
    )  # fmt: skip

    region: str | None = None
    path_style: bool = Field(False, description="The bucket stands in the path of a URL, not in the host.")
    profile: str | None = Field(None, description="Profile of the shared AWS configuration files.")
    role_arn: str | None = Field(None, description="Role that is assumed with the credentials of the chain.")
    external_id: str | None = Field(None, description="External id that the role asks for.", repr=False)
    web_identity_token_file: str | None = Field(None, description="With role_arn: a token that the role trusts.")
    access_key_id: str | None = Field(None, repr=False)
    secret_access_key: str | None = Field(None, repr=False)
    session_token: str | None = Field(None, repr=False)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token belongs to an access_key_id")
        if self.access_key_id is not None and self.profile is not None:
            raise ValueError("profile and access_key_id exclude each other")
        if self.web_identity_token_file is not None and self.role_arn is None:
            raise ValueError("web_identity_token_file needs the role_arn that it is for")
        if self.external_id is not None and self.role_arn is None:
            raise ValueError("external_id needs the role_arn that asks for it")
        return self


class S3Storage(_S3Settings):
    """`s3://bucket/…`."""

    buckets: dict[str, _S3Settings] = Field(default_factory=dict)

    def of(self, bucket: str) -> S3Storage:
        return _of_bucket(self, self.buckets.get(bucket))


class _GcsSettings(_Account):
    CREDENTIALS: ClassVar[tuple[str, ...]] = ("service_account_file",)

    service_account_file: str | None = Field(None, description="Key file of a service account.")


class GcsStorage(_GcsSettings):
    """`gs://bucket/…`."""

    buckets: dict[str, _GcsSettings] = Field(default_factory=dict)

    def of(self, bucket: str) -> GcsStorage:
        return _of_bucket(self, self.buckets.get(bucket))


class _AzureSettings(_Account):
    CREDENTIALS: ClassVar[tuple[str, ...]] = ("account_key", "sas_token", "tenant_id", "client_id", "client_secret")

    account: str | None = Field(None, description="Storage account, where the URI does not name it.")
    account_key: str | None = Field(None, repr=False)
    sas_token: str | None = Field(None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = Field(None, repr=False)

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

    buckets: dict[str, _AzureSettings] = Field(default_factory=dict)

    def of(self, bucket: str) -> AzureStorage:
        return _of_bucket(self, self.buckets.get(bucket))


class StorageConfig(Section):
    s3: S3Storage = Field(default_factory=lambda: S3Storage.model_validate({}))
    gs: GcsStorage = Field(default_factory=lambda: GcsStorage.model_validate({}))
    azure: AzureStorage = Field(default_factory=lambda: AzureStorage.model_validate({}))

    def anchored(self, base: Path) -> StorageConfig:
        told: dict[str, Any] = {service: getattr(self, service).anchored(base) for service in self.model_fields_set}
        return self.model_copy(update=told)

    @classmethod
    def nothing(cls) -> StorageConfig:
        """Nothing said: each cloud's own defaults."""
        return cls.model_validate({})
