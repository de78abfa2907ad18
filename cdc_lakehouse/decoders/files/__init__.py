"""Protocols of files. Each is one module with one function `decode(connection, content, context)`, which makes batches
of `event_schema.DECODED` of a file's bytes (see `file_format`), and one row of `registry.FORMATS`.

How to add a protocol: write the module, with the facts of the format and their source in its docstring; add its row
to the registry, with all that `FileFormat` asks; name it in the configuration's `protocol`."""
