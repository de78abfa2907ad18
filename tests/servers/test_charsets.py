"""Text in MySQL's character sets, against what a real MySQL makes of the same bytes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from cdc_lakehouse.changelog.mysql_types import CharsetError, text
from tests.servers.mysql import MySqlServer

pytestmark = pytest.mark.server

# What no codec here reads: the error says so, no other character comes of it.
_WITHOUT_CODEC = {"armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7"}
# Characters that users define for themselves; halves of surrogate pairs, which are no characters.
_NO_CHARACTERS = {"ujis": 1880, "ucs2": 8 * 207}


def _sequences() -> Iterator[bytes]:
    """All single bytes, all pairs that can be a character, the three bytes of EUC, some four of GB 18030."""
    yield from (bytes([byte]) for byte in range(256))
    yield from (bytes(pair) for pair in itertools.product(range(0x81, 0xFF), range(0x30, 0xFF)))
    yield from (bytes([0x8F, *pair]) for pair in itertools.product(range(0xA1, 0xFF), repeat=2))
    yield from (chr(point).encode("gb18030") for point in (0x1E3F, 0x20AC, 0xE7C7, 0x1F600, 0x10FFFF))
    encodings = itertools.product("é中😀", ("utf-8", "utf-16-be", "utf-16-le", "utf-32-be"))
    yield from (character.encode(codec) for character, codec in encodings)


def _server_texts(mysql: MySqlServer) -> dict[str, dict[bytes, str]]:
    """By character set, the text of each sequence that is one there."""
    sequences = sorted(set(_sequences()))
    with contextlib.closing(mysql.connect()) as connection, connection.cursor() as cursor:
        for statement in ("SET sql_mode = ''", "DROP DATABASE IF EXISTS charsets", "CREATE DATABASE charsets"):
            cursor.execute(statement)
        cursor.execute("CREATE TABLE charsets.sequences (b VARBINARY(16) PRIMARY KEY)")
        cursor.executemany("INSERT INTO charsets.sequences VALUES (%s)", [(b,) for b in sequences])
        cursor.execute("SELECT character_set_name FROM information_schema.character_sets")
        texts: dict[str, dict[bytes, str]] = {}
        for name in [name for (name,) in cursor.fetchall()]:
            as_text = f"CONVERT(b USING {name})"
            # What is not well-formed is cut by MySQL; what has no Unicode becomes a question mark.
            cursor.execute(
                f"SELECT b, HEX(CONVERT({as_text} USING utf8mb4)) FROM charsets.sequences"
                f" WHERE HEX({as_text}) = HEX(b) AND CHAR_LENGTH({as_text}) = 1"
            )
            read = {bytes(b): bytes.fromhex(found).decode() for b, found in cursor.fetchall()}
            texts[name] = {
                b: found for b, found in read.items() if "\ufffd" not in found and (found != "?" or b == b"?")
            }
    return texts


@pytest.mark.in_turn
def test_each_character_of_each_set_is_mysqls(mysql: MySqlServer) -> None:
    wrong, unread, server_texts = [], {}, _server_texts(mysql)
    for name, texts in server_texts.items():
        for b, expected in texts.items():
            try:
                found = text(b, name)
            except CharsetError:
                unread[name] = unread.get(name, 0) + 1
            else:
                if found != expected and name != "binary":
                    wrong.append((name, b, expected, found))
    assert not wrong
    assert {name: count for name, count in unread.items() if name not in _WITHOUT_CODEC} == _NO_CHARACTERS
    assert len(server_texts) == 41
    for name in server_texts:
        if name in _WITHOUT_CODEC:
            with pytest.raises(CharsetError, match=f"{name} is MySQL's"):
                text(b"a", name)
        else:
            assert text(b"", name) == ""
    counts = {name: len(texts) for name, texts in server_texts.items()}
    assert counts["latin1"] == 256, "something is compared"
    assert counts["gbk"] > 20_000 and counts["gb18030"] > 20_000 and counts["big5"] > 13_000 and counts["ujis"] > 12_000
