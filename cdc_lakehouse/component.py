"""A feed as a component of a Dagster project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from cdc_lakehouse import config as configuration
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CdcError, ConfigurationError


class FeedComponent(dg.Component, dg.Model, dg.Resolvable):
    """The assets, checks, jobs, schedules and sensor of a feed.

    Either `lake` and `feed` (and `storage`), which are the sections of `lakehouse.yaml`, or `config`, which is the path
    of such a file, for all of its feeds. Paths are relative to the component's folder. `${NAME}` and `${file:PATH}`
    stand for secrets, as in the file.
    """

    lake: Annotated[dict[str, Any] | None, Field(description="The section `lake` of lakehouse.yaml.")] = None
    storage: Annotated[dict[str, Any] | None, Field(description="The section `storage` of lakehouse.yaml.")] = None
    feed: Annotated[dict[str, Any] | None, Field(description="An entry of `feeds` of lakehouse.yaml.")] = None
    config: Annotated[str | None, Field(description="Path of a lakehouse.yaml, in place of the others.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        folder = context.path if context.path.is_dir() else context.path.parent
        try:
            return build_definitions(self.configuration(folder))
        except CdcError as error:
            # Its sentence says what to do. Where in the code it was found, which Dagster shows too, is no help.
            raise error.with_traceback(None) from None

    def configuration(self, folder: Path) -> LakehouseConfig:
        """The validated configuration, with absolute paths. Raises `ConfigurationError`."""
        if self.config is not None:
            if (self.lake, self.storage, self.feed) != (None, None, None):
                raise ConfigurationError(
                    f"the component in {folder} has config and other attributes",
                    advice="use config alone, or the others",
                )
            return configuration.load(folder / self.config)
        sections = {"lake": self.lake, "storage": self.storage, "feeds": None if self.feed is None else [self.feed]}
        given = {name: section for name, section in sections.items() if section is not None}
        return configuration.validate(given, folder, f"the component in {folder}")
