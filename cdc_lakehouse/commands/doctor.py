"""`cdc-lakehouse doctor`: check whether a configuration works on this machine: each part is tried, and a failure comes
with advice. `alerts test`: whether its receivers can be reached.

Nothing remains afterwards: what is written to the catalog and to the warehouse is removed. No JVM with Spark is
started.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

import click
import pyarrow as pa
from pyiceberg.io import load_file_io

from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.commands.common import DONE, HELD, exits, print_json, say
from cdc_lakehouse.commands.plan import source_tables
from cdc_lakehouse.config import LakehouseConfig, load
from cdc_lakehouse.config.reporting import plural, some
from cdc_lakehouse.errors import AlertNotSentError, CdcError, ConfigurationError, in_one_line
from cdc_lakehouse.lake.catalog import Lake, path_of
from cdc_lakehouse.lake.faults import described, engine_errors, engine_fault
from cdc_lakehouse.lake.spark import ARCHIVE_COMMAND, class_archive, fetch_command, jar_directory
from cdc_lakehouse.operate.alerts import receiver_label, send
from cdc_lakehouse.operate.state import FeedState
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.progress import time_span
from cdc_lakehouse.sources.database import SourceDatabase, position_of
from cdc_lakehouse.sources.dump.directory import read_dump
from cdc_lakehouse.sources.object_store import open_store

_ROWS: Final = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
PYTHONS: Final = (3, 11, 2), (3, 14)
"""The first version of Python that is supported, and the first after it that is not: others are not tested."""
_LEAST_JAVA: Final = 17
_TESTED_JAVA: Final = (17,)
_LEAST_FREE: Final = 2 << 30
_LEAST_MEMORY: Final = 6 << 30
_PATIENCE_SECONDS: Final = 30
_BINLOG: Final = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"}
"""Variables of MySQL without which its binlog has not each row whole."""
_CLOCK_SLACK: Final = datetime.timedelta(minutes=1)
_REFUSED: Final = (
    "correct the configuration of this part, or give its user the rights that it needs: in the catalog, to make, "
    "change and remove namespaces and tables; in the warehouse, to list, read, write and delete"
)


@dataclass(frozen=True)
class Finding:
    """The result of one part. advice: what to do; None when nothing is to be done."""

    part: str
    outcome: Literal["ok", "warning", "failed"]
    said: str
    advice: str | None = None


_Shown = tuple[str, str | None]
"""What a part that works shows, and what to do where it calls for attention."""


def diagnose(config: LakehouseConfig) -> Iterator[Finding]:
    """Yield a finding for each part as it is tried: this machine, the catalog and the warehouse, then each feed's
    source. Failures of parts are findings, not exceptions; what repeats one of its feed or the lake is left out."""
    lake, failures = Lake(config.lake, config.storage), set[tuple[str, str]]()
    parts: dict[str, Callable[[], _Shown]] = {
        "python": _python, "java": _java, "jars": partial(_jars, config), "memory": partial(_memory, config),
        "disk": partial(_disk, config), "catalog": partial(_catalog, lake), "warehouse": partial(_warehouse, lake),
    }  # fmt: skip
    with _nothing_left(config):
        for feed in config.feeds:
            # The source is queried once, when the first part needs it.
            state = FeedState(feed, lake)
            own = {"source": _source, "clock": _clock, "tables": _tables}
            own |= {"expiration": _expiration} if state.source.has_files else {}
            own |= {} if feed.initial is None else {"dump": _dump}
            own |= {} if feed.verify is None else {"database": _database}
            parts |= {f"{feed.name}: {name}": partial(part, state) for name, part in own.items()}
        for name, part in parts.items():
            try:
                message, advice = part()
                finding = Finding(name, "ok" if advice is None else "warning", message, advice)
            except Exception as error:  # noqa: BLE001 - Whatever a catalog or a store throws is what this part showed.
                said = message = described(error)
                advice, of_feed = _REFUSED, name.rpartition(": ")[0]
                fault = error if isinstance(error, CdcError) else engine_fault(error)
                if fault is not None:
                    # Places and codes of one failure differ between parts.
                    message, advice, fault.advice = fault.message, fault.advice, None
                    said = fault.coded
                if not failures.isdisjoint({("", message), (of_feed, message)}):
                    continue
                failures.add((of_feed, message))
                finding = Finding(name, "failed", said, advice)
            yield finding


@contextlib.contextmanager
def _nothing_left(config: LakehouseConfig) -> Iterator[None]:
    """Remove the empty SQLite file and directories of a lake that did not exist before the block."""
    uri = config.lake.catalog.uri or ""
    paths = [Path(uri.removeprefix("sqlite:///"))] if uri.startswith("sqlite:///") else []
    if config.lake.warehouse.startswith("file:"):
        paths.append(path_of(config.lake.warehouse))
    new = {each for path in paths for each in (path, *path.parents) if not os.path.lexists(each)}
    try:
        yield
    finally:
        for each in sorted(new, key=lambda path: (path.is_dir(), -len(path.parts))):
            with contextlib.suppress(OSError):  # A directory that something else is in by now.
                if each.is_dir():
                    each.rmdir()
                elif each.is_file() and not Lake(config.lake, config.storage).catalog.list_namespaces():
                    each.unlink()


def _python() -> _Shown:
    packages = ", ".join(f"{name} {version(name)}" for name in ("cdc-lakehouse", "pyspark", "pyiceberg", "dagster"))
    said = f"Python {sys.version.split()[0]}, {packages}"
    if PYTHONS[0] <= sys.version_info[:3] < PYTHONS[1]:
        return said, None
    least, beyond = (".".join(map(str, each)) for each in PYTHONS)
    advice = f"install a Python from {least} to before {beyond}, and the project in it"
    raise ConfigurationError(f"{said}: no test ran on this version of Python", advice=advice)


def _java() -> _Shown:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"install Java {_LEAST_JAVA} (Debian: apt-get install openjdk-17-jre-headless), or correct JAVA_HOME"
    try:
        if java is None:
            raise FileNotFoundError("there is no java on the PATH")
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"Java does not start: {in_one_line(error)}", advice=advice) from error
    match = re.search(r'version "(\d+)', said.stderr + said.stdout)
    found = int(match[1]) if match else 0
    if found < _LEAST_JAVA:
        raise ConfigurationError(f"{java} is Java {found or 'of an unknown version'}", advice=advice)
    untested = f"Java {' and '.join(map(str, _TESTED_JAVA))} are tested"
    return f"Java {found} at {java}", None if found in _TESTED_JAVA else untested


def _jars(config: LakehouseConfig) -> _Shown:
    directory = jar_directory(config.lake)
    if directory.is_dir():
        slow = f"; `{ARCHIVE_COMMAND}` once, and Spark starts in half of the time"
        return f"Spark's jars are in {directory}{'' if class_archive().is_file() else slow}", None
    advice = f"let the first run fetch them, or call `{fetch_command(config.lake)}`; without a network point "
    return f"Spark's jars are not fetched yet: {directory} is not there", f"{advice}CDC_LAKEHOUSE_JARS at a copy"


def _memory(config: LakehouseConfig) -> _Shown:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    said = f"this machine has {size / (1 << 30):.1f} GiB of memory"
    if size >= _LEAST_MEMORY or not config.lake.spark.master.startswith("local"):
        return said, None
    return said, "run it where there are 8 GiB, or set lake.spark.conf to less (docs/sizing.md)"


def _disk(config: LakehouseConfig) -> _Shown:
    if not config.lake.warehouse.startswith("file:"):
        return "the warehouse is in an object store", None
    directory = path_of(config.lake.warehouse)
    there = next(each for each in (directory, *directory.parents) if each.exists())
    free = shutil.disk_usage(there).free
    said = f"{free / (1 << 30):.1f} GiB are free at {there}"
    return said, None if free >= _LEAST_FREE else "make room: tables are written there"


def _catalog(lake: Lake) -> _Shown:
    """Test the catalog, its permissions and its store with a table that is created, written, read and removed."""
    namespace = f"cdc_doctor_{uuid.uuid4().hex[:12]}"
    with engine_errors():
        lake.catalog.create_namespace((namespace,))
        try:
            table = lake.catalog.create_table((namespace, "rows"), _ROWS.schema, properties={"format-version": "2"})
            try:
                table.append(_ROWS)
                found = table.scan().to_arrow()
            finally:
                lake.catalog.purge_table((namespace, "rows"))
            # A REST catalog can create a table of the newest format; for others Spark does, which is not started.
            if lake.config.catalog.type == "rest":
                lake.catalog.create_table((namespace, "newest"), _ROWS.schema, properties={"format-version": "3"})
                lake.catalog.purge_table((namespace, "newest"))
        finally:
            lake.catalog.drop_namespace((namespace,))
            if lake.config.warehouse.startswith("file:"):
                # The files are deleted, but their directories are left.
                shutil.rmtree(path_of(lake.location(namespace)), ignore_errors=True)
    if found != _ROWS:
        what, advice = "a table of the catalog has other rows", "check for a proxy or a cache in front of the warehouse"
        raise ConfigurationError(f"{what} than were written", advice=advice)
    return f"a table was made in the {lake.config.catalog.type} catalog, written, read, and removed", None


def _warehouse(lake: Lake) -> _Shown:
    location = lake.location(f"cdc_doctor_{uuid.uuid4().hex[:12]}")
    content = b"written by cdc-lakehouse doctor"
    with engine_errors():
        files = load_file_io(dict(lake.catalog.properties), location)
        lake.write(location, content)
        with files.new_input(location).open() as file:
            found = file.read()
        files.delete(location)
    if found != content:
        advice = "check for a proxy or a cache in front of it"
        raise ConfigurationError("the warehouse gives other bytes than were written", advice=advice)
    return "a file was written to the warehouse, read, and removed", None


def _source(state: FeedState) -> _Shown:
    if (status := state.source_status).error is not None:
        raise status.error
    dates = state.source.new_dates()
    seen = ["it can be read"]
    if status.checkpoint_ts is not None:
        seen.append(f"its checkpoint-ts is of {commit_time(status.checkpoint_ts):%Y-%m-%d %H:%M:%S} UTC")
    seen += [] if status.pending_records is None else [f"{plural(status.pending_records, 'record')} to read"]
    seen += [f"files of {plural(len(dates), 'date')} to read"] if dates else []
    return ", ".join([*seen, *state.source.sample()]), None


def _clock(state: FeedState) -> _Shown:
    if (status := state.source_status).error is not None:
        raise status.error
    shown = status.checkpoint_ts
    if shown is None or commit_time(shown) <= utc_now() + _CLOCK_SLACK:
        return "the source is not ahead of this machine's clock", None
    ahead = time_span((commit_time(shown) - utc_now()).total_seconds())
    advice = "set this machine's clock: lag and partitions follow it"
    return f"the source's checkpoint-ts is {ahead} in the future", advice


def _tables(state: FeedState) -> _Shown:
    """Tables that are known before a run: those of a sink's schema files and of a dump, and those that have landed."""
    feed, tables = state.feed, source_tables(state)
    if not tables:
        return "the source shows no table yet", None
    names = [str(version.name) for version in tables]
    taken = [version for version in tables if feed.tables.takes(version.name.database, version.name.table)]
    idle = [each for each in feed.tables.include if not any(fnmatchcase(name, each) for name in names)]
    said = f"takes {len(taken)} of {plural(len(tables), 'table')}"
    if idle:
        said = f"{said}; tables.include has {', '.join(idle)}, which matches none: the source has {some(names)}"
        return said, "correct the pattern (case counts), or wait until the table exists"
    keyless = [str(version.name) for version in taken if not key_columns(feed, version)]
    if keyless:
        said = f"{said}; without a key, so held: {some(keyless)}"
        return said, f'set tables.settings."{keyless[0]}".primary_key, or exclude the table'
    return said, None


def _expiration(state: FeedState) -> _Shown:
    said, warning = state.source.expiration(state.source_status.checkpoint_ts)
    advice = "run the feed: it holds the tables that files may be missing from; let it run more often than files expire"
    return (said, None) if warning is None else (f"{said}; {warning}", advice)


def _dump(state: FeedState) -> _Shown:
    initial = state.feed.initial
    assert initial is not None
    if initial.database is not None:
        with SourceDatabase(initial.database, texts=True) as database:
            return _of_binlog(database, f"at {position_of(database)}")
    assert initial.uri is not None
    dump = read_dump(open_store(initial.uri, state.lake.storage), initial)
    return f"a finished dump of {plural(len(dump.tables), 'table')} at {dump.position}", None


def _database(state: FeedState) -> _Shown:
    assert state.feed.verify is not None
    with SourceDatabase(state.feed.verify) as database:
        return _of_binlog(database, "with a consistent snapshot")


def _of_binlog(database: SourceDatabase, how: str) -> _Shown:
    """Return whether a MySQL server writes whole rows into its binlog; TiDB has none."""
    said = f"the source database {database.version} answers, {how}"
    if database.is_tidb:
        return said, None
    names = ", ".join(f"'{name}'" for name in _BINLOG)
    found = {str(name): str(value) for name, value in database.all(f"SHOW VARIABLES WHERE Variable_name IN ({names})")}
    if not (wrong := [f"{name} is {found.get(name)}" for name, value in _BINLOG.items() if found.get(name) != value]):
        return said, None
    wanted = ", ".join(f"{name}={value}" for name, value in _BINLOG.items())
    return f"{said}; {', '.join(wrong)}", f"set {wanted} on the server whose binlog Canal reads"


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
    findings: list[Finding] = []
    for finding in diagnose(load()):
        findings.append(finding)
        if not as_json:
            mark = "FAILED" if finding.outcome == "failed" else finding.outcome
            say(f"{mark:<7}  {finding.part}: {finding.said}")
            if finding.advice is not None:
                say(f"         {finding.advice}")
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    return HELD if any(finding.outcome == "failed" for finding in findings) else DONE


@click.group(name="alerts")
def alerts() -> None:
    """Test the receivers of alerts."""


@alerts.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@exits
def test(as_json: bool) -> int:
    """Send a test message to each receiver of `alerts`, and print which accepted it.

    Exit code 0: all accepted it. 1: one did not. 2: the configuration is wrong or has no receivers.

    \b
    Example:
      cdc-lakehouse alerts test
    """
    if not (receivers := load().alerts):
        raise ConfigurationError("the configuration has no receivers of alerts", advice="add them as `alerts`")
    errors: dict[str, str | None] = {}
    for position, receiver in enumerate(receivers):
        label = receiver_label(receiver, position)
        errors[label] = None
        try:
            send(receiver, ())
        except AlertNotSentError as error:
            errors[label] = str(error)
        if not as_json:
            say(f"{label}: {errors[label] or 'took the message'}")
    if as_json:
        print_json({"receivers": [{"receiver": label, "error": error} for label, error in errors.items()]})
    return DONE if all(error is None for error in errors.values()) else HELD
