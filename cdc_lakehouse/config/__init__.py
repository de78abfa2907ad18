"""The configuration: `lakehouse.yaml` as frozen, validated values."""

from cdc_lakehouse.config.feed import FeedConfig, PolicyConfig, TablesConfig, TableSettings
from cdc_lakehouse.config.file import (
    ENVIRONMENT_VARIABLE,
    AlertReceiver,
    EmailReceiver,
    LakehouseConfig,
    ProblemKind,
    SlackReceiver,
    WebhookReceiver,
    config_path,
    load,
    validate,
)
from cdc_lakehouse.config.section import anchor_uri
from cdc_lakehouse.config.sources import (
    Address,
    CanalSource,
    CsvOptions,
    DatabaseAddress,
    DatabaseConnection,
    DateSeparator,
    DumpCsv,
    InitialLoad,
    KafkaFormat,
    KafkaSource,
    Protocol,
    StorageSinkSource,
    VerifyConfig,
)
from cdc_lakehouse.config.storage import (
    AzureStorage,
    CatalogConfig,
    CutsConfig,
    GcsStorage,
    LakeConfig,
    S3Storage,
    SparkConfig,
    StorageConfig,
)

__all__ = [
    "ENVIRONMENT_VARIABLE", "Address", "AlertReceiver", "AzureStorage", "CanalSource", "CatalogConfig",
    "CsvOptions", "CutsConfig", "DatabaseAddress", "DatabaseConnection", "DateSeparator", "DumpCsv",
    "EmailReceiver", "FeedConfig", "GcsStorage", "InitialLoad", "KafkaFormat", "KafkaSource", "LakeConfig",
    "LakehouseConfig", "PolicyConfig", "ProblemKind", "Protocol", "S3Storage", "SlackReceiver", "SparkConfig",
    "StorageConfig", "StorageSinkSource", "TableSettings", "TablesConfig", "VerifyConfig", "WebhookReceiver",
    "anchor_uri", "config_path", "load", "validate",
]  # fmt: skip
