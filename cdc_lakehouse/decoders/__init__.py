"""Protocols: files of a source become a DataFrame of events, without Python code for a row.

Each module has one function `decode(spark, files) -> Decoded` and is one row of `registry.DECODERS`. It gives

    file string, line bigint, value (string or binary), database string, table string, op string (I, U, D),
    commit_ts bigint, before map<string,string>, after map<string,string>, problem string

and says which segment each `file` is. `line` counts a file's records from 1. `value` is the record as it stands there,
needed where it cannot be used; then `problem` is a key of `problems.PROBLEMS`, else null. Values stay the source's
text.

How to add a protocol: write the module, with the facts of the format and their source in its docstring; add its row
here; name it in the configuration's `protocol`."""
