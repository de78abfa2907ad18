"""What `connect` prints for catalogs that no test here runs an engine over. Trino's keys are those of its manual."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_lakehouse.adopt.connect import snippet
from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import Identifier

REST = {"type": "rest", "uri": "http://c:8181/", "warehouse": "demo"}
LOGIN = {"credential": "id:very secret", "oauth2-server-uri": "http://k/t", "scope": "lake"}
SIGNED = {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"}
PRINTED: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("trino", "s3://b/w", {**REST, "token": "very secret"}, [
        "connector.name=iceberg", "iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=http://c:8181/",
        "iceberg.rest-catalog.warehouse=demo", "iceberg.rest-catalog.security=OAUTH2",
        "iceberg.rest-catalog.oauth2.token=(not shown)", "fs.native-s3.enabled=true", "s3.endpoint=http://s3:9000",
        "s3.region=eu-1", "s3.path-style-access=true",
    ]),
    ("trino", "gs://b/w", {**REST, **LOGIN}, [
        "connector.name=iceberg", "iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=http://c:8181/",
        "iceberg.rest-catalog.warehouse=demo", "iceberg.rest-catalog.security=OAUTH2",
        "iceberg.rest-catalog.oauth2.credential=(not shown)", "iceberg.rest-catalog.oauth2.server-uri=http://k/t",
        "iceberg.rest-catalog.oauth2.scope=lake", "fs.native-gcs.enabled=true",
    ]),
    ("trino", "gs://b/w", {**REST, **SIGNED}, [
        "connector.name=iceberg", "iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=http://c:8181/",
        "iceberg.rest-catalog.warehouse=demo", "iceberg.rest-catalog.security=SIGV4",
        "iceberg.rest-catalog.signing-name=s3tables", "fs.native-gcs.enabled=true",
    ]),
    ("trino", "gs://b/w", REST, [
        "connector.name=iceberg", "iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=http://c:8181/",
        "iceberg.rest-catalog.warehouse=demo", "fs.native-gcs.enabled=true",
    ]),
    ("trino", "abfss://c@a.dfs.core.windows.net/w", {"type": "hive", "uri": "thrift://m:9083"}, [
        "connector.name=iceberg", "iceberg.catalog.type=hive_metastore", "hive.metastore.uri=thrift://m:9083",
        "fs.native-azure.enabled=true",
    ]),
    ("trino", "gs://b/w", {"type": "sql", "uri": "postgresql://u:very%20secret@h:5432/ice"}, [
        "connector.name=iceberg", "iceberg.catalog.type=jdbc",
        "iceberg.jdbc-catalog.driver-class=org.postgresql.Driver", "iceberg.jdbc-catalog.catalog-name=lake",
        "iceberg.jdbc-catalog.connection-url=jdbc:postgresql://h:5432/ice", "iceberg.jdbc-catalog.connection-user=u",
        "iceberg.jdbc-catalog.connection-password=(not shown)", "iceberg.jdbc-catalog.default-warehouse-dir=gs://b/w",
        "fs.native-gcs.enabled=true",
    ]),
    ("duckdb", "s3://b/w", {**REST, "credential": "id:very secret"}, [
        "LOAD iceberg;",
        "CREATE SECRET (TYPE s3, PROVIDER credential_chain, REGION 'eu-1', ENDPOINT 's3:9000', URL_STYLE 'path', "
        "USE_SSL false);",
        "CREATE SECRET (TYPE iceberg, CLIENT_ID '(not shown)', CLIENT_SECRET '(not shown)', "
        "OAUTH2_SERVER_URI 'http://c:8181/v1/oauth/tokens', OAUTH2_SCOPE 'catalog');",
        "ATTACH 'demo' AS lake (TYPE iceberg, ENDPOINT 'http://c:8181/');",
    ]),
    ("duckdb", "gs://b/w", {**REST, **LOGIN}, [
        "LOAD iceberg;",
        "CREATE SECRET (TYPE iceberg, CLIENT_ID '(not shown)', CLIENT_SECRET '(not shown)', "
        "OAUTH2_SERVER_URI 'http://k/t', OAUTH2_SCOPE 'lake');",
        "ATTACH 'demo' AS lake (TYPE iceberg, ENDPOINT 'http://c:8181/');",
    ]),
    ("duckdb", "gs://b/w", {**REST, **SIGNED}, [
        "LOAD iceberg;", "ATTACH 'demo' AS lake (TYPE iceberg, ENDPOINT 'http://c:8181/', AUTHORIZATION_TYPE 'sigv4');",
    ]),
    ("duckdb", "gs://b/w", REST, [
        "LOAD iceberg;", "ATTACH 'demo' AS lake (TYPE iceberg, ENDPOINT 'http://c:8181/', AUTHORIZATION_TYPE 'none');",
    ]),
]  # fmt: skip
QUERIES = {"trino": 'FROM lake."shop"."orders" FOR VERSION AS OF 7;', "duckdb": "AT (VERSION => 7);"}


@pytest.mark.parametrize(("engine", "warehouse", "catalog", "printed"), PRINTED)
def test_snippet_names_catalog_and_store(
    engine: str, warehouse: str, catalog: dict[str, Any], printed: list[str]
) -> None:
    config = LakeConfig.model_validate({"warehouse": warehouse, "catalog": catalog})
    s3 = {"endpoint": "http://s3:9000", "region": "eu-1", "path_style": True}
    lake = Lake(config, StorageConfig.model_validate({"s3": s3}))
    _, *lines = filter(None, snippet(lake, engine, Identifier("shop", "orders"), 7).splitlines())
    assert lines[:-1] == printed and lines[-1].endswith(QUERIES[engine])
