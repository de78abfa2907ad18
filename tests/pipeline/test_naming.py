"""Tables that cannot have their names in the catalog. Those that can are in tests/scenarios/renames.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import CatalogUnreachableError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.pipeline.apply import TableLocation, rename_to_source_names
from tests.changelog.statements import history
from tests.kit.lakes import TestLake
from tests.lake import CREATE, DROP, change, make_current_table
from tests.pipeline import lake_in


class Names:
    """Tables by the incarnation that they hold, wherever they are."""

    def __init__(self, directory: Path) -> None:
        self.lake: TestLake = lake_in(directory)
        self.tables = CurrentTables(self.lake.lake, self.lake.feed)
        self.lives: dict[str, Incarnation] = {}

    def at(self, name: str) -> Identifier:
        return self.tables.identifier(TableName("d", name))

    def make(self, name: str, *, dropped: bool = False, feed: str | None = None) -> str:
        """A table of an incarnation that was born under its name."""
        changes = [change(10, name, CREATE), *([change(20, name, DROP)] if dropped else [])]
        ((id, life),) = history(*changes).incarnations().items()
        more = {"cdc_dropped-ts": "20"} if dropped else {"cdc_feed": feed} if feed else {}
        make_current_table(self.lake, life, self.at(name), **more)
        self.lives[id] = life
        return id

    def settle(self, wanted: dict[str, str]) -> dict[str, str]:
        """`wanted`: name now → name that should be."""
        placed = [TableLocation(self.lives[f"d.{now}#1"], self.at(now), self.at(name)) for now, name in wanted.items()]
        return dict(rename_to_source_names(self.tables, placed, self.lives, self.rename).reasons)

    def rename(self, old: Identifier, new: Identifier) -> None:
        self.lake.lake.catalog.rename_table(old.parts, new.parts)

    def found(self) -> dict[str, str]:
        """Name → incarnation of what is there."""
        catalog, namespace = self.lake.lake.catalog, self.at("x").namespace
        tables = (catalog.load_table(each) for each in catalog.list_tables(namespace))
        return {table.name()[-1]: table.properties["cdc.incarnation"] for table in tables}


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path)


@pytest.mark.parametrize(
    ("feed", "words"), [("another", "not the feed's"), (None, "a table that is held")], ids=["foreign", "held"]
)
def test_name_of_another_table_blocks_its_table_alone(names: Names, feed: str | None, words: str) -> None:
    for name in ("a", "c"):
        names.make(name)
    names.make("b", feed=feed)
    blocked = names.settle({"a": "b", "c": "d"})
    assert list(blocked) == ["d.a#1"] and words in blocked["d.a#1"]
    assert names.found() == {"a": "d.a#1", "b": "d.b#1", "d": "d.c#1"}


def test_dropped_table_of_unknown_incarnation_is_not_moved(names: Names) -> None:
    names.make("a")
    del names.lives[names.make("b", dropped=True)]
    assert list(names.settle({"a": "b"})) == ["d.a#1"]
    assert names.found() == {"a": "d.a#1", "b": "d.b#1"}


@pytest.mark.parametrize("of_the_table", [True, False])
def test_rename_that_fails_holds_its_table_alone(names: Names, of_the_table: bool) -> None:
    for name in ("a", "b", "c"):
        names.make(name)

    def rename(old: Identifier, new: Identifier) -> None:
        if new.name == "y":
            raise ValueError("y is no name") if of_the_table else CatalogUnreachableError("the catalog is away")
        names.rename(old, new)

    placed = [
        TableLocation(names.lives[f"d.{now}#1"], names.at(now), names.at(wanted))
        for now, wanted in {"a": "x", "b": "y", "c": "z"}.items()
    ]
    if of_the_table:
        holds = rename_to_source_names(names.tables, placed, names.lives, rename)
        assert list(holds.reasons) == ["d.b#1"] and "ValueError y is no name" in holds.reasons["d.b#1"]
    else:
        with pytest.raises(CatalogUnreachableError):
            rename_to_source_names(names.tables, placed, names.lives, rename)
        return
    assert names.found() == {"x": "d.a#1", "b": "d.b#1", "z": "d.c#1"}
