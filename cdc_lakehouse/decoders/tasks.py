"""Work that is done in tasks of Spark, or in the driver where there is little of it.

An error of the project's that a task raises comes to the driver as one line in Java's and Python's traces. It carries
itself there, so that the driver raises the same error again: its type says whether it is worth another try."""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from py4j.protocol import Py4JError

from cdc_lakehouse.errors import CdcError

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

_MARK: Final = re.compile(r"cdc-error:([A-Za-z0-9+/=]+);")

_OF_PYTHON: Final = "org.apache.spark.api.python.PythonException: "

_Plan = TypeVar("_Plan")
_Row = TypeVar("_Row")
_Result = TypeVar("_Result")


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors of Spark and its gateway. Spark is imported when something has failed, not before."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return PySparkException, Py4JError


def run_tasks(
    spark: SparkSession | None, plans: Sequence[_Plan], work: Callable[[_Plan], Iterable[_Result]]
) -> list[_Result]:
    """Do the work of each plan, each in a task, or all in this process without Spark; return what it yields."""
    if spark is None or not plans:
        return [result for plan in plans for result in work(plan)]
    return results_of(spark.sparkContext.range(0, len(plans), 1, len(plans)), lambda number, _: work(plans[number]))


def results_of(rows: RDD[_Row], work: Callable[[int, Iterable[_Row]], Iterable[_Result]]) -> list[_Result]:
    """Do work on each partition of rows, by its number, in tasks; return what it yields. An RDD needs no plan of
    Spark's SQL, which takes longer than small work does."""

    def in_task(number: int, rows: Iterable[_Row]) -> Iterator[_Result]:
        with errors_to_driver():
            yield from work(number, rows)

    with errors_of_tasks():
        return rows.mapPartitionsWithIndex(in_task).collect()


@contextlib.contextmanager
def errors_to_driver() -> Iterator[None]:
    """Wrap the project's errors in a task so that the driver can raise them again."""
    try:
        yield
    except CdcError as error:
        carried = base64.b64encode(pickle.dumps(error)).decode()
        raise RuntimeError(f"{error} (cdc-error:{carried};)") from None


@contextlib.contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise the project's error that made a task fail, or Python's, instead of Spark's error about the failed task."""
    try:
        yield
    except spark_errors() as error:
        from pyspark.errors import PythonException  # noqa: PLC0415

        said = str(error)
        if match := _MARK.search(said):
            raise pickle.loads(base64.b64decode(match[1])) from None
        if isinstance(error, Py4JError) and _OF_PYTHON in said:
            raise PythonException(f"a task failed\n{said.rpartition(_OF_PYTHON)[2]}") from error
        raise
