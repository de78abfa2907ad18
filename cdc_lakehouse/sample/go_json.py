"""JSON as Go's encoding/json prints it: `<`, `>`, `&` and two line separators are escaped, other text is not."""

from __future__ import annotations

import json
from typing import Any, Final

_ESCAPES: Final = str.maketrans({
    "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029",
})  # fmt: skip


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)


def indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=4).translate(_ESCAPES)
