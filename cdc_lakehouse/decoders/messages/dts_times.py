"""Dates and times of DTS Avro records as MySQL prints them.

A DateTime has seven parts, each present or null: a DATE only the first three, a TIME only the last four, a YEAR only
the first. The part `millis` holds microseconds. All parts of a negative TIME are negative. The number of fractional
digits of a column is unknown: six are printed, or none where they are zero.

Source of the facts: the conversion of its own records by the service's SDK (dts-new-subscribe-sdk 1.4.0, 2.0.0)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Final

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.messages.format import shown

ZERO: Final = "0000-00-00 00:00:00"

_DATE: Final = ("year", "month", "day")
_TIME: Final = ("hour", "minute", "second")
_MOST: Final = {"year": 9999, "month": 12, "day": 31, "hour": 23, "minute": 59, "second": 59, "millis": 999_999}
_MOST_HOURS: Final = 838
"""The maximum hours of a TIME, which is a duration."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_OFFSET: Final = re.compile(r"(?:GMT|UTC)?([+-])(0?[0-9]|1[0-4]):?([0-5][0-9])")

Parts = Mapping[str, int | None]


def date_time(parts: Parts) -> str:
    """Return a DATE, DATETIME, TIME or YEAR, by which parts are present. Raises MessageError for parts that form none
    of these."""
    there = {name for name in (*_DATE, *_TIME, "millis") if parts[name] is not None}
    if there == {"year"}:
        return f"{_part(parts, 'year'):04d}"
    if there == set(_DATE):
        return _date(parts)
    if there - {"millis"} == {*_DATE, *_TIME}:
        return f"{_date(parts)} {_time(parts)}"
    if there - {"millis"} == set(_TIME):
        return _duration(parts)
    raise MessageError(f"the parts {', '.join(sorted(there)) or 'none'} make no date or time of MySQL")


def timestamp(seconds: int, micros: int) -> str:
    """Return a moment in UTC, with its offset: `2024-11-21 02:40:00.123456+00:00`. `seconds` counts from 1970.

    Raises MessageError for a moment outside the years 1 to 9999.
    """
    if not 0 <= micros <= _MOST["millis"]:
        raise MessageError("the microseconds of a timestamp are not between 0 and 999999")
    try:
        moment = _EPOCH + datetime.timedelta(seconds=seconds, microseconds=micros)
    except OverflowError as error:
        raise MessageError("a timestamp is outside the years 1 to 9999") from error
    return _utc(moment)


def zoned(parts: Parts, zone: str) -> str:
    """Return a date and time in a time zone, as a moment in UTC like that of `timestamp`.

    Raises MessageError for a time zone that is no offset: the offset of a name may depend on a rule that has changed
    since.
    """
    text = date_time(parts)
    offset = _offset(zone)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if len(text) < len(ZERO):
            raise MessageError("a date and time with a zone lacks its date or its time")
        return _utc((moment - offset).replace(tzinfo=datetime.UTC))
    except (ValueError, OverflowError) as error:
        raise MessageError("a date and time with a zone is no moment of the years 1 to 9999") from error


def _utc(moment: datetime.datetime) -> str:
    return moment.isoformat(" ")


def _offset(zone: str) -> datetime.timedelta:
    if zone in ("UTC", "GMT", "Z"):
        return datetime.timedelta()
    found = _OFFSET.fullmatch(zone)
    if found is None:
        raise MessageError(f"the zone {shown(zone)} is no offset such as +08:00")
    sign, hours, minutes = found.groups()
    size = datetime.timedelta(hours=int(hours), minutes=int(minutes))
    return -size if sign == "-" else size


def _date(parts: Parts) -> str:
    return f"{_part(parts, 'year'):04d}-{_part(parts, 'month'):02d}-{_part(parts, 'day'):02d}"


def _time(parts: Parts) -> str:
    clock = f"{_part(parts, 'hour'):02d}:{_part(parts, 'minute'):02d}:{_part(parts, 'second'):02d}"
    return clock + _fraction(_part(parts, "millis"))


def _duration(parts: Parts) -> str:
    values = {name: parts[name] or 0 for name in (*_TIME, "millis")}
    if min(values.values()) < 0 < max(values.values()):
        raise MessageError("of a time some parts are negative and some are not")
    sign = "-" if min(values.values()) < 0 else ""
    size = {name: abs(value) for name, value in values.items()}
    if size["hour"] > _MOST_HOURS:
        raise MessageError(f"a time has more than {_MOST_HOURS} hours")
    minute, second, micros = (_part(size, name) for name in ("minute", "second", "millis"))
    return f"{sign}{size['hour']:02d}:{minute:02d}:{second:02d}{_fraction(micros)}"


def _fraction(micros: int) -> str:
    return f".{micros:06d}" if micros else ""


def _part(parts: Parts, name: str) -> int:
    value = parts[name] or 0
    if not 0 <= value <= _MOST[name]:
        raise MessageError(f"the {name} of a date or time is not between 0 and {_MOST[name]}")
    return value
