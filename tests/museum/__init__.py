"""Patches: `python -m tests.museum` says what they are."""
