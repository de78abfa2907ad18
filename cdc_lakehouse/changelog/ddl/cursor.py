"""A position in the tokens of a statement, and the basic tests and reads that the parsers share.

Nothing here, or in what is built on it, recurses for nested parentheses: their depth is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Final, TypeVar

from cdc_lakehouse.changelog.ddl.clauses import NoEffect, NoEffectKind, TableRef
from cdc_lakehouse.changelog.ddl.tokens import DdlSyntaxError, SqlMode, Token, name_value, string_value, tokenize

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

_MOST_WORDS: Final = 3

# Words that end a clause. Some clauses need no comma before them, and a word that begins one is never skipped.
_CLAUSE_ENDS: Final = frozenset({
    ",", ")", "ADD", "ALTER", "CHANGE", "CONVERT", "DROP", "MODIFY", "PARTITION", "REMOVE", "RENAME",
})  # fmt: skip


class Cursor:
    """Reads a statement's tokens from left to right; raises DdlSyntaxError for unexpected tokens.

    `accept` and `expect` take upper-case words and symbols; a quoted name is never a word.
    """

    def __init__(self, statement: str, mode: SqlMode) -> None:
        self._statement = statement
        self._mode = mode
        self._text, self._tokens = tokenize(statement, mode)
        self.position = 0
        self.clause_start = 0
        """The position of the first word of the clause that is being read."""

    @property
    def token(self) -> Token:
        return self._tokens[self.position]

    @property
    def next_token(self) -> Token:
        return self._tokens[min(self.position + 1, len(self._tokens) - 1)]

    @property
    def at_end(self) -> bool:
        return self.token.kind == "end"

    def error(self, reason: str) -> DdlSyntaxError:
        """Return an error at the cursor, for the caller to raise."""
        return DdlSyntaxError.at(reason, self._statement, self.token.start)

    def expected(self, what: str) -> DdlSyntaxError:
        """Return an error that says what was expected at the cursor, for the caller to raise."""
        found = "the end" if self.at_end else f"{self.token.text[:40]!r}"
        return self.error(f"expected {what}, found {found}")

    # --- Words and symbols ---

    def words(self, count: int) -> tuple[str, ...]:
        """Return the next `count` words (fewer at the end)."""
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

    def expect_any(self, words: Container[str], what: str) -> str:
        word = self.accept_any(words)
        if word is None:
            raise self.expected(what)
        return word

    def accept_longest(self, rows: Mapping[tuple[str, ...], _T]) -> _T | None:
        """Consume the longest key of `rows` that stands at the cursor and return its value; None where none does."""
        for count in range(_MOST_WORDS, 0, -1):
            words = self.words(count)
            if words in rows:
                self.position += count
                return rows[words]
        return None

    def take(self) -> Token:
        token = self.token
        if token.kind == "end":
            raise self.expected("more")
        self.position += 1
        return token

    # --- Names, strings, numbers ---

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
        return string_value(self.take(), self._mode)

    def integer(self, what: str = "a number") -> int:
        # The length is limited because Python refuses to read very long numbers; MySQL has none above 2**64.
        if self.token.kind != "number" or not self.token.text.isdigit() or len(self.token.text) > 20:
            raise self.expected(what)
        return int(self.take().text)

    def word_or_string(self, what: str) -> str:
        """Read an option's value: `utf8`, `'utf8'`, `` `utf8` ``, `8`, `4M`."""
        match self.token.kind:
            case "string":
                return string_value(self.take(), self._mode)
            case "word" | "name":
                return name_value(self.take())
            case "number":
                return self.take().text
            case "hex" | "bit" | "symbol" | "end":
                raise self.expected(what)

    # --- Lists and parentheses ---

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

    def tokens_from(self, start: int) -> list[Token]:
        return self._tokens[start : self.position]

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
        while not (self.at_end or self.at(";") or self.token.word in stops):
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

    def no_effect(self, table: TableRef | None, kind: NoEffectKind) -> NoEffect:
        """Return the clause that ends here as one that changes no row."""
        return NoEffect(table, kind, self.text_between(self.clause_start, self.position))

    # --- What many clauses share ---

    def accept_charset(self) -> bool:
        return self.accept("CHARACTER", "SET") or self.accept("CHAR", "SET") or self.accept("CHARSET")

    def charset_name(self) -> str | None:
        """Read the name of a character set or collation in lower case; None for DEFAULT."""
        self.accept("=")
        return None if self.accept("DEFAULT") else self.word_or_string("a character set").lower()

    def skip_value(self) -> str:
        """Skip an option's value, as in `ENGINE = InnoDB` or `UNION (a, b)`; return its text."""
        self.accept("=")
        return self.parenthesized() if self.at("(") else self.word_or_string("a value")

    def if_exists(self) -> bool:
        return self.accept("IF", "EXISTS")

    def if_not_exists(self) -> bool:
        return self.accept("IF", "NOT", "EXISTS")
