"""Convert faults of the warehouse to errors that name the configuration key.

What no retry repairs is a `ConfigurationError`; what may pass is a `WarehouseFullError`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from cdc_lakehouse.errors import CdcError, ConfigurationError, WarehouseFullError, in_one_line

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST})


@contextlib.contextmanager
def writing_to_warehouse() -> Iterator[None]:
    """Convert errors of the file system in the block, which writes to the warehouse, to the project's errors; others
    are passed on."""
    try:
        yield
    except OSError as error:
        fault = warehouse_fault(error)
        if fault is None:
            raise
        raise fault from error


def warehouse_fault(error: OSError) -> CdcError | None:
    """Return the project's error when the warehouse is full or not writable; None for any other error."""
    if error.errno in _NO_ROOM:
        return WarehouseFullError(f"lake.warehouse is full: {in_one_line(error)}")
    if error.errno in _NOT_WRITABLE or "ACCESS_DENIED" in str(error):
        return ConfigurationError(
            f"lake.warehouse cannot be written: {in_one_line(error)}",
            advice="correct it in lakehouse.yaml, or let this user write there",
        )
    return None
