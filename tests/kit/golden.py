"""Questions to a database, with the answers that a real MySQL gave: `tests/golden/*.jsonl`, a question a line.

Tests without a server hold the product against the answers; `tests/servers/test_mysql.py` asks a server again, and
`make golden` writes what it answers. A new question is a line without an answer.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kit import truth

_FILES = Path(__file__).parents[1] / "golden"


def read(name: str) -> list[dict[str, Any]]:
    lines = (_FILES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write(name: str, questions: Iterable[dict[str, Any]]) -> None:
    lines = [json.dumps(each, ensure_ascii=False) for each in questions]
    (_FILES / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def value(text: str | None, kind: str) -> Any:
    """What a text of an answer means: bytes are in hexadecimal there, moments in UTC."""
    kind = kind.lower()
    if text is None:
        return None
    if truth.iceberg_type(kind) == "binary":
        return bytes.fromhex(text.removeprefix("0x"))
    return truth.true_value(json.loads(text) if kind.startswith("json") else text, kind)


def is_zero_date(text: str | None, kind: str) -> bool:
    is_date = truth.iceberg_type(kind.lower()).startswith(("date", "timestamp"))
    return text is not None and is_date and value(text, kind) is None
