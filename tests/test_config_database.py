"""`source.initial` with the type database: its keys, and a password that nobody sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.test_config import put, read, refusal

SECRET = "a/b@c:%41"
URL = "mysql://u:${SECRET}@db.example:4000"


def test_a_database(tmp_path: Path) -> None:
    change = put("feeds.0.source.initial", {"type": "database", "url": URL, "ca_file": "ca.pem"})
    initial = read(tmp_path, change, SECRET=SECRET).feeds[0].initial
    assert initial is not None and initial.database is not None
    assert initial.database.address.password == SECRET and initial.database.ca_file == str(tmp_path / "ca.pem")
    assert (initial.connections, initial.chunk_rows, initial.uri) == (4, 200_000, None)
    assert SECRET not in repr(initial) and SECRET not in repr(initial.database)


@pytest.mark.parametrize(
    ("initial", "said"),
    [
        ({"type": "database"}, "needs url with type database"),
        ({"type": "database", "url": "mysql://u:hunter2@db"}, "holds a password in plain text"),
        ({"type": "database", "url": "postgresql://u:${SECRET}@db"}, "is not of the form mysql://"),
        ({"type": "database", "url": URL, "uri": "snapshot"}, "uri means nothing with type database"),
        ({"type": "database", "url": URL, "connections": 0}, "greater than 0"),
        ({"type": "dumpling", "uri": "s", "chunk_rows": 5}, "chunk_rows means nothing with type dumpling"),
        ({"type": "dumpling"}, "needs uri, the directory of the dump"),
    ],
)
def test_keys_that_do_not_go_together(tmp_path: Path, initial: dict[str, Any], said: str) -> None:
    text = refusal(tmp_path, put("feeds.0.source.initial", initial), SECRET=SECRET)
    assert "feeds[0].source.initial" in text and said in text
    assert SECRET not in text and "hunter2" not in text
