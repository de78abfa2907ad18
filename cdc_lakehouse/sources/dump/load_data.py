r"""The LOAD DATA statement that mydumper writes for a file of delimited text, which gives the file's notation:

    LOAD DATA LOCAL INFILE 'd.t.00000.dat' REPLACE INTO TABLE `t` CHARACTER SET binary
    FIELDS TERMINATED BY '\t' ENCLOSED BY '' ESCAPED BY '\\' LINES STARTING BY '' TERMINATED BY '\n' IGNORE 1 LINES
    (`a`,@j,@b)SET `j`=CONVERT(@j USING UTF8MB4),`b`=UNHEX(@b);

NULL is `\N` in the file, without quotes (mydumper, src/mydumper/mydumper_write.c,
`initialize_load_data_statement_suffix`)."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.tokens import DEFAULT_MODE
from cdc_lakehouse.sources.dump.notation import BinaryNotation, TextNotation


def parse_load_data(statement: str) -> TextNotation:
    """Return the notation of the file that a statement loads. Statements before it, in special comments, are skipped.

    Raises `DdlSyntaxError` when there is no such statement, or one that cannot be parsed.
    """
    cursor = Cursor(statement, DEFAULT_MODE)
    while not cursor.at("LOAD", "DATA"):
        if cursor.at_end:
            raise cursor.expected("LOAD DATA")
        cursor.take()
    cursor.expect("LOAD", "DATA")
    cursor.accept("LOCAL")
    cursor.expect("INFILE")
    cursor.string("a file")
    cursor.accept_any(("REPLACE", "IGNORE"))
    cursor.expect("INTO", "TABLE")
    cursor.table_name()
    if cursor.accept_charset():
        cursor.charset_name()
    separator, quote, escape = _fields(cursor)
    terminator = _lines(cursor)
    header = cursor.accept("IGNORE")
    if header:
        if cursor.integer() != 1:
            raise cursor.expected("IGNORE 1 LINES")
        cursor.expect("LINES")
    columns = cursor.enclosed(lambda: _variable(cursor) if cursor.at("@") else cursor.column_name())
    encoded = _encoded(cursor)
    cursor.accept(";")
    if not cursor.at_end:
        raise cursor.expected("the end")
    return TextNotation(
        columns=columns,
        separator=separator.encode(),
        quote=quote.encode(),
        terminator=terminator.encode(),
        backslash_escapes=bool(escape),
        header=header,
        encoded=encoded,
    )


def _fields(cursor: Cursor) -> tuple[str, str, str]:
    """Read the separator, the quote and the escape character of values."""
    separator, quote, escape = "\t", "", "\\"  # MySQL's defaults for what a statement does not say.
    if cursor.accept("FIELDS") or cursor.accept("COLUMNS"):
        while True:
            if cursor.accept("TERMINATED", "BY"):
                separator = cursor.string()
            elif cursor.accept("ENCLOSED", "BY") or cursor.accept("OPTIONALLY", "ENCLOSED", "BY"):
                quote = cursor.string()
            elif cursor.accept("ESCAPED", "BY"):
                escape = cursor.string()
                if escape != "\\":
                    # Decoders support no other, and without one mydumper's text is ambiguous.
                    raise cursor.error(f"values are escaped by {escape!r}, which is not read")
            else:
                break
    return separator, quote, escape


def _lines(cursor: Cursor) -> str:
    terminator = "\n"
    if cursor.accept("LINES"):
        while True:
            if cursor.accept("STARTING", "BY"):
                if start := cursor.string():
                    raise cursor.error(f"lines start by {start!r}, which is not read")
            elif cursor.accept("TERMINATED", "BY"):
                terminator = cursor.string()
            else:
                break
    return terminator


def _encoded(cursor: Cursor) -> Mapping[str, BinaryNotation]:
    """Read the SET clauses: the functions by which variables become columns' values."""
    encoded: dict[str, BinaryNotation] = {}
    if not cursor.accept("SET"):
        return encoded
    while True:
        column = cursor.column_name()
        cursor.expect("=")
        function = cursor.expect_any(("CONVERT", "UNHEX", "FROM_BASE64"), "CONVERT, UNHEX or FROM_BASE64")
        cursor.expect("(")
        _variable(cursor)
        if function == "CONVERT":
            cursor.expect("USING")
            cursor.charset_name()
        else:
            encoded[column] = "hex" if function == "UNHEX" else "base64"
        cursor.expect(")")
        if not cursor.accept(","):
            return encoded


def _variable(cursor: Cursor) -> str:
    cursor.expect("@")
    return cursor.take().text
