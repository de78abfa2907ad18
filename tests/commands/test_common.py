"""What the commands share."""

from __future__ import annotations

import os
import pwd

import pytest

from cdc_lakehouse.commands.common import os_user


def test_a_user_without_a_name_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    assert os_user() == f"uid {os.getuid()}"
