"""The tokens of a statement, and the tests and reads at a position in them that the parsers share.

    >>> [token.text for token in tokenize("ALTER TABLE `a b` /*T![ttl] TTL */ -- and so on")[1]]
    ['ALTER', 'TABLE', '`a b`', 'TTL', '']

The content of a special comment belongs to the statement; comments and the marks around that content are replaced by
blanks, so that offsets are those of the statement. Nothing here, or in what is built on it, recurses for nested
parentheses: their depth is counted.

MySQL reference manual, "Schema Object Names", "Literal Values", "Comments" (`/*! ... */`, with a server version of five
or six digits); TiDB documentation, "Comment Syntax" (`/*T! ... */`, `/*T![feature] ... */`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from cdc_lakehouse.changelog.ddl.clauses import TableRef
from cdc_lakehouse.errors import DdlError

_SHOWN: Final = 200
_ADVICE: Final = "if the source server accepts this statement, the parser lacks it, and its table has to wait"


class DdlSyntaxError(DdlError, advice=_ADVICE):
    """The parser does not understand a statement. `place` is the line and the column in it, from 1."""

    def __init__(self, message: str, *, place: tuple[int, int] = (1, 1), **places: Any) -> None:
        super().__init__(message, **places)
        self.place = place

    @classmethod
    def at(cls, reason: str, statement: str, offset: int) -> DdlSyntaxError:
        """Return the error at an offset of a statement, for a reason such as "expected a name, found '('"."""
        line = statement.count("\n", 0, offset) + 1
        column = offset - statement.rfind("\n", 0, offset)
        shown = statement if len(statement) <= _SHOWN else f"{statement[:_SHOWN]}..."
        message = f"DDL cannot be understood at line {line}, column {column}: {reason}, in: {shown}"
        return cls(message, place=(line, column))


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


# White space, and the ASCII characters that are not letters, digits, "_" or "$".
_OTHERS: Final = r"\s\x00-\#%-/:-@\[-^`{-\x7f"
_LETTER: Final = f"[^{_OTHERS}]"
# A regular expression holds memory for each repetition of a group. No text of a DDL has as many escapes.
_TIMES: Final = "{0,65535}"


def _quoted(quote: str, escapes: bool) -> str:
    """Return a pattern that matches quoted text in one way only, so that text that is not closed is read once."""
    plain, escape = (rf"[^{quote}\\]*+", rf"\\.|{quote * 2}") if escapes else (f"[^{quote}]*+", quote * 2)
    return f"{quote}{plain}(?:(?:{escape}){plain}){_TIMES}{quote}(?!{quote})"


def _scanner(backslash_escapes: bool) -> re.Pattern[str]:
    """Compile the pattern of a token, spaces, or the start of a comment; a group named after no token kind is a comment
    or an error."""
    single, double, backquoted = (_quoted(quote, backslash_escapes and quote != "`") for quote in "'\"`")
    return re.compile(
        r"(?P<spaces>[ \t\r\n\v\f]++)"
        r"|(?P<line>(?:--(?=[\x00-\x20\x7f]|\Z)|\#)[^\n]*+)"
        r"|(?P<special>/\*(?:!(?P<version>\d{5,6})?|T!(?:\[[\w, ]*+\])?))|(?P<block>/\*)|(?P<close>\*/)"
        rf"|(?P<hex>0x[0-9A-Fa-f]++(?!{_LETTER})|[xX]'(?:[0-9A-Fa-f]{{2}}){_TIMES}')"
        rf"|(?P<bit>0b[01]++(?!{_LETTER})|[bB]'[01]*+')|(?P<damaged>[xXbB]'[^']*+')"
        rf"|(?P<string>[nN]?{single}|{double})|(?P<name>{backquoted})|(?P<unclosed>['\"`])"
        rf"|(?P<number>[0-9]++(?:\.[0-9]*+|(?!\.))(?:[eE][+-]?[0-9]++)?(?!{_LETTER}))"
        rf"|(?P<word>(?![0-9]++(?!{_LETTER}))[^{_OTHERS}]++)|(?P<symbol>[!-/:-@\[-^{{-~])",
        re.DOTALL,
    )


SCANNERS: Final = {escapes: _scanner(escapes) for escapes in (False, True)}
_TOKENS: Final = frozenset({"word", "name", "string", "number", "hex", "bit", "symbol"})

# By convention, no server reaches these versions: the content is never run.
_NEVER: Final = frozenset({"99999", "999999"})


def tokenize(statement: str, *, backslash_escapes: bool = True) -> tuple[str, list[Token]]:
    """Return the statement with its comments blanked, and all tokens in order; the last one has the kind "end".
    Without `backslash_escapes` (sql_mode NO_BACKSLASH_ESCAPES) a backslash in a string is one.

    Raises DdlSyntaxError.
    """
    scan = SCANNERS[backslash_escapes].match
    tokens: list[Token] = []
    pieces: list[str] = []
    open_marks: list[int] = []
    """The positions of special comments that are open."""
    kept = position = 0
    while found := scan(statement, position):
        start, position = found.span()
        kind = found.lastgroup
        if kind in _TOKENS:
            text = found[0]
            # Only ASCII: some other letters have an ASCII letter as their upper case ("\u017f" becomes "S").
            word = (text.upper() if text.isascii() else text) if kind in ("word", "symbol") else ""
            tokens.append(Token(cast("TokenKind", kind), text, word, start, position))
            continue
        match kind:
            case "spaces":
                continue
            case "unclosed":
                raise DdlSyntaxError.at("this quote is not closed", statement, start)
            case "damaged":
                raise DdlSyntaxError.at("this is not a hexadecimal or bit literal", statement, start)
            case "line":
                pass
            case "special" if found["version"] not in _NEVER:
                open_marks.append(start)
            case "close":
                if not open_marks:
                    raise DdlSyntaxError.at("no comment is open here", statement, start)
                open_marks.pop()
            case _:
                position = statement.find("*/", start + 2) + 2
                if position < 2:
                    raise DdlSyntaxError.at("this comment is not closed", statement, start)
        pieces += (statement[kept:start], " " * (position - start))
        kept = position
    if position < len(statement):
        raise DdlSyntaxError.at("unexpected text", statement, position)
    if open_marks:
        raise DdlSyntaxError.at("this comment is not closed", statement, open_marks[-1])
    tokens.append(Token("end", "", "", position, position))
    return "".join((*pieces, statement[kept:])), tokens


_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_ESCAPED: Final = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


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


_T = TypeVar("_T")

# Words that every version of MySQL and TiDB reserves, and that begin or join clauses: where one stands unquoted in the
# place of a name, the statement was misread (MySQL, "Keywords and Reserved Words").
_RESERVED: Final = frozenset({
    "ADD", "ALTER", "AS", "BY", "CASCADE", "CHANGE", "CHARACTER", "CHECK", "COLLATE", "COLUMN", "CONSTRAINT",
    "CONVERT", "CREATE", "DATABASE", "DEFAULT", "DROP", "EXISTS", "FOREIGN", "FROM", "FULLTEXT", "IF", "IN",
    "INDEX", "INTO", "KEY", "KEYS", "LIKE", "MAXVALUE", "NOT", "NULL", "ON", "ORDER", "PARTITION", "PRIMARY",
    "REFERENCES", "RENAME", "RESTRICT", "SELECT", "SET", "SPATIAL", "TABLE", "TO", "UNION", "UNIQUE", "USING",
    "VALUES", "WHERE", "WITH",
})  # fmt: skip

_MOST_WORDS: Final = 5

# Words that end a clause. Some clauses need no comma before them, and a word that begins one is never skipped.
_CLAUSE_ENDS: Final = frozenset({
    ",", ")", "ADD", "ALTER", "CHANGE", "CONVERT", "DROP", "MODIFY", "PARTITION", "REMOVE", "RENAME",
})  # fmt: skip


class Cursor:
    """Reads a statement's tokens from left to right; raises DdlSyntaxError for unexpected tokens.

    `accept` and `expect` take upper-case words and symbols; a quoted name is never a word.
    """

    def __init__(self, statement: str, *, backslash_escapes: bool = True) -> None:
        self._statement = statement
        self._escapes = backslash_escapes
        self._text, self._tokens = tokenize(statement, backslash_escapes=backslash_escapes)
        self.position = 0

    @property
    def token(self) -> Token:
        return self._tokens[self.position]

    @property
    def next_token(self) -> Token:
        return self._tokens[min(self.position + 1, len(self._tokens) - 1)]

    @property
    def at_end(self) -> bool:
        return self.token.kind == "end"

    @property
    def at_statement_end(self) -> bool:
        return self.at_end or self.at(";")

    def error(self, reason: str) -> DdlSyntaxError:
        """Return an error at the cursor, for the caller to raise."""
        return DdlSyntaxError.at(reason, self._statement, self.token.start)

    def expected(self, what: str) -> DdlSyntaxError:
        """Return an error that says what was expected at the cursor, for the caller to raise."""
        found = "the end" if self.at_end else f"{self.token.text[:40]!r}"
        return self.error(f"expected {what}, found {found}")

    def words(self, count: int) -> tuple[str, ...]:
        return tuple(token.word for token in self._tokens[self.position : self.position + count])

    def at(self, *words: str) -> bool:
        return self.words(len(words)) == words

    def accept(self, *words: str) -> bool:
        if not self.at(*words):
            return False
        self.position += len(words)
        return True

    def accept_any(self, words: Container[str]) -> str | None:
        """Consume and return the word at the cursor if it is one of `words`, else return None."""
        word = self.token.word
        if not word or word not in words:
            return None
        self.position += 1
        return word

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.expected(" ".join(words))

    def accept_longest(self, rows: Mapping[tuple[str, ...], _T]) -> _T | None:
        """Consume the longest key of `rows` that stands at the cursor and return its value; None where none does."""
        for count in range(_MOST_WORDS, 0, -1):
            words = self.words(count)
            if words in rows:
                self.position += count
                return rows[words]
        return None

    def expect_longest(self, rows: Mapping[tuple[str, ...], _T], what: str) -> _T:
        value = self.accept_longest(rows)
        if value is None:
            raise self.expected(what)
        return value

    def take(self) -> Token:
        token = self.token
        if token.kind == "end":
            raise self.expected("more")
        self.position += 1
        return token

    @property
    def at_name(self) -> bool:
        if self.token.kind == "word":
            return self.token.word not in _RESERVED
        # In the place of a name, double quotes can only enclose a name (sql_mode ANSI_QUOTES).
        return self.token.kind == "name" or self.token.text.startswith('"')

    def name(self, what: str = "a name") -> str:
        if not self.at_name:
            raise self.expected(what)
        return name_value(self.take())

    def dotted_name(self, what: str, most: int) -> tuple[str, ...]:
        """Read names with dots between them; after a dot a name may be reserved or all digits."""
        names = [self.name(what)]
        while len(names) < most and self.accept("."):
            if self.token.kind == "word" or (self.token.kind == "number" and self.token.text.isalnum()):
                names.append(self.take().text)
            else:
                names.append(self.name(what))
        return tuple(names)

    def table_name(self) -> TableRef:
        self.accept(".")  # MySQL Workbench writes one before a table of the session's database.
        names = self.dotted_name("a table", 2)
        return TableRef(None, names[0]) if len(names) == 1 else TableRef(names[0], names[1])

    def column_name(self) -> str:
        """Read a column's name, possibly after its table or its database and table."""
        return self.dotted_name("a column", 3)[-1]

    def string(self, what: str = "a string") -> str:
        if self.token.kind != "string":
            raise self.expected(what)
        # With its escapes resolved (MySQL reference manual, "String Literals").
        quoted = self.take().text.lstrip("nN")
        quote, content = quoted[0], quoted[1:-1]
        if not self._escapes:
            return content.replace(quote * 2, quote)

        def decoded(escape: re.Match[str]) -> str:
            letter: str | None = escape[1]
            if letter is not None:
                return _ESCAPES.get(letter, letter)
            return quote if escape[0][0] == quote else escape[0]

        return _ESCAPED.sub(decoded, content)

    def integer(self, what: str = "a number") -> int:
        # The length is limited because Python refuses to read very long numbers; MySQL has none above 2**64.
        if self.token.kind != "number" or not self.token.text.isdigit() or len(self.token.text) > 20:
            raise self.expected(what)
        return int(self.take().text)

    def word_or_string(self, what: str) -> str:
        """Read an option's value: `utf8`, `'utf8'`, `` `utf8` ``, `8`, `4M`."""
        if self.token.kind == "string":
            return self.string()
        if self.token.kind not in ("word", "name", "number"):
            raise self.expected(what)
        token = self.take()
        return token.text if token.kind == "number" else name_value(token)

    def listed(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        """Read one or more items with commas between them."""
        items = [read()]
        while self.accept(","):
            items.append(read())
        return tuple(items)

    def enclosed(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        """Read one or more items with commas between them, in parentheses."""
        self.expect("(")
        items = self.listed(read)
        self.expect(")")
        return items

    def text_between(self, start: int, end: int) -> str:
        """Return the text, without comments, of the tokens from position `start` to before `end`."""
        if start == end:
            return ""
        return self._text[self._tokens[start].start : self._tokens[end - 1].end]

    def parenthesized(self) -> str:
        """Skip parentheses with their content; return the text between them."""
        self.expect("(")
        start = self.position
        depth = 1
        while depth:
            word = self.take().word
            depth += (word == "(") - (word == ")")
        return self.text_between(start, self.position - 1)

    def skip_until(self, stops: Container[str]) -> str:
        """Skip to one of `stops` outside of parentheses, or to the end; return the skipped text."""
        start = self.position
        while not (self.at_statement_end or self.token.word in stops):
            if self.at("("):
                self.parenthesized()
            elif self.at(")"):
                raise self.expected("no closing parenthesis")
            else:
                self.position += 1
        return self.text_between(start, self.position)

    def skip_rest(self) -> None:
        """Skip to the end of the statement; raise DdlSyntaxError where nothing is left to skip."""
        if not self.skip_until(()):
            raise self.expected("more")

    def skip_clause(self, *stops: str) -> str:
        """Skip the rest of a clause, up to where the next can begin or to one of `stops`; return the skipped text."""
        start = self.position
        ends = _CLAUSE_ENDS.union(stops)
        self.skip_until(ends)
        # No clause begins with a string in single quotes, which never enclose a name: a list continues.
        while self.at(",") and self.next_token.text.startswith("'"):
            self.position += 1
            self.skip_until(ends)
        return self.text_between(start, self.position)

    def charset_name(self) -> str | None:
        """Read the name of a character set or collation in lower case; None for DEFAULT."""
        self.accept("=")
        return None if self.accept("DEFAULT") else self.word_or_string("a character set").lower()

    def skip_value(self) -> str:
        """Skip an option's value, as in `ENGINE = InnoDB` or `UNION (a, b)`; return its text."""
        self.accept("=")
        return self.parenthesized() if self.at("(") else self.word_or_string("a value")
