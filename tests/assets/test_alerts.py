"""The alert sensor against receivers on this machine. `cases/alerts.txt` plays what happens and has what is sent."""

from __future__ import annotations

import datetime
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.config import load
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import AlertNotSentError
from tests.boundaries.change_log import utc_now
from tests.commands import call
from tests.kit import scripted_lake as script
from tests.kit.case_files import Case, read_cases
from tests.kit.clock import clock_at
from tests.kit.dagster_feed import ended, keys, started
from tests.kit.lakes import TestLake
from tests.kit.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver
from tests.kit.scripted_lake import Rejected

SECRET = "hunter2-of-the-hook"
SENSOR = "cdc_alerts"
MINUTE = datetime.timedelta(minutes=1)
CASES = read_cases(Path(__file__).with_name("cases") / "alerts.txt")


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


def configure(lake: TestLake, *receivers: dict[str, Any]) -> None:
    document = json.loads(lake.config_path.read_text())
    lake.config_path.write_text(json.dumps({**document, "alerts": receivers}))


class Daemon:
    """Ticks of the sensor, with the cursor that it left."""

    def __init__(self, lake: TestLake, instance: dg.DagsterInstance, *receivers: dict[str, Any]) -> None:
        self.lake, self.instance, self.receivers = lake, instance, receivers
        self.cursor, self.now = None, utc_now().replace(microsecond=0)
        self.catalog = Path(str(lake.config.lake.catalog.uri).removeprefix("sqlite:///"))
        self.content = b""
        self.configure()

    def configure(self, *checks: Any, **feed: Any) -> None:
        """Settings of the feed, and checks of people, for the ticks that follow."""
        self.lake.configure(**feed)
        configure(self.lake, *self.receivers)
        config = load(self.lake.config_path, {"HOOK": SECRET})
        definitions = dg.Definitions.merge(build_definitions(config), dg.Definitions(asset_checks=checks))
        self.loaded = definitions.get_repository_def()

    def tick(self, after: datetime.timedelta = MINUTE) -> str:
        self.now += after
        repository = self.loaded
        with (
            clock_at(lambda: self.now),
            dg.build_sensor_context(self.instance, self.cursor, repository_def=repository) as context,
        ):
            result = repository.get_sensor_def(SENSOR).evaluate_tick(context)
        self.cursor = result.cursor
        return str(result.skip_message)

    def publish(self, age: float = 1, **held: str) -> None:
        script.publish(self.lake, {"a": 3}, held, at=script.before(self.now, age))


def step(daemon: Daemon, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to the feed, its runs and its lake."""
    lake, (word, *words) = daemon.lake, line.split()
    match word, words:
        case "publish", ["held", *_]:
            pairs = line.partition("held ")[2].split(", ")
            held = dict(pair.split(" = ") for pair in pairs)
            ids = {name: script.incarnation(lake, "new") if "#" in name else name for name in held}
            daemon.publish(**{ids[name]: why for name, why in held.items()})
        case "publish", age:
            daemon.publish(*map(float, age))
        case "create", tables:
            script.create(lake, *tables)
        case "rename", [old, new]:
            script.rename(lake, old, new)
        case "freshness", [table, minutes]:
            daemon.configure(tables={"settings": {table: {"freshness_minutes": int(minutes)}}})
        case "quarantine", [name, count]:
            table = ("d", name.removeprefix("d.")) if name != "-" else (None, None)
            script.quarantine(lake, *(Rejected(name, n, "BadLine", "m", None, *table) for n in range(int(count))))
        case "resolve", []:
            script.resolve_all(lake)
        case "run", [how, *more]:
            monkeypatch.setattr(time, "time", daemon.now.timestamp)
            # What log records have as their time since Python 3.13.
            monkeypatch.setattr(time, "time_ns", lambda: int(daemon.now.timestamp() * 1e9))
            feed, job = ("another", "any") if more[:1] == ["of"] else (lake.name, "any")
            feed, job = (None, f"{lake.name}_maintenance") if more == ["shop_maintenance"] else (feed, job)
            ended(daemon.instance, feed, fails=how == "fails", job=job)
            monkeypatch.undo()
        case "started", []:
            started(daemon.instance, lake.name)
        case "at", [moment]:
            daemon.now = datetime.datetime.combine(daemon.now, datetime.time.fromisoformat(moment), datetime.UTC)
        case "lake", [where]:
            content = daemon.catalog.read_bytes() if where == "away" else daemon.content
            daemon.content = content
            daemon.catalog.write_bytes(b"this is not a database" * 1000 if where == "away" else content)
        case _:
            raise AssertionError(f"a step that is not known: {line}")


def results(case: Case, daemon: Daemon, hook: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What each tick sends, without ids, days and years."""
    ticks = 0
    for line in case.own:
        if not line.startswith("tick"):
            step(daemon, line, monkeypatch)
            continue
        ticks += 1
        daemon.tick(MINUTE * float(line.removeprefix("tick") or 1))
        for document in hook.documents:
            for notice in document["notices"]:
                said = [notice["event"], notice["kind"], notice["subject"] or "-", "|", notice["text"]]
                said = re.sub(r"[0-9a-f-]{36}|20\d\d-\d\d-\d\d \d\d:\d\d", "*", " ".join(said))
                yield f"tick {ticks}: {said.replace(daemon.lake.name, 'shop')}"
        hook.requests.clear()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_problems_are_sent_once_until_they_are_over(
    case: Case, lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch,
    update: bool,
) -> None:  # fmt: skip
    kinds = {"on": ["maintenance"]} if "at 02:59:30" in case.own else {}
    daemon = Daemon(lake, instance, webhook(hook, **kinds))
    case.compare(sorted(results(case, daemon, hook, monkeypatch)), update=update)


def test_message_of_a_webhook_has_all_fields(lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance) -> None:
    daemon = Daemon(lake, instance, webhook(hook, headers={"X-Team": "data"}))
    daemon.publish(**{"d.x": "1 row is bad"})
    daemon.tick()
    ((path, headers, document),) = hook.requests
    assert (path, headers["X-Team"]) == (f"/hook/{SECRET}", "data")
    assert document["text"] == f"new: feed {lake.name}: the table d.x is held: 1 row is bad"
    (notice,) = document["notices"]
    assert datetime.datetime.fromisoformat(notice.pop("since")) == daemon.now
    assert notice == {
        "event": "opened", "feed": lake.name, "kind": "held", "subject": "d.x",
        "text": "the table d.x is held: 1 row is bad",
    }  # fmt: skip


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
    daemon = Daemon(lake, instance, webhook(hook, on=["check"]))
    state = {"passed": True}

    def of_people(asset: dg.AssetKey, severity: dg.AssetCheckSeverity) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=asset, name=f"own_{severity.value.lower()}")
        def own() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=state["passed"], severity=severity, description="too few orders")

        return own

    raw, error, warning = keys.raw_key(lake.name), dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
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
    daemon = Daemon(lake, instance, slack, email(mail, "a@example.com", "b@example.com"))
    daemon.publish(**{"d.<x>\n&": "why"})
    ended(instance, lake.name, fails=True)
    assert daemon.tick() == "2 problems; 2 of 2 messages were taken"
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
        daemon = Daemon(lake, instance, webhook(hook), webhook(whole), email(mail))
        daemon.publish(**{"d.x": "why"})
        hook.status, hook.location, mail.answer = status, hook.url("x") if how == "redirect" else None, "554 no"
        assert daemon.tick() == "1 problems; 1 of 3 messages were taken"
        assert told(whole) == [("opened", "held", "d.x")]
        assert [path for path, _, _ in hook.requests] == [f"/hook/{SECRET}"], "no redirect is followed"
        hook.requests.clear()
        mail.mails.clear()
        hook.status, hook.location, mail.answer = 204, None, "250 ok"
        assert daemon.tick() == "1 problems; 2 of 2 messages were taken"
        assert (told(hook), told(whole), len(mail.mails)) == ([("opened", "held", "d.x")], [], 1)
        assert daemon.tick() == "1 problems; 0 of 0 messages were taken"
    shown = "".join([*capfd.readouterr(), caplog.text])
    assert "alerts[0] (webhook) did not take a message" in shown and "alerts[2] (email)" in shown
    assert SECRET not in shown


def test_absent_receiver_is_reported_without_its_address(
    lake: TestLake, instance: dg.DagsterInstance, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with http_receiver() as gone:
        pass
    bad = {"type": "slack", "url": "http://127.0.0.1:1/\x01${HOOK}"}
    daemon = Daemon(lake, instance, webhook(gone), bad)
    daemon.publish(**{"d.x": "why"})
    assert daemon.tick() == "1 problems; 0 of 2 messages were taken"
    shown = "".join(capfd.readouterr())
    assert "Connection refused" in shown and "alerts[1] (slack)" in shown and SECRET not in shown
    assert SECRET not in str(daemon.cursor)
    stored = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert stored == []


def test_cursor_is_read_by_later_releases(lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance) -> None:
    """An unknown one is reset; one of before has no number; a later one can have further keys."""
    daemon = Daemon(lake, instance, webhook(hook))
    daemon.publish(**{"d.x": "why"})
    for cursor in ("{", "[]", '{"told": {"a": [{"feed": "x"}]}}', '{"format": 2}'):
        daemon.cursor = cursor
        daemon.tick()
        assert told(hook) == [("opened", "held", "d.x")]
    seconds, since = daemon.now.timestamp(), f'"{daemon.now.timestamp()}"'.strip('"')
    problem = f'"feed": "{lake.name}", "kind": "held", "subject": "d.x", "text": "the table d.x is held: why"'
    known = f'{{{problem}, "since": {since}, "told_at": {since}}}'
    rest = f'"watched": {{"{lake.name}": {seconds}}}, "told": {{"alerts[0] (webhook)": [{known}]}}}}'
    assert daemon.cursor == f'{{"format": 1, {rest}'
    of_later = f'{{"format": 1, "of later": 1, {rest}'.replace('"kind"', '"of later": 1, "kind"')
    for cursor in (f"{{{rest}", of_later):
        daemon.cursor = cursor
        daemon.tick()
        assert told(hook) == []


def test_sensor_exists_where_receivers_are_configured(lake: TestLake) -> None:
    assert SENSOR not in {getattr(each, "name", None) for each in build_definitions(lake.config).sensors or ()}


# --- `alerts test` ---


def test_command_names_each_receiver_with_its_result(
    lake: TestLake, hook: HttpReceiver, mail: MailReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    slack, post = {"type": "slack", "url": hook.url("${HOOK}")}, email(mail)
    configure(lake, slack, {**slack, "type": "webhook"}, post)
    done = call("alerts", "test", config=lake.config_path)
    assert done.exit_code == 0, done.output
    kinds = ("slack", "webhook", "email")
    assert done.stdout.splitlines() == [f"alerts[{n}] ({kind}): took the message" for n, kind in enumerate(kinds)]
    assert [list(document) for document in hook.documents] == [["text"], ["sent_at", "text", "notices"]]
    assert ["This is a test" in document["text"] for document in hook.documents] == [True, True]
    ((_, _, message),) = mail.mails
    assert message["Subject"] == "[cdc_lakehouse] a test"

    hook.status = 404
    configure(lake, slack, {**post, "starttls": True}, {**post, "user": "u", "password": "${HOOK}"})
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
    configure(lake)
    none = call("alerts", "test", config=lake.config_path)
    assert none.exit_code == 2 and "no receivers" in none.stderr
