"""What Canal's event types say, in entries and in flat messages alike."""

from __future__ import annotations

from typing import Final, Literal

from cdc_lakehouse.changelog.events import MessageError

OPS: Final[dict[str, Literal["I", "U", "D"]]] = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}

DDL: Final = frozenset({"CREATE", "ALTER", "ERASE", "TRUNCATE", "RENAME", "CINDEX", "DINDEX"})

SILENT: Final = frozenset({"QUERY", "GTID", "XACOMMIT", "MHEARTBEAT"})
"""Those that carry no change when they are no DDL. QUERY is then the statement that made the rows, which come too:
MariaDB's annotations, or MySQL with binlog_rows_query_log_events."""


def column_name(text: str) -> str:
    """Canal takes names from SHOW CREATE TABLE and leaves a backquote in them doubled, as it stands there."""
    return text.replace("``", "`")


def statement_instead_of_rows(kind: str) -> MessageError:
    return MessageError(
        f"a change of type {kind} without rows",
        advice="the source must write its binlog with binlog_format=ROW; this change is in its binlog alone",
    )


def no_columns(kind: str) -> MessageError:
    return MessageError(
        f"a change of type {kind} with a row that has no columns",
        advice="the source must write its binlog with binlog_row_image=FULL",
    )


def rolled_back_later() -> MessageError:
    """The rows of an XA transaction are in the binlog from XA PREPARE on, and so have come before."""
    return MessageError(
        "an XA transaction was rolled back after XA PREPARE: its rows have come before, as if it had been committed",
        advice="compare the tables that it changed with the source",
    )


def unknown_type(kind: object) -> MessageError:
    known = ", ".join(sorted({*OPS, *DDL, *SILENT, "XAROLLBACK"}))
    return MessageError(f"a message of type {str(kind)[:40]!r}", advice=f"types known here are {known}")
