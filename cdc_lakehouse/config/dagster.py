"""What is kept in the Dagster instance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cdc_lakehouse.config.section import Section


class DagsterConfig(Section):
    """The Dagster instance that records the runs."""

    keep_runs_days: Annotated[int, Field(gt=0)] | None = Field(
        30, description="Days after which the job cdc_prune_runs deletes a run; without it, none is deleted."
    )
