# pyright: standard
# Boto3 has no types.
"""Credentials for S3: from boto3's chain (environment, profile, container, instance), or from the configuration.

They are requested repeatedly, so that those that expire are renewed while a store is in use."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

import boto3
import botocore.exceptions
from obstore.auth.boto3 import Boto3CredentialProvider

from cdc_lakehouse.config.storage import S3Storage
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError, SourceUnreachableError

if TYPE_CHECKING:
    from obstore.store import S3Credential

# Boto3 renews credentials 10 to 15 minutes before they expire: with this interval, no expired ones are used.
_TTL: Final = datetime.timedelta(minutes=5)


class S3Credentials:
    """A provider for obstore that keeps the error with which it failed: obstore passes on only its own error. A call
    returns the keys and their expiry (UTC). Raises `ConfigurationError` when no credentials are found, or boto3 does
    not accept the settings."""

    def __init__(self, settings: S3Storage) -> None:
        self.failure: CdcError | None = None
        try:
            session = boto3.Session(
                settings.access_key_id, settings.secret_access_key, settings.session_token, settings.region,
                profile_name=settings.profile,
            )  # fmt: skip
            if session.get_credentials() is None:
                advice = "set storage.s3.profile or access_key_id, or anonymous: true"
                raise ConfigurationError("no credentials for S3 were found", advice=advice)
            self.region: str | None = session.region_name
            self._provide = Boto3CredentialProvider(session, ttl=_TTL)
        except botocore.exceptions.BotoCoreError as error:
            raise ConfigurationError(f"credentials for S3: {_words(error)}", advice="correct storage.s3") from None

    def __call__(self) -> S3Credential:
        try:
            credential = self._provide()
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, OSError) as error:
            self.failure = _fault(error)
            raise self.failure from None
        self.failure = None
        # Obstore accepts no other time zone than Python's own UTC; botocore has one of its own.
        ends = credential["expires_at"]
        return {
            "access_key_id": credential["access_key_id"],
            "secret_access_key": credential["secret_access_key"],
            "token": credential.get("token") or None,
            "expires_at": None if ends is None else ends.astimezone(datetime.UTC),
        }


def _fault(error: Exception) -> CdcError:
    if isinstance(error, botocore.exceptions.ClientError):
        code = error.response.get("Error", {}).get("Code")
        if code in ("Throttling", "ThrottlingException", "InternalFailure", "ServiceUnavailable"):
            return SourceUnreachableError(f"credentials for S3: {code}")
        advice = "look at storage.s3.profile: its role, and what the role trusts"
        return SourceError(f"credentials for S3 are refused: {code}", advice=advice)
    if isinstance(error, botocore.exceptions.HTTPClientError | botocore.exceptions.ConnectionError):
        return SourceUnreachableError(f"the service that gives credentials for S3 does not answer: {_words(error)}")
    return SourceError(f"credentials for S3: {_words(error)}", advice="correct storage.s3")


def _words(error: Exception) -> str:
    """Return a text for an error. Of the client library's errors, only those that are known to contain no secret are
    quoted."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, botocore.exceptions.ProfileNotFound | botocore.exceptions.NoCredentialsError):
        return str(error)
    return type(error).__name__
