"""Tests of what Dagster sees."""
