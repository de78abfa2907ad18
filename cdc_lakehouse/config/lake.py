"""The lake: warehouse, catalog and Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cdc_lakehouse.config.section import Section


class SparkConfig(Section):
    master: str = Field("local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(
        default_factory=dict, description="Further Spark settings, by Spark's own names.", repr=False
    )

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        # YAML reads `true` and `4` as a boolean and a number; Spark takes text.
        if not isinstance(value, Mapping):
            return value
        settings = cast("Mapping[Any, Any]", value)
        return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}


class CatalogConfig(BaseModel):
    """PyIceberg's own property names; those without a meaning here are handed through."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["sql", "rest", "glue", "hive"]
    uri: str | None = Field(None, description="Where the catalog is (not for glue).")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Any of its properties may be a secret.
        yield "type", self.type

    @model_validator(mode="after")
    def _needs_uri(self) -> CatalogConfig:
        if self.uri is None and self.type != "glue":
            raise ValueError(f"a catalog of type {self.type} needs a uri")
        return self

    @property
    def properties(self) -> dict[str, str]:
        extra = {str(k): str(v) for k, v in (self.__pydantic_extra__ or {}).items()}
        return extra if self.uri is None else {"uri": self.uri, **extra}


class LakeConfig(Section):
    warehouse: str = Field(description="Where tables are stored: a path, or a URI of an object store.")
    catalog: CatalogConfig
    spark: SparkConfig = Field(default_factory=lambda: SparkConfig.model_validate({}))
