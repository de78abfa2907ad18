"""Whatever befalls the bytes that a decoder is given: it reads them, quarantines them, or raises an error of the
project's. `python -m tests.fuzz --minutes 10`, or `make fuzz`, goes on for as long as one likes.

`test_fuzz` has the decoders with inputs that are sound."""
