"""Protocols of files. Each is one module with one function `decode(spark, files) -> Decoded`, and one row of
`registry.DECODERS`. It gives the columns of `event_schema.DECODED`, and says which segment each `file` is.

How to add a protocol: write the module, with the facts of the format and their source in its docstring; add its row
to the registry; name it in the configuration's `protocol`."""
