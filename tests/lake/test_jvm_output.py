"""What the JVM says at every start stays away from the terminal; all else comes through."""

from __future__ import annotations

import subprocess
import time

import pytest

from cdc_lakehouse.lake.spark import filtered, filtered_stderr

START = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/22 21:48:09 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/22 21:48:09 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
26/11/22 21:48:12 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "ERROR".
"""
RESOLVED = """\
:: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml
Ivy Default Cache set to: /root/.ivy2.5.2/cache
The jars for the packages stored in: /root/.ivy2.5.2/jars
org.xerial#sqlite-jdbc added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-1;1.0
\tconfs: [default]
\tfound org.xerial#sqlite-jdbc;3.50.3.0 in central
downloading https://repo1.maven.org/maven2/org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar ...
\t[SUCCESSFUL ] org.xerial#sqlite-jdbc;3.50.3.0!sqlite-jdbc.jar (221ms)
:: resolution report :: resolve 2011ms :: artifacts dl 224ms
\t:: modules in use:
\torg.xerial#sqlite-jdbc;3.50.3.0 from central in [default]
\t---------------------------------------------------------------------
\t|                  |            modules            ||   artifacts   |
\t|       conf       | number| search|dwnlded|evicted|| number|dwnlded|
\t---------------------------------------------------------------------
:: retrieving :: org.apache.spark#spark-submit-parent-1
\tconfs: [default]
\t1 artifacts copied, 0 already retrieved (13541kB/32ms)
"""
FAILED = """\
:::: WARNINGS
\t\tmodule not found: org.x#y;1
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.x#y;1: not found]
"""


def lines(text: str) -> list[str]:
    return list(filtered(text.splitlines(keepends=True)))


def test_what_every_start_says_is_left_out() -> None:
    assert lines(START) == []


def test_the_resolver_is_one_sentence() -> None:
    (sentence,) = lines(RESOLVED)
    assert "fetched" in sentence
    # From a cache nothing is fetched.
    assert lines("".join(line for line in RESOLVED.splitlines(keepends=True) if "downloading" not in line)) == []


def test_a_resolver_that_fails_is_told_whole() -> None:
    before = RESOLVED.splitlines(keepends=True)[:6]
    assert lines("".join(before) + FAILED) == [*before, *FAILED.splitlines(keepends=True)]


@pytest.mark.parametrize("line", [
    "26/11/22 21:48:12 ERROR Executor: Exception in task 0.0", "# A fatal error has been detected by the JVM",
    "java.lang.OutOfMemoryError: Java heap space", "26/11/22 21:48:12 WARN TaskSetManager: Lost task 1.0", "\tat x.y",
])  # fmt: skip
def test_what_is_wrong_comes_through(line: str) -> None:
    assert lines(f"{START}{line}\n") == [f"{line}\n"]


def test_a_process_is_heard_until_it_ends(capfd: pytest.CaptureFixture[str]) -> None:
    with filtered_stderr() as stderr:
        script = 'echo "Setting default log level to x" >&2; echo one >&2; sleep 0.3; echo two >&2'
        process = subprocess.Popen(["sh", "-c", script], stderr=stderr)
    process.wait()
    heard, end = "", time.monotonic() + 20
    while "two" not in heard and time.monotonic() < end:
        heard += capfd.readouterr().err
        time.sleep(0.05)
    assert heard == "one\ntwo\n"
