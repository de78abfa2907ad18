"""Of the items of a job, those at which Spark fails are found: the others are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pytest
from pyspark.errors import PySparkException

from cdc_lakehouse.lake.faults import run_isolated

_CRASH: Final = PySparkException("Python worker exited unexpectedly (crashed)")


class Engine:
    """Spark as far as it is asked whether it answers."""

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers

    def range(self, _count: int) -> Engine:
        return self

    def mapInArrow(self, *_: Any) -> Engine:  # noqa: N802 - Spark's name.
        return self

    def collect(self) -> list[int]:
        if not self._answers:
            raise ConnectionError
        return [0]


def isolated(
    items: str, bad: str, *, times: int = 1000, error: Exception = _CRASH, answers: bool = True
) -> tuple[str, str, dict[int, str]]:
    """The items that failed and those that were done, of a job that fails so often where a bad one is among its
    items."""
    left, done = dict.fromkeys(bad, times), list[str]()

    def job(part: Sequence[str]) -> None:
        for item in part:
            if left.get(item, 0) > 0:
                left[item] -= 1
                raise error
        done.extend(part)

    engine: Any = Engine(answers=answers)
    failed = run_isolated(lambda: engine, items, job)
    return "".join(items[index] for index in failed), "".join(sorted(done)), failed


@pytest.mark.parametrize(
    ("items", "bad", "more"),
    [
        *(("abcde", bad, {}) for bad in ("a", "e", "bc", "ace", "")),
        ("a", "a", {}),  # Spark answers.
        ("abc", "b", {"error": MemoryError("malloc")}),
        ("abc", "b", {"error": duckdb.OutOfMemoryException("Out of Memory Error")}),
    ],
)
def test_items_at_which_spark_fails_alone_are_found(items: str, bad: str, more: dict[str, Any]) -> None:
    found, done, reasons = isolated(items, bad, **more)
    assert (found, set(done)) == (bad, {*items} - {*bad}) and len(done) == len({*done})
    assert more or all("a Python worker ended" in reason for reason in reasons.values())


@pytest.mark.parametrize(("items", "bad"), [("abc", "b"), ("a", "a")])
def test_no_item_is_to_blame_where_another_try_works(items: str, bad: str) -> None:
    assert isolated(items, bad, times=1)[:2] == ("", items)


@pytest.mark.parametrize(
    ("items", "bad", "more"),
    [
        ("abc", "abc", {}),
        ("a", "a", {"answers": False}),
        ("abc", "abc", {"error": MemoryError("malloc")}),
        ("abc", "b", {"error": KeyError("a bug"), "times": 1}),  # Not looked into.
    ],
)
def test_error_of_no_item_is_raised(items: str, bad: str, more: dict[str, Any]) -> None:
    with pytest.raises(type(more.get("error", _CRASH))):
        isolated(items, bad, **more)
