"""Protocols of files. Each is one module with one function `decode(connection, content, context)`, which decodes a
file's bytes into batches of `event_schema.DECODED` (see `file_format`), and one row of `registry.FORMATS`.

How to add a protocol: write the module, with the facts of the format and their source in its docstring; add its row to
the registry, with all fields of `FileFormat`; add its name to the configuration's `protocol`.
"""
