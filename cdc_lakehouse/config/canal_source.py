"""A Canal server as the source of a feed."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from pydantic import Field, field_validator

from cdc_lakehouse.config.section import Section, known_zone
from cdc_lakehouse.config.source import DateSeparator

# A host may be an IPv6 address in brackets.
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/@\[\]]+):(?P<port>\d{1,5})")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CanalSource(Section):
    type: Literal["canal"]
    addresses: tuple[str, ...] = Field(
        min_length=1, description="host:port of each server; the first that has the destination is used."
    )
    destination: str = Field(min_length=1, description="Name of the instance on the server.")
    user: str | None = Field(None, description="Where the server asks for one.")
    password: str | None = Field(None, repr=False)
    filter: str | None = Field(
        None,
        min_length=1,
        description="Tables as patterns database\\.table with commas between. It replaces the server's own filter of "
        "this destination, for every client.",
    )
    batch_size: int = Field(1000, ge=1, le=1_000_000, description="How much a batch holds at most, in KiB of memory.")
    max_entries: int = Field(1_000_000, gt=0, description="Entries after which a run takes no more.")
    max_bytes: int = Field(1 << 28, gt=0, description="Bytes of entries after which a run takes no more.")
    max_seconds: float = Field(300, gt=0, description="Seconds after which a run takes no more.")
    time_zone: str = Field("UTC", description="How TIMESTAMP text is read: the time zone of the Canal server.")
    date_separator: DateSeparator = Field("day", description="What a feed date is of the date of an entry.")

    _zone = field_validator("time_zone")(known_zone)

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            match = _ADDRESS.fullmatch(text)
            if match is None or not 0 < int(match["port"]) < 65536:
                raise ValueError(f"{text!r} is not of the form host:port, such as canal-1.example.com:11111")
        return value

    @property
    def endpoints(self) -> tuple[Address, ...]:
        """The addresses in parts, an IPv6 address without its brackets."""
        return tuple(
            Address(host.strip("[]"), int(port)) for host, _, port in (text.rpartition(":") for text in self.addresses)
        )
