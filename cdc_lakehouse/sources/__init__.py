"""The sources of change logs: listing and reading, without Iceberg, Spark or Dagster.

`read_json` is the one reader of JSON that another system wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, cast

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.errors import CdcError

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(
    content: str | bytes, what: str, error: Callable[[str], CdcError] = MessageError, **hooks: Any
) -> dict[str, Any]:
    """Parse a text that another system wrote and that has to be a JSON object; `what` names it in errors. `hooks` are
    those of `json.loads`. Raises `error` for one that is not UTF-8, not JSON, nested too deep or not an object, and for
    half of a surrogate pair, which JSON's escapes can say and nothing can store."""
    try:
        text = content if isinstance(content, str) else content.decode()
        parsed = json.loads(text, **hooks)
        if _SURROGATE.search(text):
            json.dumps(parsed, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise error(f"{what} has half of a surrogate pair in its text") from None
    except RecursionError:
        raise error(f"{what} is nested too deep to be JSON of this format") from None
    except ValueError as fault:
        why = f"{fault.msg} at character {fault.pos}" if isinstance(fault, json.JSONDecodeError) else str(fault)
        raise error(f"{what} is not JSON: {why}") from None
    if not isinstance(parsed, dict):
        raise error(f"{what} is JSON, but not an object")
    return cast("dict[str, Any]", parsed)
