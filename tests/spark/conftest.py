from __future__ import annotations

import pytest

from cdc_lakehouse.operate.maintenance import Procedures


@pytest.fixture
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for orphan files takes most of the time of maintenance, and commits nothing."""
    monkeypatch.setattr(Procedures, "remove_orphan_files", lambda *_, **__: 0)
