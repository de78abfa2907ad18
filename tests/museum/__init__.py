"""Real faults, kept as reverse patches: each takes one mending out of the product again, and its tests should fail.

`python -m tests.museum` (docs/development.md).
"""
