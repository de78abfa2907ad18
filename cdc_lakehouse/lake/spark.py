"""Start Spark sessions from the configuration, the same for Dagster, the command line and the tests.

A JVM that starts from the archive of Spark's classes (Java's class data sharing) takes half of the time: it does not
parse and verify classes. It checks that the file fits it and its classes, and starts without it when it does not.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import numpy as np
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark import SparkContext, java_gateway
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession, types

from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.lake.catalog import SQLITE_TIMEOUT_SECONDS
from cdc_lakehouse.lake.file_io import LOCAL_FILE_SYSTEM, LOCAL_PACKAGES, packages, spark_file_io
from cdc_lakehouse.lake.iceberg_java import (
    PACKAGES,
    IcebergJavaApi,
    SchemaOperation,
    compiled_calls,
    keep_compiled,
    prepared_file,
)  # fmt: skip
from cdc_lakehouse.lake.names import CATALOG, Identifier

# At the first call to the JVM both would ask PySpark's module for tests whether numpy is installed. That module loads
# pandas, which takes a second of CPU.
_converters: Any = types
_converters.NumpyScalarConverter.can_convert = lambda _, value: isinstance(value, np.generic)
_converters.NumpyArrayConverter.can_convert = lambda _, value: isinstance(value, np.ndarray) and value.ndim == 1
# PySpark polls for the port of the JVM that it starts: every 10 ms instead of 100.
_gateways: Any = java_gateway
_gateways.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 10))

# The jars of Spark's session, and the directory that keeps them.

_DRIVERS: Final = {"postgresql": "org.postgresql:postgresql:42.7.8"}
"""JDBC drivers of catalogs, by the scheme of their URI."""


def jar_packages(config: LakeConfig) -> tuple[str, ...]:
    """Return a session's Maven packages: Iceberg's and those for warehouse, catalog and `lake.spark.conf`."""
    database = (config.catalog.uri or "").partition(":")[0].partition("+")[0]
    driver = _DRIVERS.get(database) if config.catalog.type == "sql" else None
    further = config.spark.conf.get("spark.jars.packages", "")
    return (*PACKAGES, *packages(config.warehouse), *filter(None, [driver]), *filter(None, further.split(",")))


def jar_directory(config: LakeConfig) -> Path:
    """Return the directory that keeps a configuration's jars once they were fetched: below `CDC_LAKEHOUSE_JARS`, by
    default the user's cache. When it exists, no resolver is used: it can be copied to where there is no network."""
    return _directory(jar_packages(config))


def _directory(of_packages: Sequence[str]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cdc-lakehouse", "jars")
    root = Path(os.environ.get("CDC_LAKEHOUSE_JARS") or cache)
    return root / hashlib.sha256(",".join(sorted(of_packages)).encode()).hexdigest()[:16]


def jars(config: LakeConfig) -> list[Path]:
    """Return the jars of a configuration that are kept already. Those of a lake on a local disk are first, where they
    are kept too: the archive of classes is of these, and fits all class paths that begin as its own."""
    if not jar_directory(config).is_dir():
        return []
    directory = _directory([*PACKAGES, *LOCAL_PACKAGES])
    of_all = sorted(directory.iterdir()) if directory.is_dir() else []
    names = {path.name for path in of_all}
    return of_all + sorted(path for path in jar_directory(config).iterdir() if path.name not in names)


def fetch_command(config: LakeConfig) -> str:
    """Return the command that fetches the jars of a configuration into their directory."""
    words = ["python -m cdc_lakehouse.lake.spark --prefetch"]
    scheme, database = (uri.partition(":")[0] for uri in (config.warehouse, config.catalog.uri or ""))
    if packages(config.warehouse) != LOCAL_PACKAGES:
        words.append(f"--warehouse {scheme}://any")
    if config.catalog.type == "sql" and database.partition("+")[0] in _DRIVERS:
        words.append(f"--catalog-uri {database.partition('+')[0]}://any")
    if further := config.spark.conf.get("spark.jars.packages"):
        words.append(f"--packages {further}")
    return " ".join(words)


# Pass the JVM's stderr on to this process's stderr, without the messages of every start.

_AT_EVERY_START: Final = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting (?:default|Spark) log level to"
    r"|To adjust logging level use"
    # Written before the session's own log level applies.
    r"|\S+ \S+ WARN (?:Utils: (?:Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader:)"
)
_RESOLVER: Final = re.compile(
    r":: (?:loading settings|resolving dependencies|resolution report|retrieving|modules in use)|:: retrieving"
    r"|Ivy Default Cache set to:|The jars for the packages stored in:|\S+#\S+ added as a dependency"
    r"|\s+(?:confs: |found \S+#|:: modules in use|:: resolution report|:: evicted modules|\S+#\S+ from |\S+#\S+ by "
    r"|\[SUCCESSFUL ?\]|-{10,}$|\|[ |]|\d+ artifacts copied)|downloading \S+ \.\.\."
)
_FETCHING: Final = "cdc-lakehouse: the jars of Spark and Iceberg are fetched, which is needed once"
_REASON: Final = re.compile(r"::::|Exception|UNRESOLVED|module not found", re.IGNORECASE)


@contextlib.contextmanager
def filtered_stderr() -> Iterator[int]:
    """Yield a file descriptor for the stderr of a process that is started in the block: a thread passes it on."""
    reader, writer = os.pipe()

    def pass_on() -> None:
        with os.fdopen(reader, encoding="utf-8", errors="replace") as lines:
            for line in filtered(lines):
                # Not to `sys.stderr`, which may be somebody else's by now; it may be closed when the process ends.
                with contextlib.suppress(OSError):
                    os.write(2, line.encode(errors="replace"))

    threading.Thread(target=pass_on, name="stderr of the JVM", daemon=True).start()
    try:
        yield writer
    finally:
        os.close(writer)


def filtered(lines: Iterable[str]) -> Iterator[str]:
    """Return the lines but those of every start. The resolver's are one sentence, and all shown when it has failed."""
    kept: list[str] = []
    fetches = False
    for line in lines:
        if _AT_EVERY_START.match(line):
            continue
        if not _RESOLVER.match(line):
            if kept and _REASON.search(line):
                yield from kept
                kept.clear()
            yield line
            continue
        kept.append(line)
        if not fetches and line.startswith("downloading"):
            fetches = True
            yield f"{_FETCHING}\n"


# Silences the JVM's messages about archives that do not fit and classes that cannot be archived.
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"

ARCHIVE_COMMAND: Final = "python -m cdc_lakehouse.lake.spark --archive-classes"


def class_archive() -> Path:
    """Return the path of the archive for this environment's Spark and `java`; the file may not exist."""
    home = os.environ.get("JAVA_HOME")
    java = (Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")).resolve()
    changed = java.stat().st_mtime_ns if java.is_file() else 0
    about = f"{version('pyspark')} {PACKAGES} {java} {changed} with commits of files on the class path"
    return prepared_file(about, ".jsa")


_ARCHIVES: Final = "-XX:ArchiveClassesAtExit="
_LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JVM_OPTIONS_VARIABLE: Final = "SPARK_SUBMIT_OPTS"
_LOG: Final = logging.getLogger("cdc_lakehouse")
_END_SECONDS: Final = 120  # How long a JVM may take to end; it writes the archive of its classes then.
_SOCKET_DIRECTORY_LIMIT: Final = 60
"""The longest path in bytes: the system limits a socket's path to about 100 bytes, and Spark's name takes 42."""


def _start_jvm(settings: Mapping[str, str], class_path: Iterable[Path]) -> JavaGateway:
    """Start a JVM with the Spark settings, and with these jars behind Spark's: of classes that come from `spark.jars`
    the archive has only a part.

    The settings are passed in a file that only this user may read, and that is deleted once the JVM runs. Spark's own
    `spark-defaults.conf` still applies to settings that are not among them.
    """
    is_local = settings["spark.master"].startswith("local")
    if is_local:
        # The JVM and Python's workers talk by sockets in a directory that only this user may enter. With TCP each task
        # waits 40 ms, because one side holds a packet back until the other's delayed acknowledgement of the packet
        # before. On a cluster it stays TCP: other machines do not have the directory.
        sockets = tempfile.mkdtemp(prefix="cdc-lakehouse-")
        atexit.register(shutil.rmtree, sockets, ignore_errors=True)
        if len(os.fsencode(sockets)) <= _SOCKET_DIRECTORY_LIMIT:
            domain = "spark.python.unix.domain.socket"
            settings = {f"{domain}.enabled": "true", f"{domain}.dir": sockets, **settings}
    with tempfile.TemporaryDirectory(prefix="cdc-lakehouse-") as directory:
        file, archive = Path(directory, "spark.properties"), class_archive()
        file.touch(mode=0o600)
        file.write_text("".join(f"{_escape(k)}={_escape(v)}\n" for k, v in settings.items()), encoding="utf-8")
        own, given = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults", os.environ.get
        java = given(_JVM_OPTIONS_VARIABLE, "")
        if archive.is_file() and _ARCHIVES not in java:  # A JVM that starts from an archive writes none.
            java = f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_SILENT} {java}"
        further = filter(None, [given("SPARK_DIST_CLASSPATH")])  # Spark's launcher puts it behind its own jars.
        # A JVM prints Spark's command. On Spark's class path its classes come after hundreds of jars, which takes half
        # of its time; the bootstrap loader is asked first. The script splits words, whatever is quoted.
        launcher = Path(_find_spark_home(), "jars").glob("spark-launcher_*.jar")
        boot = [f"-Xbootclasspath/a:{jar}" for jar in launcher if shlex.quote(str(jar)) == str(jar)]
        variables = {
            "PYSPARK_SUBMIT_ARGS": f"{own} {given('PYSPARK_SUBMIT_ARGS') or 'pyspark-shell'}",
            _JVM_OPTIONS_VARIABLE: java,
            "SPARK_DIST_CLASSPATH": ":".join([*map(str, class_path), *further]),
            "SPARK_LAUNCHER_OPTS": " ".join([_LAUNCHER_OPTIONS, *boot, given("SPARK_LAUNCHER_OPTS", "")]),
        }
        if is_local and not os.environ.keys() & {"SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"}:
            # All of it runs on this machine: no other has to reach its ports, and the machine's name need not resolve.
            variables["SPARK_LOCAL_HOSTNAME"] = "localhost"
        with _environment(variables), filtered_stderr() as stderr:
            # In a group of its own, so that a signal to this process's group ends no pass in the middle. The JVM ends
            # when its input is closed, however this process ends.
            return java_gateway.launch_gateway(popen_kwargs={"stderr": stderr, "process_group": 0})


def _end_jvm(gateway: Any) -> int:
    """End the JVM by closing its input, and return its exit code. The next session of this process starts another."""
    with contextlib.suppress(BrokenPipeError):
        gateway.proc.stdin.close()
    try:
        ended = gateway.proc.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        # One without memory may not end by itself.
        gateway.proc.kill()
        ended = gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    return ended


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block: a JVM inherits the environment of the process."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _escape(text: str) -> str:
    """Escape a text for a properties file, which Spark reads as UTF-8: ASCII but letters and digits."""
    return re.sub(r"[\x00-/:-@\[-`{-\x7f]", lambda found: f"\\u{ord(found[0]):04x}", text)


_PREFIX: Final = f"spark.sql.catalog.{CATALOG}"

# Ten times the defaults: a run of a few seconds gains little from code of the second compiler, and spends a third of
# its CPU on compiling it. Code that runs for minutes is still compiled.
_SECOND_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Throughput of decode and apply matters, not pauses.
_JVM_OPTIONS: Final = ("-XX:+UseParallelGC", _SECOND_COMPILER, "-XX:+IgnoreUnrecognizedVMOptions")
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_DEFAULTS: Final = {
    "spark.app.name": "cdc_lakehouse",
    "spark.driver.memory": "2g",
    _OPTIONS: " ".join(_JVM_OPTIONS),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    _PREFIX: "org.apache.iceberg.spark.SparkCatalog",
    # PyIceberg and the table API commit beside Spark's SQL: a cached table would be stale.
    f"{_PREFIX}.cache-enabled": "false",
    # Records the Python call site of every expression, which costs time and does not help in the project's errors.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.python.daemon.module": "cdc_lakehouse.lake.python_workers",
    # Workers of Spark's SQL have the same environment as those of RDDs, and are the same.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A worker allocates and frees blocks of some MiB all the time. The GNU C library would return each to the system,
    # which zeroes the next one page by page: a twelfth of a task's time. So a worker keeps up to 64 MiB for reuse.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}

# Time zones are applied by name when text is parsed: the session's own zone is not used.
_FIXED: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


def spark_settings(config: LakeConfig) -> dict[str, str]:
    """Return the Spark settings of a configuration, without the catalog's; `lake.spark.conf` overrides the defaults."""
    settings = {**_DEFAULTS, "spark.master": config.spark.master, **config.spark.conf}
    kept = jars(config)
    if kept:
        # Jars of packages are also put onto the path of Python's workers, which read each of them again for every task.
        settings.pop("spark.jars.packages", None)
        if not settings["spark.master"].startswith("local"):
            own = [settings["spark.jars"]] if "spark.jars" in settings else []
            settings["spark.jars"] = ",".join([*own, *(path.as_uri() for path in kept)])
    else:
        settings["spark.jars.packages"] = ",".join(jar_packages(config))
    return {**settings, **_FIXED}


_STARTER: Final = ThreadPoolExecutor(1, thread_name_prefix="start of Spark")
"""Starts one after the other what is missing."""


def start(config: LakeConfig, storage: StorageConfig, *, session: bool) -> None:
    """Start in a thread the JVM and Iceberg's catalog in it, or Spark's session, which takes as long again. Callers of
    `open_catalog` and `build_session` wait; what has failed is tried again then."""
    _STARTER.submit(_build_session if session else _open_catalog, config, storage)


def open_catalog(config: LakeConfig, storage: StorageConfig) -> tuple[Any, Any]:
    """Return this process's JVM, started when there is none, and Iceberg's catalog in it. Neither needs a session."""
    return _STARTER.submit(_open_catalog, config, storage).result()


def build_session(config: LakeConfig, storage: StorageConfig | None = None) -> SparkSession:
    """Return the session of this process, with the settings of the configuration; start it when there is none."""
    _STARTER.submit(int).result()  # What was to start before has started.
    session = _build_session(config, storage or StorageConfig())
    # The JVM keeps the active session for each Python thread, and finds its settings by that.
    sessions: Any = SparkSession._get_j_spark_session_class(session.sparkContext._jvm)  # pyright: ignore[reportArgumentType]
    sessions.setActiveSession(session._jsparkSession)
    return session


def _build_session(config: LakeConfig, storage: StorageConfig) -> SparkSession:
    settings = spark_settings(config)
    # The workers need an interpreter that has the project: this one, unless the settings name another on a cluster.
    # PySpark reads it from the environment, not from its settings.
    os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", sys.executable)
    _jvm_of(config, settings)
    builder, is_new = SparkSession.builder, SparkContext._active_spark_context is None
    # The JVM keeps the settings that it was started with.
    session = (builder if is_new else builder.config(map=dict(settings))).getOrCreate()
    if is_new and "spark.jars.packages" in settings:
        _keep_jars(session, config)
    return use_catalog(session, config, storage)


def _jvm_of(config: LakeConfig, settings: Mapping[str, str]) -> JavaGateway:
    """Return this process's JVM. It is started with the Spark settings when there is none that lives: one that has
    ended, or whose Spark context has stopped, is forgotten, and objects of its session stay unusable."""
    old: Any = SparkContext._gateway
    context: Any = SparkContext._active_spark_context
    if old is not None and old.proc is not None:
        java = getattr(context, "_jsc", None)
        try:
            has_ended = old.proc.poll() is not None or (java is not None and java.sc().isStopped())
        except (Py4JError, ConnectionError):
            has_ended = True
        if has_ended:
            if context is not None:
                context._jsc = None  # Without it `stop` does not call the JVM.
                context.stop()
            _end_jvm(old)
    gateway = SparkContext._gateway or _start_jvm(settings, jars(config))
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


_CATALOGS: Final = WeakKeyDictionary[JavaGateway, dict[Any, tuple[dict[str, str], Any]]]()
"""By warehouse and URI, the open catalogs of each JVM and their settings. One with newer credentials takes the place of
the one before, which the JVM frees once nobody uses it."""


def _open_catalog(config: LakeConfig, storage: StorageConfig) -> tuple[Any, Any]:
    settings = spark_settings(config)
    if "spark.jars.packages" in settings:
        _build_session(config, storage)  # It keeps the jars that are fetched.
    # A few commits do not repay the second compiler: it comes ten times later still, for a session that may follow.
    later = settings[_OPTIONS].replace(_SECOND_COMPILER, re.sub(r"=\d+", r"\g<0>0", _SECOND_COMPILER))
    gateway = _jvm_of(config, {**settings, _OPTIONS: later})
    jvm: Any = gateway.jvm
    settings |= catalog_settings(config, storage)
    options = {key.removeprefix(f"{_PREFIX}."): settings[key] for key in settings if key.startswith(f"{_PREFIX}.")}
    catalogs, place = _CATALOGS.setdefault(gateway, {}), (config.warehouse, options.get("uri"))
    if place not in catalogs or catalogs[place][0] != options:
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(jvm.org.apache.spark.SparkConf())
        _use_warehouse(jvm, hadoop, config, storage)
        catalogs[place] = options, jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(CATALOG, options, hadoop)
    return gateway, catalogs[place][1]


def _keep_jars(session: SparkSession, config: LakeConfig) -> None:
    """Copy the jars that the resolver found into their directory, all of them or none."""
    directory = jar_directory(config)
    own = config.spark.conf.get("spark.jars", "").split(",")
    found = session.sparkContext.getConf().get("spark.jars") or ""
    jars = [Path(unquote(urlsplit(jar).path)) for jar in found.split(",") if jar and jar not in own]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
            for jar in jars:
                shutil.copyfile(jar, Path(temporary, jar.name))
            Path(temporary).chmod(0o755)  # A directory may be shared.
            Path(temporary).rename(directory)
    except OSError as error:
        if not directory.is_dir():  # Else another process has kept them meanwhile.
            _LOG.warning("the jars that were fetched cannot be kept in %s: %s", directory, error)


def use_catalog(session: SparkSession, config: LakeConfig, storage: StorageConfig) -> SparkSession:
    """Set the catalog and the warehouse of a configuration in a session."""
    context: Any = session.sparkContext
    _use_warehouse(context._jvm, context._jsc.hadoopConfiguration(), config, storage)
    for key, value in catalog_settings(config, storage).items():
        session.conf.set(key, value)
    return session


def _use_warehouse(jvm: Any, hadoop: Any, config: LakeConfig, storage: StorageConfig) -> None:
    """Let a JVM and a configuration of Hadoop in it reach the warehouse. Hadoop's local file system, which Spark opened
    before the jars were loaded, is closed, and the next one follows the settings."""
    for key, value in spark_file_io(config.warehouse, storage).system.items():
        jvm.java.lang.System.setProperty(key, value)
    if packages(config.warehouse) != LOCAL_PACKAGES:
        return
    root, file_system = jvm.java.net.URI.create("file:///"), jvm.org.apache.hadoop.fs.FileSystem
    if hadoop.get("fs.file.impl") != LOCAL_FILE_SYSTEM:
        hadoop.set("fs.file.impl", LOCAL_FILE_SYSTEM)
        file_system.get(root, hadoop).close()
    # No checksum file is written beside each file: Iceberg's files have checksums of their own.
    file_system.get(root, hadoop).setWriteChecksum(False)


def catalog_settings(config: LakeConfig, storage: StorageConfig) -> dict[str, str]:
    """Return the settings of the catalog for a Spark session, secrets included."""
    catalog, further = config.catalog, config.catalog.properties
    settings = {**spark_file_io(config.warehouse, storage).properties, "warehouse": config.warehouse}
    if catalog.type == "sql":
        # PyIceberg's URI is SQLAlchemy's; JDBC has user and password apart.
        scheme, _, rest = further["uri"].partition("://")
        settings |= {"jdbc.schema-version": "V1"}
        if scheme.startswith("sqlite"):
            further["uri"] = f"jdbc:sqlite:{rest.removeprefix('/')}?busy_timeout={SQLITE_TIMEOUT_SECONDS * 1000}"
        else:
            login, at, host = rest.rpartition("@")
            user, _, password = login.partition(":")
            further["uri"] = f"jdbc:{scheme.partition('+')[0]}://{host}"
            if at:
                # They are percent-encoded in a URI, as SQLAlchemy reads it.
                settings |= {"jdbc.user": unquote(user), "jdbc.password": unquote(password)}
    settings |= {"type": "jdbc" if catalog.type == "sql" else catalog.type, **further}
    return {f"{_PREFIX}.{key}": value for key, value in settings.items()}


def _config(warehouse: str, catalog_uri: str, conf: Mapping[str, str]) -> LakeConfig:
    catalog = {"type": "sql", "uri": catalog_uri}
    return LakeConfig.model_validate({"warehouse": warehouse, "catalog": catalog, "spark": {"conf": conf}})


def _prefetch(warehouse: str, catalog_uri: str, further: str) -> None:
    """Fetch the jars for such a warehouse and catalog, so that the first run does not wait for them."""
    config = _config(warehouse, catalog_uri, {"spark.jars.packages": further} if further else {})
    if not jar_directory(config).is_dir():
        build_session(config).stop()


def _archive_classes() -> None:
    """Make the archive from which later JVMs of this environment start, and compile what they would compile, unless
    both are done. Some JVMs write none. Raises `OSError` when the environment cannot be written."""
    from cdc_lakehouse.lake.files import content_file_json  # noqa: PLC0415 - Sessions start without it.

    archive = class_archive()
    if archive.is_file() and compiled_calls().is_file():
        return
    _prefetch("file:///nowhere", "sqlite:///nowhere", "")  # The class path of the archive has them.
    if SparkContext._gateway is not None:
        _end_jvm(SparkContext._gateway)  # The archive is of a JVM from its start on.
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        part, warehouse = Path(temporary, archive.name), f"{temporary}/warehouse"
        config, storage = _config(f"file://{warehouse}", f"sqlite:///{temporary}/catalog.db", {}), StorageConfig()
        options = f"{shlex.quote(f'{_ARCHIVES}{part}')} {_SILENT}"
        with _environment({_JVM_OPTIONS_VARIABLE: options}):
            session = build_session(config)
        session.sql(f"CREATE NAMESPACE {CATALOG}.archived")
        keep_compiled(*open_catalog(config, storage))
        # Commits as those of a run load what it needs. Nobody reads the files, which do not exist.
        iceberg, table = IcebergJavaApi(lambda: open_catalog(config, storage)), Identifier("archived", "rows")
        iceberg.create(
            table, Schema(NestedField(1, "id", LongType())), f"file://{warehouse}/rows", {"format-version": "3"}
        )
        counts = {"value-counts": {"keys": [1], "values": [2]}, "lower-bounds": {"keys": [1], "values": ["00" * 8]}}
        rows = [content_file_json(path, "parquet", file_size=9, rows=2, others=counts) for path in ("a", "b")]
        place = {"content-offset": 4, "content-size-in-bytes": 40}
        deletes = content_file_json("c", "puffin", file_size=50, rows=1, deletes_of="a", others=place)
        first = iceberg.transaction(table, None).commit(data_files=rows[:1], properties={"archived": "yes"})
        changed = iceberg.transaction(table, first)
        changed.evolve([[SchemaOperation("add", "more", "string", "")]])
        changed.commit(data_files=rows[1:], delete_files=[deletes], summary={"archived": "yes"})
        session.stop()
        # It writes the archive when it ends.
        ended = _end_jvm(SparkContext._gateway)
        if part.is_file():
            part.rename(archive)
        else:
            _LOG.warning("Java has made no archive of Spark's classes (it ended with %d): Spark starts without", ended)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefetch", action="store_true", help="fetch Spark's jars, for a warehouse and a catalog")
    parser.add_argument("--archive-classes", action="store_true", help="make what Spark starts from in half the time")
    parser.add_argument("--warehouse", default="file:///nowhere", help="such as s3://any")
    parser.add_argument("--catalog-uri", default="sqlite:///nowhere", help="such as postgresql://any")
    parser.add_argument("--packages", default="", help="as lake.spark.conf has them in spark.jars.packages")
    arguments = parser.parse_args(words)
    if not (arguments.prefetch or arguments.archive_classes):
        parser.error("say --prefetch, --archive-classes or both")
    if arguments.archive_classes:
        _archive_classes()
    if arguments.prefetch:
        _prefetch(arguments.warehouse, arguments.catalog_uri, arguments.packages)


if __name__ == "__main__":
    main(sys.argv[1:])
