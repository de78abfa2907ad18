"""How a session starts, in a process and a JVM of its own."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.lake.iceberg_java import compiled_calls
from cdc_lakehouse.lake.spark import _CATALOGS, class_archive, open_catalog
from tests.kit.lakes import lake_section

pytestmark = pytest.mark.spark

SECRET = "hunter2 = a\\b #é😀!"
_START = """
import json, pathlib, sys
from cdc_lakehouse.config import LakeConfig, StorageConfig
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.lake.spark import build_session, start

section = json.loads(sys.stdin.read())
config = LakeConfig.model_validate(section)
section["spark"]["conf"]["spark.driver.memory"] = "no size"
failed = []
for begin in (start, lambda *_, **__: None):
    begin(LakeConfig.model_validate(section), StorageConfig(), session=True)
    try:
        build_session(LakeConfig.model_validate(section))
    except Exception as error:
        failed.append(type(error).__name__)
for session in (False, True):
    start(config, StorageConfig(), session=session)
spark = build_session(config)
process = pathlib.Path("/proc", str(spark.sparkContext._gateway.proc.pid))
told = {
    "pandas": ["pandas" in sys.modules, *run_tasks(spark, [0], lambda _: ["pandas" in sys.modules])],
    "command": process.joinpath("cmdline").read_bytes().decode(),
    "environment": process.joinpath("environ").read_bytes().decode(errors="replace"),
    "secret": spark.sparkContext._jsc.hadoopConfiguration().get("my.password"),
    "default": spark.conf.get("spark.my.default"),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "python": spark.sparkContext.pythonExec,
    "host": spark.sparkContext.getConf().get("spark.driver.host"),
    "sockets": spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled"),
    "archives": spark.sparkContext.parallelize([0], 1).map(lambda _: list(sys.path_importer_cache)).collect()[0],
}
spark.stop()
again = build_session(config)
told["again"] = again.conf.get("spark.sql.shuffle.partitions")
jvm = again.sparkContext._gateway.proc
jvm.kill()
jvm.wait()
start(config, StorageConfig(), session=False)
after = build_session(config)
told |= {"failed": failed, "rows": after.range(3).count(), "new": after.sparkContext._gateway.proc.pid != jvm.pid}
json.dump(told, sys.stdout)
after.stop()
"""


@pytest.mark.in_turn
def test_session_starts_after_failed_start_and_killed_jvm(tmp_path: Path) -> None:
    """Its settings are not on the command line, which everyone on the machine can read. Those in Spark's own file of
    defaults count."""
    section = lake_section(tmp_path)
    partitions = str(section["spark"]["conf"]["spark.sql.shuffle.partitions"])
    section["spark"]["conf"] |= {"spark.hadoop.my.password": SECRET, "spark.driver.memory": "600m"}
    del section["spark"]["conf"]["spark.driver.extraJavaOptions"]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("spark.my.default 1\nspark.sql.shuffle.partitions 77\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_LOCAL_")}
    (tmp_path / "conf/pandas.py").touch()
    environment |= dict.fromkeys(("SPARK_CONF_DIR", "PYTHONPATH"), str(tmp_path / "conf")) | {"TMPDIR": str(temporary)}
    command, given = [sys.executable, "-c", _START], json.dumps(section)
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["failed"]) == 2 and (told["rows"], told["new"]) == (3, True), told
    assert told["pandas"] == [False, False], "its import takes a second, and nothing needs it"
    assert told["secret"] == SECRET
    assert "hunter2" not in told["command"] + told["environment"] + done.stderr
    assert "-Xmx600m" in told["command"]
    assert "-XX:Tier4InvocationThreshold=500000\0" in told["command"], "the JVM was started for a catalog"
    assert "TieredStopAtLevel" not in told["command"], "a session is for long work"
    assert (told["default"], told["partitions"], told["again"]) == ("1", partitions, partitions)
    assert told["python"] == sys.executable
    assert told["host"] == "localhost", "its ports are open to other machines"
    assert not [path for path in told["archives"] if path.endswith(".jar")], "each task would read it again"
    assert not list(temporary.rglob("spark.properties"))
    assert len(str(temporary)) > 60 and told["sockets"] is None, "the system takes no socket with so long a path"
    assert not list(temporary.iterdir())


def test_a_session_starts_from_the_archive_of_classes(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    mapped = Path("/proc", str(gateway.proc.pid), "maps").read_text(encoding="utf-8")
    assert f"{class_archive()}\n" in mapped, "`make setup` makes it, and the JVM finds that it fits"
    # The archive has all classes of the class path, and few of others.
    loaders = gateway.jvm.java.lang.ClassLoader
    assert gateway.jvm.java.lang.Class.forName("org.apache.iceberg.Table").getClassLoader() == (
        loaders.getSystemClassLoader()
    )
    assert compiled_calls().is_file(), "so does what calls Iceberg"


def test_a_catalog_with_other_credentials_replaces_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    opened: list[Any] = []
    for place, token in [("a", "1"), ("b", "1"), ("a", "2"), ("a", "2"), ("b", "1")]:
        section = lake_section(tmp_path / place)
        section["catalog"]["token"] = token
        (tmp_path / place).mkdir(exist_ok=True)
        gateway, catalog = open_catalog(LakeConfig.model_validate(section), StorageConfig())
        opened.append(catalog)
    a, b, newer, *again = opened
    assert newer is not a and again == [newer, b]
    kept = [catalog for _, catalog in _CATALOGS[gateway].values()]
    assert newer in kept and b in kept and a not in kept


def test_workers_are_reached_by_sockets_that_only_this_user_can_open(spark: SparkSession) -> None:
    directory = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir", ""))
    assert run_tasks(spark, [0], lambda plan: [plan]) == [0]
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path for path in directory.iterdir() if path.is_socket()]


def test_worker_keeps_memory_and_collects_no_imports(spark: SparkSession) -> None:
    def worker(_: int) -> Iterator[tuple[int, str]]:
        names = sorted(name for name in os.environ if name.startswith("MALLOC_"))
        yield gc.get_freeze_count(), " ".join(names)

    ((objects, names),) = run_tasks(spark, [0], worker)
    assert (objects > 100_000, names) == (True, "MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_")


def test_error_of_a_task_is_of_python(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="KeyError: 7"):
        run_tasks(spark, [7], lambda plan: [{}[plan]])
