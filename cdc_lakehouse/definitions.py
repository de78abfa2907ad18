"""What Dagster loads, without a JVM or a source that answers: all feeds, or one as a component of a project."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any, Final

import dagster as dg
from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

from cdc_lakehouse import config as configuration
from cdc_lakehouse.assets import steps
from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.assets.maintenance import build_maintenance, build_retention
from cdc_lakehouse.assets.sensors import build_alerts, build_sensor
from cdc_lakehouse.config import FeedConfig, LakeConfig, LakehouseConfig, StorageConfig
from cdc_lakehouse.config.file import validate, with_references
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.feed_tables import known_tables

# One object for all that a process loads: Dagster merges definitions only where a resource is the same one.
_LAKEHOUSE: Final = steps.Lakehouse()


def build_definitions(config: LakehouseConfig) -> dg.Definitions:
    """Assets, checks, jobs, schedules and sensors of the feeds of a configuration, and the resource `lakehouse`, to be
    merged with the definitions of a project. Feeds of one code location have different names, also in different
    configurations."""
    steps.CONFIGURATIONS.update((feed.name, config) for feed in config.feeds)
    lake = Lake(config.lake, config.storage)
    parts = [dg.Definitions(resources={"lakehouse": _LAKEHOUSE}), build_alerts(lake, config)]
    for feed in config.feeds:
        tables = known_tables(lake, feed)
        assets = steps.build_assets(lake, feed, tables)
        jobs = [steps.build_new_job(feed), *steps.build_asset_jobs(feed, assets)]
        checks, sensor = build_checks(lake, feed, tables), build_sensor(lake, feed, jobs, tables)
        own = dg.Definitions(assets=assets, asset_checks=checks, jobs=jobs, sensors=[sensor])
        parts += [build_maintenance(feed), steps.build_verify(feed), own]
    return dg.Definitions.merge(*parts)


@dg.definitions
def defs() -> dg.Definitions:
    try:
        config = configuration.load()
        # In one process, runs of assets that are chosen in the UI have one JVM, as the jobs have.
        in_process = dg.Definitions(executor=dg.in_process_executor)
        retention = build_retention(config.feeds, config.dagster.keep_runs_days)
        return dg.Definitions.merge(build_definitions(config), retention, in_process)
    except CdcError as error:
        # Its sentence says what to do. Where in the code it was found, which Dagster shows too, is no help.
        raise error.with_traceback(None) from None


class ScaffoldOptions(BaseModel):
    """Options of `dg scaffold defs cdc_lakehouse.FeedComponent NAME`. The feed is called after the folder."""

    source: str = Field("./sink", description="Where the change log is: a path, s3://…, gs://… or abfs://…")
    protocol: configuration.Protocol = Field("canal-json", description="What the changefeed writes.")


class FeedScaffolder(dg.Scaffolder[ScaffoldOptions]):
    """Writes a `defs.yaml` that loads, of a storage sink with date directories in UTC."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldOptions]:
        return ScaffoldOptions

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldOptions]) -> None:
        source = {"type": "storage_sink", "uri": request.params.source, "protocol": request.params.protocol}
        of_csv = {"csv": {"include-commit-ts": True}} if source["protocol"] == "csv" else {}
        feed = {
            "name": re.sub(r"\W", "_", request.target_path.name.lower(), flags=re.ASCII),
            "source": {**source, "date_separator": "day", "time_zone": "UTC", **of_csv},
            "tables": {"include": ["*.*"]},
            "start_date": datetime.datetime.now(datetime.UTC).date(),
        }
        lake = {"warehouse": "./lake/warehouse", "catalog": {"type": "sql", "uri": "sqlite:///./lake/catalog.db"}}
        dg.scaffold_component(request, {"lake": lake, "feed": feed})


@dg.scaffold_with(FeedScaffolder)
class FeedComponent(dg.Model, dg.Component, dg.Resolvable):
    """The assets, checks, jobs, schedules and sensor of a feed.

    Either `lake` and `feed` (and `storage`), which are the sections of `lakehouse.yaml`, or `config`, which is the path
    of such a file, for all of its feeds. Paths are relative to the component's folder. `${NAME}` and `${file:PATH}`
    stand for secrets, as in the file. The schema of the sections is the file's, and they are validated as it is.
    """

    lake: dict[str, Any] | None = Field(None, description="Where the tables are, and what writes them.")
    storage: dict[str, Any] | None = Field(None, description="How buckets are reached, for source and warehouse.")
    feed: dict[str, Any] | None = Field(None, description="A change log, and what is made of it.")
    config: str | None = Field(None, description="The path of a lakehouse.yaml, instead of the sections.")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        for name, section in (("lake", LakeConfig), ("storage", StorageConfig), ("feed", FeedConfig)):
            described = schema["properties"][name]["description"]
            schema["properties"][name] = {**handler(section.__pydantic_core_schema__), "description": described}
        return {**schema, "dependentRequired": {"lake": ["feed"], "feed": ["lake"], "storage": ["lake"]}}

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        return with_references(super().model_json_schema(*arguments, **options))

    @classmethod
    def model(cls) -> type[BaseModel]:
        return cls

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        what = "The change log of a TiDB or MySQL database as typed, current Iceberg tables."
        made = ["asset", "asset_check", "job", "schedule", "sensor"]
        return dg.ComponentTypeSpec(description=what, tags=["cdc", "iceberg"], produces=made)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        try:
            return build_definitions(self.configuration(context.path if context.path.is_dir() else context.path.parent))
        except CdcError as error:  # As in `defs`.
            raise error.with_traceback(None) from None

    def configuration(self, folder: Path) -> LakehouseConfig:
        """The validated configuration, with absolute paths. Raises `ConfigurationError`."""
        if self.config is not None:
            if (self.lake, self.storage, self.feed) != (None, None, None):
                what = f"the component in {folder} has config and other attributes"
                raise ConfigurationError(what, advice="use config alone, or the others")
            return configuration.load(folder / self.config)
        sections = {"lake": self.lake, "storage": self.storage, "feeds": None if self.feed is None else [self.feed]}
        return validate(
            {key: part for key, part in sections.items() if part is not None}, folder, f"the component in {folder}"
        )
