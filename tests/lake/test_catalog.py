"""Opening the catalog: what no other run can mend is told with the key that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy import event

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake


@pytest.mark.parametrize("key", ["lake.warehouse", "lake.catalog.uri"])
def test_a_directory_that_cannot_be_made(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").touch()
    bad, good = tmp_path / "file" / "below", tmp_path / "ok"
    warehouse, catalog = (bad, good) if key == "lake.warehouse" else (good, bad)
    settings = {
        "warehouse": warehouse.as_uri(), "catalog": {"type": "sql", "uri": f"sqlite:///{catalog}/catalog.db"},
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=f"{key}: the directory .* cannot be used: Not a directory"):
        _ = Lake(LakeConfig.model_validate(settings)).catalog


def test_directories_are_made(tmp_path: Path) -> None:
    warehouse = tmp_path / "a" / "warehouse"
    settings = {
        "warehouse": warehouse.as_uri(), "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/b/catalog.db"},
    }  # fmt: skip
    assert Lake(LakeConfig.model_validate(settings)).catalog.list_namespaces() == []
    assert warehouse.is_dir()


def test_two_processes_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    settings = LakeConfig.model_validate(
        {
            "warehouse": (tmp_path / "warehouse").as_uri(),
            "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"},
        }
    )
    opened = []

    def open_another(*_: object, **__: object) -> None:
        opened.append(Lake(settings).catalog)

    # It is called once it is known which tables are absent.
    event.listen(SqlCatalogBaseTable.metadata, "before_create", open_another, once=True)
    first = Lake(settings).catalog
    first.create_namespace("shop")
    assert [catalog.list_namespaces() for catalog in opened] == [[("shop",)]]
