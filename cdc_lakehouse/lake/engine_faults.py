"""What goes wrong with Spark and its JVM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from cdc_lakehouse.errors import EngineError

_SEE_ENGINE: Final = "run again; where it fails again, see what is said before this, and whether it had memory enough"


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Errors of Spark and of its JVM in the block as `EngineError`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise EngineError(f"Spark failed: {_of_engine(error)}", advice=_SEE_ENGINE) from error
    except ConnectionError as error:
        # Who asks a JVM that has ended. Sources and catalogs have errors of their own.
        raise EngineError(f"Spark's JVM does not answer ({type(error).__name__})", advice=_SEE_ENGINE) from error


def _of_engine(error: Exception) -> str:
    """The first line, and what Java called the error. Java's own words may hold a password."""
    first, _, trace = str(error).partition("\n")
    java = trace.removeprefix(": ").partition(":")[0].partition("\n")[0]
    return f"{type(error).__name__} {first}" + (f" ({java})" if isinstance(error, Py4JJavaError) and java else "")
