"""What a decoder of a dump's data files is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.notation import Notation


@dataclass(frozen=True)
class DumpContext:
    """What a decoder needs to know of one data file: whose it is, how it is written, and how the feed writes values.

    `commit_ts`: of every event. `columns`: types by column name, as in the CREATE TABLE. `labels`: the feed's ENUM and
    SET are labels, else numbers (an ENUM's 1-based index, a SET's bit mask). `binary`: the feed's notation of binary
    values, where `characters` has a character a byte (ISO-8859-1). TIMESTAMP text is in `zone`, that of events in
    `feed_zone`."""

    database: str
    table: str
    commit_ts: int
    notation: Notation
    columns: Mapping[str, ColumnType]
    labels: bool
    binary: Literal["characters", "base64", "hex"]
    zone: str
    feed_zone: str

    def own_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names as the CREATE TABLE has them. Raises SourceError for those of no column."""
        own = {name.lower(): name for name in self.columns}
        try:
            return tuple(own[name.lower()] for name in names)
        except KeyError:
            raise self.other_columns("the file's rows have", names, "the table has", tuple(self.columns)) from None

    def other_columns(self, who: str, names: Sequence[str], other: str, others: Sequence[str]) -> SourceError:
        return SourceError(
            f"{who} the columns {', '.join(names)}; {other} {', '.join(others)}",
            table=f"{self.database}.{self.table}",
            advice="take the dump again, or give the options that it was taken with",
        )
