"""`cdc-lakehouse doctor`: check whether the configuration works on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from cdc_lakehouse import config as configuration
from cdc_lakehouse.adopt.diagnose import Finding, diagnose
from cdc_lakehouse.commands.common import DONE, HELD, exits, print_json, say

_MARKS: Final = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@exits
def command(as_json: bool) -> int:
    """Test each part of the configuration on this machine, and advise on failures.

    Java, Spark's jars, disk and memory, the catalog and the warehouse (test files are removed), each source with its
    permissions and tables, the clock, and the dump and the database of a feed that has one. No table is changed.

    Exit code 0: all parts work. 1: one fails. 2: the configuration is wrong.

    \b
    Example:
      cdc-lakehouse doctor
    """
    config = configuration.load()
    findings: list[Finding] = []
    for finding in diagnose(config):
        findings.append(finding)
        if not as_json:
            _say(finding)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    return HELD if any(finding.outcome == "failed" for finding in findings) else DONE


def _say(finding: Finding) -> None:
    say(f"{_MARKS[finding.outcome]}  {finding.part}: {finding.said}")
    if finding.advice is not None:
        say(f"         {finding.advice}")
