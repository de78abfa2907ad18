"""Tables that every tool has dumped, and what tests ask of a dump."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from cdc_lakehouse.config import InitialLoad, StorageConfig
from cdc_lakehouse.sources.dump.contents import Dump, DumpedTable
from cdc_lakehouse.sources.dump.directory import read_dump
from cdc_lakehouse.sources.dump.reading import open_pieces
from cdc_lakehouse.sources.object_store import LocalStore
from tests.kit.dumps import DumpTable

KINDS = DumpTable(
    "shop",
    "kinds",
    {
        "id": "bigint NOT NULL",
        "price": "decimal(10,2) DEFAULT '1.50'",
        "doubled": "decimal(11,2) GENERATED ALWAYS AS (`price` * 2) VIRTUAL",
        "note": "varchar(20) COMMENT 'a; b'",
        "raw": "varbinary(16)",
    },
    [
        (1, Decimal("2.50"), "plain", b"\x00\xff\\"),
        (2, None, "a,b\t'\"\\\r\n", None),
        (3, Decimal("-0.01"), "", b""),
        (4, Decimal(0), "\\N", b"\n"),
        (5, Decimal(7), "日本", b"\x80"),
    ],
    ",\n  PRIMARY KEY (`id`)\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='it''s'\n"
    "/*!50100 PARTITION BY HASH (id) PARTITIONS 4 */",
)
EMPTY = DumpTable("shop", "empty", {"a": "int"})
ODD = DumpTable("sh.op", "a.b/c%2E-Schema x*", {"a`b": "int"}, [(1,)])
TABLES = (KINDS, EMPTY, ODD)


def read(root: Path, tool: str, **options: Any) -> Dump:
    return read_dump(LocalStore(root), InitialLoad.model_validate({"type": tool, "uri": f"file://{root}", **options}))


def named(dump: Dump, table: DumpTable) -> DumpedTable:
    (found,) = [each for each in dump.tables if (each.name.database, each.name.table) == (table.database, table.name)]
    return found


def content(root: Path, table: DumpedTable) -> bytes:
    """Of all files of rows, in order."""
    storage = StorageConfig.nothing()
    return b"".join(
        piece
        for file in table.files
        for piece in open_pieces(f"file://{root}", storage, file.path, file.etag, file.compression)
    )


def paths(table: DumpedTable) -> list[str]:
    return [file.path for file in table.files]


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
