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
    """What a reference names is not there. Its text says so, and holds no secret."""


def without_references(text: str) -> str:
    """The text as it stands in the file: references give nothing, but for their defaults."""
    return REFERENCE.sub(lambda found: found["default"] or "", text)


def resolve(reference: re.Match[str], environment: Mapping[str, str], base: Path) -> str:
    """What a reference stands for. A variable that is empty has its default, as in a shell. Of a file, relative to
    `base`, line ends at its end are cut off.

    Raises `UnresolvedReferenceError` where there is no such variable, and no file that can be read."""
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
