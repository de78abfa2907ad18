"""What a commit changes of an Iceberg table beside its rows: operations on its schema, and tags. Plans say them, and
`iceberg_java` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column. `default` is the Iceberg initial default as a Python value, None for NULL."""

    name: str
    type: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Drop:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Widen:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Move:
    """Move a column after another column, or to the front."""

    name: str
    after: str | None


SchemaOperation = Add | Drop | Rename | Widen | Move


@dataclass(frozen=True, slots=True)
class TagChanges:
    """The changes of tags in one commit: new and moved tags with their snapshots, and the names of removed ones."""

    added: Mapping[str, int] = field(default_factory=dict[str, int])
    moved: Mapping[str, int] = field(default_factory=dict[str, int])
    removed: tuple[str, ...] = ()


NO_TAG_CHANGES: Final = TagChanges()
