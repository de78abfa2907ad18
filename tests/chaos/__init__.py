"""Chaos: random histories of a database, each played on a lake that lives through changes of its configuration and
through faults, and compared with the model after each. `python -m tests.chaos --minutes 10 --seed 1`.

`history` draws what happens to a database, `world` plays the databases of a seed with `faults`, and compares the lake
with the model."""
