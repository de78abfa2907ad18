"""Tests of commands, as a script sees them: exit codes, texts and JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from cdc_lakehouse.cli import main

HEAVY = {"dagster", "pyspark", "pyiceberg"}


def call(
    *arguments: str, config: Path | None = None, script: str | bytes | None = None, terminal: bool = False
) -> Result:
    """A command, with a configuration or that of the environment, and what it reads from its input. `terminal`: whether
    its output is one."""
    environment = {} if config is None else {"CDC_LAKEHOUSE_CONFIG": str(config)}
    return CliRunner(env=environment).invoke(main, arguments, input=script, color=terminal)


def imported_by(*arguments: str) -> set[str]:
    """The packages that a process of the command has loaded when it ends."""
    program = (
        "import sys\nfrom cdc_lakehouse.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())
