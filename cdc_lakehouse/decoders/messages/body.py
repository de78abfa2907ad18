"""A message's value before it is decoded: there, and of a size that can be read."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.events import MessageError

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one message. Brokers take 1 MB if they are not told otherwise, and are seldom told as much as this."""

_SHOWN: Final = 100


def sized(value: bytes) -> bytes:
    """The value itself. Raises MessageError where it is too large to be read."""
    if len(value) > MAX_BYTES:
        raise MessageError(f"the message has {len(value)} bytes, more than the {MAX_BYTES} that are read")
    return value


def shown(text: str) -> str:
    """A name or word of a message as an error shows it: quoted, and cut where it is long. Not for values of rows, which
    may be secret."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
