"""The section `alerts`: who is told, and addresses that nobody sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import EmailReceiver, SlackReceiver, WebhookReceiver
from tests.test_config import put, read, refusal

SECRET = "T0/B0/hunter2"
HOOK = f"https://hooks.example/{SECRET}"
MAIL = {"type": "email", "host": "mail", "from": "lake@example.com", "to": ["a@example.com"]}


def test_receivers_of_each_kind_are_read_and_show_no_secret(tmp_path: Path) -> None:
    receivers = [
        {"type": "webhook", "url": "https://hooks.example/${PATH}", "headers": {"Authorization": "${PATH}"}},
        {"type": "slack", "url": "${HOOK}", "feeds": ["shop"], "on": ["failed"]},
        {**MAIL, "user": "u", "password": "${PATH}"},
    ]
    config = read(tmp_path, put("alerts", receivers), HOOK=HOOK, PATH=SECRET)
    webhook, slack, mail = config.alerts
    assert isinstance(webhook, WebhookReceiver) and isinstance(slack, SlackReceiver) and isinstance(mail, EmailReceiver)
    assert (webhook.url, webhook.headers, slack.url) == (HOOK, {"Authorization": SECRET}, HOOK)
    assert (mail.port, mail.starttls, mail.sender, mail.to, mail.password) == (
        587, True, "lake@example.com", ("a@example.com",), SECRET
    )  # fmt: skip
    kinds = ("failed", "held", "stale", "quarantined", "check", "maintenance")
    assert [webhook.takes(feed, kind) for feed in ("shop", "bank") for kind in kinds] == [True] * 12
    assert [(feed, kind) for feed in ("shop", "bank") for kind in kinds if slack.takes(feed, kind)] == [
        ("shop", "failed")
    ]
    assert SECRET not in repr(config) and SECRET not in str(config.alerts)


def test_without_the_section_nobody_is_told(tmp_path: Path) -> None:
    assert read(tmp_path).alerts == ()


@pytest.mark.parametrize(
    ("receiver", "said"),
    [
        ({"type": "slack", "url": HOOK}, "alerts[0].url: holds a secret in plain text"),
        ({"type": "webhook", "url": f"${{X:-{HOOK}}}"}, "alerts[0].url: holds a secret in plain text"),
        ({"type": "webhook", "url": "${HOOK}", "headers": {"X-Api-Key": SECRET}}, "plain text"),
        ({**MAIL, "user": "u", "password": SECRET}, "alerts[0].password: holds a secret in plain text"),
        ({"type": "slack", "url": "${BAD}"}, "alerts[0].url: must begin with https:// or http://"),
        ({"type": "slck", "url": "${HOOK}"}, "alerts[0].type: should be one of"),
        ({"type": "slck", "url": "${HOOK}"}, "did you mean slack?"),
        ({"url": "${HOOK}", "headers": {}}, "alerts[0].type: is missing; did you mean webhook?"),
        ({"type": "slack", "ulr": "${HOOK}"}, "alerts[0].ulr: is not a key that is known here; did you mean url?"),
        ({"type": "slack", "url": "${HOOK}", "on": ["faild"]}, "alerts[0].on[0]: should be"),
        ({"type": "slack", "url": "${HOOK}", "on": []}, "alerts[0].on: "),
        ({"type": "slack", "url": "${HOOK}", "feeds": ["shp"]}, "no feed is called 'shp': the configuration has shop"),
        ({**MAIL, "from": "lake"}, "alerts[0].from: is not an e-mail address"),
        ({**MAIL, "to": ["a@b", "a b@c"]}, "alerts[0].to[1]: is not an e-mail address"),
        ({**MAIL, "user": "u"}, "user and password belong together"),
    ],
)
def test_what_is_wrong_is_told_without_the_secret(tmp_path: Path, receiver: dict[str, Any], said: str) -> None:
    text = refusal(tmp_path, put("alerts", [receiver]), HOOK=HOOK, BAD=f"ftp://{SECRET}")
    assert said in text and SECRET not in text
