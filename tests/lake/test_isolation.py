from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pytest
from pyspark.errors import PySparkException

from cdc_lakehouse.lake.isolation import run_isolated


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


_CRASH: Final = PySparkException("Python worker exited unexpectedly (crashed)")


class Job:
    """Fails where one of `bad` is among its items, so often for each."""

    def __init__(self, *bad: str, times: int = 1_000, error: Exception = _CRASH) -> None:
        self._left, self._error = dict.fromkeys(bad, times), error
        self.done: list[str] = []

    def __call__(self, items: Sequence[str]) -> None:
        for item in items:
            if self._left.get(item, 0) > 0:
                self._left[item] -= 1
                raise self._error
        self.done += items


def _run(job: Job, items: Sequence[str], *, answers: bool = True) -> dict[int, str]:
    engine: Any = Engine(answers=answers)
    return run_isolated(engine, items, job)


@pytest.mark.parametrize("bad", [("a",), ("e",), ("b", "c"), ("a", "c", "e"), ()])
def test_the_items_at_which_spark_fails_alone(bad: Sequence[str]) -> None:
    job = Job(*bad)
    failed = _run(job, "abcde")
    assert ["abcde"[index] for index in failed] == list(bad)
    assert all("a Python worker ended" in reason for reason in failed.values())
    assert sorted(job.done) == sorted(set("abcde") - set(bad))


@pytest.mark.parametrize("error", [MemoryError("malloc"), duckdb.OutOfMemoryException("Out of Memory Error")])
def test_item_without_memory_fails_alone(error: Exception) -> None:
    job = Job("b", error=error)
    assert list(_run(job, "abc")) == [1] and sorted(job.done) == ["a", "c"]
    with pytest.raises(type(error)):
        _run(Job(*"abc", error=error), "abc")


def test_no_item_is_to_blame_where_another_try_works() -> None:
    job = Job("b", times=1)
    assert not _run(job, "abc")
    assert sorted(job.done) == ["a", "b", "c"]
    alone = Job("a", times=1)
    assert not _run(alone, "a")
    assert alone.done == ["a"]


def test_one_item_alone_is_to_blame_where_spark_answers() -> None:
    assert list(_run(Job("a"), "a")) == [0]


@pytest.mark.parametrize(("bad", "answers"), [("abc", True), ("a", False)])
def test_spark_itself_fails(bad: str, *, answers: bool) -> None:
    with pytest.raises(PySparkException):
        _run(Job(*bad), "abc", answers=answers)


def test_other_errors_are_not_looked_into() -> None:
    def job(items: Sequence[str]) -> None:
        calls.append(list(items))
        raise KeyError("a bug")

    calls: list[Sequence[str]] = []
    engine: Any = Engine()
    with pytest.raises(KeyError):
        run_isolated(engine, "abc", job)
    assert calls == [["a", "b", "c"]]
