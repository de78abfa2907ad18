"""Isolate the item at which a job fails, so that one table, or one file, does not end a run for all.

A row that takes all memory ends the worker that has it, or fails its query, and the error does not say which row or
table it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from cdc_lakehouse.decoders.tasks import SPARK_ERRORS
from cdc_lakehouse.errors import EngineError
from cdc_lakehouse.lake.faults import described, engine_fault

_Item = TypeVar("_Item")


def run_isolated(
    spark: SparkSession, items: Sequence[_Item], job: Callable[[Sequence[_Item]], object]
) -> dict[int, str]:
    """Run a job for all items; where Spark fails or memory runs out, run it for each half of them, down to single
    items.

    Return the reasons by the index of each item at which the job fails alone, twice, while Spark still answers. Raise
    the error where Spark does not answer, where the job fails at each of several items, or where the store of the
    catalog or of the warehouse is away: then no item is to blame.
    """
    failed: dict[int, str] = {}

    def run(indexes: Sequence[int], tries: int) -> None:
        try:
            job([items[index] for index in indexes])
        except Exception as error:
            if not _may_be_of_an_item(error) or not _answers(spark):
                raise
            if len(indexes) > 1:
                middle = len(indexes) // 2
                run(indexes[:middle], tries)
                run(indexes[middle:], tries)
            elif tries > 1:
                run(indexes, tries - 1)
            else:
                failed[indexes[0]] = described(error)
                if len(failed) == len(items) > 1:
                    raise

    run(range(len(items)), tries=2)
    return failed


def _may_be_of_an_item(error: Exception) -> bool:
    fault = engine_fault(error)
    return isinstance(fault, EngineError) or (fault is None and isinstance(error, SPARK_ERRORS))


def _answers(spark: SparkSession) -> bool:
    """Whether Spark can run a task that does nothing, in a Python worker."""
    try:
        return len(spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()) == 1
    except (*SPARK_ERRORS, ConnectionError):
        return False
