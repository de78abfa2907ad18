r"""Tokens of a DDL statement: comments taken out, quotes and literals recognised, every token with its place.

    >>> [token.text for token in tokenize("ALTER TABLE `a b` /*T![ttl] TTL */ -- and so on")[1]]
    ['ALTER', 'TABLE', '`a b`', 'TTL', '']

sqlglot's MySQL tokenizer finds where tokens begin and end. It is run without its keywords (they would glue
words together and swallow whole statements as "commands") and over text whose comments are blanked out
beforehand, because the content of a special comment belongs to the statement. Blanking keeps the length:
offsets are those of the statement.

Which comments are special: MySQL reference manual, "Comments" (`/*! ... */`, with a server version of five
or six digits); TiDB documentation, "Comment Syntax" (`/*T! ... */`, `/*T![feature] ... */`).
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal, NamedTuple

from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from cdc_lakehouse.changelog.ddl.clauses import DdlSyntaxError

TokenKind = Literal["word", "name", "string", "number", "hex", "bit", "symbol", "end"]


class Token(NamedTuple):
    """A token as it stands in the statement, from `start` to before `end`.

    `word` is what keywords and punctuation are compared with: an unquoted word in upper case, a symbol;
    else empty.
    """

    kind: TokenKind
    text: str
    word: str
    start: int
    end: int


# Possessive quantifiers (`++`, `*+`) keep a string that has no end from being tried in every possible way.
_BACKQUOTED: Final = r"`(?:[^`]++|``)*+`"
_SINGLE: Final = r"'(?:[^'\\]++|\\.|'')*+'"
_DOUBLE: Final = r'"(?:[^"\\]++|\\.|"")*+"'
_SINGLE_PLAIN: Final = r"'(?:[^']++|'')*+'"
_DOUBLE_PLAIN: Final = r'"(?:[^"]++|"")*+"'


def _scanner(single: str, double: str) -> re.Pattern[str]:
    return re.compile(
        r"(?P<coded>(?<![\w$])[xXbB]'[^']*+')"
        rf"|(?P<quoted>{single}|{double}|{_BACKQUOTED})|(?P<unclosed>['\"`])"
        r"|(?P<line>(?:--(?=[\x00-\x20\x7f]|\Z)|\#)[^\n]*+)"
        r"|(?P<special>/\*(?:!(?P<version>\d{5,6})?|T!(?:\[[\w, ]*+\])?))|(?P<block>/\*)|(?P<close>\*/)",
        re.DOTALL,
    )


# By convention, a version that no server reaches: the content is never run.
_NEVER: Final = frozenset({"99999", "999999"})

_SHAPES: Final = re.compile(
    r"(?P<hex>0x[0-9A-Fa-f]++|[xX]'(?:[0-9A-Fa-f]{2})*+')"
    r"|(?P<bit>0b[01]++|[bB]'[01]*+')"
    rf"|(?P<string>[nN]?(?:{_SINGLE}|{_DOUBLE}|{_SINGLE_PLAIN}|{_DOUBLE_PLAIN}))"
    rf"|(?P<name>{_BACKQUOTED})"
    r"|(?P<number>[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?)"
    r"|(?P<word>[0-9A-Za-z_$\x80-\U0010ffff]++)"
    r"|(?P<symbol>[!-/:-@\[-^{-~])",
    re.DOTALL,
)
_SPACES: Final = " \t\r\n\v\f"


class _Tokenizer(MySQL.Tokenizer):
    """Boundaries only: no keywords, no commands, no comments."""

    KEYWORDS: ClassVar[dict[str, TokenType]] = {}
    COMMANDS: ClassVar[set[TokenType]] = set()
    COMMENTS: ClassVar[list[str | tuple[str, str]]] = []


class _PlainTokenizer(_Tokenizer):
    STRING_ESCAPES: ClassVar[list[str]] = ["'", '"']


class _AnsiTokenizer(_Tokenizer):
    QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
    IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`", '"']


class _PlainAnsiTokenizer(_AnsiTokenizer):
    STRING_ESCAPES: ClassVar[list[str]] = ["'"]


class SqlMode(NamedTuple):
    """What quotes and backslashes mean: sql_mode ANSI_QUOTES, and the opposite of NO_BACKSLASH_ESCAPES."""

    ansi_quotes: bool = False
    backslash_escapes: bool = True


DEFAULT_MODE: Final = SqlMode()

_MODES: Final[dict[SqlMode, tuple[re.Pattern[str], type[_Tokenizer]]]] = {
    SqlMode(False, True): (_scanner(_SINGLE, _DOUBLE), _Tokenizer),
    SqlMode(False, False): (_scanner(_SINGLE_PLAIN, _DOUBLE_PLAIN), _PlainTokenizer),
    SqlMode(True, True): (_scanner(_SINGLE, _DOUBLE_PLAIN), _AnsiTokenizer),
    SqlMode(True, False): (_scanner(_SINGLE_PLAIN, _DOUBLE_PLAIN), _PlainAnsiTokenizer),
}


def tokenize(statement: str, mode: SqlMode = DEFAULT_MODE) -> tuple[str, list[Token]]:
    """The statement with its comments blanked, and all tokens in order; the last one has the kind "end".

    Raises DdlSyntaxError.
    """
    scanner, tokenizer = _MODES[mode]
    text = _without_comments(statement, scanner)
    try:
        found = tokenizer(dialect="mysql").tokenize(text)
    except SqlglotError as error:
        raise DdlSyntaxError.at("it cannot be split into tokens", statement, 0) from error
    tokens: list[Token] = []
    end = 0
    for each in found:
        if text[end : each.start].strip(_SPACES):
            raise DdlSyntaxError.at("unexpected text", statement, end)
        end = each.end + 1
        tokens.append(_token(statement, each.start, end, mode))
    if text[end:].strip(_SPACES):
        raise DdlSyntaxError.at("unexpected text", statement, end)
    tokens.append(Token("end", "", "", len(statement), len(statement)))
    return text, tokens


def _token(statement: str, start: int, end: int, mode: SqlMode) -> Token:
    text = statement[start:end]
    shape = _SHAPES.fullmatch(text)
    match shape and shape.lastgroup:
        case "word":
            # Only ASCII: some other letters have an upper case of ASCII ("\u017f" becomes "S").
            return Token("word", text, text.upper() if text.isascii() else text, start, end)
        case "symbol":
            return Token("symbol", text, text, start, end)
        case "string":
            return Token("name" if mode.ansi_quotes and text[0] == '"' else "string", text, "", start, end)
        case "name" | "number" | "hex" | "bit" as kind:
            return Token(kind, text, "", start, end)
        case _:
            raise DdlSyntaxError.at("unexpected text", statement, start)


def _without_comments(statement: str, scanner: re.Pattern[str]) -> str:
    """The statement with spaces for comments, and for the marks around the content of special ones."""
    pieces: list[str] = []
    open_marks: list[int] = []
    kept = position = 0
    while found := scanner.search(statement, position):
        start, position = found.span()
        if found.lastgroup == "quoted":
            continue
        if found.lastgroup == "coded":
            if not _SHAPES.fullmatch(found[0]):
                raise DdlSyntaxError.at("this is not a hexadecimal or bit literal", statement, start)
            continue
        position = _end_of_comment(statement, found, open_marks)
        pieces += (statement[kept:start], " " * (position - start))
        kept = position
    if open_marks:
        raise DdlSyntaxError.at("this comment is not closed", statement, open_marks[-1])
    return "".join((*pieces, statement[kept:]))


def _end_of_comment(statement: str, found: re.Match[str], open_marks: list[int]) -> int:
    """Where the comment or the mark ends; `open_marks` holds the places of special comments that are open."""
    start, end = found.span()
    match found.lastgroup:
        case "unclosed":
            raise DdlSyntaxError.at("this quote is not closed", statement, start)
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


# --- What a token says ---

_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_ESCAPED: Final = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


def string_value(token: Token, mode: SqlMode = DEFAULT_MODE) -> str:
    """The content of a string; escapes: MySQL reference manual, "String Literals"."""
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
    """The name of a word, a backquoted name, or a name in double quotes, where escapes have no meaning."""
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


def bytes_value(token: Token) -> bytes:
    """The bytes of a hexadecimal or bit literal; MySQL fills both up on the left."""
    digits = token.text[2:].removesuffix("'")
    if token.kind == "bit":
        return int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "big")
    return bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}")
