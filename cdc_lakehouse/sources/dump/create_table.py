"""The CREATE TABLE statement in a file of a dump, and the columns of the dump's rows.

Tools put other statements around it: `SET NAMES`, `SET TIME_ZONE`, in special comments. Backslashes in its strings are
escapes, as MySQL and TiDB print SHOW CREATE TABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl.tokens import DdlSyntaxError, Token, name_value, tokenize
from cdc_lakehouse.errors import DumpError
from cdc_lakehouse.sources.dump.reading import read_text
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject


class StatementError(DumpError):
    """A table's schema file does not give its columns. The other tables of the dump can be loaded."""


@dataclass(frozen=True, slots=True)
class CreateStatement:
    """The text of the statement, without a semicolon, and its parsed form."""

    text: str
    definition: ddl.CreateTable

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.definition.columns)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The names of the columns that rows have: tools do not dump generated ones."""
        return tuple(column.name for column in self.definition.columns if column.generated is None)


def read_create_table(store: ObjectStore, file: StoredObject) -> CreateStatement:
    """Read the CREATE TABLE statement of a file.

    Raises `StatementError` when it has none, has several, or has one that cannot be parsed, and as `read_text` does.
    """
    content = read_text(store, file)
    try:
        found = [text for text, words in _statements(content) if words in (["CREATE", "TABLE"], ["CREATE", "OR"])]
        if len(found) != 1:
            raise StatementError(f"the schema file has {len(found) or 'no'} CREATE TABLE statements", segment=file.path)
        (clause,) = parse(found[0])
    except DdlSyntaxError as error:
        raise StatementError(f"the statement of the schema file: {error.message}", segment=file.path) from None
    if not isinstance(clause, ddl.CreateTable):
        raise StatementError("the statement of the schema file lists no columns", segment=file.path)
    return CreateStatement(found[0], clause)


def read_database_name(store: ObjectStore, file: StoredObject) -> str:
    """Return the database that a file's CREATE DATABASE statement names. Raises `SourceError` when there is none that
    can be parsed, and as `read_text` does."""
    content = read_text(store, file)
    try:
        for text, words in _statements(content):
            if words in (["CREATE", "DATABASE"], ["CREATE", "SCHEMA"]):
                (clause,) = parse(text)
                if isinstance(clause, ddl.CreateDatabase):
                    return clause.name
    except DdlSyntaxError as error:
        raise DumpError(f"the statement of the schema file: {error.message}", segment=file.path) from None
    raise DumpError("the schema file has no CREATE DATABASE statement", segment=file.path)


def _statements(content: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each statement of a text, with its first two words in upper case. Raises `DdlSyntaxError`."""
    _, tokens = tokenize(content)
    statement: list[Token] = []
    for token in tokens:
        if token.kind != "end" and token.word != ";":
            statement.append(token)
        elif statement:
            # Up to the semicolon, because a special comment may close after the last token.
            text = content[statement[0].start : token.start].strip()
            yield text, [name_value(each).upper() for each in statement[:2] if each.kind == "word"]
            statement = []
