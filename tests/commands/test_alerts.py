"""`alerts test`: a message to each receiver of the configuration, and which one took it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.errors import AlertNotSentError
from tests.commands import call
from tests.kit.lakes import TestLake
from tests.kit.receivers import http_receiver, mail_receiver

SECRET = "hunter2-of-the-hook"


def configure(lake: TestLake, monkeypatch: pytest.MonkeyPatch, *receivers: dict[str, Any]) -> None:
    document = json.loads(lake.config_path.read_text())
    lake.config_path.write_text(json.dumps({**document, "alerts": receivers}))
    monkeypatch.setenv("HOOK", SECRET)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))


def test_each_receiver_gets_a_message_and_is_named_with_what_it_did(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver() as hook, mail_receiver() as mail:
        post = {
            "type": "email", "host": "127.0.0.1", "port": mail.port, "starttls": False, "from": "a@b", "to": ["c@d"],
        }  # fmt: skip
        slack = {"type": "slack", "url": hook.url("${HOOK}")}
        configure(lake, monkeypatch, slack, {**slack, "type": "webhook"}, post)
        done = call("alerts", "test")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == [
            f"alerts[{n}] ({kind}): took the message" for n, kind in enumerate(("slack", "webhook", "email"))
        ]
        assert [list(document) for document in hook.documents] == [["text"], ["sent_at", "text", "notices"]]
        assert all("This is a test" in document["text"] for document in hook.documents)
        ((_, _, message),) = mail.mails
        assert message["Subject"] == "[cdc_lakehouse] a test"

        hook.status = 404
        configure(lake, monkeypatch, slack, {**post, "starttls": True}, {**post, "user": "u", "password": "${HOOK}"})
        failed = call("alerts", "test", "--json")
        assert failed.exit_code == 1
        what_to_do = f": {AlertNotSentError.default_advice}"
        assert json.loads(failed.stdout)["receivers"] == [
            {"receiver": "alerts[0] (slack)", "error": f"it answered with status 404{what_to_do}"},
            {"receiver": "alerts[1] (email)", "error": f"SMTPNotSupportedError{what_to_do}"},
            {"receiver": "alerts[2] (email)", "error": f"SMTPNotSupportedError{what_to_do}"},
        ]
        assert len(mail.mails) == 1, "what asks for TLS or a login is not sent without"
    assert SECRET not in done.output + failed.output


def test_without_receivers_it_is_a_fault_of_the_configuration(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(lake, monkeypatch)
    done = call("alerts", "test")
    assert done.exit_code == 2 and "no receivers" in done.stderr
