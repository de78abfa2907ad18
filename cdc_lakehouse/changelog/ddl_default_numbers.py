"""Numbers as MySQL stores and prints them, for the defaults of columns of numbers."""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final, assert_never

from cdc_lakehouse.changelog.ddl.definitions import BytesLiteral, NumberLiteral, TextLiteral
from cdc_lakehouse.changelog.mysql_types import INTEGERS, ColumnType

_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_SPACES: Final = " \t\n\v\f\r"
_EXACT: Final = Context(prec=400, Emax=400_000, Emin=-400_000)
_FLOAT_DIGITS: Final = 6
_DOUBLE_DIGITS: Final = 17
# From this many digits before the point on (or zeros after it), MySQL prints an exponent.
_MOST_DIGITS: Final = 15


def parsed(text: str) -> Decimal | None:
    """A number's value; None for what is none, or too long to be one in practice."""
    if not _NUMBER.fullmatch(text) or len(text) > 400:
        return None
    return _EXACT.create_decimal(text)


def integral(text: str) -> int | None:
    number = parsed(text)
    return int(number) if number is not None and number == number.to_integral_value() else None


def rounded(text: str) -> int | None:
    """The nearest whole number: halves away from zero, or, of a number with an exponent, to the even one."""
    number = parsed(text)
    if number is None or number.adjusted() > 100:
        return None
    return int(number.to_integral_value(ROUND_HALF_EVEN if "e" in text.lower() else ROUND_HALF_UP))


def number_default(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    match value:
        case BytesLiteral(content):
            text = str(int.from_bytes(content)) if content else ""
        case NumberLiteral(text):
            pass
        case TextLiteral(text):
            # Spaces before a number are skipped, and those after it, though not by FLOAT and DOUBLE.
            text = text.lstrip(_SPACES) if kind.name in ("float", "double") else text.strip(_SPACES)
        case _:
            assert_never(value)
    number = parsed(text)
    if number is None:
        return None
    if kind.name in INTEGERS:
        return _integer(text, number, kind)
    return _decimal(number, kind) if kind.name == "decimal" else _real(number, "e" in text.lower(), kind)


def _integer(text: str, number: Decimal, kind: ColumnType) -> str | None:
    whole = rounded(text)
    exact = "e" not in text.lower()
    if whole is None or (kind.unsigned and exact and number < 0):
        return None
    bits = _BITS[kind.name]
    low, high = (0, (1 << bits) - 1) if kind.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= whole <= high:
        return None
    return str(whole).zfill(kind.length or 0) if kind.zerofill else str(whole)


def _decimal(number: Decimal, kind: ColumnType) -> str | None:
    if kind.unsigned and number < 0:
        return None
    try:
        fixed = number.quantize(Decimal(1).scaleb(-kind.fraction), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return None
    if abs(fixed) >= _EXACT.scaleb(Decimal(1), kind.precision - kind.fraction):
        return None
    text = f"{abs(fixed):.{kind.fraction}f}"
    if kind.precision == kind.fraction and kind.zerofill:
        text = text.removeprefix("0")
    if kind.zerofill:
        text = text.zfill(kind.precision + (kind.fraction > 0))
    return f"-{text}" if fixed < 0 else text


def _real(number: Decimal, exponential: bool, kind: ColumnType) -> str | None:
    real = float(number) if number or exponential else 0.0
    if kind.name == "float":
        single = _single(real)
        if single is None:
            return None
        real = single
    if math.isinf(real) or (kind.unsigned and number < 0):
        return None
    if kind.scale is None:
        text = double_text(real, digits=_FLOAT_DIGITS if kind.name == "float" else _DOUBLE_DIGITS)
        return text.zfill(12 if kind.name == "float" else 22) if text and kind.zerofill else text
    fixed = float(number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_EVEN, _EXACT))
    if abs(fixed) >= 10.0 ** ((kind.length or 0) - kind.scale):
        return None
    shown = _single(fixed) if kind.name == "float" else fixed
    text = f"{0.0 if not fixed else shown:.{kind.scale}f}"
    return text.zfill(kind.length or 0) if kind.zerofill else text


def _single(real: float) -> float | None:
    """The nearest number of FLOAT; None where it is out of range."""
    try:
        return struct.unpack("<f", struct.pack("<f", real))[0]
    except OverflowError:
        return None


def double_text(real: float, *, digits: int = _DOUBLE_DIGITS, width: int = 64) -> str | None:
    """A number with the fewest digits that tell it, at most `digits`, as MySQL's my_gcvt prints it.

    With an exponent where the plain form is too long for `width` or has more than 15 digits of place.
    """
    if math.isinf(real):
        return None
    sign = "-" if math.copysign(1.0, real) < 0 else ""
    mantissa, point = _shortest(abs(real), digits)
    length = len(mantissa)
    if point <= 0:
        plain = f"0.{'0' * -point}{mantissa}"
    elif point < length:
        plain = f"{mantissa[:point]}.{mantissa[point:]}"
    else:
        plain = mantissa + "0" * (point - length)
    fits = len(sign + plain) <= width
    if fits and point >= 1 - _MOST_DIGITS and (point <= _MOST_DIGITS or length > point):
        return sign + plain
    exponent = f"e{point - 1}"
    room = width - len(sign) - len(exponent)
    if length + 1 > room and length > 1:
        if room < 3:
            return None
        mantissa, point = _shortest(abs(real), room - 1)
        exponent = f"e{point - 1}"
    return sign + mantissa[0] + (f".{mantissa[1:]}" if len(mantissa) > 1 else "") + exponent


def _shortest(real: float, digits: int) -> tuple[str, int]:
    """The significant digits, without zeros at the end, and where the point is among them."""
    if not real:
        return "0", 1
    text = repr(real) if digits >= _DOUBLE_DIGITS else f"{real:.{digits - 1}e}"
    if digits < _DOUBLE_DIGITS and len(Decimal(repr(real)).as_tuple().digits) <= digits:
        text = repr(real)
    _, all_digits, exponent = Decimal(text).as_tuple()
    mantissa = "".join(map(str, all_digits))
    assert isinstance(exponent, int)
    point = len(mantissa) + exponent
    return mantissa.rstrip("0") or "0", point
