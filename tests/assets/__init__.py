"""Tests of what Dagster sees."""

from __future__ import annotations

import functools

import dagster as dg


@functools.cache
def empty_instance() -> dg.DagsterInstance:
    """One without runs, for all that only read it: to make one costs more than most tests do."""
    return dg.DagsterInstance.ephemeral()


@functools.cache
def check_context() -> dg.OpExecutionContext:
    """What a check is called with, where it asks for nothing."""
    return dg.build_op_context(instance=empty_instance())
