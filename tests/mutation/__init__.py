"""A mutation trial: small faults are put into modules one at a time, and the tests should fail for each.

`python -m tests.mutation cdc_lakehouse.changelog --sample 100` (docs/development.md).
"""
