"""The configuration file, as a person writes it: what is taken, and what each mistake is answered with."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.config import LakehouseConfig, TablesConfig, anchor_uri, config_path, load
from cdc_lakehouse.errors import ConfigurationError

CATALOG = "lake.catalog"
SINK = {"type": "storage_sink", "uri": "sink", "protocol": "canal-json"}
Document = dict[str, Any]
Edit = Callable[[Document], object]


def document() -> Document:
    return {
        "lake": {"warehouse": "warehouse", "catalog": {"type": "sql", "uri": "sqlite:///catalog.db"}},
        "feeds": [{"name": "shop", "source": dict(SINK), "start_date": "2026-01-01"}],
    }


def _place(written: Document, path: str) -> Any:
    place: Any = written
    for step in path.split("."):
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    return place


def put(path: str, value: Any) -> Edit:
    """Sets the value at a path such as `feeds.0.source.uri`."""
    above, _, last = path.rpartition(".")
    return lambda written: (_place(written, above) if above else written).update({last: value})


def update(path: str, **values: str | int) -> Edit:
    """Sets keys that may hold dots themselves."""
    return lambda written: _place(written, path).update(values)


def remove(path: str) -> Edit:
    above, _, last = path.rpartition(".")
    return lambda written: (_place(written, above) if above else written).pop(last)


def shown(path: str) -> str:
    """A path as messages show it."""
    return path.replace("feeds.0", "feeds[0]")


def write(directory: Path, *edits: Edit) -> Path:
    written = document()
    for edit in edits:
        edit(written)
    path = directory / "lakehouse.yaml"
    path.write_text(yaml.safe_dump(written, allow_unicode=True), encoding="utf-8")
    return path


def read(directory: Path, *edits: Edit, **environment: str) -> LakehouseConfig:
    return load(write(directory, *edits), environment)


def refusal(directory: Path, *edits: Edit, **environment: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(directory, *edits, **environment)
    return str(refused.value)


def refusal_of_text(directory: Path, text: str | bytes) -> str:
    path = directory / "lakehouse.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigurationError) as refused:
        load(path, {})
    return str(refused.value)


def test_defaults_of_the_smallest_file(tmp_path: Path) -> None:
    config = read(tmp_path)
    feed = config.feed("shop")
    assert (feed.source.date_separator, feed.source.time_zone) == ("day", "UTC")
    assert (feed.tables.include, feed.tables.exclude) == (("*.*",), ())
    assert (feed.policy.zero_dates, feed.policy.quarantine, feed.policy.index_gap) == ("null", "hold", "hold")
    assert feed.namespace == "{database}"
    assert feed.start_date == datetime.date(2026, 1, 1)


def test_maintenance_by_default_bounds_what_a_run_reads(tmp_path: Path) -> None:
    kept = read(tmp_path).feed("shop").maintenance.model_dump()
    days = {key: value for key, value in kept.items() if key.startswith("keep_") and key.endswith("_days")}
    assert {key for key, value in days.items() if value is None} == {"keep_superseded_days"}, "of events none is read"


# --- What is not allowed: the key's path, what was given, what is allowed ---


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("feeds.0.name", "Shop 1", ["'Shop 1'", "lower-case letters, digits and underscores, a letter first"]),
        ("feeds.0.source.type", "pulsar", ["'pulsar'", "'storage_sink', 'kafka'"]),
        ("feeds.0.source.protocol", "avro", ["'avro'", "'canal-json'"]),
        ("feeds.0.source.date_separator", "hour", ["'hour'", "'none', 'year', 'month' or 'day'"]),
        ("feeds.0.source.time_zone", "CEST", ["'CEST'", "Asia/Shanghai"]),
        ("feeds.0.start_date", "soon", ["'soon'", "should be a date: write year-month-day, such as 2026-11-30"]),
        ("feeds.0.start_date", "01.11.2026", ["'01.11.2026'", "year-month-day"]),
        ("feeds.0.start_date", 20261101, ["20261101", "year-month-day"]),
        ("feeds.0.start_date", "2026-02-30", ["'2026-02-30'", "there is no such day"]),
        ("feeds.0.source", "s3://bucket/sink", ["feeds[0].source: "]),
        ("feeds.0.freshness_minutes", 0, ["given: 0", "greater than 0"]),
        ("feeds.0.source.full_listing_hours", -1, ["given: -1", "greater than or equal to 0"]),
        ("feeds.0.policy.zero_dates", "drop", ["'drop'", "'null', 'string'"]),
        ("feeds.0.policy.quarantine", "stop", ["'stop'", "'hold' or 'skip'"]),
        ("feeds.0.policy.index_gap", "stop", ["'stop'", "'hold' or 'skip'"]),
        ("feeds.0.tables.include", ["orders"], ["'orders'", "database.table"]),
        ("feeds.0.tables.exclude", ["orders"], ["'orders'", "database.table"]),
        ("feeds.0.tables.settings", {"a.b": {"zero_dates": "x"}}, ["settings.a.b.zero_dates", "'x'", "'error'"]),
        ("feeds.0.tables.settings", {"a.b": {"primary_key": []}}, ["settings.a.b.primary_key", "at least 1"]),
        ("feeds.0.tables.settings", {"orders": {"primary_key": ["id"]}}, ["orders"]),
        ("feeds.0.namespace", "{table}", ["'{table}'", "{database} and {feed}"]),
        ("feeds.0.namespace", "{0}", ["'{0}'", "{database} and {feed}"]),
        ("feeds.0.namespace", "{database", ["'{database'", "{database} and {feed}"]),
        ("feeds.0.namespace", "{database.table}", []),
        ("feeds.0.namespace", "{database[table]}", []),
        ("feeds.0.namespace", "{database.__class__}", []),
        ("feeds.0.namespace", "", ["''", "empty"]),
        ("feeds.0.namespace", "CDC_{feed}", ["cdc_"]),
        ("feeds.0.maintenance", {"keep_superseded_days": 7, "keep_segments_days": None}, ["needs keep_segments_days"]),
        ("lake.catalog.type", "jdbc", ["'jdbc'", "'sql', 'rest', 'glue' or 'hive'"]),
        ("lake.catalog", {"type": "sql"}, ["sql needs a uri"]),
        ("lake.spark.conf", "fast", ["'fast'", "dictionary"]),
        ("feeds", [], ["at least 1"]),
    ],
)
def test_a_value_that_is_not_allowed(tmp_path: Path, path: str, value: Any, said: list[str]) -> None:
    text = refusal(tmp_path, put(path, value))
    assert [part for part in (shown(path), *said, "lakehouse.yaml") if part not in text] == []


@pytest.mark.parametrize(
    "path",
    [
        "lake", "lake.warehouse", "lake.catalog", "lake.catalog.type", "feeds", "feeds.0.name", "feeds.0.source.uri",
        "feeds.0.start_date",
    ],
)  # fmt: skip
def test_a_key_that_is_missing(tmp_path: Path, path: str) -> None:
    assert f"  {shown(path)}: is missing" in refusal(tmp_path, remove(path)).splitlines()


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("tables", None),
        ("lake.warehose", "warehouse"),
        ("lake.spark.cnf", "conf"),
        ("feeds.0.sink", None),
        ("feeds.0.tabels", "tables"),
        ("feeds.0.source.seperator", "date_separator"),
        ("feeds.0.source.date_seperator", "date_separator"),
        ("feeds.0.source.useTableIdAsPath", "use_table_id_as_path"),
        ("feeds.0.source.csv.output_old_vlue", "output-old-value"),
        ("feeds.0.source.initial.uris", "uri"),
        ("feeds.0.tables.includes", "include"),
        ("feeds.0.tables.settings.shop_orders.primary_keys", "primary_key"),
        ("feeds.0.policy.nulls", None),
        ("feeds.0.policy.ddl.drops", "drop"),
        ("storage.s3.buckets.b.regoin", "region"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_one_named(tmp_path: Path, path: str, meant: str | None) -> None:
    said = f"  {shown(path)}: is not a key that is known here" + (f"; did you mean {meant}?" if meant else "")
    assert said in refusal(tmp_path, put(path, {})).splitlines()


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("feeds.0.source.protocol", "canal_json", "canal-json"),
        ("feeds.0.source.protocol", "CSV", "csv"),
        ("feeds.0.source.date_separator", "days", "day"),
        ("feeds.0.policy.quarantine", "skipp", "skip"),
        ("feeds.0.source.type", "storage-sink", "storage_sink"),
        ("feeds.0.source.type", "ticdc", "storage_sink"),  # By its keys.
        ("lake.catalog.type", "sqlite", "sql"),
    ],
)
def test_the_nearest_value_is_named(tmp_path: Path, path: str, value: str, meant: str) -> None:
    assert f"; did you mean {meant}? (given: {value!r})" in refusal(tmp_path, put(path, value))


def test_a_wrong_type_of_source_hides_no_other_fault(tmp_path: Path) -> None:
    wrong = (put("feeds.0.source.protocl", "csv"), put("feeds.0.source.time_zone", "CEST"), put("feeds.0.nmae", "x"))
    for type_of in (put("feeds.0.source.type", "sink"), remove("feeds.0.source.type")):
        text = refusal(tmp_path, type_of, *wrong)
        for place in ("source.type", "source.protocl", "source.time_zone", "nmae"):
            assert f"  feeds[0].{place}: " in text
    text = refusal(tmp_path, put("feeds.0.source", {"type": "sink", "format": "avro", "topics": ["t"]}))
    assert "did you mean kafka?" in text and "feeds[0].source.format: should be 'ticdc-canal-json'" in text
    text = refusal(tmp_path, put("feeds.0.source", {"type": "x"}))
    assert "did you mean" not in text and len(text.splitlines()) == 2


def test_all_mistakes_are_told_at_once_each_in_a_line(tmp_path: Path) -> None:
    paths = ("lake.catalog.type", "feeds.0.name", "feeds.0.policy.a")
    text = refusal(tmp_path, *(put(path, "X") for path in paths))
    assert all(shown(path) in text for path in paths)
    assert len(refusal(tmp_path, put("feeds.0.freshness_minutes", 0)).splitlines()) == 2


def test_two_feeds_of_one_name_are_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda written: written["feeds"].append(written["feeds"][0]))
    assert "two feeds are called 'shop'" in text


def test_a_feed_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'shp'.*the configuration has shop"):
        read(tmp_path).feed("shp")


# --- Files that are none ---


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no mapping"),
        ("- lake", "holds no mapping"),
        ("lake: [", "is not YAML"),
        ("lake: a: b", "is not YAML"),
        (b"lake: \xff\xfe", "is not YAML"),
        ("lake: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("lake: \x07", "is not YAML"),
        ("feeds: [{start_date: 2026-02-30}]", "2026-02-30"),  # A day that no month has.
    ],
)
def test_content_that_is_no_configuration(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in refusal_of_text(tmp_path, content)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "lake:\n  catalog: {type: sql\n  warehouse: x",
            "expected ',' or '}', but got ':', at line 3, column 12, while parsing a flow mapping that begins at "
            "line 2, column 12",
        ),
        (
            "lake: [a, b",
            "expected ',' or ']', but got the end of the file, at line 1, column 12, while parsing a flow sequence "
            "that begins at line 1, column 7",
        ),
        ("lake: a: b", "mapping values are not allowed here, at line 1, column 8"),
        (
            "lake:\n  a: 1\n b: 2",
            "expected the end of the block (is the indentation right?), but found the first key of a block, at line 3, "
            "column 2, while parsing a block mapping that begins at line 1, column 1",
        ),
        ("lake:\n\tcatalog: x", "found character '\\t' that cannot start any token, at line 2, column 1"),
        ("lake: 'x", "found unexpected end of stream, at line 1, column 9"),
        ("lake: *hunter2", "found undefined alias '…', at line 1, column 7"),
        ("lake: !hunt'er2 x", "could not determine a constructor for the tag '…', at line 1, column 7"),
        ("lake:\n a: \x07hunter2", "the character U+0007 is not allowed, at line 2, column 5"),
        (b"lake:\n a: \xff", "its bytes are not UTF-8, at line 2"),
    ],
)
def test_what_is_wrong_with_yaml_is_said_with_its_place_and_without_the_files_own_text(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    told = refusal_of_text(tmp_path, text)
    assert f"is not YAML: {said}" in told
    assert "er2" not in told


def test_a_file_that_cannot_be_read_is_named_with_the_way_to_say_another(tmp_path: Path) -> None:
    missing = rf"{tmp_path / 'none.yaml'}(?s:.*)CDC_LAKEHOUSE_CONFIG"
    for path, words in ((tmp_path / "none.yaml", missing), (tmp_path, "cannot read")):
        with pytest.raises(ConfigurationError, match=words):
            load(path, {})


@pytest.mark.parametrize("given", [{}, {"CDC_LAKEHOUSE_CONFIG": ""}])
def test_the_default_file_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_path(given) == tmp_path / "lakehouse.yaml"


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(environment={"CDC_LAKEHOUSE_CONFIG": str(path)}) == load(path, {})


# --- Paths ---


@pytest.mark.parametrize(
    ("uri", "anchored"),
    [
        ("sink", "file:///etc/lake/sink"),
        ("./a/../sink/", "file:///etc/lake/sink"),
        ("../sink", "file:///etc/sink"),
        ("/data/sink", "file:///data/sink"),
        ("file:///data/sink/", "file:///data/sink"),
        ("file://sink", "file:///etc/lake/sink"),
        ("odd name é", "file:///etc/lake/odd name é"),
        ("s3://bucket/sink/", "s3://bucket/sink"),
        ("gs://bucket/../sink", "gs://bucket/../sink"),
        ("file:/data/sink", "file:///data/sink"),
    ],
)
def test_a_path_is_relative_to_the_file(uri: str, anchored: str) -> None:
    assert anchor_uri(uri, Path("/etc/lake")) == anchored


def test_no_path_depends_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = load(Path("lakehouse.yaml"), {})
    assert config.lake.warehouse == f"file://{tmp_path}/warehouse"
    assert config.lake.catalog.uri == f"sqlite:///{tmp_path}/catalog.db"
    assert config.feed("shop").storage_sink.uri == f"file://{tmp_path}/sink"


@pytest.mark.parametrize("uri", ["sqlite:////var/lake.db", "postgresql://db/lake"])
def test_other_catalog_uris_stay(tmp_path: Path, uri: str) -> None:
    assert read(tmp_path, update(CATALOG, uri=uri)).lake.catalog.uri == uri


# --- What the values mean ---


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        (["*.*"], [], {"shop.orders", "shop.ORDERS", "a b.t.x"}),
        (["shop.*"], [], {"shop.orders", "shop.ORDERS"}),
        (["shop.orders"], [], {"shop.orders"}),
        (["*.*"], ["shop.*"], {"a b.t.x"}),
        (["shop.*"], ["*.orders"], {"shop.ORDERS"}),
        (["shop.*", "a b.*"], ["*.t.x"], {"shop.orders", "shop.ORDERS"}),
        (["none.*"], [], set[str]()),
    ],
)
def test_patterns_of_tables(include: list[str], exclude: list[str], taken: set[str]) -> None:
    tables = TablesConfig.model_validate({"include": include, "exclude": exclude})
    names = [("shop", "orders"), ("shop", "ORDERS"), ("a b", "t.x")]
    assert {f"{database}.{table}" for database, table in names if tables.takes(database, table)} == taken


def test_settings_of_a_table_go_before_the_policy(tmp_path: Path) -> None:
    own = {"shop.a": {"zero_dates": "error"}, "shop.b": {"primary_key": ["id", "n"]}}
    policy = put("feeds.0.policy.zero_dates", "string")
    feed = read(tmp_path, policy, put("feeds.0.tables", {"settings": own})).feed("shop")
    assert [feed.zero_dates_of("shop", table) for table in "abc"] == ["error", "string", "string"]
    assert [feed.settings_of("shop", table).primary_key for table in "abc"] == [None, ("id", "n"), None]


def test_the_format_version_is_of_a_table_or_of_the_feed(tmp_path: Path) -> None:
    tables = put("feeds.0.tables", {"settings": {"shop.a": {"format_version": 3}, "shop.b": {"format_version": 2}}})
    of_feed = put("feeds.0.format_version", 2)
    assert [read(tmp_path, tables).feed("shop").format_version_of("shop", table) for table in "abc"] == [3, 2, 3]
    assert [read(tmp_path, tables, of_feed).feed("shop").format_version_of("shop", t) for t in "abc"] == [3, 2, 2]


def test_settings_of_spark_are_text_and_glue_needs_no_uri(tmp_path: Path) -> None:
    """YAML reads `true` and `4` as other things; Spark takes text and knows only the lower case."""
    spark = put("lake.spark", {"conf": {"spark.a": True, "spark.b": 4, "spark.c": "x"}})
    lake = read(tmp_path, spark, put("lake.catalog", {"type": "glue", "glue.region": "eu-west-1"})).lake
    assert lake.spark.conf == {"spark.a": "true", "spark.b": "4", "spark.c": "x"}
    assert lake.catalog.properties == {"glue.region": "eu-west-1"}


@settings(deadline=None)
@given(st.text(max_size=70))
def test_names_of_feeds_are_plain_identifiers(name: str) -> None:
    written = document()
    written["feeds"][0]["name"] = name
    plain = bool(re.match(r"[a-z][a-z0-9_]*\Z", name, re.ASCII)) and len(name) <= 63
    try:
        LakehouseConfig.model_validate(written)
    except ValueError:
        assert not plain
    else:
        assert plain


def test_every_key_has_a_description() -> None:
    """What an editor shows, from the schema of the file."""
    schema = LakehouseConfig.model_json_schema()
    sections = {"LakehouseConfig": schema, **schema["$defs"]}
    keys = [(name, key, value) for name, section in sections.items() for key, value in section["properties"].items()]
    assert len(keys) > 80
    assert [(name, key) for name, key, value in keys if not value.get("description")] == []


def test_no_section_takes_a_key_that_it_does_not_know() -> None:
    """The catalog takes PyIceberg's own properties."""
    sections = LakehouseConfig.model_json_schema()["$defs"]
    taking = [name for name, section in sections.items() if section.get("additionalProperties") is not False]
    assert taking == ["CatalogConfig"]
