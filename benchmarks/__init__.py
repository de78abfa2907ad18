"""Throughput of the main path, beside DuckDB doing the same work on the same files and cores.

    python -m benchmarks --help

`sbtest` is the workload, `change_log` its files, `lakehouse` and `duck` the two that are measured, `passes` the
measuring, `memory` the peaks, `agreement` the proof that both made the same rows, `report` the figures. What is
measured, and how: docs/benchmarks.md.
"""
