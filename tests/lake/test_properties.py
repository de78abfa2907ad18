"""Names and digests that are in lakes: a test that fails here says that lakes of before are not understood."""

from __future__ import annotations

from dataclasses import replace

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.lake import properties
from cdc_lakehouse.lake.current.tables import schema_fingerprint
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.changelog.test_stored import VERSION

IN_LAKES = {
    "BATCH": "cdc.batch", "CHECKPOINT_TS": "cdc.checkpoint-ts", "SCHEMA_VERSIONS": "cdc.schema-versions",
    "SETTINGS": "cdc.settings", "HELD": "cdc.held", "OFFSETS": "cdc.offsets", "LANDED": "cdc.landed.",
    "BATCH_SEGMENTS": "cdc.batch-segments", "CANAL_POSITION": "cdc.canal-position", "FEED": "cdc.feed",
    "DATABASE": "cdc.database", "TABLE": "cdc.table", "INCARNATION": "cdc.incarnation",
    "APPLIED_TS": "cdc.applied-ts", "APPLIED_BATCH": "cdc.applied-batch", "LINEAGE": "cdc.lineage",
    "COLUMNS": "cdc.columns", "STAGED": "cdc.staged", "DROPPED_TS": "cdc.dropped-ts", "KEY": "cdc.key",
    "KEYS_TOUCHED": "cdc.keys-touched", "ROWS_WRITTEN": "cdc.rows-written", "ROWS_REMOVED": "cdc.rows-removed",
}  # fmt: skip


def test_properties_have_the_names_that_lakes_have() -> None:
    named = {name: value for name, value in vars(properties).items() if name.isupper()}
    assert IN_LAKES.items() <= named.items()
    assert len(set(named.values())) == len(named)


def test_a_lineage_is_the_digest_that_lakes_have() -> None:
    """As commit 9c3a84d made them of the same table."""
    unchanged = replace(VERSION, effect="none", commit_ts=5)
    assert schema_fingerprint(Incarnation("d.t#1", (unchanged, VERSION)), ValueFormat()) == "7c1f0ac36500"
    other = ValueFormat(
        "Asia/Tokyo", "string", labels=True, labels_uncertain=True, binary="base64", trailing_zeros_cut=True
    )
    assert schema_fingerprint(Incarnation("d.t#1", (VERSION,)), other) == "6e9351114827"
