"""Work that is done in tasks of Spark, or in the driver where there is little of it.

An error of the project's that a task raises comes to the driver as one line in Java's and Python's traces. It carries
itself there, so that the driver raises the same error again: its type says whether it is worth another try."""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError

from cdc_lakehouse.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARK: Final = re.compile(r"cdc-error:([A-Za-z0-9+/=]+);")

_Plan = TypeVar("_Plan")
_Result = TypeVar("_Result")


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors of Spark and its gateway. Spark is imported when something has failed, not before."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return PySparkException, Py4JError


def run_tasks(
    spark: SparkSession | None, plans: Sequence[_Plan], work: Callable[[_Plan], Iterable[_Result]]
) -> list[_Result]:
    """Do the work of each plan, each in a task, or all in this process without Spark; return what it yields."""
    if spark is None:
        return [result for plan in plans for result in work(plan)]

    def of_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[_Result]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(plans[number])

    return results_of(spark.range(0, len(plans), 1, max(1, len(plans))), of_numbers)


def results_of(rows: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Iterable[_Result]]) -> list[_Result]:
    """Do work on each partition of rows, in tasks; return what it yields."""

    def in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_to_driver():
            for result in work(batches):
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])

    with errors_of_tasks():
        found: list[Any] = rows.mapInArrow(in_task, "result binary").collect()
    return [pickle.loads(row["result"]) for row in found]


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
    """Raise the project's error that made a task fail, instead of Spark's error about the failed task."""
    try:
        yield
    except spark_errors() as error:
        match = _MARK.search(str(error))
        if match is None:
            raise
        raise pickle.loads(base64.b64decode(match[1])) from None
