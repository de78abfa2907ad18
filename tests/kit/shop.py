"""The sample shop's own rows, as a reader of the lake should see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.sample.shop import _STATE, Shop, state_path
from tests.kit.lakes import TestLake
from tests.kit.truth import true_value


def shop_of(sink: Path) -> Shop:
    """The shop as it was when the last batch was complete."""
    return _STATE.validate_json(state_path(sink).read_bytes())


def check_shop(lake: TestLake) -> None:
    """The lake has all tables of the shop whose sink it reads, with their rows."""
    assert {name: seen_rows(table) for name, table in lake.tables().items()} == true_rows(lake)


def true_rows(lake: TestLake) -> dict[tuple[str, str], tuple[list[str], list[tuple[Any, ...]]]]:
    """By table: names of its columns, and its rows."""
    shop = shop_of(lake.sink)
    return {
        ("shop", name): _true(table.columns, list(shop.content[name].values()))
        for name, table in shop.definitions.items()
    }


def _true(columns: Any, found: list[dict[str, str | None]]) -> tuple[list[str], list[tuple[Any, ...]]]:
    typed = [tuple(_value(row[column.name], column.type) for column in columns) for row in found]
    return [*(column.name for column in columns), "_commit_ts"], sorted(typed, key=repr)


def _value(text: str | None, kind: Any) -> Any:
    if text is None:
        return None
    match kind.name:
        case "enum":
            return kind.elements[int(text) - 1]
        case "set":
            return ",".join(label for place, label in enumerate(kind.elements) if int(text) >> place & 1)
        case "binary" | "varbinary":
            return text.encode("latin-1")
        case "json":
            return text
        case _:
            return true_value(text, type_text(kind))


def seen_rows(table: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    arrow = table.scan().to_arrow()
    assert arrow.column_names[-1] == "_commit_ts"
    cells = [arrow.column(name).to_pylist() for name in arrow.column_names[:-1]]
    return arrow.column_names, sorted(zip(*cells, strict=True), key=repr)
