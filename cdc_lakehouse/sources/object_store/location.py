"""The parts of a store's URI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from cdc_lakehouse.errors import ConfigurationError

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
        """Parse an absolute URI (see `config.anchor_uri`). Names are used as they are, not percent-decoded.

        Raises `ConfigurationError` for a service that is not supported, and for a URI that names no bucket.
        """
        scheme, _, rest = uri.partition("://")
        service = _SERVICES.get(scheme)
        if service is None:
            raise ConfigurationError(f"a store at {scheme}:// is not supported", advice=f"use {_FORMS}")
        if service == "file":
            return cls(uri, service, "", rest)
        if "?" in rest:
            raise ConfigurationError(
                f"a {scheme}:// URI has a query", advice="leave it out; credentials and endpoints stand under storage"
            )
        bucket, _, prefix = rest.partition("/")
        account = None
        if scheme == "abfss":
            bucket, _, host = bucket.partition("@")
            account = host.partition(".")[0]
            if not account:
                raise ConfigurationError("an abfss:// URI names no account", advice=f"use {_FORMS}")
        if not bucket or "@" in bucket or ":" in bucket:
            raise ConfigurationError(
                f"a {scheme}:// URI must name a bucket and nothing before it", advice=f"use {_FORMS}"
            )
        prefix = prefix.strip("/")
        return cls(uri.rstrip("/"), service, bucket, prefix, account)

    @property
    def setting(self) -> str:
        """The section of the configuration with the settings of the bucket's service."""
        return f"storage.{self.service}"
