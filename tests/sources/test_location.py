"""What a URI of a store names, and what is said of one that names nothing."""

from __future__ import annotations

import pytest

from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sources.object_store import Location


@pytest.mark.parametrize(
    ("uri", "service", "bucket", "prefix", "account"),
    [
        ("file:///data/a b", "file", "", "/data/a b", None),
        ("s3://bucket", "s3", "bucket", "", None),
        ("s3://bucket/", "s3", "bucket", "", None),
        ("s3://bucket/a/b/", "s3", "bucket", "a/b", None),
        ("s3://bucket/a%20b+c=d", "s3", "bucket", "a%20b+c=d", None),
        ("gs://bucket.example/a", "gs", "bucket.example", "a", None),
        ("gcs://bucket/a", "gs", "bucket", "a", None),
        ("azure://container/a", "azure", "container", "a", None),
        ("azblob://container/a", "azure", "container", "a", None),
        ("abfss://container@account.dfs.core.windows.net/a/b", "azure", "container", "a/b", "account"),
    ],
)
def test_what_a_uri_names(uri: str, service: str, bucket: str, prefix: str, account: str | None) -> None:
    found = Location.of(uri)
    assert (found.service, found.bucket, found.prefix, found.account) == (service, bucket, prefix, account)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("hdfs://namenode/sink", "hdfs:// is not supported: use"),
        ("s3://", "must name a bucket"),
        ("s3:///prefix", "must name a bucket"),
        ("s3://hunter2@bucket/prefix", "must name a bucket"),
        ("s3://hunter2:hunter2@bucket/prefix", "must name a bucket"),
        ("s3://bucket/prefix?access-key=hunter2", "has a query: leave it out"),
        ("abfss://container/prefix", "names no account"),
    ],
)
def test_a_uri_that_names_no_store(uri: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Location.of(uri)
    assert said in str(refused.value) and "hunter2" not in str(refused.value)
