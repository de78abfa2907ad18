"""The lake: Iceberg tables, written by Spark where rows are many and by PyIceberg where they are few."""
