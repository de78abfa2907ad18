"""Maintenance of a feed's tables, and retention in the Dagster instance."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from cdc_lakehouse.config.section import CronSchedule, Section


class MaintenanceConfig(Section):
    """When tables are rewritten, and how long data that readers may still request is kept."""

    schedule: CronSchedule | None = Field(
        "0 3 * * *", description="Cron schedule of maintenance, in UTC; null for none."
    )
    compaction_schedule: CronSchedule | None = Field(
        "30 * * * *",
        description="Cron schedule, in UTC, of compaction alone, of current-state tables that need it; null for none.",
    )
    target_file_mb: Annotated[int, Field(ge=1)] = Field(
        512, description="Size of the files that compaction writes. Files below a quarter of it are small."
    )
    min_small_files: Annotated[int, Field(ge=2)] = Field(
        5, description="Small files of one partition that are too many: they are merged."
    )
    max_delete_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Share of deleted rows with which a file is written again without them."
    )
    unit_mb: Annotated[int, Field(ge=1)] = Field(
        4096, description="About how much is rewritten at once. Runs of the feed wait for so long."
    )
    keep_cut_hours: Annotated[int, Field(ge=1)] = Field(
        24, description="Cuts, and the snapshots that they name, are kept this long; the newest cut always."
    )
    orphan_hours: Annotated[int, Field(ge=24)] = Field(
        72, description="Files that no snapshot names are removed when they are this old."
    )
    keep_replayed_days: Annotated[int, Field(ge=0)] | None = Field(
        30, description="Quarantine rows that could be used after all are kept this long; null for ever."
    )

    keep_records_days: Annotated[int, Field(ge=1)] | None = Field(
        30, description="Messages in `records` are kept this long after they were decoded; null for ever."
    )
    keep_archive_days: Annotated[int, Field(ge=1)] | None = Field(
        30, description="Copies of the source's files are kept this long in the archive; null for ever."
    )
    keep_segments_days: Annotated[int, Field(ge=1)] | None = Field(
        30, description="Segments of earlier dates have a row each for so long, then one a table; null for ever."
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
