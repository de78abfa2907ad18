"""Errors of the project's that a task of Spark raises.

Such an error comes to the driver as one line in Java's and Python's traces. It carries itself there, so that the driver
raises the same error again: its type says whether it is worth another try."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc_lakehouse import errors
from cdc_lakehouse.errors import CdcError

_MARK: Final = re.compile(r"cdc-error:([A-Za-z0-9+/=]+);")


@contextlib.contextmanager
def errors_to_driver() -> Iterator[None]:
    """Wrap the project's errors in a task so that the driver can raise them again."""
    try:
        yield
    except CdcError as error:
        raise TaskError(error) from None


class TaskError(Exception):
    """Carries an error of the project from a task to the driver."""

    def __init__(self, error: CdcError) -> None:
        kind, message, places = type(error).__name__, error.message, {**vars(error)}
        places.pop("message")
        carried = base64.b64encode(json.dumps([kind, message, places]).encode()).decode()
        super().__init__(f"{error} (cdc-error:{carried};)")


@contextlib.contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise the project's error that made a task fail, instead of Spark's error about the failed task."""
    try:
        yield
    except (PySparkException, Py4JError, TaskError) as error:
        found = _carried(str(error))
        if found is None:
            raise
        raise found from None


def _carried(text: str) -> CdcError | None:
    match = _MARK.search(text)
    if match is None:
        return None
    kind, message, places = json.loads(base64.b64decode(match[1]))
    return getattr(errors, kind)(message, **places)
