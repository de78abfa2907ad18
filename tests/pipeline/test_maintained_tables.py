"""What maintenance says of tables at which something fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.operate.maintenance import Actions, Maintenance
from tests.kit.lakes import TestLake
from tests.lake import CREATE, NOON, change, make_current_table


class Failing(Maintenance):
    """The step that follows the first one fails."""

    def _compacted(self, target: Any) -> Iterator[Actions]:
        yield Actions(compacted_files=2)
        raise ValueError("no orphans can be listed")


def test_what_was_done_before_a_step_failed_is_said_and_the_other_tables_are_looked_at(lake: TestLake) -> None:
    history = SchemaHistory(lake.lake, lake.name)
    history.record([change(10 + number, table, CREATE) for number, table in enumerate("ab")], NOON)
    tables = CurrentTables(lake.lake, lake.feed)
    made = {
        life.last.name: make_current_table(lake, life, tables.identifier(life.last.name))
        for life in history.history.incarnations().values()
    }
    Path(made[TableName("d", "a")].metadata_location.removeprefix("file://")).unlink()
    maintenance = Failing(lake.feed, Lake(lake.config.lake), lake.session)
    first, second = (each.actions for each in maintenance.compact().tables)
    assert first.compacted_files == 0 and "cannot be read" in str(first.deferred)
    assert second == Actions(compacted_files=2, deferred="ValueError no orphans can be listed")
