"""What the exit codes of the commands mean."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceUnreachableError

DONE: Final = 0
"""Done, or nothing to do."""
HELD: Final = 1
"""Something is held or quarantined, or a run failed."""
BAD_CONFIGURATION: Final = 2
BAD_INPUT: Final = 2
"""What was given to the command is not understood."""
UNREACHABLE: Final = 3
"""A source cannot be reached."""

_OF_ERRORS: Final = {SourceUnreachableError: UNREACHABLE, ConfigurationError: BAD_CONFIGURATION}


def exit_code(error: CdcError) -> int:
    return next((code for kind, code in _OF_ERRORS.items() if isinstance(error, kind)), HELD)


def exit_code_named(error_class: str | None) -> int:
    """By the name of an error's class: of an error in a run Dagster keeps no more."""
    return next((code for kind, code in _OF_ERRORS.items() if kind.__name__ == error_class), HELD)
