"""Opening the catalog: what no other run can mend is told with the key that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
