"""The source of a feed."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from cdc_lakehouse.config.section import Section, known_zone

DateSeparator = Literal["none", "year", "month", "day"]


Protocol = Literal["canal-json", "csv"]


class CsvOptions(Section):
    """The changefeed's `[sink.csv]` options, under TiCDC's own names and with its defaults; `terminator` is the one of
    `[sink]`."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    delimiter: str = Field(",", min_length=1, max_length=3)
    quote: str = Field('"', max_length=1, description="Empty: values are escaped with backslashes.")
    null: str = Field("\\N", description="What NULL is written as.")
    terminator: Literal["\r\n", "\n", "\r"] = "\r\n"
    include_commit_ts: bool = False
    binary_encoding_method: Literal["base64", "hex"] = "base64"
    output_old_value: bool = False
    output_handle_key: bool = False
    output_field_header: bool = False

    @field_validator("delimiter", "quote", "null")
    @classmethod
    def _no_line_end(cls, value: str) -> str:
        if "\r" in value or "\n" in value:
            raise ValueError("must not hold a line end")
        return value

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> Self:
        if not self.quote.isascii():
            raise ValueError("the quote must be an ASCII character, as it is for TiCDC")
        if self.quote and self.quote in self.delimiter:
            raise ValueError("the quote must not be part of the delimiter")
        if not self.quote and set(self.delimiter) & set("\\nr"):
            raise ValueError("without a quote the delimiter must hold no backslash, n or r: they are part of escapes")
        if self.delimiter in self.null or (self.quote and self.quote in self.null):
            raise ValueError("null must hold neither the delimiter nor the quote")
        if not self.include_commit_ts:
            raise ValueError(
                "include-commit-ts must be true: rows without a commit-ts have no order; set include-commit-ts = true "
                "under [sink.csv] in the changefeed and here, and start the changefeed afresh"
            )
        return self


class StorageSinkSource(Section):
    type: Literal["storage_sink"]
    uri: str = Field(description="The changefeed's sink URI, without its query.", repr=False)
    protocol: Protocol = Field(description="The sink's protocol.")
    csv: CsvOptions | None = Field(None, description="The sink's csv options; with protocol csv.")
    date_separator: DateSeparator = Field("day", description="The sink's date-separator.")
    use_table_id_as_path: bool = Field(False, description="The sink's use-table-id-as-path.")
    full_listing_hours: int = Field(
        24, ge=0, description="The whole sink is listed when it was not for so long; with 0 each time."
    )
    archive: bool = Field(False, description="Copy data files to the warehouse, before the sink expires them.")
    time_zone: str = Field("UTC", description="How TIMESTAMP text is read: the time zone of the TiCDC server.")

    _zone = field_validator("time_zone")(known_zone)

    @model_validator(mode="after")
    def _csv_options(self) -> Self:
        if self.protocol == "csv" and self.csv is None:
            raise ValueError("protocol csv needs the section csv, with at least include-commit-ts: true")
        if self.protocol != "csv" and self.csv is not None:
            raise ValueError(f"csv options mean nothing with protocol {self.protocol}")
        return self
