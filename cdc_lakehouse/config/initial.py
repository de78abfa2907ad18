"""The initial load of a feed: the rows of the tables before their change log, from a dump or from the database
itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from cdc_lakehouse.config.database import DatabaseConnection, DatabaseUrl
from cdc_lakehouse.config.section import Section, TimeZone, anchor_uri
from cdc_lakehouse.config.sink_uri import StoreUri, split_query

DumpType = Literal["dumpling", "mydumper", "mysqlshell"]


class DumpCsv(Section):
    """The csv options with which Dumpling was run: its files do not record them. The defaults are Dumpling's."""

    separator: str = Field(",", min_length=1, description="Dumpling's --csv-separator.")
    delimiter: str = Field('"', description="Dumpling's --csv-delimiter, the quote; empty for none.")
    null: str = Field("\\N", description="Dumpling's --csv-null-value.")
    line_terminator: str = Field("\r\n", min_length=1, description="Dumpling's --csv-line-terminator.")
    escape_backslash: bool = Field(True, description="Dumpling's --escape-backslash.")
    header: bool = Field(True, description="False with Dumpling's --no-header.")
    binary: Literal["raw", "hex", "base64"] = Field(
        "raw",
        description="How binary values are written: hex with --csv-output-dialect snowflake or redshift, base64 "
        "with bigquery.",
    )


class InitialLoad(Section):
    """A dump in one of the stores that sinks use or, with the type `database`, the source database."""

    type: DumpType | Literal["database"] = Field(
        description="The tool that made the dump, or database to read the tables themselves."
    )
    uri: StoreUri | None = Field(None, description="The directory of the dump.", repr=False)
    csv: DumpCsv = Field(default_factory=DumpCsv.nothing, description="How Dumpling was told to write csv.")
    time_zone: TimeZone = Field("UTC", description="How TIMESTAMP text of the dump is read: the zone of its session.")
    start_ts: int | None = Field(
        None, gt=0, description="The changefeed's start-ts (a TSO), where what it wrote does not show it."
    )
    log_starts_at_dump: bool = Field(
        False, description="Canal was started at the dump's position: nothing before its first entry is missing."
    )
    url: DatabaseUrl | None = Field(
        None, description="With type database: mysql://user:${PASSWORD}@host:port of it.", repr=False
    )
    ca_file: str | None = Field(
        None, description="With type database: TLS, with the certificate authorities in this file."
    )
    snapshot_ts: int | None = Field(
        None, gt=0, description="With type database, of TiDB: the TSO at which it is read; else that of the moment."
    )
    connections: int = Field(4, gt=0, le=256, description="With type database: how many of them read at once.")
    chunk_rows: int = Field(
        200_000, gt=0, description="With type database: about how many rows are read by one statement."
    )

    @model_validator(mode="after")
    def _keys_of_the_type(self) -> Self:
        of_dumps, of_databases = {"uri", "csv", "time_zone", "log_starts_at_dump"}, _OF_DATABASES
        strange = sorted(self.model_fields_set & (of_dumps if self.type == "database" else of_databases))
        if strange:
            raise ValueError(f"{strange[0]} means nothing with type {self.type}")
        if self.type == "database":
            if self.url is None:
                raise ValueError("needs url with type database, such as mysql://user:${PASSWORD}@host:port")
        elif self.uri is None:
            raise ValueError("needs uri, the directory of the dump")
        if self.type != "dumpling" and "csv" in self.model_fields_set:
            raise ValueError(f"csv options mean nothing with type {self.type}: its dumps say how they are written")
        return self

    @property
    def database(self) -> DatabaseConnection | None:
        """The connection to the database that is read instead of a dump; None for a dump."""
        return None if self.url is None else DatabaseConnection(url=self.url, ca_file=self.ca_file)

    def anchored(self, base: Path) -> Self:
        """Return a copy in which the URI and the path `ca_file`, which are relative to `base`, are absolute."""
        database = self.database
        return self.model_copy(
            update={
                "uri": None if self.uri is None else anchor_uri(split_query(self.uri)[0], base),
                "ca_file": None if database is None else database.anchored(base).ca_file,
            }
        )


_OF_DATABASES: Final = {"url", "ca_file", "snapshot_ts", "connections", "chunk_rows"}
