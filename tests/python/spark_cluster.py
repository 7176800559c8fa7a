"""A standalone Spark cluster on loopback, and drivers that a test can delay and kill.

Master and workers are separate processes, started from the installed PySpark. The workers have different host names,
because Spark starts no speculative copy of a task on the same host. Executors run a Python that has pyarrow and nothing
else. A driver is a process that takes functions from the test: ``driver.call(function, ...)`` runs ``function(spark,
...)`` there and returns its result. Functions are sent by value, as Spark does.

This file is also the program of the driver.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import spark_driver_side
from spark_driver_side import PATIENCE

HOSTS = ("127.0.0.1", "127.0.0.2")
LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = info
"""
SparkCli = Callable[..., tuple[int, str, str]]
"""Runs a verb of `mqstore spark`. Returns the exit status, the output and the notes."""

# As root, or as root of a user namespace.
NAMESPACES = (["unshare", "-m"], ["unshare", "-rm"])

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


def needs_spark() -> None:
    """Skips the test if Spark cannot run."""
    pytest.importorskip("pyspark", reason='PySpark is not installed: pip install "mqstore[spark]"')
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or newer, on the PATH or in JAVA_HOME")


def java_options(folder: Path) -> str:
    """Options for a small JVM without log output."""
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    return f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={logging} -Duser.timezone=UTC"


class Failed(Exception):  # noqa: N818 - it is what came of a call
    """The exception of a call in a driver. Its text starts with the name of the class."""


def until(condition: Any, what: str) -> Any:
    """Waits until `condition()` is true, and returns its value."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.02)
    return found


def bare_python(folder: Path) -> Path:
    """A Python with pyarrow and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    found = find_spec("pyarrow")
    assert found is not None
    assert found.submodule_search_locations is not None
    (site / "pyarrow").symlink_to(found.submodule_search_locations[0])
    return folder / "bin" / "python"


@dataclass
class Cluster:
    """A master, and a worker on each of `HOSTS`.

    Attributes:
        settings: settings of all drivers.
    """

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    python: Path = field(init=False)
    master: str = field(init=False)
    java: str = field(init=False)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)

    def start(self) -> None:
        """Starts master and workers. Returns when drivers can register."""
        import pyspark

        self.python = bare_python(self.folder / "python")
        self.java = java_options(self.folder)
        home = Path(pyspark.__file__).parent
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))},
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self.java,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }

        def daemon(name: str, host: str, *arguments: str) -> Path:
            said = self.folder / f"{name.lower()}-{host}.log"
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}"]
            command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
            with said.open("wb") as out:
                process = subprocess.Popen(
                    command,
                    env={**environment, "SPARK_LOCAL_IP": host},
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            self.processes.append(process)
            return said

        said = daemon("Master", HOSTS[0])
        found = until(lambda: re.search(r"spark://127\.0\.0\.1:[1-9]\d*", said.read_text()), f"the master; see {said}")
        self.master = found.group()
        for host in HOSTS:
            work = str(self.folder / f"work-{host}")
            daemon("Worker", host, "--cores", "4", "--memory", "4g", "--work-dir", work, self.master)
        # If a driver came before the second worker, all its executors would be on the first one.
        until(lambda: said.read_text().count("Registering worker") == len(HOSTS), f"the workers; see {self.folder}")

    def driver(self, **settings: str) -> Driver:
        """Starts a driver. The first call waits for it."""
        driver = Driver(self, settings)
        self.drivers.append(driver)
        return driver

    def stop(self) -> None:
        """Ends all processes."""
        for driver in self.drivers:
            driver.end()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def _namespace() -> list[str]:
    """Returns the command that makes a mount namespace."""
    for command in NAMESPACES if shutil.which("unshare") else ():
        if subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:
            return command
    pytest.skip("neither unshare -m nor unshare -rm is permitted")


@contextmanager
def cluster_without(hidden: Path, folder: Path) -> Iterator[Cluster]:
    """A cluster whose executors' Python sees an empty folder instead of `hidden`, and has all packages of this one."""
    python = folder / "python-without-the-store"
    hide = 'mount -t tmpfs none "$0" && exec "$@"'
    words = [*_namespace(), "sh", "-c", hide, str(hidden), sys.executable]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    python.chmod(0o755)
    cluster = Cluster(folder / "spark", {"spark.sql.execution.pyspark.python": str(python)})
    cluster.folder.mkdir()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Driver:
    """A process with a Spark session."""

    def __init__(self, cluster: Cluster, settings: dict[str, str]) -> None:
        folder = cluster.folder / f"driver-{len(cluster.drivers)}"
        folder.mkdir()
        self.folder = folder
        self.has_package = False
        self._calls = 0
        self._line, other = Pipe()
        given = {
            **SETTINGS,
            # A task that fails twice fails the job.
            "spark.task.maxFailures": "2",
            "spark.executor.cores": "2",
            "spark.cores.max": "4",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": cluster.java,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.execution.pyspark.python": str(cluster.python),
            **cluster.settings,
            **settings,
        }
        words = [f"{name}={value}" for name, value in given.items()]
        environment = {
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": f'--driver-memory 512m --driver-java-options "{cluster.java}" pyspark-shell',
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOSTS[0],
        }
        with (folder / "log").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, __file__, cluster.master, str(other.fileno()), *words],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[other.fileno()],
                # A separate session, so that the JVM and the helpers can be killed together.
                start_new_session=True,
            )
        other.close()

    def begin(self, function: Any, *arguments: Any, **named: Any) -> None:
        """Starts `function` in the driver without waiting for its result."""
        from pyspark import cloudpickle

        for module in (sys.modules[function.__module__], spark_driver_side):
            cloudpickle.register_pickle_by_value(module)
        self._calls += 1
        self._line.send_bytes(cloudpickle.dumps((self._calls, function, arguments, named)))

    def end_of(self, patience: float = PATIENCE) -> Any:
        """Waits for the started call, at most `patience` seconds, and returns its result."""
        number = 0
        while number != self._calls:
            # A failed test may have left an earlier result.
            if not self._line.poll(patience):
                raise TimeoutError(f"the driver does not answer; see {self.folder / 'log'}")
            number, ok, answer = self._line.recv()
        if not ok:
            raise Failed(answer)
        return answer

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Runs `function` in the driver and returns its result.

        Raises:
            Failed: it raised.
        """
        self.begin(function, *arguments, **named)
        return self.end_of()

    def kill(self) -> None:
        """Kills the driver with all its processes, except the helpers of PySpark that left its process group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Ends the driver."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._line.close()


def serve(master: str, line: Connection, settings: list[str]) -> None:
    """The main loop of a driver."""
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("mqstore cluster tests")
    for word in settings:
        name, _, value = word.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    while True:
        try:
            number, function, arguments, named = cloudpickle.loads(line.recv_bytes())
        except EOFError:
            return
        try:
            answer = number, True, function(spark, *arguments, **named)
        except BaseException as error:
            answer = number, False, f"{type(error).__name__}: {error}"
        line.send(answer)


if __name__ == "__main__":
    serve(sys.argv[1], Connection(int(sys.argv[2])), sys.argv[3:])
