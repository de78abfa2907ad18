"""A sample changefeed: a small shop's change log, written to a directory exactly as TiCDC's storage sink writes it, for
the demo, `make dev` and tests. `shop` has the workload and the two functions to call, `sink_writer` writes the files.

How to add to the workload: a table is one row of `shop.TABLES`, values of a column one row of `shop._VALUES`, a DDL one
row of `shop.SCHEMA_CHANGES`."""
