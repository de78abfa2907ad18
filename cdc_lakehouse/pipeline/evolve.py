"""Step 3, schema: DDL up to the checkpoint enters `schema_history`, all tables in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.errors import SchemaFileError, SourceError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.pipeline.land import Landed
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.sink.paths import SchemaFilePath

BAD_SCHEMA_FILE: Final = "BadSchemaFile"


@dataclass(frozen=True)
class Evolved:
    """The versions that a run added to the history."""

    versions: tuple[TableVersion, ...]


def evolve(run: FeedRun, landed: Landed) -> Evolved:
    """Record every schema file up to the checkpoint that is not recorded; those above it wait."""
    known = run.history.changes
    changes = [marked for change in known.values() if (marked := landed.schema_files.marked(change)) != change]
    faults: list[tuple[SchemaFilePath, str]] = []
    for file in sorted(landed.listing.schemas, key=lambda file: (file.version, file.path)):
        if file.path in known or file.version > landed.checkpoint_ts:
            continue
        try:
            changes.append(landed.schema_files.marked(landed.schema_files.read(file)))
        except (SchemaFileError, SourceError) as error:
            faults.append((file, error.message))
    _quarantine(run, landed, faults)
    versions = run.history.record(changes, run.clock())
    if versions:
        run.log.info("recorded %d schema versions", len(versions))
    return Evolved(tuple(versions))


def _quarantine(run: FeedRun, landed: Landed, faults: list[tuple[SchemaFilePath, str]]) -> None:
    bad = {file.path for file, _ in faults}
    now = run.clock()
    run.quarantine.resolve(lambda row: row.error_class == BAD_SCHEMA_FILE and row.segment not in bad, "replayed", now)
    found: list[Quarantined] = []
    for file, message in faults:
        database, table = landed.schema_files.name_at(file.directory)
        found.append(Quarantined(file.path, None, database, table, BAD_SCHEMA_FILE, message, None, "open", now))
    run.quarantine.add(found)
