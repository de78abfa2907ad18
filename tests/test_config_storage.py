"""The section `storage`: one for all buckets of a service, with what is other for one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import StorageConfig
from tests.test_config import put, read, refusal

SECRET = "hunter2-of-the-bucket"
KEYS = {"access_key_id": "${ID}", "secret_access_key": "${SECRET}"}


def storage(directory: Path, section: dict[str, Any]) -> StorageConfig:
    return read(directory, put("storage", section), ID="the-id", SECRET=SECRET).storage


def test_nothing_said_is_each_clouds_own(tmp_path: Path) -> None:
    assert read(tmp_path).storage == StorageConfig.nothing() == storage(tmp_path, {})


def test_a_bucket_has_what_is_other_for_it(tmp_path: Path) -> None:
    section = {"s3": {"region": "eu-west-1", "path_style": True, **KEYS, "buckets": {"b": {"region": "us-east-2"}}}}
    s3 = storage(tmp_path, section).s3
    assert (s3.of("a").region, s3.of("b").region) == ("eu-west-1", "us-east-2")
    assert s3.of("b").path_style and s3.of("b").secret_access_key == SECRET


@pytest.mark.parametrize(
    "own",
    [{"profile": "p"}, {"anonymous": True}, {"anonymous": False}, {"role_arn": "r"}, KEYS | {"session_token": "${ID}"}],
)
def test_a_bucket_that_says_who_asks_has_nothing_of_the_services(tmp_path: Path, own: dict[str, Any]) -> None:
    service = {"access_key_id": "${SECRET}", "secret_access_key": "${SECRET}", "session_token": "${SECRET}"}
    found = storage(tmp_path, {"s3": {**service, "buckets": {"b": own}}}).s3.of("b")
    told = {key: getattr(found, key) for key in found.CREDENTIALS if getattr(found, key) is not None}
    expected = {"${ID}": "the-id", "${SECRET}": SECRET}
    assert told == {key: expected.get(str(value), value) for key, value in own.items() if key != "anonymous"}
    assert found.anonymous is own.get("anonymous", False)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("storage.s3.access_key_id", "${ID}", "belong together"),
        ("storage.s3", {"session_token": "${ID}"}, "belongs to an access_key_id"),
        ("storage.s3", {**KEYS, "profile": "p"}, "profile and access_key_id exclude each other"),
        ("storage.s3", {**KEYS, "anonymous": True}, "anonymous requests have no access_key_id"),
        ("storage.s3.web_identity_token_file", "/token", "needs the role_arn"),
        ("storage.s3.external_id", "x", "needs the role_arn"),
        ("storage.s3.endpoint", "minio:9000", "must begin with https:// or http://"),
        ("storage.s3.buckets", {"b": {"acces_key": "x"}}, "storage.s3.buckets.b.acces_key"),
        ("storage.gs", {"anonymous": True, "service_account_file": "/f"}, "have no service_account_file"),
        ("storage.azure", {"account_key": "${ID}", "sas_token": "${ID}"}, "account_key and sas_token exclude"),
        ("storage.azure.client_secret", "${ID}", "needs tenant_id and client_id"),
        ("storage.s4", {}, "storage.s4: is not a key"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, place: str, value: Any, said: str) -> None:
    text = refusal(tmp_path, put(place, value), ID=SECRET, SECRET=SECRET)
    assert said in text and "storage" in text and SECRET not in text


@pytest.mark.parametrize(
    "place",
    [
        "s3.secret_access_key", "s3.access_key_id", "s3.session_token", "s3.buckets.b.secret_access_key",
        "azure.account_key", "azure.sas_token", "azure.client_secret",
    ],
)  # fmt: skip
def test_a_secret_in_plain_text_is_refused(tmp_path: Path, place: str) -> None:
    text = refusal(tmp_path, put(f"storage.{place}", SECRET))
    assert f"storage.{place}" in text and "plain text" in text and SECRET not in text


def test_no_text_of_the_section_shows_a_secret(tmp_path: Path) -> None:
    azure = {"account": "a", "buckets": {"c": {"sas_token": "${SECRET}"}, "d": {"account_key": "${SECRET}"}}}
    secret = {"tenant_id": "t", "client_id": "c", "client_secret": "${SECRET}"}
    s3 = {**KEYS, "session_token": "${SECRET}", "buckets": {"b": {"role_arn": "r", "external_id": "${SECRET}"}}}
    section = {"s3": s3, "azure": {**azure, **secret}}
    config = read(tmp_path, put("storage", section), ID="the-id", SECRET=SECRET)
    for shown in (config, config.storage, config.storage.s3.of("b"), config.storage.azure.of("c")):
        assert SECRET not in repr(shown) and SECRET not in str(shown) and "the-id" not in repr(shown)


def test_key_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    gs = {"service_account_file": "keys/gs.json", "buckets": {"b": {"service_account_file": "../other.json"}}}
    s3 = {"role_arn": "r", "web_identity_token_file": "/var/token"}
    found = storage(tmp_path, {"gs": gs, "s3": s3})
    assert found.gs.service_account_file == f"{tmp_path}/keys/gs.json"
    assert found.gs.of("b").service_account_file == f"{tmp_path.parent}/other.json"
    assert found.s3.web_identity_token_file == "/var/token"
