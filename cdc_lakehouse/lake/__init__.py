"""The lake: Iceberg tables, written by Spark where rows are many and by PyIceberg where they are few."""

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Import what uses Arrow, without pandas: Arrow looks for it at its first array of a list, which takes as long as
    all other imports. Conversions to pandas, and Spark's SQL, import it when they need it."""

    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError

    finders: list[Any] = sys.meta_path
    finders.insert(0, finder := SimpleNamespace(find_spec=find_spec))
    try:
        yield
        if arrow := sys.modules.get("pyarrow"):
            arrow.array([0])
    finally:
        finders.remove(finder)
