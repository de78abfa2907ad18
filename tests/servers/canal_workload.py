"""What happens in the databases of tests: `workload.txt` has a column of each type with values, and DDL among rows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.servers.canal_reader import Writer

_TYPES, _STEPS = (
    [line for line in block.splitlines() if not line.startswith("#")]
    for block in Path(__file__).with_name("workload.txt").read_text(encoding="utf-8").split("\n\n")
)
STEPS: Final = _STEPS
"""Canal asks the database for a table's columns when it first sees rows of it, so it must have seen a step before the
next one."""
_SPATIAL: Final = ("p", "ge")


def every_type(writer: Writer, *, spatial: bool = True) -> None:
    """In the table `types`, each value of each type, inserted, changed to, and deleted; among them NULL. Without
    `spatial` types for a TiDB, which has none."""
    columns = dict(line.partition(" = ")[::2] for line in _TYPES)
    columns = {c: values for c, values in columns.items() if spatial or c.split()[0] not in _SPATIAL}
    writer.run("SET SESSION sql_mode = ''", f"CREATE TABLE types ({', '.join(columns)})")
    values = {column.split()[0]: each.split(" | ") for column, each in columns.items() if each}
    for number in range(max(map(len, values.values()))):
        row = [each[number] if number < len(each) else "NULL" for each in values.values()]
        writer.run(f"INSERT INTO types ({', '.join(values)}) VALUES ({', '.join(row)})")
    writer.run("INSERT INTO types (id) VALUES (18446744073709551614)")
    for name, each in values.items():
        writer.run(f"UPDATE types SET {name} = {each[-1]} WHERE id = 2")
    writer.run("UPDATE types SET id = 1000 WHERE id = 3", "DELETE FROM types WHERE id = 4")
