"""Secrets come by `${NAME}` alone, and no text that a person sees holds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_config import CATALOG, Edit, put, read, refusal, refusal_of_text, update

SECRET = "hunter2-of-the-feed"


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (update(CATALOG, token=SECRET), "lake.catalog.token"),
        (update(CATALOG, Token=SECRET), "lake.catalog.Token"),
        (update(CATALOG, token=SECRET + "${REST}"), "lake.catalog.token"),
        (update(CATALOG, credential=f"id:{SECRET}"), "lake.catalog.credential"),
        (update(CATALOG, **{"s3.secret-access-key": SECRET}), "lake.catalog.s3.secret-access-key"),
        (update(CATALOG, **{"s3.access-key-id": SECRET}), "lake.catalog.s3.access-key-id"),
        (update(CATALOG, uri=f"postgresql://cdc:{SECRET}@db/lake"), "lake.catalog.uri"),
        (update(CATALOG, uri=f"postgresql://${{USER}}:{SECRET}@db/lake"), "lake.catalog.uri"),
        (update(CATALOG, uri=f"postgresql://cdc:${{REST}}{SECRET}@db/lake"), "lake.catalog.uri"),
        (update("lake.spark.conf", **{"spark.x.password": SECRET}), "lake.spark.conf.spark.x.password"),
        (update("feeds.0.source", uri=f"s3://key:{SECRET}@bucket/sink"), "feeds[0].source.uri"),
        (update("feeds.0.source", password=SECRET), "feeds[0].source.password"),
    ],
)
def test_a_secret_in_plain_text_is_refused_and_not_shown(tmp_path: Path, edit: Edit, place: str) -> None:
    text = refusal(tmp_path, edit, USER="cdc", REST="")
    assert place in text and "plain text" in text and "${NAME}" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(update(CATALOG, password=20260131), id="a number"),
        pytest.param(update(CATALOG, **{"adls.account-key": SECRET}), id="adls.account-key"),
        pytest.param(update(CATALOG, **{"header.Authorization": f"Bearer {SECRET}"}), id="header.Authorization"),
        pytest.param(update("feeds.0.source", uri=f"s3://bucket/sink?secret-access-key={SECRET}"), id="query of a URI"),
        pytest.param(update(CATALOG, uri=f"postgresql://db/lake?user=cdc&password={SECRET}"), id="password in a query"),
    ],
)
def test_more_secrets_in_plain_text_are_refused(tmp_path: Path, edit: Edit) -> None:
    assert "plain text" in refusal(tmp_path, edit)


def test_a_secret_that_is_no_yaml_is_not_shown(tmp_path: Path) -> None:
    assert SECRET not in refusal_of_text(tmp_path, f"lake:\n  catalog:\n    token: @{SECRET}\n")


def test_references_take_their_values_from_the_environment(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        update(CATALOG, type="rest", uri="https://${HOST}:${PORT}/", token="${TOKEN}"),
        HOST="catalog", PORT="8181", TOKEN=SECRET,
    )  # fmt: skip
    assert config.lake.catalog.properties == {"uri": "https://catalog:8181/", "token": SECRET}


def test_a_value_of_the_environment_is_not_looked_into(tmp_path: Path) -> None:
    config = read(tmp_path, update(CATALOG, token="${TOKEN}"), TOKEN="${HOME}", HOME="/root")
    assert config.lake.catalog.properties["token"] == "${HOME}"


def test_a_reference_that_the_environment_does_not_have(tmp_path: Path) -> None:
    text = refusal(tmp_path, update(CATALOG, token="${TOKEN}"), OTHER=SECRET)
    assert "lake.catalog.token" in text and "${TOKEN}" in text and SECRET not in text


def test_a_refused_value_is_shown_as_it_stands_in_the_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, put("feeds.0.source.date_separator", "${SEPARATOR}"), SEPARATOR=SECRET)
    assert "(given: '${SEPARATOR}')" in text and SECRET not in text


def test_the_uri_of_the_catalog_is_not_shown(tmp_path: Path) -> None:
    config = read(tmp_path, update(CATALOG, uri="postgresql://cdc:${PASSWORD}@db/lake"), PASSWORD=SECRET)
    assert config.lake.catalog.uri == f"postgresql://cdc:{SECRET}@db/lake"
    assert SECRET not in repr(config) and SECRET not in str(config)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(update(CATALOG, token="${TOKEN}"), id="catalog"),
        pytest.param(update("lake.spark.conf", **{"spark.x.password": "${TOKEN}"}), id="spark"),
        pytest.param(update("feeds.0.source", uri="s3://key:${TOKEN}@bucket/sink"), id="source"),
    ],
)
def test_other_secrets_are_not_shown(tmp_path: Path, edit: Edit) -> None:
    assert SECRET not in repr(read(tmp_path, edit, TOKEN=SECRET))
