"""The kinds of DDL, by statements' clauses and by TiDB's action types, as TiCDC's schema files number them.

Numbers: TiDB's `model.ActionType`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import Clause

NOT_UNDERSTOOD: Final = "not_understood"
"""The kind of a statement on a known table that cannot be parsed, and of rows that contradict the known columns."""
OTHER: Final = "other"
"""The kind of a statement that changes no table."""
LOAD: Final = "load"
"""The kind of a loaded dump, which is no DDL: its rows are all that the table held at that time."""
SEEN: Final = 0
"""No DDL: the columns of a table at a version, as after a restart."""
CREATE_DATABASE: Final = 1
DROP_DATABASE: Final = 2
CREATE_TABLE: Final = 3
DROP_TABLE: Final = 4
TRUNCATE_TABLE: Final = 11
RENAME_TABLE: Final = 14
KINDS: Final = {
    SEEN: "seen", CREATE_DATABASE: "create_database", DROP_DATABASE: "drop_database", CREATE_TABLE: "create_table",
    DROP_TABLE: "drop_table", 5: "add_column", 6: "drop_column", 7: "add_index", 8: "drop_index", 9: "foreign_key",
    10: "foreign_key", TRUNCATE_TABLE: "truncate_table", 12: "modify_column", 13: "auto_increment",
    RENAME_TABLE: "rename_table", 15: "alter_default", 16: "auto_increment", 17: "comment", 18: "rename_index",
    19: "add_partition", 20: "drop_partition", 21: "create_view", 22: "charset", 23: "truncate_partition",
    24: "drop_view", 25: "flashback_recover", 26: "alter_database", 32: "add_primary_key", 33: "drop_primary_key",
    42: "exchange_partition", 60: "create_table", 61: "multi_schema_change", 62: "flashback", 63: "recover_database",
    64: "reorganize_partition", 71: "reorganize_partition", 72: "reorganize_partition",
}  # fmt: skip
# Kinds of clauses for which TiDB has no separate number.
_SAME: Final = {
    "change_column": "modify_column", "rename_column": "modify_column",
    "create_table_like": "create_table", "create_table_as_select": "create_table",
}  # fmt: skip


def kind_of(action: int) -> str:
    """Return the kind for TiDB's number."""
    return KINDS.get(action, f"action_{action}")


def kind_of_statement(clauses: Sequence[Clause]) -> str:
    """Return the kind of a statement: that of its clauses where they agree, else "multi_schema_change"."""
    kinds = {_SAME.get(clause.kind, clause.kind) for clause in clauses}
    return kinds.pop() if len(kinds) == 1 else "multi_schema_change"
