"""Classification of the client's errors.

An error's text contains URLs (with a SAS token: signed ones) and the service's whole response, so only the HTTP status,
the service's error code and the client's own name of the kind are passed on.
"""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import BaseError, InvalidPathError, PreconditionError, UnauthenticatedError

from cdc_lakehouse.errors import (
    CdcError,
    ConfigurationError,
    ObjectChangedError,
    ObjectMissingError,
    SourceError,
    SourceUnreachableError,
)
from cdc_lakehouse.sources.object_store.location import Location

CLIENT_ERRORS: Final = (BaseError, OSError, ValueError)
"""The client's exceptions: a missing object is an `OSError`, an invalid path or setting a `ValueError`."""

UNREADABLE_NAME: Final = "part of its name is empty, '.' or '..', or has control characters"

_STATUS: Final = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})")
_CODE: Final = re.compile(r"<Code>\s*(\w{1,64})\s*</Code>|\"code\":\s*\"(\w{1,64})\"")
_KIND: Final = re.compile(r"\bkind: (\w{1,32})")

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
        return SourceError(
            f"a name in the bucket {bucket!r} cannot be read: {UNREADABLE_NAME}",
            segment=path,
            advice="remove it from the source's prefix, or point source.uri below it",
        )
    if status is None or status[0] == "5" or status in ("408", "429") or code in _PASSING:
        return SourceUnreachableError(f"the bucket {bucket!r} cannot be read for now ({said})", segment=path)
    return SourceError(f"the bucket {bucket!r} refuses the request ({said})", segment=path, advice=f"look at {setting}")


def settings_fault(location: Location, error: BaseException) -> ConfigurationError:
    """Return the error for a client that could not be created. The client's text may contain a setting, so it is not
    passed on."""
    return ConfigurationError(
        f"the client for {location.uri} cannot be made ({type(error).__name__})",
        advice=f"look at {location.setting}: its endpoint, key files and keys",
    )


def beyond_the_end(error: BaseException) -> bool:
    """Whether a range lies beyond the end of an object: an empty one has no first byte."""
    return _first(_STATUS, str(error)) == "416"


def broke_off(error: BaseException) -> bool:
    """Whether a response began and did not end: the client retries requests without a response, but not those."""
    return "response body" in str(error)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else next(filter(None, match.groups()))
