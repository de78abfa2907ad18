import pytest

from cdc_lakehouse.operate import maintenance


@pytest.fixture
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for orphan files takes most of the time of maintenance, and commits nothing."""
    monkeypatch.setattr(maintenance, "RULES", [each for each in maintenance.RULES if each.name != "orphan_files"])
