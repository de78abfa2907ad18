"""What goes wrong with the warehouse, said by the key that names it. What no other try mends is a `ConfigurationError`;
what may pass is a `WarehouseFullError`."""

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
    """Errors of the file system, where the block writes to the warehouse, as the project's; others as they are."""
    try:
        yield
    except OSError as error:
        fault = warehouse_fault(error)
        if fault is None:
            raise
        raise fault from error


def warehouse_fault(error: OSError) -> CdcError | None:
    """The project's error for one that says that the warehouse is full, or may not be written; None for any other."""
    if error.errno in _NO_ROOM:
        return WarehouseFullError(f"lake.warehouse is full: {in_one_line(error)}")
    if error.errno in _NOT_WRITABLE or "ACCESS_DENIED" in str(error):
        return ConfigurationError(
            f"lake.warehouse cannot be written: {in_one_line(error)}",
            advice="correct it in lakehouse.yaml, or let this user write there",
        )
    return None
