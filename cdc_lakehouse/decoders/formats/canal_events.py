"""The meaning of Canal's event types, in entries and in flat messages alike."""

from __future__ import annotations

from typing import Final, Literal

from cdc_lakehouse.changelog.events import MessageError

OPS: Final[dict[str, Literal["I", "U", "D"]]] = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}

DDL: Final = frozenset({"CREATE", "ALTER", "ERASE", "TRUNCATE", "RENAME", "CINDEX", "DINDEX"})

_SILENT: Final = frozenset({"QUERY", "GTID", "XACOMMIT", "MHEARTBEAT"})
"""Types that carry no change unless they are DDL. QUERY is then the statement that made the rows, which are sent too:
MariaDB's annotations, or MySQL with binlog_rows_query_log_events."""

_ROLLBACK: Final = "XAROLLBACK"


def op_of(kind: str) -> Literal["I", "U", "D"] | None:
    """Return the op of the rows of an event type that is no DDL; None for a type that carries no change.

    Raises `MessageError` for an unknown type, and for the rollback of an XA transaction: its rows are in the binlog
    from XA PREPARE on, and so came before.
    """
    if kind == _ROLLBACK:
        raise MessageError(
            "an XA transaction was rolled back after XA PREPARE: its rows have come before, as if it had been "
            "committed",
            advice="compare the tables that it changed with the source",
        )
    if kind not in OPS and kind not in _SILENT:
        known = ", ".join(sorted({*OPS, *DDL, *_SILENT, _ROLLBACK}))
        raise MessageError(f"a message of type {kind[:40]!r}", advice=f"types known here are {known}")
    return OPS.get(kind)


def column_name(text: str) -> str:
    """Return a column's own name. Canal takes names from SHOW CREATE TABLE and leaves a backquote doubled, as it is
    there."""
    return text.replace("``", "`")


def statement_instead_of_rows(kind: str) -> MessageError:
    """Return the error for a change without rows."""
    return MessageError(
        f"a change of type {kind} without rows",
        advice="the source must write its binlog with binlog_format=ROW; this change is in its binlog alone",
    )


def no_columns(kind: str) -> MessageError:
    """Return the error for a row without columns."""
    return MessageError(
        f"a change of type {kind} with a row that has no columns",
        advice="the source must write its binlog with binlog_row_image=FULL",
    )
