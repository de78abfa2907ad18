"""Servers of the tests end with the process that started them, however it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import until
from tests.servers.process import free_port

pytestmark = pytest.mark.server

# Starts a server in a test, says that it runs, and waits.
_TEST = """
import sys, time
from pathlib import Path
from tests.servers.process import running

def test_it():
    port, log = {port}, Path({log!r})
    with running([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], port, log):
        log.with_name("started").touch()
        time.sleep(60)
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_the_tests(by: signal.Signals, tmp_path: Path) -> None:
    port, here = free_port(), Path(__file__).parents[2]
    test = tmp_path / "test_it.py"
    test.write_text(_TEST.format(port=port, log=str(tmp_path / "log")))
    # With the conftest of all tests: it is what makes an interrupt of a SIGTERM.
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    tests = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(test)],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        until(lambda: (tmp_path / "started").exists() or tests.poll() is not None)
        assert _answers(port), tests.communicate()[0].decode()
        tests.send_signal(by)
        said = tests.communicate(timeout=30)[0].decode()
    finally:
        tests.kill()
    assert (tests.returncode, "KeyboardInterrupt" in said) == ((2, True) if by == signal.SIGTERM else (-by, False)), (
        said
    )
    until(lambda: not _answers(port))


def _answers(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0
