"""The alert sensor against receivers on this machine. `tests/commands/cases/alerts.txt` plays what happens."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import AlertNotSentError
from tests.commands import call
from tests.kit import scripted_lake as script
from tests.kit.dagster_feed import SECRET_OF_HOOK as SECRET
from tests.kit.dagster_feed import AlertSensor, ended, keys, set_receivers
from tests.kit.lakes import TestLake
from tests.kit.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver


@pytest.fixture
def hook() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture
def mail() -> Iterator[MailReceiver]:
    with mail_receiver() as receiver:
        yield receiver


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path / "home")) as instance:
        yield instance


def webhook(receiver: HttpReceiver, **settings: Any) -> dict[str, Any]:
    return {"type": "webhook", "url": receiver.url("hook/${HOOK}"), **settings}


def email(receiver: MailReceiver, *to: str, **settings: Any) -> dict[str, Any]:
    place = {"host": "127.0.0.1", "port": receiver.port, "starttls": False}
    return {"type": "email", **place, "from": "lake@example.com", "to": list(to or ("c@d",)), **settings}


def held(daemon: AlertSensor, **held: str) -> None:
    """The feed publishes, and holds these tables."""
    script.publish(daemon.lake, {"a": 3}, held, at=script.before(daemon.now, 1))


def told(receiver: HttpReceiver) -> list[tuple[str, str, str]]:
    """What arrived since this was asked last: event, kind and subject."""
    notices = [notice for document in receiver.documents for notice in document["notices"]]
    receiver.requests.clear()
    return [(notice["event"], notice["kind"], notice["subject"]) for notice in notices]


def test_failed_check_is_sent_until_it_passes(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of people on assets of the feed, too; no warnings, and no holds, which are another kind of problem."""
    monkeypatch.setenv("HOOK", SECRET)
    daemon = AlertSensor(lake, instance, webhook(hook, on=["check"]))
    state = {"passed": True}

    def of_people(asset: dg.AssetKey, severity: dg.AssetCheckSeverity) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=asset, name=f"own_{severity.value.lower()}")
        def own() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=state["passed"], severity=severity, description="too few orders")

        return own

    raw, error, warning = keys.raw_key(lake.feed), dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
    of_all = [of_people(raw, error), of_people(raw, warning), of_people(dg.AssetKey("x"), error)]
    daemon.configure(*of_all)

    def evaluate(passed: bool) -> None:
        state["passed"] = passed
        checks = [*(build_definitions(lake.config).asset_checks or ()), *of_all]
        resources = {"lakehouse": dg.ResourceDefinition.none_resource()}
        job = dg.Definitions(asset_checks=checks, resources=resources).resolve_implicit_global_asset_job_def()
        # One that is blocking fails the run in which it was asked for.
        assert not job.execute_in_process(instance=instance, raise_on_error=False).success

    daemon.tick()
    assert told(hook) == [], "none was evaluated yet"
    script.land(lake, script.segment("d/t/1/CDC000003.json", file_index=3, state="landed"))
    script.publish(lake, {"a": 3}, {"d.x": "why"}, at=script.before(daemon.now, 1))
    evaluate(False)
    daemon.tick()
    text = hook.documents[0]["text"]
    assert f"the check no_index_gaps of {lake.name}/raw failed: Restore the missing files" in text
    assert "too few orders" in text
    names = [f"{lake.name}/{name}" for name in ("checkpoint cut_rows", "raw no_index_gaps", "raw own_error")]
    assert told(hook) == [("opened", "check", name) for name in names]
    evaluate(True)
    daemon.tick()
    assert told(hook) == [("over", "check", names[2])]


def test_each_receiver_gets_its_form_of_what_it_asks_for(
    lake: TestLake, hook: HttpReceiver, mail: MailReceiver, instance: dg.DagsterInstance
) -> None:
    slack = {"type": "slack", "url": hook.url("slack/${HOOK}"), "on": ["held"]}
    daemon = AlertSensor(lake, instance, slack, email(mail, "a@example.com", "b@example.com"))
    held(daemon, **{"d.<x>\n&": "why"})
    ended(instance, lake.name, fails=True)
    assert daemon.tick() == "2 problems; 2 of 2 messages taken"
    ((path, headers, document),) = hook.requests
    assert (path, headers["Content-Type"].split(";")[0]) == (f"/slack/{SECRET}", "application/json")
    assert document == {"text": f"*cdc_lakehouse*\nnew: feed {lake.name}: the table d.&lt;x&gt;\n&amp; is held: why"}
    ((sender, recipients, message),) = mail.mails
    assert (sender, recipients) == ("lake@example.com", ["a@example.com", "b@example.com"])
    assert message["Subject"] == f"[cdc_lakehouse] new: {lake.name} failed, and 1 more"
    assert (message["From"], message["To"]) == ("lake@example.com", "a@example.com, b@example.com")
    text = message.get_payload()
    assert "the catalog is gone" in text and "the table d.<x>" in text


@pytest.mark.parametrize(("how", "status"), [("redirect", 302), ("refused", 403), ("broken", 500)])
def test_failing_receiver_is_tried_again_without_the_others(
    lake: TestLake, hook: HttpReceiver, mail: MailReceiver, instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, how: str, status: int,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    with http_receiver() as whole:
        daemon = AlertSensor(lake, instance, webhook(hook), webhook(whole), email(mail))
        held(daemon, **{"d.x": "why"})
        hook.status, hook.location, mail.answer = status, hook.url("x") if how == "redirect" else None, "554 no"
        assert daemon.tick() == "1 problem; 1 of 3 messages taken"
        assert told(whole) == [("opened", "held", "d.x")]
        assert [path for path, _, _ in hook.requests] == [f"/hook/{SECRET}"], "no redirect is followed"
        hook.requests.clear()
        mail.mails.clear()
        hook.status, hook.location, mail.answer = 204, None, "250 ok"
        assert daemon.tick() == "1 problem; 2 of 2 messages taken"
        assert (told(hook), told(whole), len(mail.mails)) == ([("opened", "held", "d.x")], [], 1)
        assert daemon.tick() == "1 problem; 0 of 0 messages taken"
    shown = "".join([*capfd.readouterr(), caplog.text])
    assert "alerts[0] (webhook) did not take a message" in shown and "alerts[2] (email)" in shown
    assert SECRET not in shown


def test_absent_receiver_is_reported_without_its_address(
    lake: TestLake, instance: dg.DagsterInstance, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with http_receiver() as gone:
        pass
    bad = {"type": "slack", "url": "http://127.0.0.1:1/\x01${HOOK}"}
    daemon = AlertSensor(lake, instance, webhook(gone), bad)
    held(daemon, **{"d.x": "why"})
    assert daemon.tick() == "1 problem; 0 of 2 messages taken"
    shown = "".join(capfd.readouterr())
    assert "Connection refused" in shown and "alerts[1] (slack)" in shown and SECRET not in shown
    assert SECRET not in str(daemon.cursor)
    stored = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert stored == []


# --- `alerts test` ---


def test_command_names_each_receiver_with_its_result(
    lake: TestLake, hook: HttpReceiver, mail: MailReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    slack, post = {"type": "slack", "url": hook.url("${HOOK}")}, email(mail)
    set_receivers(lake, slack, {**slack, "type": "webhook"}, post)
    done = call("alerts", "test", config=lake.config_path)
    assert done.exit_code == 0, done.output
    kinds = ("slack", "webhook", "email")
    assert done.stdout.splitlines() == [f"alerts[{n}] ({kind}): took the message" for n, kind in enumerate(kinds)]
    assert [list(document) for document in hook.documents] == [["text"], ["sent_at", "text", "notices"]]
    assert ["This is a test" in document["text"] for document in hook.documents] == [True, True]
    ((_, _, message),) = mail.mails
    assert message["Subject"] == "[cdc_lakehouse] a test"

    hook.status = 404
    set_receivers(lake, slack, {**post, "starttls": True}, {**post, "user": "u", "password": "${HOOK}"})
    failed = call("alerts", "test", "--json", config=lake.config_path)
    assert failed.exit_code == 1
    advice = f": {AlertNotSentError.default_advice}"
    assert json.loads(failed.stdout)["receivers"] == [
        {"receiver": "alerts[0] (slack)", "error": f"it answered with status 404{advice}"},
        {"receiver": "alerts[1] (email)", "error": f"SMTPNotSupportedError{advice}"},
        {"receiver": "alerts[2] (email)", "error": f"SMTPNotSupportedError{advice}"},
    ]
    assert len(mail.mails) == 1, "what asks for TLS or a login is not sent without"
    assert SECRET not in done.output + failed.output
