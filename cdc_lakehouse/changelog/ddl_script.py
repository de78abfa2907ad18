r"""The statements of a script, as a client splits it: at semicolons, or at what DELIMITER says.

>>> [statement.text for statement in split("USE d; CREATE TABLE t (a INT) -- one; line\n;")]
['USE d', 'CREATE TABLE t (a INT) -- one; line']
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Possessive quantifiers keep what has no end from being tried in every possible way. What does not end goes to the
# end of the script: the parser says what is wrong with it.
_OPAQUE: Final = (
    r"'(?:[^'\\]++|\\.|'')*+(?:'|\Z)"
    r'|"(?:[^"\\]++|\\.|"")*+(?:"|\Z)'
    r"|`[^`]*+(?:`|\Z)"
    r"|(?P<special>/\*(?:!|T!)(?:[^*]++|\*(?!/))*+(?:\*/|\Z))"
    r"|(?P<comment>/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)|(?:--(?=[\x00-\x20\x7f]|\Z)|\#)[^\n]*+)"
    r"|(?P<space>\s++)"
)
_COMMAND: Final = re.compile(r"DELIMITER[ \t]++(\S++)[^\n]*+(?:\n|\Z)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """A statement without its delimiter, and where it begins: `line` and `column` count from 1."""

    text: str
    line: int
    column: int

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Where a line and column of the statement are in the script."""
        return self.line + line - 1, column if line > 1 else self.column + column - 1


def split(script: str) -> Iterator[ScriptStatement]:
    """All statements in order; empty ones, and comments between them, are left out."""
    scanner = _scanner(";")
    position, start, line, counted = 0, -1, 1, 0
    end = 0
    while position < len(script):
        command = _COMMAND.match(script, position) if start < 0 else None
        if command is not None:
            scanner, position = _scanner(command[1]), command.end()
            continue
        found = scanner.match(script, position)
        after = position + 1 if found is None else found.end()
        kind = "" if found is None else found.lastgroup or ""
        if kind == "delimiter":
            if start >= 0:
                line, counted = line + script.count("\n", counted, start), start
                yield ScriptStatement(script[start:end], line, _column(script, start))
            start = -1
        elif kind not in ("space", "comment"):
            start, end = position if start < 0 else start, after
        elif kind == "comment" and start >= 0:
            end = after
        position = after
    if start >= 0:
        line += script.count("\n", counted, start)
        yield ScriptStatement(script[start:end], line, _column(script, start))


def _column(script: str, place: int) -> int:
    return place - script.rfind("\n", 0, place)


def _scanner(delimiter: str) -> re.Pattern[str]:
    # Words are taken whole, as far as no delimiter begins in them.
    first = re.escape(delimiter[0])
    return re.compile(rf"(?P<delimiter>{re.escape(delimiter)})|{_OPAQUE}|[^\s'\"`/#\-{first}]++", re.DOTALL)
