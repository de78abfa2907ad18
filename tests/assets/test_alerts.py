"""The alert sensor against receivers on this machine: each problem is told once, again after a day, and when it is
over; a receiver that fails is tried again; and no address is shown or stored."""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.assets import alerts, keys
from cdc_lakehouse.assets.alerts import SENSOR, build_alerts
from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.assets.leases import FEED_TAG
from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.config import load
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CatalogUnreachableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.pipeline.problems import NotifiedProblem, Problem
from tests.kit.lakes import TestLake
from tests.kit.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver
from tests.lake import CREATE, NOON, RENAME, change, segment

SECRET = "hunter2-of-the-hook"
MINUTE = datetime.timedelta(minutes=1)


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


class Daemon:
    """Ticks of the sensor, with the cursor that it left."""

    def __init__(
        self, lake: TestLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, *receivers: dict[str, Any]
    ) -> None:
        document = json.loads(lake.config_path.read_text())
        lake.config_path.write_text(json.dumps({**document, "alerts": receivers}))
        self.config = load(lake.config_path, {"HOOK": SECRET})
        self.instance, self.cursor, self.now = instance, None, utc_now()
        self.checks: Sequence[dg.AssetChecksDefinition] = ()
        self._lake, self._monkeypatch = lake, monkeypatch

    def tick(self, after: datetime.timedelta = MINUTE) -> str:
        self.now += after
        self._monkeypatch.setattr(alerts, "utc_now", lambda: self.now)
        lake = Lake(self.config.lake, self.config.storage)
        (sensor,) = build_alerts(lake, self.config).sensors or []
        known = dg.Definitions(asset_checks=self.checks).get_repository_def()
        with dg.build_sensor_context(self.instance, self.cursor, repository_def=known) as context:
            result: Any = sensor(context)
        self.cursor = result.cursor
        return str(result.skip_reason.skip_message)

    def publish(self, *held: tuple[str, str], before: datetime.timedelta = MINUTE) -> None:
        checkpoint = tso(self.now - before)
        cut = CutRow(checkpoint, "d", "a", None, 3, NOON)
        self._lake.run().checkpoints.publish(Cut(checkpoint, held=held), [cut])


def webhook(receiver: HttpReceiver, **settings: Any) -> dict[str, Any]:
    return {"type": "webhook", "url": receiver.url("hook/${HOOK}"), **settings}


def told(receiver: HttpReceiver) -> list[tuple[str, str, str]]:
    """What arrived since this was asked last: event, kind and subject."""
    found = [
        (notice["event"], notice["kind"], notice["subject"])
        for document in receiver.documents
        for notice in document["notices"]
    ]
    receiver.requests.clear()
    return found


def ended(instance: dg.DagsterInstance, feed: str, *, fails: bool, job: str = "any", tagged: bool = True) -> str:
    """A run that Dagster has carried out."""

    @dg.op
    def work() -> None:
        if fails:
            raise CatalogUnreachableError("the catalog is gone", feed=feed)

    @dg.job(name=job, executor_def=dg.in_process_executor)
    def run() -> None:
        work()

    tags = {FEED_TAG: feed} if tagged else {}
    return run.execute_in_process(instance=instance, tags=tags, raise_on_error=False).run_id


def test_a_held_table_is_told_once_and_when_it_is_over(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook, headers={"X-Team": "data"}))
    daemon.publish()
    assert daemon.tick() == "0 problems; 0 of 0 messages were taken" and told(hook) == []
    daemon.publish(("d.x", "1 row is bad"))
    daemon.tick()
    ((path, headers, document),) = hook.requests
    assert (path, headers["X-Team"]) == (f"/hook/{SECRET}", "data")
    assert document["text"] == f"new: feed {lake.name}: the table d.x is held: 1 row is bad"
    (notice,) = document["notices"]
    assert datetime.datetime.fromisoformat(notice.pop("since")) == daemon.now.replace(microsecond=0)
    assert notice == {
        "event": "opened", "feed": lake.name, "kind": "held", "subject": "d.x",
        "text": "the table d.x is held: 1 row is bad",
    }  # fmt: skip
    hook.requests.clear()
    daemon.publish(("d.x", "2 rows are bad"), ("d%2Ex.y", "why"))
    daemon.tick()
    assert "the table d.x.y is held: why" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "held", "d.x.y")], "a reason in other words is the same problem"
    daemon.tick()
    assert told(hook) == []
    daemon.publish()
    daemon.tick()
    assert sorted(told(hook)) == [("over", "held", "d.x"), ("over", "held", "d.x.y")]
    daemon.tick()
    assert told(hook) == []


def test_a_held_table_is_told_by_the_name_that_it_has_now(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = change(6, "new", RENAME, "RENAME TABLE `d`.`old` TO `d`.`new`")
    lake.run().history.record([change(5, "old", CREATE), renamed], NOON)
    (life,) = lake.run().history.history.incarnations().values()
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    daemon.publish((life.id, "why"))
    daemon.tick()
    assert "the table d.new is held: why" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "held", "d.new")]


def test_a_problem_is_told_again_each_day(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook, on=["held"]))
    daemon.publish(("d.x", "why"))
    daemon.tick()
    opened = daemon.now
    assert told(hook) == [("opened", "held", "d.x")]
    daemon.tick(datetime.timedelta(hours=23, minutes=59))
    assert told(hook) == []
    daemon.tick()
    assert datetime.datetime.fromisoformat(hook.documents[0]["notices"][0]["since"]) == opened.replace(microsecond=0)
    assert told(hook) == [("reminder", "held", "d.x")]
    daemon.tick(datetime.timedelta(hours=23))
    assert told(hook) == []
    daemon.tick(datetime.timedelta(hours=1))
    assert told(hook) == [("reminder", "held", "d.x")]


def test_a_cut_that_is_too_old_is_told_and_a_feed_without_one_after_as_long(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    daemon.tick()
    daemon.tick(datetime.timedelta(minutes=60))
    assert told(hook) == [], "freshness_minutes is 60"
    daemon.tick()
    assert "nothing has been published yet; freshness_minutes is 60" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "stale", "")]
    daemon.publish(before=datetime.timedelta(minutes=30))
    daemon.tick()
    assert told(hook) == [("over", "stale", "")]
    daemon.tick(datetime.timedelta(minutes=30))
    assert told(hook) == [("opened", "stale", "")]


def test_a_table_that_is_older_than_it_may_be_is_told_by_itself(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.configure(tables={"settings": {"d.a": {"freshness_minutes": 5}}})
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    daemon.publish(before=datetime.timedelta(minutes=3))
    daemon.tick()
    assert told(hook) == []
    daemon.tick(datetime.timedelta(minutes=4))
    assert "table d.a is 8 minutes old; its freshness_minutes is 5" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "stale", "d.a")]
    daemon.publish()
    daemon.tick()
    assert told(hook) == [("over", "stale", "d.a")]


def test_rows_that_could_not_be_used_are_told_by_table(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    rejected = [Rejected("s", n, "BadLine", "m", None, "d", "x") for n in (1, 2)]
    rejected.append(Rejected("s", None, "BadFile", "m", None, None, None))
    lake.run().quarantine.replace(lambda _: False, rejected, NOON)
    daemon.tick()
    assert "2 rows of the table d.x could not be used" in hook.documents[0]["text"]
    assert sorted(told(hook)) == [("opened", "quarantined", ""), ("opened", "quarantined", "d.x")]
    lake.run().quarantine.replace(lambda _: True, [], NOON)
    daemon.tick()
    assert sorted(told(hook)) == [("over", "quarantined", ""), ("over", "quarantined", "d.x")]


def test_the_last_run_that_ended_says_whether_runs_fail(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    ended(instance, lake.name, fails=False)
    ended(instance, "another", fails=True)
    daemon.tick()
    assert told(hook) == []
    first = ended(instance, lake.name, fails=True)
    daemon.tick()
    assert first in hook.documents[0]["text"] and "the catalog is gone" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "failed", "")]
    ended(instance, lake.name, fails=True)
    job = f"{lake.name}_maintenance"
    ended(instance, lake.name, fails=True, job=job, tagged=False)
    daemon.tick()
    assert told(hook) == [("opened", "failed", job)], "the next run that fails too is no news, another job is"
    ended(instance, lake.name, fails=False)
    daemon.tick()
    assert told(hook) == [("over", "failed", "")]


def test_a_check_that_fails_is_told_until_it_passes(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook, on=["check"]))
    others = build_checks(lake.lake, lake.feed, [])
    state = {"passed": True}

    def of_people(asset: dg.AssetKey, severity: dg.AssetCheckSeverity) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=asset, name=f"own_{severity.value.lower()}")
        def own() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=state["passed"], severity=severity, description="too few orders")

        return own

    raw, error, warning = keys.raw_key(lake.name), dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
    people = [of_people(raw, error), of_people(raw, warning), of_people(dg.AssetKey("x"), error)]
    daemon.checks = [*others, *people]

    def evaluate(passed: bool) -> None:
        state["passed"] = passed
        resources = {"lakehouse": dg.ResourceDefinition.none_resource()}
        job = dg.Definitions(asset_checks=daemon.checks, resources=resources).resolve_implicit_global_asset_job_def()
        # One that is blocking fails the run in which it was asked for.
        assert not job.execute_in_process(instance=instance, raise_on_error=False).success

    daemon.tick()
    assert told(hook) == [], "none was evaluated yet"
    gap = segment("d/t/1/CDC000003.json", file_index=3)
    lake.run().segments.land([gap])
    # Of a table that is not there, and with a hold, which is another kind of problem.
    daemon.publish(("d.x", "why"))
    evaluate(False)
    daemon.tick()
    text = hook.documents[0]["text"]
    assert f"the check no_index_gaps of {lake.name}/raw failed: Restore the missing files" in text
    assert "too few orders" in text
    names = [f"{lake.name}/{name}" for name in ("checkpoint cut_rows", "raw no_index_gaps", "raw own_error")]
    assert told(hook) == [("opened", "check", name) for name in names]
    daemon.tick()
    assert told(hook) == []
    evaluate(True)
    daemon.tick()
    assert told(hook) == [("over", "check", names[2])]
    daemon.checks = people
    daemon.tick()
    assert told(hook) == [("over", "check", name) for name in names[:2]], "they are of no asset any more"


def test_maintenance_that_does_not_happen_is_told(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook, on=["maintenance"]))
    job = f"{lake.name}_maintenance"
    day = datetime.timedelta(days=1)
    daemon.now = daemon.now.replace(hour=2, minute=59, second=30)
    daemon.tick(datetime.timedelta())
    daemon.tick(day)
    assert told(hook) == [], "it was due at 3:00, and has until 3:00"
    daemon.tick()
    assert "maintenance has not succeeded, and is due by '0 3 * * *'" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "maintenance", "")]
    ended(instance, lake.name, fails=True, job=job, tagged=False)
    daemon.tick()
    assert told(hook) == []
    monkeypatch.setattr(time, "time", daemon.now.timestamp)
    # What log records have as their time since Python 3.13.
    monkeypatch.setattr(time, "time_ns", lambda: int(daemon.now.timestamp() * 1e9))
    ended(instance, lake.name, fails=False, job=job, tagged=False)
    daemon.tick()
    assert told(hook) == [("over", "maintenance", "")]
    daemon.tick(day)
    assert told(hook) == []
    daemon.tick(day)
    assert told(hook) == [("opened", "maintenance", "")]


def test_a_run_whose_process_is_gone_is_told(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    job = dg.job(name="a")(lambda: None)
    instance.create_run_for_job(job, tags={FEED_TAG: lake.name}, status=dg.DagsterRunStatus.STARTED)
    daemon.tick()
    assert told(hook) == [], "it may be about to begin"
    daemon.tick(datetime.timedelta(minutes=6))
    assert "The process of the run is gone" in hook.documents[0]["text"]
    assert told(hook) == [("opened", "failed", "")]


def test_a_lake_that_cannot_be_read_ends_no_problem(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    daemon.publish(("d.x", "why"))
    ended(instance, lake.name, fails=True)
    daemon.tick()
    assert sorted(told(hook)) == [("opened", "failed", ""), ("opened", "held", "d.x")]
    whole = alerts.read_feed_state
    daemon.publish()
    ended(instance, lake.name, fails=False)

    def unreachable(*_: object) -> None:
        raise CatalogUnreachableError("the catalog does not answer")

    monkeypatch.setattr(alerts, "read_feed_state", unreachable)
    daemon.tick()
    assert told(hook) == [("over", "failed", "")]
    monkeypatch.setattr(alerts, "read_feed_state", whole)
    daemon.tick()
    assert told(hook) == [("over", "held", "d.x")]


def test_each_receiver_is_told_in_its_form_what_it_asks_for(
    lake: TestLake, hook: HttpReceiver, mail: MailReceiver, instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    slack = {"type": "slack", "url": hook.url("slack/${HOOK}"), "on": ["held"]}
    post = {
        "type": "email", "host": "127.0.0.1", "port": mail.port, "starttls": False,
        "from": "lake@example.com", "to": ["a@example.com", "b@example.com"],
    }  # fmt: skip
    daemon = Daemon(lake, instance, monkeypatch, slack, post)
    daemon.publish(("d.<x>\n&", "why"))
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


def failing(hook: HttpReceiver, mail: MailReceiver, how: str) -> None:
    if how == "redirect":
        hook.location = hook.url("elsewhere")
    hook.status = {"redirect": 302, "refused": 403, "broken": 500}[how]
    mail.answer = "554 no"


@pytest.mark.parametrize("how", ["redirect", "refused", "broken"])
def test_a_receiver_that_fails_is_tried_again_and_the_others_are_not_told_twice(
    lake: TestLake, hook: HttpReceiver, mail: MailReceiver, instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, how: str,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    post = {
        "type": "email", "host": "127.0.0.1", "port": mail.port, "starttls": False, "from": "a@b", "to": ["c@d"],
    }  # fmt: skip
    with http_receiver() as whole:
        daemon = Daemon(lake, instance, monkeypatch, webhook(hook), webhook(whole), post)
        daemon.publish(("d.x", "why"))
        failing(hook, mail, how)
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


def test_a_receiver_that_is_not_there_is_told_of_without_its_address(
    lake: TestLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    with http_receiver() as gone:
        pass
    bad = {"type": "slack", "url": "http://127.0.0.1:1/\x01${HOOK}"}
    daemon = Daemon(lake, instance, monkeypatch, webhook(gone), bad)
    daemon.publish(("d.x", "why"))
    assert daemon.tick() == "1 problems; 0 of 2 messages were taken"
    shown = "".join(capfd.readouterr())
    assert "Connection refused" in shown and "alerts[1] (slack)" in shown and SECRET not in shown
    assert SECRET not in str(daemon.cursor)
    stored = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert stored == []


def test_a_cursor_of_another_form_begins_anew(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lake, instance, monkeypatch, webhook(hook))
    daemon.publish(("d.x", "why"))
    for cursor in ("{", "[]", '{"told": {"a": [{"feed": "x"}]}}', '{"format": 2}'):
        daemon.cursor = cursor
        daemon.tick()
        assert told(hook) == [("opened", "held", "d.x")]


def test_what_the_cursor_stores() -> None:
    """Cursors outlive a release. Those of before have no number; a later one may have keys that are not known here."""
    problem = Problem(feed="f", kind="held", subject="d.ö", text="why")
    memory = alerts._CursorState(
        {"f": 1.5}, {"alerts[0] (slack)": {problem.key: NotifiedProblem(problem, since=2.5, notified_at=3.5)}}
    )
    known = '"feed": "f", "kind": "held", "subject": "d.ö", "text": "why", "since": 2.5, "told_at": 3.5'
    rest = f'"watched": {{"f": 1.5}}, "told": {{"alerts[0] (slack)": [{{{known}}}]}}}}'
    assert memory.cursor() == f'{{"format": 1, {rest}'
    of_later = f'{{"format": 1, "of later": 1, {rest}'.replace('"kind"', '"of later": 1, "kind"')
    for cursor in (memory.cursor(), f"{{{rest}", of_later):
        assert alerts._CursorState.of(cursor) == memory


def sensors(definitions: dg.Definitions) -> Sequence[Any]:
    return [sensor for sensor in definitions.sensors or [] if getattr(sensor, "name", None) == SENSOR]


def test_the_sensor_is_there_and_runs_where_receivers_are_configured(
    lake: TestLake, hook: HttpReceiver, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sensors(build_definitions(lake.config)) == []
    definitions = build_definitions(Daemon(lake, instance, monkeypatch, webhook(hook)).config)
    (sensor,) = sensors(definitions)
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    daemon_view = definitions.get_repository_def().get_sensor_def(SENSOR)
    assert daemon_view.minimum_interval_seconds == 60
