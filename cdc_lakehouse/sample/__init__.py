"""A sample changefeed: a small shop's change log, written to a directory exactly as TiCDC's storage sink writes it.

It is for the demo, `make dev` and tests: nothing else of the project needs it. `shop` has the two functions to call,
`write_history` for the past and `follow` for the present, the workload, and the database that holds its rows;
`sink_writer` writes the files.

How to add to the workload: a table is one row of `shop.TABLES`, values of a column one row of `shop._VALUES`, a DDL one
row of `shop.SCHEMA_CHANGES`.
"""
