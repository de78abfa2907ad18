"""The commands of the command line. They work on configurations, and print text, or JSON with `--json`."""

import importlib
import sys
from typing import Any


class _NoPandas:
    """While this is among the finders of modules, there is no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError


def import_command(name: str) -> Any:
    """Import the module of a command, and let Arrow not find pandas when it first looks for it, which it does for any
    list: that import takes as long as all others. Conversions to pandas, and Spark, import it when they need it."""
    finders: list[Any] = sys.meta_path
    finders.insert(0, _NoPandas)
    try:
        found = importlib.import_module(f"{__name__}.{name}")
        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].array([0])
    finally:
        finders.remove(_NoPandas)
    return found
