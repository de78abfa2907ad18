"""Decoders of single messages of a topic, in plain Python.

A decoder is a function `(key, value) -> Message` over a message's bytes; either may be None. It knows only these bytes:
no earlier message, no clock, no I/O. It returns the parts of `changelog.events`, with values as the text that is
described there, and raises `MessageError`, and nothing else, for bytes that it cannot use.

Each format is one module: a docstring with the facts of the format and their source, the decoder, and the row `FORMAT`
with every fact that the rest of the product needs about it (`format.Format`).

How to add a format: write the module; add it to `registry`; add its name to `config.sources.KafkaFormat` and its page's
section to `docs/`.
"""
