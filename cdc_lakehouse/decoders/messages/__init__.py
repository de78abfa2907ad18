"""Messages: what one message of a topic says, in plain Python.

A message decoder is a function `(key, value) -> Message` over a message's bytes; either may be None. It knows nothing
but these bytes: no earlier message, no clock, no I/O. It gives the parts of `changelog.messages`, values as the text
that is described there, and raises `MessageError`, and nothing else, for bytes that it cannot use.

Each format is one module with one function `decoder(options) -> Decode` and one row of `registry.FORMATS`.

How to add a format: write the module, with the facts of the format and their source in its docstring; add its row to
the registry; add its page's section to `docs/`."""
