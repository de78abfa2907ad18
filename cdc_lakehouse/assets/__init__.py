"""The Dagster layer: assets, partitions, sensors and checks over the steps of `cdc_lakehouse.pipeline`, and nothing
else. Definitions load without a JVM and without the source: tables come from `schema_history`, read by PyIceberg."""
