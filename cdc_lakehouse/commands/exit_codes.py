"""What the exit codes of the commands mean."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceUnreachableError

DONE: Final = 0
"""Done, or nothing to do."""
HELD: Final = 1
"""Something is held or quarantined, or a run failed."""
BAD_CONFIGURATION: Final = 2
UNREACHABLE: Final = 3
"""A source cannot be reached."""


def exit_code(error: CdcError) -> int:
    if isinstance(error, SourceUnreachableError):
        return UNREACHABLE
    return BAD_CONFIGURATION if isinstance(error, ConfigurationError) else HELD
