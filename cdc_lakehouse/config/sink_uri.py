"""The URI of a storage sink as it is given to TiCDC: with a query, whose options are keys in the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from pydantic import AfterValidator

_QUERY: Final = re.compile(r"[\w.-]+=[^&]*(?:&(?:[\w.-]+=[^&]*)?)*")
_SERVICES: Final = {"gs": "gs", "gcs": "gs", "azure": "azure", "azblob": "azure", "abfss": "azure"}
_OF_THE_STORE: Final = {
    "access-key": "storage.s3.access_key_id",
    "secret-access-key": "storage.s3.secret_access_key",
    "session-token": "storage.s3.session_token",
    "role-arn": "storage.s3.profile (a profile can assume a role)",
    "external-id": "storage.s3.profile (a profile can assume a role)",
    "region": "storage.s3.region",
    "force-path-style": "storage.s3.path_style",
    "credentials-file": "storage.gs.service_account_file",
    "account-name": "storage.azure.account",
    "account-key": "storage.azure.account_key",
    "sas-token": "storage.azure.sas_token",
}
"""The configuration keys of the options for access to a bucket."""
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token")


def split_query(uri: str) -> tuple[str, dict[str, str]]:
    """Split a URI into the part before its query and the query's options by name. A `?` that no option follows is part
    of the path."""
    path, _, query = uri.partition("?")
    if not _QUERY.fullmatch(query):
        return uri, {}
    return path, dict(parse_qsl(query, keep_blank_values=True))


def misplaced_options(uri: str) -> str | None:
    """Return a message about the query's options for access to the bucket, without their values; None without such
    options."""
    names = _places(uri)
    if not names:
        return None
    moves = ", ".join(f"{option} as {place}" for option, place in names.items())
    return f"its query says how the bucket is reached: write {moves}, a secret as ${{NAME}}, and cut it from the URI"


def store_options(uri: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the query's options for access to the bucket: as keys of `storage`, with `${NAME}` for secrets, and the
    secrets by NAME."""
    _, options = split_query(uri)
    keys: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    for option, place in _places(uri).items():
        _, service, key = place.split(".")
        value: str | bool = options[option]
        if key in _SECRETS:
            name = f"{service}_{key}".upper()
            secrets[name], value = options[option], f"${{{name}}}"
        elif key == "path_style":
            value = options[option].lower() == "true"
        keys.setdefault(service, {})[key] = value
    if "endpoint" in keys.get("s3", {}):
        # TiCDC's defaults, also for force-path-style.
        keys["s3"].setdefault("path_style", True)
    return keys, secrets


def _places(uri: str) -> dict[str, str]:
    """Return the options of a URI's query for access to the bucket, each with its configuration key."""
    path, options = split_query(uri)
    service = _SERVICES.get(path.partition("://")[0], "s3")
    places = {**_OF_THE_STORE, "endpoint": f"storage.{service}.endpoint"}
    return {option: places[name] for option in options if (name := option.lower().replace("_", "-")) in places}


def _without_options_of_the_store(uri: str) -> str:
    if (misplaced := misplaced_options(uri)) is not None:
        raise ValueError(misplaced)
    return uri


StoreUri = Annotated[str, AfterValidator(_without_options_of_the_store)]
"""A URI as the source's tools accept it. Its query has no options for access to the bucket."""


def contradictions(options: Mapping[str, str], keys: Mapping[str, object], defaults: frozenset[str]) -> list[str]:
    """Return a message for each option of a query that differs from the configuration.

    `keys` are the configuration's values by key; `csv.terminator` corresponds to the query's `terminator`. `defaults`
    are the keys that the file leaves out.
    """
    found: list[str] = []
    for key, value in keys.items():
        option = key.rpartition(".")[2].replace("_", "-")
        known = str(value).lower() if isinstance(value, bool) else str(value)
        if option in options and options[option].lower() != known.lower():
            by_default = " by default" if key in defaults else ""
            said = f"the query of uri says {option}={_shown(options[option])}"
            found.append(f"{said}, but {key} is {_shown(known)}{by_default}")
    return found


def _shown(value: str) -> str:
    return value if value.isprintable() and value else repr(value)
