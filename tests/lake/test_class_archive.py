"""The archive of Spark's classes is of one environment and one Java. That a JVM takes it is in Spark's tests."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from cdc_lakehouse.lake.class_archive import class_archive, options_to_make_it, options_to_use_it


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prefix = tmp_path / "an environment"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return prefix


def test_it_is_used_once_it_is_made(environment: Path) -> None:
    assert not options_to_use_it()
    with options_to_make_it() as options:
        _, _, file = shlex.split(options)[0].partition("-XX:ArchiveClassesAtExit=")
        Path(file).write_bytes(b"archive")
        assert not options_to_use_it(), "it is not whole"
    assert shlex.split(options_to_use_it())[0] == f"-XX:SharedArchiveFile={class_archive()}"
    assert [path for path in environment.rglob("*") if path.is_file()] == [class_archive()]


def test_without_an_archive_a_jvm_starts_as_ever(environment: Path) -> None:
    with options_to_make_it():
        pass  # Not every JVM makes one.
    assert not options_to_use_it() and not [path for path in environment.rglob("*") if path.is_file()]


def test_another_java_has_another(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = class_archive()
    java = environment / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(environment / "jdk"))
    assert class_archive() != before
