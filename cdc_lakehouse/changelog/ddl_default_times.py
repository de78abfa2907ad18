"""Dates and times as MySQL reads and prints them, for the defaults of columns of time.

MySQL reference manual, "Date and Time Literals"; strict mode without zeros in dates, as the server starts.
"""

from __future__ import annotations

import datetime
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from cdc_lakehouse.changelog.ddl.definitions import BytesLiteral, NumberLiteral, TextLiteral
from cdc_lakehouse.changelog.ddl_default_numbers import parsed, rounded
from cdc_lakehouse.changelog.mysql_types import ColumnType

_SEPARATOR: Final = r"[^0-9A-Za-z\s]+"
_DELIMITED: Final = re.compile(
    rf"\s*([0-9]{{1,4}}){_SEPARATOR}([0-9]{{1,2}}){_SEPARATOR}([0-9]{{1,2}})"
    rf"(?:(?:\s+|[Tt])([0-9]{{1,2}})(?:{_SEPARATOR}([0-9]{{1,2}})(?:{_SEPARATOR}?([0-9]{{1,2}})(?:\.([0-9]*))?)?)?)?\s*"
)
_DIGITS: Final = re.compile(r"\s*([0-9]+)(?:\.([0-9]*))?\s*")
_CLOCK: Final = re.compile(r"\s*(-)?(?:([0-9]{1,2})\s+)?([0-9]{1,3}):([0-9]{1,2})(?::([0-9]{1,2}))?(?:\.([0-9]*))?\s*")
_DATE: Final = re.compile(r"\s*(?:0000-00-00|[0-9]{1,4}-(?:0?[1-9]|1[0-2])-(?:0?[1-9]|[12][0-9]|3[01]))\s+")
_BARE_CLOCK: Final = re.compile(r"\s*(-)?([0-9]+)(?:\.([0-9]*))?\s*")
_MILLION: Final = 1_000_000
_MOST_SECONDS: Final = 838 * 3600 + 59 * 60 + 59
_FIRST: Final = datetime.datetime(1970, 1, 1, 0, 0, 1)  # noqa: DTZ001 - MySQL's TIMESTAMP in UTC, as text
_LAST: Final = datetime.datetime(2038, 1, 19, 3, 14, 7, 999999)  # noqa: DTZ001


def time_default(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    if isinstance(value, BytesLiteral):
        return None
    text = value.value if isinstance(value, TextLiteral) else value.text
    if isinstance(value, NumberLiteral) and parsed(text) is None:
        return None
    if kind.name == "time":
        return _time(text, isinstance(value, NumberLiteral), kind.fraction)
    moment = _moment_of_number(text) if isinstance(value, NumberLiteral) else _moment(text)
    if moment is None:
        return None
    fraction = 0 if kind.name == "date" else kind.fraction
    try:
        moment = _rounded(moment, fraction)
    except OverflowError:
        return None
    if kind.name == "date":
        return moment.date().isoformat()
    # A server reads it in the session's time zone, which the statement does not say: UTC here.
    if kind.name == "timestamp" and not _FIRST <= moment <= _LAST:
        return None
    return f"{moment:%H:%M:%S}".join((f"{moment.date().isoformat()} ", _fraction(moment.microsecond, fraction)))


def year_default(value: TextLiteral | NumberLiteral | BytesLiteral) -> str | None:
    match value:
        case BytesLiteral(content):
            number, text = int.from_bytes(content), None if content else ""
        case NumberLiteral(text):
            exact = parsed(text)
            number = None if exact is None or (exact < 0) else rounded(text)
            text = None
        case TextLiteral(text):
            number = rounded(text.strip())
    if number is None or text == "" or number < 0:
        return None
    if number == 0:
        # The number 0 is the year 0000, the text '0' is 2000.
        return "0000" if text is None or len(text.strip()) == 4 else "2000"
    if number < 100:
        number += 2000 if number < 70 else 1900
    return str(number) if 1901 <= number <= 2155 else None


def _moment_of_number(text: str) -> datetime.datetime | None:
    number = parsed(text)
    if number is None or number < 0 or "e" in text.lower():
        return None
    whole = int(number)
    if whole >= 10**14:
        return None
    fraction = number - whole
    if whole < 10**6 + 10**8:
        digits = f"{whole:06d}" if whole < 10**6 else f"{whole:08d}"
        if 10**6 <= whole < 10**7:
            return None
    else:
        digits = f"{whole:012d}" if whole < 10**12 else f"{whole:014d}"
    return _moment(f"{digits}{str(fraction)[1:] if fraction and len(digits) > 8 else ''}") if whole > 100 else None


def _moment(text: str) -> datetime.datetime | None:
    match = _DELIMITED.fullmatch(text)
    if match:
        year, fraction = match[1], match[7]
        parts = [year, *(match[place] or "0" for place in range(2, 7))]
    else:
        bare = _DIGITS.fullmatch(text)
        if bare is None:
            return None
        digits, fraction = bare[1], bare[2]
        # An even number of digits, with a year of two or, in 8 and 14 digits, of four.
        if len(digits) not in (6, 8, 12, 14) or (fraction and len(digits) < 12):
            return None
        wide = len(digits) in (8, 14)
        year, rest = (digits[:4], digits[4:]) if wide else (digits[:2], digits[2:])
        parts = [year, *(rest[place : place + 2] for place in range(0, len(rest), 2))]
        parts += ["0"] * (6 - len(parts))
    numbers = [int(part) for part in parts]
    if len(year) <= 2:
        numbers[0] += 2000 if numbers[0] < 70 else 1900
    try:
        moment = datetime.datetime(*numbers)  # noqa: DTZ001 # pyright: ignore[reportArgumentType]
    except ValueError:
        return None
    return _with_fraction(moment, fraction)


def _with_fraction(moment: datetime.datetime, fraction: str | None) -> datetime.datetime | None:
    try:
        return moment + datetime.timedelta(microseconds=_microseconds(fraction))
    except OverflowError:
        return None


def _microseconds(fraction: str | None) -> int:
    """Of the digits after the point, rounded."""
    return int((Decimal(f"0.{(fraction or '0')[:30]}") * _MILLION).to_integral_value(ROUND_HALF_UP))


def _rounded(moment: datetime.datetime, digits: int) -> datetime.datetime:
    step = 10 ** (6 - digits)
    kept = (moment.microsecond + step // 2) // step * step
    return moment.replace(microsecond=0) + datetime.timedelta(microseconds=kept)


def _fraction(microseconds: int, digits: int) -> str:
    return f".{microseconds:06d}"[: digits + 1] if digits else ""


def _time(text: str, is_number: bool, digits: int) -> str | None:
    if is_number and len(text.partition(".")[0]) > 10:
        moment = _moment(text)
        if moment is None:
            return None
        text = f"{moment:%H:%M:%S.%f}"
    elif is_number:
        number = parsed(text)
        if number is None or abs(number) >= 10**7:
            return None
        text = f"{number:f}"
    # Of a date with a time only the time is taken.
    text = _DATE.sub("", text)
    match = _CLOCK.fullmatch(text)
    if match:
        days, hours, minutes, seconds = (int(match[place] or 0) for place in range(2, 6))
        negative, fraction, hours = match[1], match[6], hours + 24 * days
    else:
        bare = _BARE_CLOCK.fullmatch(text)
        if bare is None or len(bare[2].lstrip("0")) > 7:
            return None
        whole = int(bare[2])
        negative, fraction = bare[1], bare[3]
        hours, minutes, seconds = whole // 10000, whole // 100 % 100, whole % 100
    if minutes > 59 or seconds > 59:
        return None
    total = (hours * 3600 + minutes * 60 + seconds) * _MILLION + _microseconds(fraction)
    return _clock(negative is not None, total, digits)


def _clock(negative: bool, microseconds: int, digits: int) -> str | None:
    step = 10 ** (6 - digits)
    kept = (microseconds + step // 2) // step * step
    if kept > _MOST_SECONDS * _MILLION:
        return None
    seconds, rest = divmod(kept, _MILLION)
    shown = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{_fraction(rest, digits)}"
    return f"-{shown}" if negative and kept else shown
