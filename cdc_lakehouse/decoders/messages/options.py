"""What a message decoder is made of: the options of its format, and the function that it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from cdc_lakehouse.changelog.events import Message, MessageError
from cdc_lakehouse.errors import ConfigurationError

Options = Mapping[str, object]
"""The options of a format by name, as the configuration has them."""

Decode = Callable[[bytes | None, bytes | None], Message | list[Message | MessageError]]
"""A message's key and value as the parts that they say; a list where it holds several entries, of which some may be
unusable.

Raises MessageError for what cannot be used."""


def check_names(options: Options, known: Collection[str], *, of: str) -> None:
    """Raises ConfigurationError for an option that the format does not have."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigurationError(
            f"format {of} has no option {', '.join(unknown)}",
            advice=f"its options are: {', '.join(sorted(known))}" if known else "it has none",
        )


def flag(options: Options, name: str, *, of: str) -> bool:
    """An option that is true or false, false where it is not given. Raises ConfigurationError for another value."""
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise ConfigurationError(f"option {name} of format {of} is neither true nor false")
    return value
