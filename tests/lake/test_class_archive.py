"""The archive of Spark's classes is of one environment and one Java. That a JVM takes it is in Spark's tests."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from cdc_lakehouse.lake.spark import archive_options, archiving_options, class_archive


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prefix = tmp_path / "an environment"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return prefix


def test_it_is_used_once_it_is_made(environment: Path) -> None:
    assert not archive_options()
    with archiving_options() as options:
        _, _, file = shlex.split(options)[0].partition("-XX:ArchiveClassesAtExit=")
        Path(file).write_bytes(b"archive")
        assert not archive_options(), "it is not whole"
    assert shlex.split(archive_options())[0] == f"-XX:SharedArchiveFile={class_archive()}"
    assert [path for path in environment.rglob("*") if path.is_file()] == [class_archive()]


def test_without_an_archive_a_jvm_starts_as_ever(environment: Path) -> None:
    with archiving_options():
        pass  # Not every JVM makes one.
    assert not archive_options() and not [path for path in environment.rglob("*") if path.is_file()]


def test_another_java_has_another(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = class_archive()
    java = environment / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(environment / "jdk"))
    assert class_archive() != before
