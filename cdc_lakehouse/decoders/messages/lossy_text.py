"""Text that was damaged before it came here.

Canal reads columns as UTF-8 whatever their character set is: of latin1, gbk and others each byte that is not UTF-8
becomes U+FFFD, and no reader can get it back. Seen of Canal 1.1.7 with MySQL 5.7 and 8.0 and MariaDB 10.11, with
binlog_row_metadata=FULL too.
"""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.events import RowChange

_REPLACEMENT: Final = "\ufffd"


def is_damaged(text: str | None) -> bool:
    """The text holds U+FFFD. A text that was stored with that character looks the same, and is counted too."""
    return text is not None and _REPLACEMENT in text


def damaged_columns(change: RowChange) -> tuple[str, ...]:
    """Names of columns with damaged values, before or after the change, in the order in which they are first met."""
    found = (name for row in (change.after, change.before) for name, text in (row or {}).items() if is_damaged(text))
    return tuple(dict.fromkeys(found))
