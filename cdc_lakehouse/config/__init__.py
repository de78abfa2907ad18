"""The configuration: `lakehouse.yaml` as frozen, validated values."""

from cdc_lakehouse.config.feed import FeedConfig, TablesConfig
from cdc_lakehouse.config.file import AlertReceiver, LakehouseConfig, ProblemKind, config_path, load
from cdc_lakehouse.config.section import anchor_uri
from cdc_lakehouse.config.sources import (
    CanalSource,
    CsvOptions,
    DatabaseConnection,
    DateSeparator,
    DumpCsv,
    InitialLoad,
    KafkaSource,
    Protocol,
    StorageSinkSource,
    VerifyConfig,
)
from cdc_lakehouse.config.storage import CutsConfig, LakeConfig, StorageConfig

__all__ = [
    "AlertReceiver", "CanalSource", "CsvOptions", "CutsConfig", "DatabaseConnection", "DateSeparator", "DumpCsv",
    "FeedConfig", "InitialLoad", "KafkaSource", "LakeConfig", "LakehouseConfig", "ProblemKind", "Protocol",
    "StorageConfig", "StorageSinkSource", "TablesConfig", "VerifyConfig", "anchor_uri", "config_path", "load",
]  # fmt: skip
