"""The dump that a feed begins with: what the tables held before their change log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from cdc_lakehouse.config.section import Section, TimeZone, anchor_uri
from cdc_lakehouse.config.sink_uri import StoreUri, split_query

DumpType = Literal["dumpling", "mydumper", "mysqlshell"]


class DumpCsv(Section):
    """How Dumpling was told to write csv: its files do not say it. The defaults are Dumpling's."""

    separator: str = Field(",", min_length=1, description="Dumpling's --csv-separator.")
    delimiter: str = Field('"', max_length=1, description="Dumpling's --csv-delimiter, the quote; empty for none.")
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
    """A dump in the same kinds of stores as sinks."""

    type: DumpType = Field(description="The tool that made the dump.")
    uri: StoreUri = Field(description="The directory of the dump.", repr=False)
    csv: DumpCsv = Field(default_factory=DumpCsv.nothing, description="How Dumpling was told to write csv.")
    time_zone: TimeZone = Field("UTC", description="How TIMESTAMP text of the dump is read: the zone of its session.")
    start_ts: int | None = Field(
        None, gt=0, description="The changefeed's start-ts (a TSO), where what it wrote does not show it."
    )
    log_starts_at_dump: bool = Field(
        False, description="Canal was started at the dump's position: nothing before its first entry is missing."
    )

    @model_validator(mode="after")
    def _csv_of_dumpling(self) -> Self:
        if self.type != "dumpling" and "csv" in self.model_fields_set:
            raise ValueError(f"csv options mean nothing with type {self.type}: its dumps say how they are written")
        return self

    def anchored(self, base: Path) -> Self:
        """With an absolute URI: a path is relative to `base`."""
        return self.model_copy(update={"uri": anchor_uri(split_query(self.uri)[0], base)})
