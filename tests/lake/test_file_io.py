"""One section of the configuration for PyIceberg and for Iceberg on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.file_io import packages, pyiceberg_file_io, spark_file_io

SECRET = "hunter2"
ABFSS = "abfss://c@acct.dfs.core.windows.net/lake"


def of(warehouse: str, **settings: Any) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    service = {"s3": "s3", "gs": "gs", "abfss": "azure"}[warehouse.partition(":")[0]]
    storage = StorageConfig.model_validate({service: settings})
    small, large = pyiceberg_file_io(warehouse, storage), spark_file_io(warehouse, storage)
    assert SECRET not in f"{small!r}{large!r}"
    return small.pyiceberg, large.catalog, large.system


@pytest.mark.parametrize(
    ("warehouse", "bundle"),
    [
        ("s3://b/lake", "aws"), ("gs://b/lake", "gcp"), (ABFSS, "azure"), ("hdfs://n/lake", None),
        ("s3a://bucket/lake", None),
    ],
)  # fmt: skip
def test_a_service_needs_its_bundle_and_other_warehouses_nothing(warehouse: str, bundle: str | None) -> None:
    if bundle is not None:
        (package,) = packages(warehouse)
        assert f"iceberg-{bundle}-bundle:" in package
        return
    storage = StorageConfig.model_validate({"s3": {"region": "x"}})
    assert packages(warehouse) == ()
    assert pyiceberg_file_io(warehouse, storage).pyiceberg == spark_file_io(warehouse, storage).catalog == {}


@pytest.mark.parametrize("warehouse", ["file:///lake", "/lake"])
def test_a_disk_needs_a_file_system_that_starts_no_process(warehouse: str) -> None:
    (package,) = packages(warehouse)
    assert "bare-naked-local-fs:" in package
    assert spark_file_io(warehouse, StorageConfig.nothing()).local_files
    assert spark_file_io("s3://b/lake", StorageConfig.nothing()).local_files is None


@pytest.mark.parametrize("warehouse", ["azure://c/lake", "gcs://b/lake"])
def test_a_warehouse_under_another_name(warehouse: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gs://bucket.*abfss://"):
        packages(warehouse)


def test_s3_by_keys() -> None:
    keys = {"access_key_id": "id", "secret_access_key": SECRET, "session_token": SECRET}
    small, large, system = of("s3://b/lake", endpoint="http://e:1", path_style=True, region="r", **keys)
    both = {
        "s3.endpoint": "http://e:1", "s3.access-key-id": "id", "s3.secret-access-key": SECRET,
        "s3.session-token": SECRET,
    }  # fmt: skip
    assert small == {**both, "s3.force-virtual-addressing": "False", "s3.region": "r"}
    own = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true", "client.region": "r"}
    assert (large, system) == ({**both, **own}, {})


def test_s3_by_the_environment() -> None:
    small, large, system = of("s3://b/lake", region="r")
    assert small == {"s3.force-virtual-addressing": "False", "s3.region": "r"}
    assert set(large) == {"io-impl", "s3.path-style-access", "client.region"} and system == {}


def test_s3_by_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(f"[p]\naws_access_key_id=id\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    small, large, system = of("s3://b/lake", profile="p", region="r")
    assert (small["s3.access-key-id"], small["s3.secret-access-key"]) == ("id", SECRET)
    assert large["client.credentials-provider"].endswith(".ProfileCredentialsProvider")
    assert system == {"aws.profile": "p"}


def test_s3_of_the_warehouses_own_bucket() -> None:
    own = {"access_key_id": "own", "secret_access_key": SECRET}
    small, large, _ = of("s3://b/lake", access_key_id="x", secret_access_key="y", region="r", buckets={"b": own})
    assert small["s3.access-key-id"] == large["s3.access-key-id"] == "own"


def test_gs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert of("gs://b/lake") == ({}, {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}, {})
    _, large, _ = of("gs://b/lake", endpoint="http://e:1", anonymous=True)
    assert large["gcs.service.host"] == "http://e:1" and large["gcs.no-auth"] == "true"


def test_azure_by_key_by_sas_and_by_secret() -> None:
    small, large, system = of(ABFSS, account_key=SECRET)
    account, key = "adls.auth.shared-key.account.name", "adls.auth.shared-key.account.key"
    assert (small, system) == ({"adls.account-name": "acct", "adls.account-key": SECRET}, {})
    assert large == {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO", account: "acct", key: SECRET}
    small, large, _ = of(ABFSS, sas_token=SECRET)
    assert small["adls.sas-token"] == large["adls.sas-token.acct.dfs.core.windows.net"] == SECRET
    small, large, system = of(ABFSS, tenant_id="t", client_id="c", client_secret=SECRET)
    assert small["adls.client-secret"] == system["AZURE_CLIENT_SECRET"] == SECRET and len(large) == 1


def test_an_azure_emulator_holds_no_warehouse() -> None:
    with pytest.raises(ConfigurationError, match="without endpoint"):
        of(ABFSS, endpoint="http://127.0.0.1:1/a")
