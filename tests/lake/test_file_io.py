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


@pytest.mark.parametrize(
    ("warehouse", "package"),
    [
        ("s3://b/lake", "iceberg-aws-bundle:"), ("gs://b/lake", "iceberg-gcp-bundle:"),
        (ABFSS, "iceberg-azure-bundle:"), ("hdfs://n/lake", ""), ("s3a://bucket/lake", ""),
        # A file system that starts no process.
        ("file:///lake", "bare-naked-local-fs:"), ("/lake", "bare-naked-local-fs:"),
    ],
)  # fmt: skip
def test_warehouse_needs_the_package_of_its_service(warehouse: str, package: str) -> None:
    assert [package in each for each in packages(warehouse)] == [True] * bool(package)
    storage = StorageConfig.model_validate({"s3": {"region": "x"}})
    assert bool(spark_file_io(warehouse, storage).local_files) == ("local" in package)
    if not package:
        assert pyiceberg_file_io(warehouse, storage).pyiceberg == spark_file_io(warehouse, storage).catalog == {}


@pytest.mark.parametrize("warehouse", ["azure://c/lake", "gcs://b/lake"])
def test_warehouse_of_another_scheme_is_refused(warehouse: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gs://bucket.*abfss://"):
        packages(warehouse)


BOTH = {"s3.endpoint": "http://e:1", "s3.access-key-id": "id", "s3.secret-access-key": SECRET,
        "s3.session-token": SECRET}  # fmt: skip
S3 = {"s3.force-virtual-addressing": "False", "s3.region": "r"}
S3_SPARK = {
    "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true", "client.region": "r",
}  # fmt: skip
GS = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}
ADLS = {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
KEYS = {"access_key_id": "id", "secret_access_key": SECRET}
PRINCIPAL = {"tenant_id": "t", "client_id": "c", "client_secret": SECRET}
SETTINGS: list[tuple[str, dict[str, Any], dict[str, str], dict[str, str], dict[str, str]]] = [
    # Settings, and of PyIceberg, Spark's catalog and the JVM all properties.
    ("s3://b/lake", {**KEYS, "endpoint": "http://e:1", "path_style": True, "region": "r", "session_token": SECRET},
     {**BOTH, **S3}, {**BOTH, **S3_SPARK}, {}),
    ("s3://b/lake", {"region": "r"}, S3, {**S3_SPARK, "s3.path-style-access": "false"}, {}),
    ("s3://b/lake", {"profile": "p", "region": "r"},
     {**S3, "s3.access-key-id": "id", "s3.secret-access-key": SECRET},
     {**S3_SPARK, "s3.path-style-access": "false", "client.credentials-provider":
      "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"}, {"aws.profile": "p"}),
    ("s3://b/lake", {"access_key_id": "x", "secret_access_key": "y", "region": "r", "buckets": {"b": KEYS}},
     {**S3, "s3.access-key-id": "id", "s3.secret-access-key": SECRET},
     {**S3_SPARK, "s3.path-style-access": "false", "s3.access-key-id": "id", "s3.secret-access-key": SECRET}, {}),
    ("gs://b/lake", {}, {}, GS, {}),
    ("gs://b/lake", {"endpoint": "http://e:1", "anonymous": True},
     {"gcs.service.host": "http://e:1", "gcs.oauth2.token": "anonymous",
      "gcs.oauth2.token-expires-at": "4102444800000"},
     {**GS, "gcs.service.host": "http://e:1", "gcs.no-auth": "true"}, {}),
    (ABFSS, {"account_key": SECRET}, {"adls.account-name": "acct", "adls.account-key": SECRET},
     {**ADLS, "adls.auth.shared-key.account.name": "acct", "adls.auth.shared-key.account.key": SECRET}, {}),
    (ABFSS, {"sas_token": SECRET}, {"adls.account-name": "acct", "adls.sas-token": SECRET},
     {**ADLS, "adls.sas-token.acct.dfs.core.windows.net": SECRET}, {}),
    (ABFSS, PRINCIPAL,
     {"adls.account-name": "acct", "adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": SECRET}, ADLS,
     {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": SECRET}),
]  # fmt: skip


@pytest.mark.parametrize(("warehouse", "settings", "small", "large", "system"), SETTINGS)
def test_settings_become_properties_of_both(
    warehouse: str,
    settings: dict[str, Any],
    small: dict[str, str],
    large: dict[str, str],
    system: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "credentials").write_text(f"[p]\naws_access_key_id=id\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    service = {"s3": "s3", "gs": "gs", "abfss": "azure"}[warehouse.partition(":")[0]]
    storage = StorageConfig.model_validate({service: settings})
    of_pyiceberg, of_spark = pyiceberg_file_io(warehouse, storage), spark_file_io(warehouse, storage)
    assert SECRET not in f"{of_pyiceberg!r}{of_spark!r}"
    assert of_pyiceberg.pyiceberg == small
    assert (of_spark.catalog, of_spark.system) == (large, system)


def test_azure_emulator_holds_no_warehouse() -> None:
    storage = StorageConfig.model_validate({"azure": {"endpoint": "http://127.0.0.1:1/a"}})
    with pytest.raises(ConfigurationError, match="without endpoint"):
        pyiceberg_file_io(ABFSS, storage)
