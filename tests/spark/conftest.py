from __future__ import annotations

import pytest

from cdc_lakehouse.operate.maintenance import Maintenance


@pytest.fixture
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for orphan files takes most of the time of maintenance, and commits nothing."""
    monkeypatch.setattr(Maintenance, "orphans", lambda *_, **__: 0)
