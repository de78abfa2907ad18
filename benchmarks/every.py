"""`python -m benchmarks.every [SECTION]…`: each benchmark in a process of its own, as docs/benchmarks.md has them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import click

SECTIONS: Final[dict[str, list[list[str]]]] = {
    "files": [["benchmarks"], ["benchmarks", "--protocol", "csv"]],
    "flink": [["benchmarks.flink"]],
    "topics": [["benchmarks.kafka"]],
    "load": [["benchmarks.load"]],
    "lines": [["benchmarks.lines"]],
    "start": [["benchmarks.start"]],
    "tables": [["benchmarks.many_tables", "--passes", "4", "--warm-up", "2"], ["benchmarks.commits"]],
    "dagster": [["benchmarks.definitions"]],
    "wide": [
        ["benchmarks.versions"],
        ["benchmarks.versions", "--versions", "2", "--columns", "100", "--columns", "1000"],
    ],
    "scaling": [["benchmarks.scaling"]],
    "listing": [["benchmarks.listing"]],
    "growth": [["benchmarks.growth"]],
    "maintenance": [["benchmarks.maintenance", "--tables", "1"]],
}


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice([*SECTIONS]))
def main(sections: tuple[str, ...]) -> None:
    """Measure SECTIONS, or all but the hours of maintenance. Figures go to standard output; exits with 1 where a
    benchmark fails, after the others."""
    failed: list[str] = []
    click.echo(f"load of the machine as it begins: {os.getloadavg()[0]:.1f}")
    for section in sections or [name for name in SECTIONS if name != "maintenance"]:
        for module in SECTIONS[section]:
            click.echo(f"\n## {section}: python -m {' '.join(module)}\n")
            if subprocess.run([sys.executable, "-m", *module], check=False).returncode:
                failed.append(section)
    if failed:
        raise click.ClickException(f"these failed: {', '.join(dict.fromkeys(failed))}")


if __name__ == "__main__":
    main()
