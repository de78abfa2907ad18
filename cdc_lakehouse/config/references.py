"""References in values of the configuration: `${NAME}` and `${NAME:-default}` of the environment, `${file:PATH}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

REFERENCE: Final = re.compile(
    r"\$\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?)\}"
)
_FILE_LIMIT: Final = 64 * 1024
"""Bytes of a file that a reference names. Secrets are shorter."""


class UnresolvedReferenceError(Exception):
    """A reference names something that does not exist. The error's text says so, and contains no secret."""


def without_references(text: str) -> str:
    """Replace the references in a text by nothing, or by their defaults."""
    return REFERENCE.sub(lambda found: found["default"] or "", text)


def resolve(reference: re.Match[str], environment: Mapping[str, str], base: Path) -> str:
    """Return the value of a reference. An empty variable has its default, as in a shell. Line ends at the end of a
    file, whose path is relative to `base`, are removed.

    Raises `UnresolvedReferenceError` where the variable does not exist or the file cannot be read.
    """
    if reference["file"] is not None:
        return _read(reference["file"], base)
    name, default = reference["name"], reference["default"]
    if default is not None:
        return environment.get(name) or default
    if name not in environment:
        raise UnresolvedReferenceError(f"names ${{{name}}}, which the environment does not have")
    return environment[name]


def _read(path: str, base: Path) -> str:
    try:
        with (base / path).open("rb") as file:
            content = file.read(_FILE_LIMIT + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise UnresolvedReferenceError(f"names the file {path}, which cannot be read: {error.strerror}") from None
    except ValueError:
        raise UnresolvedReferenceError(f"names the file {path}, which is not text in UTF-8") from None
    if len(content) > _FILE_LIMIT:
        raise UnresolvedReferenceError(f"names the file {path}, which has more than {_FILE_LIMIT} bytes")
    return text.rstrip("\r\n")
