r"""Tokens of a DDL statement: comments removed, quotes and literals recognised, every token with its position.

    >>> [token.text for token in tokenize("ALTER TABLE `a b` /*T![ttl] TTL */ -- and so on")[1]]
    ['ALTER', 'TABLE', '`a b`', 'TTL', '']

Words and keywords are not distinguished here. The content of a special comment belongs to the statement; comments and
the marks around that content are replaced by blanks, so that offsets are those of the statement.

For names, numbers and strings see MySQL reference manual, "Schema Object Names" and "Literal Values". For special
comments see "Comments" there (`/*! ... */`, with a server version of five or six digits), and TiDB documentation,
"Comment Syntax" (`/*T! ... */`, `/*T![feature] ... */`).
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, cast

from cdc_lakehouse.errors import DdlError

_SHOWN: Final = 200
_ADVICE: Final = "if the source server accepts this statement, the parser lacks it, and its table has to wait"


class DdlSyntaxError(DdlError):
    """The parser does not understand a statement.

    `statement` is the statement, shortened; `offset` counts characters from 0, `statement_line` and `statement_column`
    from 1, all in the whole statement. (`line`, of the base class, is a line of a segment.)
    """

    def __init__(
        self,
        message: str,
        *,
        statement: str,
        offset: int,
        statement_line: int,
        statement_column: int,
        **places: Any,
    ) -> None:
        super().__init__(message, **places)
        self.statement = statement
        self.offset = offset
        self.statement_line = statement_line
        self.statement_column = statement_column

    @classmethod
    def at(cls, reason: str, statement: str, offset: int) -> DdlSyntaxError:
        """Return the error at an offset of a statement, for a reason such as "expected a name, found '('"."""
        line = statement.count("\n", 0, offset) + 1
        column = offset - statement.rfind("\n", 0, offset)
        shown = statement if len(statement) <= _SHOWN else f"{statement[:_SHOWN]}..."
        return cls(
            f"DDL cannot be understood at line {line}, column {column}: {reason}, in: {shown}",
            statement=shown,
            offset=offset,
            statement_line=line,
            statement_column=column,
            advice=_ADVICE,
        )


TokenKind = Literal["word", "name", "string", "number", "hex", "bit", "symbol", "end"]


class Token(NamedTuple):
    """A token of the statement, from `start` to before `end`.

    `word` is for comparison with keywords and punctuation: an unquoted word in upper case, or a symbol; else empty.
    """

    kind: TokenKind
    text: str
    word: str
    start: int
    end: int


class SqlMode(NamedTuple):
    """How quotes and backslashes are read: sql_mode ANSI_QUOTES, and the opposite of NO_BACKSLASH_ESCAPES."""

    ansi_quotes: bool = False
    backslash_escapes: bool = True


DEFAULT_MODE: Final = SqlMode()

# White space, and the ASCII characters that are not letters, digits, "_" or "$".
_OTHERS: Final = r"\s\x00-\#%-/:-@\[-^`{-\x7f"
_LETTER: Final = f"[^{_OTHERS}]"
# A regular expression holds memory for each repetition of a group. No text of a DDL has as many escapes.
_TIMES: Final = "{0,65535}"


def _quoted(quote: str, escapes: bool) -> str:
    """Return a pattern that matches quoted text in one way only, so that text that is not closed is read once."""
    plain, escape = (rf"[^{quote}\\]*+", rf"\\.|{quote * 2}") if escapes else (f"[^{quote}]*+", quote * 2)
    return f"{quote}{plain}(?:(?:{escape}){plain}){_TIMES}{quote}(?!{quote})"


def _scanner(mode: SqlMode) -> re.Pattern[str]:
    """Compile the pattern of a token, spaces, or the start of a comment; a group named after no token kind is a comment
    or an error."""
    backquoted, double = _quoted("`", False), _quoted('"', mode.backslash_escapes and not mode.ansi_quotes)
    single = "[nN]?" + _quoted("'", mode.backslash_escapes)
    strings, names = (single, f"{backquoted}|{double}") if mode.ansi_quotes else (f"{single}|{double}", backquoted)
    return re.compile(
        r"(?P<spaces>[ \t\r\n\v\f]++)"
        r"|(?P<line>(?:--(?=[\x00-\x20\x7f]|\Z)|\#)[^\n]*+)"
        r"|(?P<special>/\*(?:!(?P<version>\d{5,6})?|T!(?:\[[\w, ]*+\])?))|(?P<block>/\*)|(?P<close>\*/)"
        rf"|(?P<hex>0x[0-9A-Fa-f]++(?!{_LETTER})|[xX]'(?:[0-9A-Fa-f]{{2}}){_TIMES}')"
        rf"|(?P<bit>0b[01]++(?!{_LETTER})|[bB]'[01]*+')|(?P<damaged>[xXbB]'[^']*+')"
        rf"|(?P<string>{strings})|(?P<name>{names})|(?P<unclosed>['\"`])"
        rf"|(?P<number>[0-9]++(?:\.[0-9]*+|(?!\.))(?:[eE][+-]?[0-9]++)?(?!{_LETTER}))"
        rf"|(?P<word>(?![0-9]++(?!{_LETTER}))[^{_OTHERS}]++)|(?P<symbol>[!-/:-@\[-^{{-~])",
        re.DOTALL,
    )


_SCANNERS: Final = {mode: _scanner(mode) for mode in (SqlMode(a, b) for a in (False, True) for b in (False, True))}
_TOKENS: Final = frozenset({"word", "name", "string", "number", "hex", "bit", "symbol"})

# By convention, no server reaches these versions: the content is never run.
_NEVER: Final = frozenset({"99999", "999999"})


def tokenize(statement: str, mode: SqlMode = DEFAULT_MODE) -> tuple[str, list[Token]]:
    """Return the statement with its comments blanked, and all tokens in order; the last one has the kind "end".

    Raises DdlSyntaxError.
    """
    scan = _SCANNERS[mode].match
    tokens: list[Token] = []
    pieces: list[str] = []
    open_marks: list[int] = []
    kept = position = 0
    while found := scan(statement, position):
        start, position = found.span()
        kind = found.lastgroup
        if kind in _TOKENS:
            text = found[0]
            # Only ASCII: some other letters have an ASCII letter as their upper case ("\u017f" becomes "S").
            word = (text.upper() if text.isascii() else text) if kind in ("word", "symbol") else ""
            tokens.append(Token(cast("TokenKind", kind), text, word, start, position))
        elif kind != "spaces":
            position = _end_of_comment(statement, found, open_marks)
            pieces += (statement[kept:start], " " * (position - start))
            kept = position
    if position < len(statement):
        raise DdlSyntaxError.at("unexpected text", statement, position)
    if open_marks:
        raise DdlSyntaxError.at("this comment is not closed", statement, open_marks[-1])
    tokens.append(Token("end", "", "", position, position))
    return "".join((*pieces, statement[kept:])), tokens


def _end_of_comment(statement: str, found: re.Match[str], open_marks: list[int]) -> int:
    """Return the end of the comment or mark; `open_marks` holds the positions of special comments that are open."""
    start, end = found.span()
    match found.lastgroup:
        case "unclosed":
            raise DdlSyntaxError.at("this quote is not closed", statement, start)
        case "damaged":
            raise DdlSyntaxError.at("this is not a hexadecimal or bit literal", statement, start)
        case "line":
            return end
        case "special" if found["version"] not in _NEVER:
            open_marks.append(start)
            return end
        case "close":
            if not open_marks:
                raise DdlSyntaxError.at("no comment is open here", statement, start)
            open_marks.pop()
            return end
        case _:
            end = statement.find("*/", start + 2)
            if end < 0:
                raise DdlSyntaxError.at("this comment is not closed", statement, start)
            return end + 2


# --- The values of tokens ---

_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_ESCAPED: Final = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


def string_value(token: Token, mode: SqlMode = DEFAULT_MODE) -> str:
    """Return the content of a string, with its escapes resolved (MySQL reference manual, "String Literals")."""
    quoted = token.text[1:] if token.text[0] in "nN" else token.text
    quote = quoted[0]
    if not mode.backslash_escapes:
        return quoted[1:-1].replace(quote * 2, quote)

    def decoded(escape: re.Match[str]) -> str:
        letter: str | None = escape[1]
        if letter is not None:
            return _ESCAPES.get(letter, letter)
        return quote if escape[0][0] == quote else escape[0]

    return _ESCAPED.sub(decoded, quoted[1:-1])


def name_value(token: Token) -> str:
    """Return the name in a word, a backquoted name, or a name in double quotes, where backslashes are no escapes."""
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


def bytes_value(token: Token) -> bytes:
    """Return the bytes of a hexadecimal or bit literal; MySQL pads both with zeros on the left."""
    digits = token.text[2:].removesuffix("'")
    if token.kind == "bit":
        return int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "big")
    return bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}")
