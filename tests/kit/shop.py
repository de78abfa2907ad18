"""The sample shop's own rows, as a reader of the lake should see them."""

import base64
from pathlib import Path
from typing import Any

from cdc_lakehouse.changelog.mysql_types import ColumnType, type_text
from cdc_lakehouse.sample.shop import _STATE, Shop, state_path
from tests.kit.lakes import TestLake


def shop_of(sink: Path) -> Shop:
    """The shop as it was when the last batch was complete."""
    return _STATE.validate_json(state_path(sink).read_bytes())


def check_shop(lake: TestLake, only: str = "") -> None:
    """The lake has all tables of the shop whose sink it reads, or only one, with their rows."""
    shop, expected = shop_of(lake.sink), dict[tuple[str, str], dict[str, Any]]()
    for name, table in shop.definitions.items():
        # JSON is compared as text, to the letter.
        types = ["longtext" if each.type.name == "json" else type_text(each.type) for each in table.columns]
        columns = [{"name": each.name, "type": kind} for each, kind in zip(table.columns, types, strict=True)]
        cells = [[_cell(row[c.name], c.type) for c in table.columns] for row in shop.content[name].values()]
        expected["shop", name] = {"columns": columns, "rows": cells}
    lake.check(expected, except_for={name for name in expected if only not in ("", name[1])})


def _cell(text: str | None, kind: ColumnType) -> Any:
    """In the notation of `expected.json`."""
    match kind.name:
        case _ if text is None:
            return None
        case "enum":
            return kind.elements[int(text) - 1]
        case "set":
            return ",".join(label for place, label in enumerate(kind.elements) if int(text) >> place & 1)
        case "binary" | "varbinary":
            return {"b64": base64.b64encode(text.encode("latin-1")).decode()}
        case _:
            return text
