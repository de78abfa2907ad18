"""A feed: its source, its tables, and the policy for invalid input."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from cdc_lakehouse.config.section import CronSchedule, Group, Owner, Section, Tags, key, matching
from cdc_lakehouse.config.sources import CanalSource, InitialLoad, KafkaSource, Source, StorageSinkSource, VerifyConfig
from cdc_lakehouse.errors import ConfigurationError

# Maintenance of a feed's tables, and retention in the Dagster instance.


class MaintenanceConfig(Section):
    """When tables are rewritten, and how long data that readers may still request is kept."""

    schedule: CronSchedule | None = key("0 3 * * *", "Cron schedule of maintenance (UTC); null: none.")
    compaction_schedule: CronSchedule | None = key("30 * * * *", "Cron schedule of compaction, in UTC; null for none.")
    target_file_mb: int = key(512, "Size of files that compaction writes. Files below a quarter of it are small.", ge=1)
    min_small_files: int = key(5, "Number of small files in a partition that are merged.", ge=2)
    max_delete_ratio: float = key(0.1, "Share of deleted rows from which a file is rewritten.", gt=0, le=1)
    unit_mb: int = key(4096, "Approximate size rewritten at a time, while runs of the feed wait.", ge=1)
    keep_cut_hours: int = key(24, "Cuts and the snapshots they name are kept this long; the newest always.", ge=1)
    orphan_hours: int = key(72, "Files that no snapshot names are removed when they are this old.", ge=24)
    keep_replayed_days: int | None = key(30, "Days to keep replayed quarantine rows; null: forever.", ge=0)
    keep_records_days: int | None = key(30, "Days to keep decoded messages in `records`; null: forever.", ge=1)
    keep_archive_days: int | None = key(30, "Days to keep copies of source files in the archive; null: forever.", ge=1)
    keep_segments_days: int | None = key(
        30, "Days until segments of earlier dates become one row per table; null: never.", ge=1
    )
    keep_superseded_days: int | None = key(
        None,
        "Events that a later one of the same row has superseded are kept this long, and as long as their "
        "segments have rows; null for ever.",
        ge=1,
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

    keep_runs_days: int | None = key(30, "Days after which the job cdc_prune_runs deletes a run; null: never.", gt=0)


_PLACEHOLDER: Final = re.compile(r"\{(?:database|feed)\}|\{\{|\}\}")
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

    drop: Drop | None = key(None, "Overrides policy.ddl.drop.")
    rewrite: Rewrite | None = key(None, "Overrides policy.ddl.rewrite.")


class DdlPolicy(Section):
    """The policy for statements that lose data in the lake, or are expensive."""

    drop: Drop = key("keep", "A dropped table stays in the lake, marked as dropped, or is removed with its data.")
    rewrite: Rewrite = key(
        "apply", "A statement that rewrites all rows is carried out, or waits for `cdc-lakehouse resume`."
    )


class TableSettings(Section):
    """Settings of one table that differ from the policy, and facts that its source does not give."""

    primary_key: tuple[str, ...] | None = key(None, "Key of a table that declares none.", min_length=1)
    zero_dates: Literal["null", "string", "error"] | None = key(None, "Overrides policy.zero_dates.")
    columns: dict[str, str] = key(
        dict, "MySQL types of columns that messages do not state fully, for a table older than the feed."
    )
    ddl: DdlOverride = key(DdlOverride, "Overrides policy.ddl.")
    virtual_columns: tuple[str, ...] | None = key(None, "Virtual generated columns, which csv rows do not have.")
    format_version: FormatVersion | None = key(None, "Overrides the feed's format_version.")
    owners: tuple[Owner, ...] | None = key(None, "Owners of the table's assets. Default: the feed's.")
    tags: Tags = key(dict, "Tags of the table's assets, added to the feed's.")
    group: Group | None = key(None, "Dagster group of the table. Default: that of its database.")
    freshness_minutes: int | None = key(
        None, "For a table that changes all the time: minutes without changes after which it is not fresh.", gt=0
    )


LABELS: Final = frozenset({"owners", "tags", "group", "freshness_minutes"})
"""Settings of a table that do not affect its content."""


class TablesConfig(Section):
    """The tables of the log that are processed, by patterns with `*` and `?`, and the settings of single tables."""

    include: tuple[str, ...] = key(("*.*",), "Patterns of database.table to include.")
    exclude: tuple[str, ...] = key((), "Patterns of database.table to exclude.")
    settings: dict[str, TableSettings] = key(dict, "By database.table.")

    @field_validator("include", "exclude", "settings")
    @classmethod
    def _names(cls, value: Iterable[str], info: ValidationInfo) -> Iterable[str]:
        kind, such = ("name", "shop.orders") if info.field_name == "settings" else ("pattern", "shop.* or *.orders")
        for name in value:
            if "." not in name:
                raise ValueError(f"{name!r} is not a {kind} of the form database.table, such as {such}")
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

    zero_dates: Literal["null", "string", "error"] = key(
        "null", "Zero and partial dates become NULL, the column becomes text, or the row is quarantined."
    )
    ddl: DdlPolicy = key(DdlPolicy, "Statements that lose data, or cost much.")
    quarantine: Literal["hold", "skip"] = key(
        "hold", "A table with quarantined rows stays at its last good cut, or continues without the rows."
    )
    index_gap: Literal["hold", "skip"] = key(
        "hold", "A table with a missing data file stays at its last good cut, or continues without it."
    )
    tombstones: Literal["ignore", "quarantine"] = key(
        "ignore", "Messages of Kafka with a key and no value are counted, or are quarantined rows."
    )
    max_quarantined_rows: int | None = key(
        None, "A run stops when more rows of what one run landed are quarantined; without it, no run stops.", ge=0
    )


class FeedConfig(Section):
    """One change log, and how it is processed."""

    name: Annotated[str, matching(_FEED_NAME, _NAME_FORM)] = key(
        ..., "Lower-case letters, digits and underscores.", json_schema_extra={"pattern": f"^{_FEED_NAME.pattern}$"}
    )
    source: Source = key(..., "Where the change log is read.")
    tables: TablesConfig = key(TablesConfig, "Which tables to include, and their settings.")
    namespace: str = key("{database}", "Namespace of the current-state tables.")
    format_version: FormatVersion = key(
        3,
        "Iceberg format version of the current-state tables: 3, or 2 for engines that cannot read 3. "
        "A table of version 2 can be upgraded, one of version 3 stays so.",
    )
    start_date: datetime.date = key(..., "The first Dagster partition.")
    policy: PolicyConfig = key(PolicyConfig, "How to treat invalid input.")
    freshness_minutes: int = key(
        60, "A feed is not fresh when the published cut is older than this, or no run has ended for longer.", gt=0
    )
    owners: tuple[Owner, ...] = key((), "Owners of the assets: e-mail addresses, or team:<name>.")
    tags: Tags = key(dict, "Tags of the assets.")
    maintenance: MaintenanceConfig = key(MaintenanceConfig, "When tables are rewritten, and what is kept.")
    key_prefix: tuple[Annotated[str, Field(min_length=1, pattern="^[A-Za-z0-9_.-]+$")], ...] = key(
        (), "Prefix of the keys of the feed's assets."
    )
    group: Group | None = key(None, "Dagster group of the feed's assets. Default: its name.")
    verify: VerifyConfig | None = key(None, "The source database, for `cdc-lakehouse verify`.")

    @field_validator("namespace")
    @classmethod
    def _placeholders(cls, value: str) -> str:
        if re.search("[{}]", _PLACEHOLDER.sub("", value)):
            raise ValueError("may hold the placeholders {database} and {feed} and no others")
        if not value:
            raise ValueError("must not be empty")
        if value.lower().startswith("cdc_"):
            raise ValueError("must not begin with cdc_, as the namespaces of the feeds' own tables do")
        return value

    @property
    def storage_sink(self) -> StorageSinkSource:
        return self._source_of(StorageSinkSource, "storage_sink")

    @property
    def kafka(self) -> KafkaSource:
        return self._source_of(KafkaSource, "kafka")

    @property
    def canal(self) -> CanalSource:
        return self._source_of(CanalSource, "canal")

    @property
    def initial(self) -> InitialLoad | None:
        """The dump that the feed begins with."""
        return self.source.initial

    @property
    def message_format(self) -> str:
        """The name of the decoder of the feed's records. Raises `ConfigurationError` for a storage sink."""
        return "canal-entries" if isinstance(self.source, CanalSource) else self.kafka.format

    def _source_of(self, kind: type[_Source], name: str) -> _Source:
        """Return the feed's source. Raises `ConfigurationError` for a feed with one of another type."""
        if isinstance(self.source, kind):
            return self.source
        raise ConfigurationError(
            f"this is for feeds whose source.type is {name}", feed=self.name, advice=f"its own is {self.source.type}"
        )

    def settings_of(self, database: str, table: str) -> TableSettings:
        """Return the table's own settings, or empty settings where it has none."""
        return self.tables.settings.get(f"{database}.{table}", TableSettings())

    @property
    def types(self) -> dict[str, dict[str, str]]:
        """The configured MySQL types of columns, by `database.table` and column."""
        return {name: dict(settings.columns) for name, settings in self.tables.settings.items() if settings.columns}

    def ddl_of(self, database: str, table: str) -> DdlPolicy:
        own, policy = self.settings_of(database, table).ddl, self.policy.ddl
        return DdlPolicy(drop=own.drop or policy.drop, rewrite=own.rewrite or policy.rewrite)

    def format_version_of(self, database: str, table: str) -> int:
        return self.settings_of(database, table).format_version or self.format_version

    def zero_dates_of(self, database: str, table: str) -> Literal["null", "string", "error"]:
        return self.settings_of(database, table).zero_dates or self.policy.zero_dates
