"""Cuts for readers: what `read` gives at any commit-ts is the fold up to it, and every engine reads the same rows."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cdc_lakehouse
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.pipeline.reading import NotReadableError
from cdc_lakehouse.pipeline.steps import run_all
from tests.kit.kills import Kill
from tests.kit.lakes import TestLake
from tests.model.changefeed import DATABASE, Changefeed
from tests.model.fold import Column, Ddl, Entry, RowChange, fold
from tests.model.history import Flush, Midnight, Restart, Run, Step, scenarios
from tests.spark.test_fold import SPARK_EXAMPLES

pytestmark = pytest.mark.spark

ID, NAME = Column("id", "int"), Column("name", "varchar(20)")


@SPARK_EXAMPLES
@given(steps=scenarios())
def test_a_read_is_the_fold_at_every_commit_ts(steps: list[Step], new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake()
    feed = Changefeed(lake.sink)
    cuts: list[int] = []
    for step in steps:
        note(str(step))
        match step:
            case Run() if feed.entries:
                cuts.append(feed.advance(step.behind))
                run_all(lake.run())
            case Flush():
                feed.flush(step.lines)
            case Midnight():
                feed.date += 1
            case Restart():
                feed.restart()
            case RowChange() | Ddl():
                feed.send(step)
            case _:
                pass
    for commit_ts in sorted({*cuts, *(entry.commit_ts for entry in feed.entries)}):
        if cuts and commit_ts <= cuts[-1]:
            check(lake, feed.entries, commit_ts)


def check(lake: TestLake, entries: list[Entry], commit_ts: int) -> None:
    for name, table in fold(entries, commit_ts).items():
        rows = cdc_lakehouse.read(lake.config, f"{DATABASE}.{name}", as_of=commit_ts)
        columns, expected = table.typed()
        assert rows.column_names == [column for column, _ in columns], name
        assert seen(rows) == expected, (name, commit_ts)


def seen(rows: pa.Table) -> list[tuple[Any, ...]]:
    cells = [rows.column(place).to_pylist() for place in range(rows.num_columns)]
    found = zip(*cells, strict=True)
    return sorted((tuple(c.normalize() if isinstance(c, Decimal) else c for c in row) for row in found), key=repr)
