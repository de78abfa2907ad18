"""The command line as a script sees it: exit codes, messages and JSON; and no secret of the configuration in what a run
leaves behind."""

import io
import json
import logging
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
from click.testing import Result

from cdc_lakehouse.assets.runs import FAILURE_TAG
from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.common import ProgressLine, Shown, find_home, os_user
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.lease import last_holder
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.sources.canal.client import Connection, scrambled
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.canal_captures import capture
from tests.commands import HEAVY, call, imported_by, run_that_fails
from tests.kit.kafka import wait_at_most
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import publish
from tests.kit.waiting import until
from tests.lake import NOON, segment
from tests.pipeline import Sink, lake_in
from tests.sources.canal import servers
from tests.sources.canal.servers import HandMadeCanal, closed_port, serving


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def say(text: str, capsys: pytest.CaptureFixture[str], *, color: bool = False) -> str:
    with click.Context(click.Command("a"), color=color):
        common.say(text)
    return capsys.readouterr().out


def shown_by_progress(stream: io.StringIO, shown: Shown) -> str:
    """What is written of a step that reports its progress, and then logs a name with escapes."""
    log = logging.getLogger("cdc_lakehouse")
    level = log.level
    with ProgressLine(shown, stream):
        Progress(log, "segments are decoded", 3).add(3)
        log.info("of \x1b[31ma\nname")
        if shown == "line" and stream.isatty():
            until(lambda: "name" in stream.getvalue())
    assert log.level == level and not log.handlers
    return stream.getvalue()


def test_mistyped_path_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    # Set by the command itself: put back when the test ends.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert call("run", config=tmp_path / "mistyped" / "lakehouse.yaml").exit_code == 2
    assert not (tmp_path / "mistyped").exists()


def test_dagster_home_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    root = Path(__file__).parents[2]
    for directory, home in ((root / "demo", root), (root, root), (tmp_path, tmp_path)):
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(directory / "lakehouse.yaml"))
        assert find_home() == home / "dagster_home"
    assert "concurrency" in (root / "dagster_home/dagster.yaml").read_text(encoding="utf-8")


def test_help_loads_nothing_heavy() -> None:
    # In one process, which keeps what it has loaded: those that may load the least come first.
    may_not_load = {
        "ddl apply --help": HEAVY | {"pyarrow", "pymysql"},
        **dict.fromkeys(("--version", "--help", "sample --help", "canal tail --help"), HEAVY),
        "status --help": {"dagster", "pyspark", "boto3", "sqlalchemy"},
        **{words: {"dagster", "boto3"} for words in ("report --help", "metrics --help")},
        "run --help": {"boto3"},
    }
    seen = imported_by([words.split() for words in may_not_load])
    for (words, heavy), loaded in zip(may_not_load.items(), seen, strict=True):
        assert not loaded & heavy, words


@pytest.mark.slow
def test_status_and_run_with_nothing_new_load_nothing_heavy(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run is only read about until its job succeeds."""
    Sink(lake.sink).checkpoint(10)
    publish(lake, {"a": 1}, {"d.b": "held"})
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    run_that_fails(lake, monkeypatch, RuntimeError("it failed"))
    with dg.DagsterInstance.get() as instance:
        assert "dagster" in imported_by([("status",)])[0]
        dg.GraphDefinition("runs").to_job().execute_in_process(instance=instance)
    heavy = {"dagster", "pandas", "pyspark", "grpc", "google", "sqlalchemy"}
    assert not imported_by([("status",)])[0] & heavy


def test_program_calls_exit_handlers_flushes_and_ends_with_the_code() -> None:
    text = "import atexit, sys, cdc_lakehouse.cli as c\nc.main = lambda: atexit.register(print, 3) and sys.exit(3)\n"
    done = subprocess.run([sys.executable, "-c", f"{text}c.program()"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "3\n", "")


def test_names_are_completed_without_loading_commands() -> None:
    program = (
        "import os, sys\nos.environ.update(_CDC_LAKEHOUSE_COMPLETE='bash_complete', COMP_WORDS=sys.argv[1], "
        "COMP_CWORD='1')\nfrom cdc_lakehouse.cli import main\n"
        "try:\n    main(prog_name='cdc-lakehouse')\nexcept SystemExit:\n    pass\n"
        "print('|', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )

    def complete(words: str) -> tuple[list[str], set[str]]:
        done = subprocess.run([sys.executable, "-c", program, words], capture_output=True, text=True, check=True)
        found, _, loaded = done.stdout.partition("|")
        return found.split(), set(loaded.split())

    found, loaded = complete("cdc-lakehouse re")
    assert found == ["plain,rebuild", "plain,report", "plain,resume"] and not loaded & HEAVY
    assert complete("cdc-lakehouse --con")[0] == ["plain,--config"]


# --- Text for a terminal ---


@pytest.mark.parametrize(
    "escape", ["\x1b[2J", "\x1b]0;title\x07", "\x1b[8m", "\x9b31m", "\r", "\x7f", "\u202e", "\udcff"]
)
def test_commands_for_a_terminal_are_escaped(escape: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = say(f"a table t{escape}, and its statement", capsys)
    assert not any(each in said for each in escape if not each.isprintable())
    assert escape.encode("unicode_escape").decode() in said


def test_text_of_any_language_and_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert say("größe 表 😀\nnext", capsys) == "größe 表 😀\nnext\n"
    coloured = click.style("a", fg="green") + click.style("b", fg="red") + click.style("c", fg="yellow")
    assert say(coloured, capsys, color=True) == f"{coloured}\n"


def test_progress_line_shows_the_last_message_and_is_cleared() -> None:
    written = shown_by_progress(Terminal(), "line")
    assert re.search(r"\d:\d\d of \\x1b\[31ma name", written)
    assert written.endswith("\r\x1b[K\r") and "\n" not in written and "\x1b[31m" not in written


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), "nothing"), (io.StringIO(), "line")])
def test_progress_is_silent_when_quiet_or_off_a_terminal(stream: io.StringIO, shown: Any) -> None:
    assert shown_by_progress(stream, shown) == ""


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["a terminal", "a file"])
def test_progress_log_has_a_line_for_each_message(stream: io.StringIO) -> None:
    first, last = shown_by_progress(stream, "log").splitlines()
    assert "segments are decoded" in first
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ of \\x1b\[31ma name", last)


def test_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert os_user() == f"uid {os.getuid()}"


# --- What a run leaves behind for people holds no secret of the configuration ---


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
def test_run_reveals_no_secret(lake: TestLake, home: Path, caplog: pytest.LogCaptureFixture, fails: bool) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kafka", "canal"])
def test_a_source_that_refuses_shows_and_stores_no_secret(
    lake: TestLake, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    wait_at_most(monkeypatch, 1)
    path = lake.sink.parent / "lakehouse.yaml"
    document = json.loads(path.read_text())
    refuses = servers.conversation(
        servers.HANDSHAKE, wire.CLIENT_AUTHENTICATION, servers.refusal("auth failed for user reader")
    )
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


# --- `canal tail`, and a run of a feed of a Canal server; `cases/canal.txt` has what disturbs no run ---


def tail(address: str, *options: str) -> Result:
    host, _, port = address.rpartition(":")
    return call("canal", "tail", "--host", host, "--port", port, *options)


def test_entries_are_lines() -> None:
    with serving(HandMadeCanal(capture("mysql8.0.12").entries)) as address:
        result = tail(address, "--limit", "6", "--batch-size", "4")
    assert result.exit_code == 0 and result.stderr == ""
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["batch"] for line in found] == [2, 2, 2, 2, 3, 3]
    place = {"log_file": "mysql-bin.000001", "gtid": None}
    text = "create database if not exists cdc character set utf8mb4"
    ddl = {"kind": "ddl", "database": "cdc", "table": "", "sql": text}
    assert found[0] == {"batch": 2, **place, "log_offset": 6067, "time_ms": 1795227273000, "parts": [ddl]}
    assert [found[n]["parts"] for n in (3, 5)] == [[], [{"kind": "end"}]]
    (row,) = found[4]["parts"]
    assert (row["kind"], row["op"], row["table"], row["before"], row["key"]) == ("row", "I", "t_all", None, ["id"])
    assert row["after"]["c_varchar"] == 'vär 中文 😀 "q" \\ \n\t' and row["types"]["c_tiny"] == "tinyint(4)"


def test_user_password_destination_and_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKEHOUSE_CANAL_PASSWORD", "hunter2")
    said: list[Any] = []

    def handler(connection: Any) -> None:
        connection.sendall(servers.HANDSHAKE)
        said.append(wire.ClientAuth.FromString(servers.heard(connection).body))
        connection.sendall(servers.OPENING[2])
        said.append(wire.Sub.FromString(servers.heard(connection).body))
        connection.sendall(servers.refusal("no more"))

    with serving(handler) as address:
        options = ["--user", "u", "--destination", "shop", "--filter", r"a\..*", "--seconds", "0.2"]
        result = tail(address, *options)
    assert result.exit_code == 1 and "no more" in result.stderr
    auth, sub = said
    assert (auth.username, auth.password) == ("u", scrambled("hunter2", servers.SEED))
    assert (sub.destination, sub.filter) == ("shop", r"a\..*")
    assert "hunter2" not in result.output + result.stderr


def test_run_asks_the_destination_only_with_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    held: list[bool] = []
    get = Connection.get

    def asked(connection: Connection, size: int, wait_seconds: float) -> wire.Messages:
        holder = last_holder(lake.lake, lake.name)
        held.append(holder is not None and not holder.released)
        return get(connection, size, wait_seconds)

    monkeypatch.setattr(Connection, "get", asked)
    with serving(HandMadeCanal([])) as address:
        source = {"type": "canal", "destination": "example", "addresses": [address]}
        lake = lake_in(tmp_path, source=source, start_date="2020-01-01")
        for _ in range(2):
            assert call("run", config=lake.config_path).exit_code == 0
    assert held and all(held)
