"""What `connect` prints for catalogs that no test here runs an engine over: `cases/connect.txt`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc_lakehouse.commands.connect import SNIPPETS
from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import Identifier
from tests.kit.case_files import Case, read_cases

S3 = {"endpoint": "http://s3:9000", "region": "eu-1", "path_style": True}


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "connect.txt"), ids=str)
def test_snippet_names_catalog_and_store(case: Case, update: bool) -> None:
    engine, warehouse, catalog = case.own[0].split(" ", 2)
    config = LakeConfig.model_validate({"warehouse": warehouse, "catalog": json.loads(catalog)})
    lake = Lake(config, StorageConfig.model_validate({"s3": S3}))
    text = SNIPPETS[engine](lake, Identifier("shop", "orders"), 7)
    assert "very secret" not in text
    case.compare([line for line in text.splitlines() if line], update=update)
