"""The sources of change logs: listing and reading, without Iceberg, Spark or Dagster.

A new storage is one class with the methods of `object_store.ObjectStore` and one branch in `object_store.open_store`.
"""
