"""Protocols: a DataFrame of raw records becomes a DataFrame of events, without Python in the path of a row.

Each module has one function `decode(records) -> DataFrame` and is one row of `registry.DECODERS`. A decoder takes the
columns `file` (what Spark calls the file) and `value` and gives

    file string, line bigint, value string, database string, table string, op string (I, U, D), commit_ts bigint,
    before map<string,string>, after map<string,string>, problem string

where `problem` is null, or a key of `problems.PROBLEMS` for a record that cannot be used. Values stay the source's
text.

How to add a protocol: write the module, with the facts of the format and their source in its docstring; add its row
here; name it in the configuration's `protocol`."""
