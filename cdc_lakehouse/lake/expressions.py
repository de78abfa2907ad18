"""Spark expressions made of any number of others."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of the conditions holds; false when there are none. Of NULLs, what SQL's OR makes of them."""
    return functools.reduce(operator.or_, conditions, F.lit(False))
