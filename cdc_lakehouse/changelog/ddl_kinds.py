"""TiDB's DDL action types as TiCDC's schema files number them, by the kinds that the project names them with.

Numbers: TiDB's `model.ActionType`.
"""

from __future__ import annotations

from typing import Final

NOT_UNDERSTOOD: Final = -2
"""A statement of a known table that cannot be understood, or rows that contradict what is known: not TiDB's."""
OTHER: Final = -1
"""A statement that changes no table: not TiDB's."""
SEEN: Final = 0
"""Not a DDL: the columns of a table at a version, as after a restart."""
CREATE_DATABASE: Final = 1
DROP_DATABASE: Final = 2
CREATE_TABLE: Final = 3
DROP_TABLE: Final = 4
TRUNCATE_TABLE: Final = 11
RENAME_TABLE: Final = 14
DROP_PARTITION: Final = 20
CREATE_VIEW: Final = 21
TRUNCATE_PARTITION: Final = 23
DROP_VIEW: Final = 24
ADD_PRIMARY_KEY: Final = 32
DROP_PRIMARY_KEY: Final = 33
EXCHANGE_PARTITION: Final = 42
MULTI_SCHEMA_CHANGE: Final = 61

VIEWS: Final = frozenset({CREATE_VIEW, DROP_VIEW})

KINDS: Final = {
    NOT_UNDERSTOOD: "not_understood",
    OTHER: "other",
    SEEN: "seen",
    CREATE_DATABASE: "create_database",
    DROP_DATABASE: "drop_database",
    CREATE_TABLE: "create_table",
    DROP_TABLE: "drop_table",
    5: "add_column",
    6: "drop_column",
    7: "add_index",
    8: "drop_index",
    9: "foreign_key",
    10: "foreign_key",
    TRUNCATE_TABLE: "truncate_table",
    12: "modify_column",
    13: "auto_increment",
    RENAME_TABLE: "rename_table",
    15: "alter_default",
    16: "auto_increment",
    17: "comment",
    18: "rename_index",
    19: "add_partition",
    DROP_PARTITION: "drop_partition",
    CREATE_VIEW: "create_view",
    22: "charset",
    TRUNCATE_PARTITION: "truncate_partition",
    DROP_VIEW: "drop_view",
    25: "flashback_recover",
    26: "alter_database",
    ADD_PRIMARY_KEY: "add_primary_key",
    DROP_PRIMARY_KEY: "drop_primary_key",
    EXCHANGE_PARTITION: "exchange_partition",
    60: "create_table",
    MULTI_SCHEMA_CHANGE: "multi_schema_change",
    64: "reorganize_partition",
    71: "reorganize_partition",
    72: "reorganize_partition",
}


def kind_of(action: int) -> str:
    return KINDS.get(action, f"action_{action}")
