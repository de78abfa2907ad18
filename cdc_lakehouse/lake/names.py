"""Convert names of the source to names of the lake.

Names from the source go into SQL through `quote` and into paths through `path_part`, nowhere else.

    >>> encode_namespace("Odd-DB.1")
    'Odd-DB%2E1'
    >>> quote("a`b")
    '`a``b`'
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Final

CATALOG: Final = "lake"
"""The name of the catalog, the same for Spark and PyIceberg: SQL catalogs store it in their rows."""

_SAFE_IN_PATH: Final = frozenset(string.ascii_letters + string.digits + "-_")
# A percent sign is escaped only where it would read as an escape, so that no two names collide and `100%` is kept.
_TABLE_UNFIT: Final = re.compile(r"[/\x00-\x1f\x7f]|%(?=[0-9A-Fa-f]{2})")
# Namespaces that begin with cdc_ hold a feed's own tables: no database of the source may write there.
_NAMESPACE_UNFIT: Final = re.compile(r"[./\x00-\x1f\x7f]|%(?=[0-9A-Fa-f]{2})|^[cC](?=[dD][cC]_)")


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A table of the lake: names as the catalog has them, already encoded."""

    namespace: str
    name: str

    @property
    def parts(self) -> tuple[str, str]:
        """Namespace and name, for PyIceberg."""
        return self.namespace, self.name

    @property
    def sql(self) -> str:
        """The quoted name, for Spark SQL."""
        return f"{CATALOG}.{quote(self.namespace)}.{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def quote(name: str) -> str:
    """Quote an identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def encode_table(name: str) -> str:
    return _TABLE_UNFIT.sub(_escape, name)


def encode_namespace(name: str) -> str:
    """Return the namespace of a database's current-state tables. Escapes dots, which would make a nested namespace, and
    a leading `cdc_`, which marks a feed's own tables."""
    return _NAMESPACE_UNFIT.sub(_escape, name)


def path_part(name: str) -> str:
    """Convert a name to one safe part of a storage path (readable, not reversible)."""
    return "".join(c if c in _SAFE_IN_PATH else "_" for c in name)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())
