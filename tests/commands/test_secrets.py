"""What a run leaves behind for people (texts, logs, events, Dagster's storage) holds no secret of the configuration."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.assets.runs import FAILURE_TAG
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.commands import call
from tests.kit.kafka import wait_at_most
from tests.kit.lakes import TestLake
from tests.lake import NOON, segment
from tests.pipeline import Sink
from tests.sources.canal.servers import HANDSHAKE, closed_port, conversation, refusal, serving

SECRET = "hunter2-of-the-run"


@pytest.fixture
def home(lake: TestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of Dagster, beside a configuration with the secret wherever one may stand."""
    path = lake.sink.parent / "lakehouse.yaml"
    document: dict[str, Any] = json.loads(path.read_text())
    document["storage"] = {"s3": {"access_key_id": "${PLANTED}", "secret_access_key": "${PLANTED}"}}
    document["lake"]["catalog"] |= {"s3.secret-access-key": "${PLANTED}", "token": "${PLANTED}"}
    document["lake"]["spark"]["conf"]["spark.hadoop.my.password"] = "${PLANTED}"
    document["feeds"][0]["policy"] = {"max_quarantined_rows": 0}
    path.write_text(json.dumps(document))
    home = tmp_path / "home"
    for name, value in (("PLANTED", SECRET), ("DAGSTER_HOME", str(home)), ("CDC_LAKEHOUSE_CONFIG", str(path))):
        monkeypatch.setenv(name, value)
    return home


def stored(home: Path) -> str:
    """What Dagster has of its runs, and all files of its home."""
    texts = [path.read_bytes().decode(errors="replace") for path in home.rglob("*") if path.is_file()]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for run in instance.get_runs():
            texts += [repr(run), *(repr(entry) for entry in instance.all_logs(run.run_id))]
            if run.job_snapshot_id is not None:
                texts.append(repr(instance.get_job_snapshot(run.job_snapshot_id)))
    return "\n".join(texts)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_shows_and_stores_no_secret(
    lake: TestLake, home: Path, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    Sink(lake.sink).checkpoint(10)
    if fails:
        lake.run().segments.land([segment("d/a/1/CDC000001.json", state="decoded", events=0)])
        rejected = Rejected("d/a/1/CDC000001.json", 1, "NotJson", "it is bad", b"{", "d", "a")
        lake.run().quarantine.replace(lambda _: False, [rejected], NOON)
    run = call("run", "--json")
    (feed,) = json.loads(run.stdout)["feeds"]
    assert feed["run_id"] is not None and (feed["error"] is not None) == fails, feed
    if fails:
        assert "quarantined 1 row; " in feed["error"] and feed["exit_code"] == run.exit_code == 1
        with dg.DagsterInstance.from_config(str(home)) as instance:
            (failed,) = instance.get_runs()
        assert failed.tags[FAILURE_TAG] == "permanent", "the sensor would retry it"
    shown = [run.output, run.stderr, call("status").output, caplog.text, stored(home)]
    # The run is there to be searched.
    assert lake.name in shown[-1] and feed["run_id"] in shown[-1]
    assert not [text for text in shown if SECRET in text]
    files = [path for path in lake.sink.parent.parent.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("kind", ["kafka", "canal"])
def test_a_source_that_refuses_shows_and_stores_no_secret(
    lake: TestLake, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    wait_at_most(monkeypatch, 1)
    path = lake.sink.parent / "lakehouse.yaml"
    document = json.loads(path.read_text())
    refuses = conversation(HANDSHAKE, wire.CLIENT_AUTHENTICATION, refusal("auth failed for user reader"))
    with serving(refuses) as address:
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
        sources = {
            "kafka": {"bootstrap_servers": [closed_port()], "topics": ["t"], "format": "canal-json",
                      "kafka": {**sasl, "sasl.password": "${PLANTED}"}},
            "canal": {"addresses": [address], "destination": "example", "user": "reader", "password": "${PLANTED}"},
        }  # fmt: skip
        document["feeds"][0]["source"] = {"type": kind, **sources[kind]}
        document["feeds"][0]["verify"] = {"url": f"mysql://reader:${{PLANTED}}@{closed_port()}"}
        document["alerts"] = [{
            "type": "webhook", "url": f"http://{closed_port()}/${{PLANTED}}", "headers": {"Authorization": "${PLANTED}"}
        }]  # fmt: skip
        path.write_text(json.dumps(document))
        calls = [call(*words) for words in (["run", "--json"], ["doctor"], ["status"], ["verify"], ["alerts", "test"])]

    assert calls[0].exit_code, "the source does not refuse"
    assert json.loads(calls[0].stdout)["feeds"][0]["error"], "the run has no error to show"
    shown = [*(each.output + each.stderr + repr(each.exception) for each in calls), caplog.text, stored(home)]
    assert not [text for text in shown if SECRET in text]
