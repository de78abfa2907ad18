"""Secrets may stand in the file as `${NAME}` alone."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from cdc_lakehouse.errors import ConfigurationError

REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET: Final = (
    r"(?:password|passwd|secret|token|credential|authorization|(?:access|account|private|api|sas)[-_.]?key|key[-_.]pem)"
)
_SECRET_KEY: Final = re.compile(_SECRET, re.IGNORECASE)
_SECRET_AT_END: Final = re.compile(rf"{_SECRET}s?$", re.IGNORECASE)
_NAMES_A_FILE: Final = re.compile(r"[-_.]file$", re.IGNORECASE)
_PASSWORD_IN_URI: Final = re.compile(r"://[^/@:\s]*:[^@/\s]+@")
_SECRET_IN_QUERY: Final = re.compile(rf"[?&;][\w.-]*{_SECRET}[\w.-]*=[^&;\s]", re.IGNORECASE)


def refuse_plain_secrets(value: Any, where: str) -> None:
    """Raises `ConfigurationError` for a secret in plain text at any depth of a document."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            place = f"{where}.{key}" if where else str(key)
            if _is_plain_secret(str(key), item):
                raise ConfigurationError(
                    f"{place} holds a secret in plain text", advice="write ${NAME} and set NAME in the environment"
                )
            refuse_plain_secrets(item, place)
    elif isinstance(value, list):
        for position, item in enumerate(cast("list[Any]", value)):
            refuse_plain_secrets(item, f"{where}[{position}]")
    elif isinstance(value, str) and any(
        pattern.search(REFERENCE.sub("", value)) for pattern in (_PASSWORD_IN_URI, _SECRET_IN_QUERY)
    ):
        raise ConfigurationError(
            f"{where} holds a password in plain text",
            advice="write ${NAME} in its place and set NAME in the environment",
        )


def _is_plain_secret(key: str, value: Any) -> bool:
    if _NAMES_A_FILE.search(key):
        return False
    if isinstance(value, str):
        # A switch about secrets is not one.
        return bool(_SECRET_KEY.search(key)) and not REFERENCE.fullmatch(value) and value not in ("true", "false")
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(_SECRET_AT_END.search(key))
