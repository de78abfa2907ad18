"""Messages: what one message of a topic says, in plain Python.

A decoder is a function `(key, value) -> Message` over a message's bytes; either may be None. It knows nothing but these
bytes: no earlier message, no clock, no I/O. It gives the parts of `changelog.events`, values as the text that is
described there, and raises `MessageError`, and nothing else, for bytes that it cannot use.

Each format is one module: a docstring with the facts of the format and their source, the decoder, and the row `FORMAT`
with all that the rest of the product needs to know of it (`format.Format`).

How to add a format: write the module; add it to `registry`; add its name to `config.sources.KafkaFormat` and its
page's section to `docs/`."""
