"""The configuration: `lakehouse.yaml` as frozen, validated values."""

from cdc_lakehouse.config.canal_source import CanalSource
from cdc_lakehouse.config.feed import FeedConfig, PolicyConfig, TablesConfig, TableSettings
from cdc_lakehouse.config.file import ENVIRONMENT_VARIABLE, LakehouseConfig, anchor_uri, config_path, load
from cdc_lakehouse.config.kafka_source import KafkaFormat, KafkaSource
from cdc_lakehouse.config.lake import CatalogConfig, LakeConfig, SparkConfig
from cdc_lakehouse.config.source import CsvOptions, DateSeparator, Protocol, StorageSinkSource
from cdc_lakehouse.config.storage import AzureStorage, GcsStorage, S3Storage, StorageConfig

__all__ = [
    "ENVIRONMENT_VARIABLE", "AzureStorage", "CanalSource", "CatalogConfig", "CsvOptions", "DateSeparator", "FeedConfig",
    "GcsStorage", "KafkaFormat", "KafkaSource", "LakeConfig", "LakehouseConfig", "PolicyConfig", "Protocol",
    "S3Storage", "SparkConfig", "StorageConfig", "StorageSinkSource", "TableSettings", "TablesConfig", "anchor_uri",
    "config_path", "load",
]  # fmt: skip
