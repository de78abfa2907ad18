"""Defaults of columns: their text as a source prints it, and the values that they give to rows older than a column."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEMPORALS, TEXTS, CharsetError, ColumnType
from cdc_lakehouse.changelog.mysql_types import text as text_of_bytes
from cdc_lakehouse.changelog.schema import SourceColumn

UTC: Final = "+00:00"
"""The suffix of a timestamp default that is not in the time zone of a feed's rows."""

# The replacement for a byte that is not UTF-8 in TiDB or in Go.
_LOST: Final = "\ufffd"
_BITS: Final = re.compile(r"b'([01]+)'", re.IGNORECASE)
_EMPTY_JSON: Final = {"json_object()": "{}", "json_array()": "[]"}
"""MySQL allows expressions alone as defaults of JSON; these are its usual ones."""
_FUNCTIONS: Final = ("current_timestamp", "now", "localtime", "localtimestamp", "current_date", "curdate")


def of_schema_file(column: SourceColumn) -> SourceColumn:
    """Return a column of a schema file, with its default as information_schema prints it. TiDB writes the bytes of a
    BIT there, as far as they are UTF-8, and a timestamp in UTC, which gets the suffix `UTC` here."""
    text, kind = column.default, column.type
    if text is not None and kind.name == "bit" and _LOST not in text:
        return replace(column, default=_bytes_text(text.encode(), None, kind))
    if text is not None and kind.name == "timestamp" and text[:1].isdigit() and not text.startswith("0000-00-00"):
        return replace(column, default=text + UTC)
    return column


def initial_default(column: SourceColumn, definition: ddl.ColumnDefinition | None) -> tuple[str | None, str | None]:
    """Return the default that an added column gives to older rows, and the reason where it cannot be known.

    The text is that of a row value, with an ENUM's or SET's labels instead of its number, one character for each byte
    of a binary value, and the suffix `UTC` on a timestamp that is not in the time zone of row values. The statement's
    own literal takes precedence over the source's text of it, in which TiDB spoils bytes that are not UTF-8.
    """
    if definition is not None and definition.virtual:
        return None, None
    kind, default = column.type, None if definition is None else definition.default
    literal = None if definition is None else _literal(definition)
    text, unknown = literal, None
    if text is None:
        text = _of_bits(column.default) if kind.name == "bit" else None
        text = text or column.default
        text = text_of_bytes(text.encode(), "binary") if text is not None and kind.name in BLOBS else text
    is_function = kind.name in TEMPORALS and (text or "").lower().startswith(_FUNCTIONS)
    if text is None and isinstance(default, ddl.Expression):
        unknown = default.text
    elif text is None and column.nullable:
        return None, None
    elif literal is None and kind.name in BLOBS | {"bit"} and _LOST in (column.default or ""):
        unknown = "of bytes that are not UTF-8"
    elif text is not None and (is_function or (isinstance(default, ddl.Expression) and default.text == text)):
        unknown = text
    if unknown is not None:
        reason = f"older rows have the default {unknown} in column {column.name}, whose value is not in the log"
        return None, reason
    if text is None:
        return _implicit(kind), None
    # TiDB keeps literals as written: `1.5` of a DECIMAL(65,30), a year 99. Rows have them in the form of the type.
    if kind.name == "binary":
        text = text.ljust(kind.length or 1, "\x00")
    elif kind.name != "bit":
        text = _literal_text(text, kind, quoted=True)
    return text, None


def _literal(definition: ddl.ColumnDefinition) -> str | None:
    """Return the value of the statement's own literal; None where the source prints it in the form of the column's
    type. For a text column it prints the characters, whatever the character set of the bytes."""
    name = definition.type.name
    match definition.default:
        case value if name == "bit":
            return _of_bits(default_text(value, definition.type))
        case ddl.BytesLiteral(value) if name in INTEGERS:
            return str(int.from_bytes(value))
        case ddl.BytesLiteral(value) if name in BLOBS:
            return text_of_bytes(value, "binary")
        case ddl.TextLiteral(value) if name in BLOBS:
            return text_of_bytes(value.encode(), "binary")
        case ddl.Expression(text) if name == "json":
            return _EMPTY_JSON.get(text.lower().replace(" ", ""))
        case _:
            return None


def _of_bits(text: str | None) -> str | None:
    bits = _BITS.fullmatch(text or "")
    return str(int(bits[1], 2)) if bits else None


def _implicit(column: ColumnType) -> str | None:
    """Return the "implicit default" of a NOT NULL column without DEFAULT (MySQL, "Data Type Default Values")."""
    name, fraction = column.name, f".{'0' * column.fraction}" if column.fraction else ""
    others = {  # All of them are computed: the length of a LONGTEXT is 4 GiB.
        "date": "0000-00-00", "time": f"00:00:00{fraction}", "decimal": f"0{fraction}", "json": "null", "vector": None,
        **dict.fromkeys(("datetime", "timestamp"), f"0000-00-00 00:00:00{fraction}"),
        "enum": next(iter(column.elements), None), "binary": "\x00" * ((column.length or 1) if name == "binary" else 0),
    }  # fmt: skip
    return others.get(name, "" if name in TEXTS | BLOBS | {"set"} else "0")


# --- A literal as the source prints it ---

_NOW: Final = re.compile(r"(?:current_timestamp|now|localtimestamp|localtime)\s*(?:\(\s*([0-9]*)\s*\))?", re.IGNORECASE)
_EXACT: Final = Context(prec=400, Emax=400_000, Emin=-400_000)
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_EXPONENT: Final = re.compile(r"e\+?(-?)0*")
_SEPARATOR: Final = r"[^0-9A-Za-z\s]+"
_MOMENT: Final = re.compile(
    rf"\s*([0-9]{{1,4}}){_SEPARATOR}([0-9]{{1,2}}){_SEPARATOR}([0-9]{{1,2}})"
    rf"(?:(?:\s+|[Tt])([0-9]{{1,2}})(?:{_SEPARATOR}([0-9]{{1,2}})(?:{_SEPARATOR}?([0-9]{{1,2}})(?:\.([0-9]*))?)?)?)?\s*"
)
_MOMENT_IN_DIGITS: Final = re.compile(
    r"\s*([0-9]{2}|[0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]*))?)?\s*"
)
_CLOCK: Final = re.compile(
    r"(?:.*[0-9]-[0-9]+\s+)?\s*(-)?(?:([0-9]{1,2})\s+)?([0-9]{1,3}):([0-9]{1,2})(?::([0-9]{1,2}))?(?:\.([0-9]*))?\s*"
)
_CLOCK_IN_DIGITS: Final = re.compile(r"\s*(-)?()([0-9]*?)([0-9]{0,2}?)([0-9]{1,2})(?:\.([0-9]*))?\s*")
_HOUR_DIGITS: Final = 3
_MILLION: Final = 1_000_000
_MOST_PLACES: Final = 15


def default_text(value: ddl.Value | None, kind: ColumnType) -> str | None:
    """Return a column's default as information_schema.columns.column_default prints it, or an equivalent text; None for
    no default, and for NULL.

    The server converts the literal to the column's type and prints the result: `1.5` in an INT is `2`. Nothing is
    refused: a literal that is not understood here is printed as it is written.
    """
    match value:
        case None | ddl.NullLiteral():
            return None
        case ddl.Expression(text):
            now = _NOW.fullmatch(text.strip())
            return text if now is None else "CURRENT_TIMESTAMP" + f"({now[1]})" * (int(now[1] or 0) > 0)
        case ddl.BytesLiteral(content):
            return _bytes_text(content, value.charset, kind)
        case ddl.TextLiteral(text):
            return _literal_text(text, kind, quoted=True)
        case ddl.NumberLiteral(text):
            return _literal_text(text, kind, quoted=False)


def _bytes_text(content: bytes, charset: str | None, kind: ColumnType) -> str:
    if kind.name in INTEGERS or kind.name in ("decimal", "float", "double", "year"):
        return _literal_text(str(int.from_bytes(content)), kind, quoted=False)
    if kind.name == "bit":
        return f"b'{int.from_bytes(content):b}'"
    if kind.name in BLOBS:
        return f"0x{content.hex().upper()}"
    try:
        text = text_of_bytes(content, charset or kind.charset or "utf8mb4")
    except CharsetError:
        text = text_of_bytes(content, "binary")
    return _literal_text(text, kind, quoted=True)


def _literal_text(text: str, kind: ColumnType, *, quoted: bool) -> str:
    match kind.name:
        case "decimal" | "float" | "double":
            number = None if kind.scale is None and kind.name != "decimal" else _number(text.strip())
            return text.strip() if number is None else f"{_rounded(number, kind.fraction):.{kind.fraction}f}"
        case "year":
            year = _whole(text.strip())
            if year is None or year >= 100:
                return text.strip()
            if year == 0:
                # The number 0 is the year 0000, and the text '0' is 2000.
                return "2000" if quoted and len(text.strip()) < 4 else "0000"
            return str(year + (2000 if year < 70 else 1900))
        case "bit":
            whole = int.from_bytes(text.encode()) if quoted else _whole(text)
            return text if whole is None else f"b'{whole % (1 << 64):b}'"
        case "enum" | "set":
            return _labels_text(text, kind, quoted=quoted)
        case "char" | "varchar":
            shown = text if quoted else _plain_number(text, kind.length)
            # A CHAR has no spaces at its end; a VARCHAR loses those that exceed its length.
            kept = 0 if kind.name == "char" else kind.length or len(shown)
            return shown[:kept] + shown[kept:].rstrip(" ") if len(shown) > kept else shown
        case name if name in INTEGERS:
            whole = _whole(text.strip())
            return text if whole is None else str(whole)
        case name if name in TEMPORALS:
            return _time_text(text, kind, quoted=quoted) or text
        case _:
            return text if quoted else _plain_number(text, kind.length)


def _number(text: str) -> Decimal | None:
    return _EXACT.create_decimal(text) if _NUMBER.fullmatch(text) and len(text) < _EXACT.prec else None


def _rounded(number: Decimal, scale: int) -> Decimal:
    try:
        return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return number


def _whole(text: str) -> int | None:
    """Return the nearest whole number: halves go away from zero or, for a number with an exponent, to the even one."""
    number = _number(text)
    if number is None or number.adjusted() > _EXACT.prec:
        return None
    return int(number.to_integral_value(ROUND_HALF_EVEN if "e" in text.lower() else ROUND_HALF_UP))


def _plain_number(text: str, width: int | None = None) -> str:
    """Return a number as a text column of `width` characters holds it: without leading zeros, and without an exponent
    where it has up to 15 digits and fits."""
    number = _number(text)
    if number is None:
        return text
    number = number or abs(number)  # There is no negative zero.
    if "e" not in text.lower():
        return f"{number:f}"
    shown = f"{number.normalize(_EXACT):f}"
    if abs(number.adjusted()) < _MOST_PLACES and (width is None or len(shown) <= width):
        return shown
    return _EXPONENT.sub(r"e\1", f"{float(number):.15g}")


def _labels_text(text: str, kind: ColumnType, *, quoted: bool) -> str:
    labels = {label.casefold(): label for label in reversed(kind.elements)}
    exact = {label: label for label in kind.elements}
    if not quoted and text.isdigit():
        number = int(text)
        if kind.name == "set":
            return ",".join(label for place, label in enumerate(kind.elements) if number >> place & 1)
        return kind.elements[number - 1] if 1 <= number <= len(kind.elements) else text
    wanted = [text] if kind.name == "enum" else text.split(",")
    found = [exact.get(each.rstrip(" ")) or labels.get(each.rstrip(" ").casefold(), each) for each in wanted]
    if kind.name == "enum" or not set(found) <= set(kind.elements):
        return ",".join(found)
    return ",".join(sorted(set(found), key=kind.elements.index))


def _time_text(text: str, kind: ColumnType, *, quoted: bool) -> str | None:
    """Return a date or time with all digits of its type; None where the text is neither (MySQL, "Date and Time
    Literals")."""
    text = text if quoted else _plain_number(text)
    if kind.name == "time":
        whole, point, fraction = text.partition(".")
        # A number that is a date and a time gives its time.
        is_moment = not quoted and len(whole) in (12, 14)
        return _clock_text(whole[-6:] + point + fraction if is_moment else text, kind.fraction)
    if not quoted:
        whole, point, fraction = text.partition(".")
        width = next((width for width in (6, 8, 12, 14) if len(whole) <= width), len(whole))
        text = whole.rjust(width, "0") + point + fraction
    match = _MOMENT.fullmatch(text) or _MOMENT_IN_DIGITS.fullmatch(text)
    if match is None:
        return None
    year, *numbers = (int(match[place] or 0) for place in range(1, 7))
    if len(match[1]) <= 2 and (year, *numbers[:2]) != (0, 0, 0):
        year += 2000 if year < 70 else 1900
    digits = 0 if kind.name == "date" else kind.fraction
    try:
        moment = datetime.datetime(year, *numbers)  # noqa: DTZ001 # pyright: ignore[reportArgumentType]
        moment += datetime.timedelta(microseconds=_microseconds(match[7], digits))
    except (ValueError, OverflowError):
        # A zero date, which sql_mode may allow.
        shown = f"{year:04d}-{numbers[0]:02d}-{numbers[1]:02d} {':'.join(f'{each:02d}' for each in numbers[2:])}"
        fraction = f".{(match[7] or '')[:digits].ljust(digits, '0')}" if digits else ""
        return shown[:10] if kind.name == "date" else shown + fraction
    shown = moment.isoformat(sep=" ", timespec="microseconds")
    return shown[:10] if kind.name == "date" else shown[: 20 + digits].removesuffix(".")


def _clock_text(text: str, digits: int) -> str | None:
    match = _CLOCK.fullmatch(text) or _CLOCK_IN_DIGITS.fullmatch(text)
    if match is None or len(match[3]) > _HOUR_DIGITS:
        return None
    days, hours, minutes, seconds = (int(match[place] or 0) for place in range(2, 6))
    total = ((days * 24 + hours) * 3600 + minutes * 60 + seconds) * _MILLION + _microseconds(match[6], digits)
    whole, rest = divmod(total, _MILLION)
    fraction = f".{rest:06d}"[: digits + 1] if digits else ""
    shown = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{fraction}"
    return f"-{shown}" if match[1] and total else shown


def _microseconds(fraction: str | None, digits: int) -> int:
    """Return the microseconds of the digits after the point, rounded to the number of digits of the type."""
    return int(_rounded(Decimal(f"0.{(fraction or '0')[:30]}"), digits) * _MILLION)
