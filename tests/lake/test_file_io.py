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


@pytest.mark.parametrize("warehouse", ["file:///lake", "hdfs://n/lake", "s3a://bucket/lake"])
def test_other_warehouses_need_nothing(warehouse: str) -> None:
    storage = StorageConfig.model_validate({"s3": {"region": "x"}})
    assert packages(warehouse) == ()
    assert pyiceberg_file_io(warehouse, storage).pyiceberg == spark_file_io(warehouse, storage).catalog == {}


@pytest.mark.parametrize(("warehouse", "bundle"), [("s3://b/lake", "aws"), ("gs://b/lake", "gcp"), (ABFSS, "azure")])
def test_a_service_needs_its_bundle(warehouse: str, bundle: str) -> None:
    (package,) = packages(warehouse)
    assert f"iceberg-{bundle}-bundle:" in package


@pytest.mark.parametrize("warehouse", ["azure://c/lake", "gcs://b/lake"])
def test_a_warehouse_under_another_name(warehouse: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gs://bucket.*abfss://"):
        packages(warehouse)


def test_s3_by_keys() -> None:
    keys = {"access_key_id": "id", "secret_access_key": SECRET, "session_token": SECRET}
    small, large, system = of("s3://b/lake", endpoint="http://e:1", path_style=True, region="r", **keys)
    assert small == {
        "s3.endpoint": "http://e:1",
        "s3.force-virtual-addressing": "False",
        "s3.region": "r",
        "s3.access-key-id": "id",
        "s3.secret-access-key": SECRET,
        "s3.session-token": SECRET,
    }
    assert large == {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": "http://e:1",
        "s3.path-style-access": "true",
        "client.region": "r",
        "s3.access-key-id": "id",
        "s3.secret-access-key": SECRET,
        "s3.session-token": SECRET,
    }
    assert system == {}


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


def test_s3_by_a_role_for_spark() -> None:
    storage = StorageConfig.model_validate({"s3": {"role_arn": "arn", "external_id": "x", "region": "r"}})
    large = spark_file_io("s3://b/lake", storage)
    assert large.catalog["client.factory"] == "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
    assert large.catalog["client.assume-role.arn"] == "arn" and large.catalog["client.assume-role.external-id"] == "x"


def test_s3_by_a_web_identity_for_spark() -> None:
    storage = StorageConfig.model_validate({"s3": {"role_arn": "arn", "web_identity_token_file": "/t"}})
    large = spark_file_io("s3://b/lake", storage)
    assert large.catalog["client.credentials-provider"].endswith(".WebIdentityTokenFileCredentialsProvider")
    assert large.system == {"aws.roleArn": "arn", "aws.webIdentityTokenFile": "/t"}


def test_s3_of_the_warehouses_own_bucket() -> None:
    own = {"access_key_id": "own", "secret_access_key": SECRET}
    small, large, _ = of("s3://b/lake", access_key_id="x", secret_access_key="y", region="r", buckets={"b": own})
    assert small["s3.access-key-id"] == large["s3.access-key-id"] == "own"


def test_gs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert of("gs://b/lake") == ({}, {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}, {})
    _, large, _ = of("gs://b/lake", endpoint="http://e:1", anonymous=True)
    assert large["gcs.service.host"] == "http://e:1" and large["gcs.no-auth"] == "true"


def test_azure_by_key() -> None:
    small, large, system = of(ABFSS, account_key=SECRET)
    assert small == {"adls.account-name": "acct", "adls.account-key": SECRET}
    assert large == {
        "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
        "adls.auth.shared-key.account.name": "acct",
        "adls.auth.shared-key.account.key": SECRET,
    }
    assert system == {}


def test_azure_by_sas_and_by_secret() -> None:
    small, large, _ = of(ABFSS, sas_token=SECRET)
    assert small["adls.sas-token"] == large["adls.sas-token.acct.dfs.core.windows.net"] == SECRET
    small, large, system = of(ABFSS, tenant_id="t", client_id="c", client_secret=SECRET)
    assert small["adls.client-secret"] == system["AZURE_CLIENT_SECRET"] == SECRET and len(large) == 1


def test_an_azure_emulator_holds_no_warehouse() -> None:
    with pytest.raises(ConfigurationError, match="without endpoint"):
        of(ABFSS, endpoint="http://127.0.0.1:1/a")
