"""How object stores are reached: one section for sources and warehouse, for the object-store client, for PyIceberg and
for Spark.

Where nothing is said, each cloud's own chain of credentials is used: for S3 boto3's (environment, profile, role, web
identity), for GCS the application default credentials, for Azure the environment and the managed identity.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from cdc_lakehouse.config.section import Section


class _Account(Section):
    """Settings that several buckets have in common; `buckets` has what is other for one of them."""

    endpoint: str | None = Field(None, description="URL of the service, where it is not the cloud's own.")
    anonymous: bool = Field(False, description="Requests are not signed.")

    def settings(self) -> dict[str, Any]:
        return self.model_dump(exclude={"buckets"}, exclude_unset=True)


class _S3Settings(_Account):
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
        if self.web_identity_token_file is not None and self.role_arn is None:
            raise ValueError("web_identity_token_file needs the role_arn that it is for")
        return self


class S3Storage(_S3Settings):
    """`s3://bucket/…`."""

    buckets: dict[str, _S3Settings] = Field(default_factory=dict)

    def of(self, bucket: str) -> S3Storage:
        return self.model_copy(update=self.buckets[bucket].settings()) if bucket in self.buckets else self


class _GcsSettings(_Account):
    service_account_file: str | None = Field(None, description="Key file of a service account.")


class GcsStorage(_GcsSettings):
    """`gs://bucket/…`."""

    buckets: dict[str, _GcsSettings] = Field(default_factory=dict)

    def of(self, bucket: str) -> GcsStorage:
        return self.model_copy(update=self.buckets[bucket].settings()) if bucket in self.buckets else self


class _AzureSettings(_Account):
    account: str | None = Field(None, description="Storage account, where the URI does not name it.")
    account_key: str | None = Field(None, repr=False)
    sas_token: str | None = Field(None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = Field(None, repr=False)


class AzureStorage(_AzureSettings):
    """`azure://container/…` and `abfss://container@account.dfs.core.windows.net/…`; `buckets` are containers."""

    buckets: dict[str, _AzureSettings] = Field(default_factory=dict)

    def of(self, bucket: str) -> AzureStorage:
        return self.model_copy(update=self.buckets[bucket].settings()) if bucket in self.buckets else self


class StorageConfig(Section):
    s3: S3Storage = Field(default_factory=lambda: S3Storage.model_validate({}))
    gs: GcsStorage = Field(default_factory=lambda: GcsStorage.model_validate({}))
    azure: AzureStorage = Field(default_factory=lambda: AzureStorage.model_validate({}))

    @classmethod
    def nothing(cls) -> StorageConfig:
        """Nothing said: each cloud's own defaults."""
        return cls.model_validate({})
