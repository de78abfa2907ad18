"""Pages that the product shows, compared with files: `python -m pytest TESTS --update` writes them anew."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden_pages"
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def normalized(text: str, directory: Path, *times: str) -> str:
    """A page without what is another in each run: directories, ids of runs and snapshots, names of machines, and times
    of the real clock, which are those that do not begin with one of `times`."""
    text = text.replace(str(directory), "<dir>").replace(socket.gethostname(), "<host>")
    text = _UUID.sub("<run>", text)
    text = re.sub(r"\b(20\d\d-\d\d-\d\d)([T ]\d\d:\d\d:\d\d)(\.\d+)?", lambda found: _time(found, times), text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _time(found: re.Match[str], times: tuple[str, ...]) -> str:
    return found[0] if found[1].startswith(times) else "<now>"


def compare(name: str, page: str, *, update: bool) -> None:
    file = FOLDER / name
    if update:
        file.parent.mkdir(exist_ok=True)
        file.write_text(page, encoding="utf-8")
    else:
        assert page == file.read_text(encoding="utf-8"), f"{file.name}: read the difference; --update writes it"


def as_json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=1)
