"""A feed: its source, its tables, and the policy for invalid input."""

from __future__ import annotations

import datetime
import re
import string
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from cdc_lakehouse.config.section import CronSchedule, Group, Owner, Section, Tags, matching
from cdc_lakehouse.config.sources import CanalSource, InitialLoad, KafkaSource, Source, StorageSinkSource, VerifyConfig
from cdc_lakehouse.errors import ConfigurationError

# Maintenance of a feed's tables, and retention in the Dagster instance.


class MaintenanceConfig(Section):
    """When tables are rewritten, and how long data that readers may still request is kept."""

    schedule: CronSchedule | None = Field(
        "0 3 * * *", description="Cron schedule of maintenance, in UTC; null for none."
    )
    compaction_schedule: CronSchedule | None = Field(
        "30 * * * *", description="Cron schedule of compaction, in UTC; null for none."
    )
    target_file_mb: Annotated[int, Field(ge=1)] = Field(
        512, description="Size of the files that compaction writes. Files below a quarter of it are small."
    )
    min_small_files: Annotated[int, Field(ge=2)] = Field(
        5, description="Number of small files in a partition that are merged."
    )
    max_delete_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Share of deleted rows from which a file is rewritten."
    )
    unit_mb: Annotated[int, Field(ge=1)] = Field(
        4096, description="Approximate size rewritten at a time, while runs of the feed wait."
    )
    keep_cut_hours: Annotated[int, Field(ge=1)] = Field(
        24, description="Cuts, and the snapshots that they name, are kept this long; the newest cut always."
    )
    orphan_hours: Annotated[int, Field(ge=24)] = Field(
        72, description="Files that no snapshot names are removed when they are this old."
    )
    keep_replayed_days: Annotated[int, Field(ge=0)] | None = Field(
        30, description="Days to keep replayed quarantine rows; null: forever."
    )
    keep_records_days: Annotated[int, Field(ge=1)] | None = Field(
        30, description="Days to keep decoded messages in `records`; null: forever."
    )
    keep_archive_days: Annotated[int, Field(ge=1)] | None = Field(
        30, description="Days to keep copies of the source's files in the archive; null: forever."
    )
    keep_segments_days: Annotated[int, Field(ge=1)] | None = Field(
        30, description="Days until segments of earlier dates become one row per table; null: never."
    )
    keep_superseded_days: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Events that a later one of the same row has superseded are kept this long, and as long as their "
        "segments have rows; null for ever.",
    )

    @model_validator(mode="after")
    def _segments_go_first(self) -> Self:
        if self.keep_superseded_days is not None and self.keep_segments_days is None:
            raise ValueError(
                "keep_superseded_days needs keep_segments_days: events stay as long as they can be decoded again"
            )
        return self


class DagsterConfig(Section):
    """The Dagster instance that records the runs."""

    keep_runs_days: Annotated[int, Field(gt=0)] | None = Field(
        30, description="Days after which the job cdc_prune_runs deletes a run; without it, none is deleted."
    )


_PLACEHOLDERS: Final = frozenset({"database", "feed"})
_FEED_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_NAME_FORM: Final = (
    "should be lower-case letters, digits and underscores, a letter first, at most 63 of them, such as shop"
)

_Source = TypeVar("_Source", StorageSinkSource, KafkaSource, CanalSource)
Drop = Literal["keep", "purge"]
Rewrite = Literal["apply", "hold"]
FormatVersion = Annotated[int, Field(ge=2, le=3)]


class DdlOverride(Section):
    """Settings of one table that differ from policy.ddl."""

    drop: Drop | None = Field(None, description="Overrides policy.ddl.drop.")
    rewrite: Rewrite | None = Field(None, description="Overrides policy.ddl.rewrite.")


class DdlPolicy(Section):
    """The policy for statements that lose data in the lake, or are expensive."""

    drop: Drop = Field(
        "keep", description="A dropped table stays in the lake, marked as dropped, or is removed with its data."
    )
    rewrite: Rewrite = Field(
        "apply", description="A statement that rewrites all rows is carried out, or waits for `cdc-lakehouse resume`."
    )


class TableSettings(Section):
    """Settings of one table that differ from the policy, and facts that its source does not give."""

    primary_key: tuple[str, ...] | None = Field(None, min_length=1, description="Key of a table that declares none.")
    zero_dates: Literal["null", "string", "error"] | None = Field(None, description="Overrides policy.zero_dates.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="MySQL types of columns that messages do not state fully, for a table older than the feed.",
    )
    ddl: DdlOverride = Field(default_factory=DdlOverride.nothing, description="Overrides policy.ddl.")
    virtual_columns: tuple[str, ...] | None = Field(
        None, description="Virtual generated columns, which are in schema files but not in csv rows."
    )
    format_version: FormatVersion | None = Field(None, description="Overrides the feed's format_version.")
    owners: tuple[Owner, ...] | None = Field(None, description="Owners of the table's assets. Default: the feed's.")
    tags: Tags = Field(default_factory=dict, description="Tags of the table's assets, added to the feed's.")
    group: Group | None = Field(None, description="Dagster group of the table. Default: that of its database.")
    freshness_minutes: Annotated[int, Field(gt=0)] | None = Field(
        None, description="For a table that changes all the time: minutes without changes after which it is not fresh."
    )


LABELS: Final = frozenset({"owners", "tags", "group", "freshness_minutes"})
"""Settings of a table that do not affect its content."""


class TablesConfig(Section):
    """The tables of the log that are processed, by patterns with `*` and `?`, and the settings of single tables."""

    include: tuple[str, ...] = Field(("*.*",), description="Patterns of database.table to include.")
    exclude: tuple[str, ...] = Field((), description="Patterns of database.table to exclude.")
    settings: dict[str, TableSettings] = Field(default_factory=dict, description="By database.table.")

    @field_validator("settings")
    @classmethod
    def _names(cls, value: dict[str, TableSettings]) -> dict[str, TableSettings]:
        for name in value:
            if "." not in name:
                raise ValueError(f"{name!r} is not a name of the form database.table, such as shop.orders")
        return value

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if "." not in pattern:
                raise ValueError(f"{pattern!r} is not a pattern of the form database.table, such as shop.* or *.orders")
        return value

    def takes(self, database: str, table: str) -> bool:
        """Whether a pattern of `include` matches `database.table`, and none of `exclude`. An empty database or table
        never matches, even with `*.*`."""
        if not database or not table:
            return False
        name = f"{database}.{table}"
        return any(fnmatchcase(name, p) for p in self.include) and not any(fnmatchcase(name, p) for p in self.exclude)


class PolicyConfig(Section):
    """The policy for invalid input, and for statements that lose data."""

    zero_dates: Literal["null", "string", "error"] = Field(
        "null", description="Zero and partial dates become NULL, the column becomes text, or the row is quarantined."
    )
    ddl: DdlPolicy = Field(default_factory=DdlPolicy.nothing, description="Statements that lose data, or cost much.")
    quarantine: Literal["hold", "skip"] = Field(
        "hold", description="A table with quarantined rows stays at its last good cut, or continues without the rows."
    )
    index_gap: Literal["hold", "skip"] = Field(
        "hold", description="A table with a missing data file stays at its last good cut, or continues without it."
    )
    tombstones: Literal["ignore", "quarantine"] = Field(
        "ignore", description="Messages of Kafka with a key and no value are counted, or are quarantined rows."
    )
    max_quarantined_rows: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="A run stops when more rows of what one run landed are quarantined; without it, no run stops.",
    )


class FeedConfig(Section):
    """One change log, and how it is processed."""

    name: Annotated[str, matching(_FEED_NAME, _NAME_FORM)] = Field(
        description="Lower-case letters, digits and underscores.",
        json_schema_extra={"pattern": f"^{_FEED_NAME.pattern}$"},
    )
    source: Source = Field(description="Where the change log is read.")
    tables: TablesConfig = Field(
        default_factory=TablesConfig.nothing, description="Which tables to include, and their settings."
    )
    namespace: str = Field("{database}", description="Namespace of the current-state tables.")
    format_version: FormatVersion = Field(
        3,
        description="Iceberg format version of the current-state tables: 3, or 2 for engines that cannot read 3. "
        "A table of version 2 can be upgraded, one of version 3 stays so.",
    )
    start_date: datetime.date = Field(description="The first Dagster partition.")
    policy: PolicyConfig = Field(default_factory=PolicyConfig.nothing, description="How to treat invalid input.")
    freshness_minutes: Annotated[int, Field(gt=0)] = Field(
        60,
        description="A feed is not fresh when the published cut is older than this, or no run has ended for longer.",
    )
    owners: tuple[Owner, ...] = Field((), description="Owners of the assets: e-mail addresses, or team:<name>.")
    tags: Tags = Field(default_factory=dict, description="Tags of the assets.")
    maintenance: MaintenanceConfig = Field(
        default_factory=MaintenanceConfig.nothing, description="When tables are rewritten, and what is kept."
    )
    key_prefix: tuple[Annotated[str, Field(min_length=1, pattern="^[A-Za-z0-9_.-]+$")], ...] = Field(
        (), description="Prefix of the keys of the feed's assets."
    )
    group: Group | None = Field(None, description="Dagster group of the feed's assets. Default: its name.")
    verify: VerifyConfig | None = Field(None, description="The source database, for `cdc-lakehouse verify`.")

    @field_validator("namespace")
    @classmethod
    def _placeholders(cls, value: str) -> str:
        try:
            fields = [parts[1:] for parts in string.Formatter().parse(value) if parts[1] is not None]
        except ValueError:
            fields = [("", "", "")]
        if any(name not in _PLACEHOLDERS or spec or conversion for name, spec, conversion in fields):
            raise ValueError("may hold the placeholders {database} and {feed} and no others")
        if not value:
            raise ValueError("must not be empty")
        if value.lower().startswith("cdc_"):
            raise ValueError("must not begin with cdc_, as the namespaces of the feeds' own tables do")
        return value

    @property
    def storage_sink(self) -> StorageSinkSource:
        """The source of a storage sink's feed. Raises `ConfigurationError` for other feeds."""
        return self._source_of(StorageSinkSource, "storage_sink")

    @property
    def kafka(self) -> KafkaSource:
        """The source of a topic feed. Raises `ConfigurationError` for other feeds."""
        return self._source_of(KafkaSource, "kafka")

    @property
    def canal(self) -> CanalSource:
        """The source of a Canal server's feed. Raises `ConfigurationError` for other feeds."""
        return self._source_of(CanalSource, "canal")

    @property
    def asset_group(self) -> str:
        """The Dagster group of the feed's assets."""
        return self.group or self.name

    @property
    def initial(self) -> InitialLoad | None:
        """The dump that the feed begins with."""
        return self.source.initial

    @property
    def message_format(self) -> str:
        """The name of the decoder of the feed's records. Raises `ConfigurationError` for a storage sink."""
        return "canal-entries" if isinstance(self.source, CanalSource) else self.kafka.format

    def _source_of(self, kind: type[_Source], name: str) -> _Source:
        if isinstance(self.source, kind):
            return self.source
        raise ConfigurationError(
            f"this is for feeds whose source.type is {name}", feed=self.name, advice=f"its own is {self.source.type}"
        )

    def settings_of(self, database: str, table: str) -> TableSettings:
        """Return the table's own settings, or empty settings where it has none."""
        return self.tables.settings.get(f"{database}.{table}", TableSettings.nothing())

    def owners_of(self, database: str, table: str) -> tuple[str, ...]:
        """Return the owners of the table's assets."""
        owners = self.settings_of(database, table).owners
        return self.owners if owners is None else owners

    def tags_of(self, database: str, table: str) -> dict[str, str]:
        """Return the tags of the table's assets."""
        return {**self.tags, **self.settings_of(database, table).tags}

    @property
    def types(self) -> dict[str, dict[str, str]]:
        """The configured MySQL types of columns, by `database.table` and column."""
        return {name: dict(settings.columns) for name, settings in self.tables.settings.items() if settings.columns}

    def drop_of(self, database: str, table: str) -> Drop:
        """Return the policy for the table when it is dropped."""
        return self.settings_of(database, table).ddl.drop or self.policy.ddl.drop

    def rewrite_of(self, database: str, table: str) -> Rewrite:
        """Return the policy for a statement that rewrites the table's rows."""
        return self.settings_of(database, table).ddl.rewrite or self.policy.ddl.rewrite

    def format_version_of(self, database: str, table: str) -> int:
        """Return the Iceberg format version of the table."""
        return self.settings_of(database, table).format_version or self.format_version

    def zero_dates_of(self, database: str, table: str) -> Literal["null", "string", "error"]:
        """Return the policy for the table's zero and partial dates."""
        return self.settings_of(database, table).zero_dates or self.policy.zero_dates
