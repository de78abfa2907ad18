"""Tests of commands, as a script sees them: exit codes, texts and JSON."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result

import cdc_lakehouse.commands
from cdc_lakehouse.cli import main
from tests.kit.dagster_feed import FEED_TAG
from tests.kit.lakes import TestLake

HEAVY = {"dagster", "pyspark", "pyiceberg"}


def call(
    *arguments: str, config: Path | None = None, script: str | bytes | None = None, terminal: bool = False
) -> Result:
    """A command, with a configuration or that of the environment, and what it reads from its input. `terminal`: whether
    its output is one."""
    environment = {} if config is None else {"CDC_LAKEHOUSE_CONFIG": str(config)}
    return CliRunner(env=environment).invoke(main, arguments, input=script, color=terminal)


def run_that_fails(lake: TestLake, monkeypatch: pytest.MonkeyPatch, error: Exception, **tags: str) -> tuple[Path, str]:
    """A run in the feed's own Dagster instance, to which DAGSTER_HOME is set; gives the instance's home and the run."""
    home = lake.config_path.parent / "dagster_home"
    home.mkdir()
    shutil.copy(Path(cdc_lakehouse.commands.__file__).with_name("dagster.yaml"), home)
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    @dg.op
    def fail() -> None:
        raise error

    @dg.job(executor_def=dg.in_process_executor)
    def runs() -> None:
        fail()

    with dg.DagsterInstance.get() as instance:
        failed = runs.execute_in_process(instance=instance, tags={FEED_TAG: lake.name, **tags}, raise_on_error=False)
    return home, failed.run_id


def imported_by(commands: Sequence[Sequence[str]]) -> list[set[str]]:
    """The packages that a process has loaded after each of the commands, one after the other."""
    program = (
        "import json, sys\nfrom cdc_lakehouse.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try:\n        main(arguments)\n    except SystemExit as end:\n        assert not end.code\n"
        "    print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-c", program, json.dumps(commands)]
    with tempfile.TemporaryDirectory() as path:  # With a pandas, which Arrow imports where it finds one.
        (Path(path) / "pandas.py").touch()
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("loaded ")]
