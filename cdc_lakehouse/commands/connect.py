"""`cdc-lakehouse connect`: print how an engine reads a table: the settings of the lake's catalog, and a first query.
Secrets are not printed; names are quoted for the engine. No JVM is started.

To add an engine: a function, and its row in `SNIPPETS`; what it reads is in `init.ENGINES`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Final

import click
from pyiceberg.utils.properties import property_as_bool

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.commands.common import DONE, Asked, of_feeds
from cdc_lakehouse.commands.show import as_of_option, find_tables
from cdc_lakehouse.config.reporting import HIDDEN, hidden
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.file_io import pyiceberg_file_io
from cdc_lakehouse.lake.names import CATALOG, Identifier
from cdc_lakehouse.pipeline.reading import AsOf

_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):[^@]*@")
_TRINO_FILES: Final = {"s3": "s3", "gs": "gcs", "abfs": "azure", "abfss": "azure", "azure": "azure"}
"""What Trino calls the stores, by the schemes of URIs."""


def _without_secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with `HIDDEN` in the place of secrets."""
    return hidden({key: _PASSWORD.sub(rf"\1:{HIDDEN}@", value) for key, value in properties.items()})


def _pyiceberg(lake: Lake, identifier: Identifier, snapshot_id: int | None) -> str:
    config = lake.config
    properties = {
        "type": config.catalog.type, "warehouse": config.warehouse,
        **pyiceberg_file_io(config.warehouse, lake.storage).properties, **config.catalog.properties,
    }  # fmt: skip
    arguments = "".join(f"    {key!r}: {value!r},\n" for key, value in _without_secrets(properties).items())
    scan = "scan()" if snapshot_id is None else f"scan(snapshot_id={snapshot_id})"
    return (
        "from pyiceberg.catalog import load_catalog\n\n"
        f"# The name {CATALOG!r} is part of a SQL catalog's rows: another one finds no tables.\n"
        f"catalog = load_catalog({CATALOG!r}, **{{\n{arguments}}})\n"
        f"rows = catalog.load_table({identifier.parts!r}).{scan}.to_arrow()\n"
        "print(rows)"
    )


def _duckdb(lake: Lake, identifier: Identifier, snapshot_id: int | None) -> str:
    lines, s3 = ["INSTALL iceberg;", "LOAD iceberg;"], lake.storage.s3
    if lake.config.warehouse.startswith("s3:"):
        scheme, _, host = (s3.endpoint or "").partition("://")
        region = "" if s3.region is None else f", REGION {sql.text_literal(s3.region)}"
        at = f", ENDPOINT {sql.text_literal(host)}, URL_STYLE 'path', USE_SSL {str(scheme == 'https').lower()}"
        lines.append(f"CREATE SECRET (TYPE s3, PROVIDER credential_chain{region}{at if host else ''});")
    if lake.config.catalog.type == "rest":
        properties = _without_secrets(lake.config.catalog.properties)
        warehouse = properties.get("warehouse", lake.config.warehouse)
        options = f"TYPE iceberg, ENDPOINT {sql.text_literal(properties['uri'])}"
        match _login(properties):
            case "token":
                lines.append(f"CREATE SECRET (TYPE iceberg, TOKEN '{HIDDEN}');")
            case "credential":
                server = properties.get("oauth2-server-uri", f"{properties['uri'].rstrip('/')}/v1/oauth/tokens")
                # DuckDB's own default is another scope than that of Iceberg's clients.
                login = {"CLIENT_ID": HIDDEN, "CLIENT_SECRET": HIDDEN, "OAUTH2_SERVER_URI": server,
                         "OAUTH2_SCOPE": properties.get("scope", "catalog")}  # fmt: skip
                given = ", ".join(f"{name} {sql.text_literal(value)}" for name, value in login.items())
                lines.append(f"CREATE SECRET (TYPE iceberg, {given});")
            case other:
                options = f"{options}, AUTHORIZATION_TYPE '{other}'"
        lines.append(f"ATTACH {sql.text_literal(warehouse)} AS {CATALOG} ({options});")
        at = "" if snapshot_id is None else f" AT (VERSION => {snapshot_id})"
        return "\n".join([*lines, f"SELECT * FROM {CATALOG}.{_standard(identifier)}{at};"])
    metadata = lake.existing(identifier).metadata_location
    at = "" if snapshot_id is None else f", snapshot_from_id => {snapshot_id}"
    return "\n".join([
        *lines,
        "-- DuckDB does not open this kind of catalog. This is the table's newest file: ask again after the next run.",
        f"SELECT * FROM iceberg_scan({sql.text_literal(metadata)}{at});",
    ])  # fmt: skip


def _login(properties: Mapping[str, str]) -> str:
    """Return how a REST catalog knows who asks: by `sigv4`, by the property with the secret, or by `none`."""
    if property_as_bool({**properties}, "rest.sigv4-enabled", False):
        return "sigv4"
    return next((key for key in ("token", "credential") if key in properties), "none")


def _spark(lake: Lake, identifier: Identifier, snapshot_id: int | None) -> str:
    from cdc_lakehouse.lake.spark import catalog_settings, jar_packages  # noqa: PLC0415 - It takes PySpark along.

    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        **_without_secrets(catalog_settings(lake.config, lake.storage)),
    }
    options = "".join(f" \\\n  --conf {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
    at = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
    return f"spark-sql --packages {','.join(jar_packages(lake.config))}{options}\n\nSELECT * FROM {identifier.sql}{at};"


def _trino(lake: Lake, identifier: Identifier, snapshot_id: int | None) -> str:
    config, properties = lake.config, _without_secrets(lake.config.catalog.properties)
    uri = properties.get("uri", "")
    match config.catalog.type:
        case "rest":
            given = {"uri": uri, "warehouse": properties.get("warehouse", config.warehouse)}
            match _login(properties):
                case "sigv4":
                    given |= {"security": "SIGV4", "signing-name": properties.get("rest.signing-name", "")}
                case "none":
                    pass
                case secret:
                    server, scope = properties.get("oauth2-server-uri", ""), properties.get("scope", "")
                    given |= {"security": "OAUTH2", f"oauth2.{secret}": HIDDEN}
                    given |= {"oauth2.server-uri": server, "oauth2.scope": scope}
            settings = (f"iceberg.rest-catalog.{key}={value}" for key, value in given.items() if value)
            lines = ["iceberg.catalog.type=rest", *settings]
        case "glue":
            lines = ["iceberg.catalog.type=glue"]
        case "hive":
            lines = ["iceberg.catalog.type=hive_metastore", f"hive.metastore.uri={uri}"]
        case "sql":
            if not uri.startswith("postgresql"):
                what = "Trino opens a SQL catalog in Postgres only"
                raise ConfigurationError(what, advice="keep the catalog in Postgres or REST")
            from cdc_lakehouse.lake.spark import catalog_settings  # noqa: PLC0415 - It takes PySpark along.

            of_spark, prefix = _without_secrets(catalog_settings(config, lake.storage)), f"spark.sql.catalog.{CATALOG}"
            lines = [
                "iceberg.catalog.type=jdbc", "iceberg.jdbc-catalog.driver-class=org.postgresql.Driver",
                f"iceberg.jdbc-catalog.catalog-name={CATALOG}",
                f"iceberg.jdbc-catalog.connection-url={of_spark[f'{prefix}.uri']}",
                f"iceberg.jdbc-catalog.connection-user={of_spark.get(f'{prefix}.jdbc.user', '')}",
                f"iceberg.jdbc-catalog.connection-password={HIDDEN}",
                f"iceberg.jdbc-catalog.default-warehouse-dir={config.warehouse}",
            ]  # fmt: skip
    scheme = config.warehouse.partition(":")[0]
    lines += [f"fs.native-{_TRINO_FILES[scheme]}.enabled=true"] if scheme in _TRINO_FILES else []
    if scheme == "s3":
        s3 = lake.storage.s3
        settings = {"endpoint": s3.endpoint, "region": s3.region, "path-style-access": s3.path_style and "true"}
        lines += [f"s3.{key}={value}" for key, value in settings.items() if value]
    at = "" if snapshot_id is None else f" FOR VERSION AS OF {snapshot_id}"
    query = f"SELECT * FROM {CATALOG}.{_standard(identifier)}{at};"
    return "\n".join([f"# etc/catalog/{CATALOG}.properties", "connector.name=iceberg", *lines, "", query])


SNIPPETS: Final[Mapping[str, Callable[[Lake, Identifier, int | None], str]]] = {
    "duckdb": _duckdb, "pyiceberg": _pyiceberg, "spark": _spark, "trino": _trino,
}  # fmt: skip


def _standard(identifier: Identifier) -> str:
    """Quote a table's name as standard SQL does."""
    return ".".join(map(sql.identifier, identifier.parts))


@click.command()
@click.argument("engine", type=click.Choice(tuple(SNIPPETS)))
@click.argument("table", required=False)
@as_of_option
@of_feeds("Print the snippet as JSON.")
def command(asked: Asked, engine: str, table: str | None, as_of: AsOf) -> int:
    """Print how ENGINE reads TABLE (database.table; default: the first one): the catalog's settings with the real
    paths, and a query. With --as-of the query reads the snapshot of a cut.

    Secrets are not printed: each one is marked where it belongs.

    \b
    Examples:
      cdc-lakehouse connect duckdb shop.orders
      cdc-lakehouse connect pyiceberg shop.orders --as-of 2026-11-22T10:00
    """
    for each in find_tables(asked, table, as_of):
        if each.identifier is not None:
            text = SNIPPETS[engine](each.run.lake, each.identifier, None if as_of is None else each.snapshot_id)
            asked.answer({"engine": engine, "table": str(each.name), "snippet": text}, text)
            return DONE
    raise ConfigurationError(
        "the rows of that moment are in no snapshot", advice="read them with `cdc-lakehouse show` or read()"
    )
