"""Detection of the time zone of TIMESTAMP text: the data does not give it, but most tables have a column that is set
when the row is written."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from cdc_lakehouse.changelog.positions import commit_time, is_commit_ts

_STEP: Final = datetime.timedelta(minutes=15)
"""Offsets from UTC are multiples of this."""
_SLACK: Final = datetime.timedelta(seconds=90)
"""The maximum time between the writing of a row and its commit."""
_LARGEST: Final = datetime.timedelta(hours=14)
_LEAST_VALUES: Final = 3
_LEAST_SHARE: Final = 0.8


def detect_offset(values: Iterable[bytes]) -> datetime.timedelta | None:
    """Return the offset from UTC with which most TIMESTAMP values equal the time of their commit; None where too few
    are near one. `values` are objects of TiCDC's Canal-JSON, with their commit-ts."""
    offsets = Counter(offset for value in values for offset in _offsets(value))
    if not offsets:
        return None
    offset, count = offsets.most_common(1)[0]
    return offset if count >= _LEAST_VALUES and count >= _LEAST_SHARE * offsets.total() else None


def _offsets(value: bytes) -> Iterator[datetime.timedelta]:
    try:
        message: Any = json.loads(value)
        commit_ts = message["_tidb"]["commitTs"]
        columns = [name for name, type in message["mysqlType"].items() if type.startswith("timestamp")]
        texts = [row[name] for row in message["data"] for name in columns if row.get(name)]
        if not isinstance(commit_ts, int) or not is_commit_ts(commit_ts):
            return
        times = [datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC) for text in texts]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    for time in times:
        difference = time - commit_time(commit_ts)
        offset = _STEP * round(difference / _STEP)
        if abs(offset) <= _LARGEST and abs(difference - offset) <= _SLACK:
            yield offset
