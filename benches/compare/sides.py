"""The programs that measure: mqstore and the limits, its Python API, RocketMQ. All read the same specifications."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The interoperability tests can find Maven and a JDK, and know when a build is out of date.
sys.path.insert(0, str(ROOT / "tests"))

from interop import java_build  # noqa: E402

VERSION, KAFKA_VERSION = "5.5.0", "4.1.0"
"""The versions of RocketMQ and Kafka."""

JVMS = ("java", "kafka")
"""The sides that run in a JVM."""

JVM_OPTIONS = (
    # The choices of RocketMQ's own start script, except sizes.
    "-server",
    "-XX:+UseG1GC",
    "-Xms2g",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=6g",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
    # With IPv4, unique ids have 32 digits as in mqstore. With IPv6, ids and records are longer.
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Drmq.logback.configurationFile=compare-logback.xml",
    "-Dfile.encoding=UTF-8",
)


class MeasureError(RuntimeError):
    """A measurement failed. The message contains the output of the program."""


class Driver:
    """One running program that measures. Use it as a context manager."""

    def __init__(self, command: list[str], errors: Path) -> None:
        """Start it. All its output except results goes to `errors`."""
        self._errors_path = errors
        self._errors = errors.open("ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def measure(self, spec: dict[str, Any], limit_seconds: float) -> dict[str, Any]:
        """Run one measurement and return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(limit_seconds, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(spec) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            said = self._errors_path.read_text(errors="replace")[-2000:]
            reason = f"the program ended, or took longer than {limit_seconds:.0f} s; it said:\n{said}"
            raise MeasureError(reason)
        result: dict[str, Any] = json.loads(line)
        if "error" in result:
            raise MeasureError(result["error"])
        return result

    def kill(self) -> None:
        """End it as a crash would, without any shutdown."""
        self.process.kill()
        self._reap()

    def end(self) -> None:
        """Let it end by itself, which it does at the end of its input."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


class Programs:
    """Builds the programs and starts them."""

    def __init__(self, scratch: Path, *, java: bool, rust: Path | None = None) -> None:
        """Build programs that are out of date. Without `java`, RocketMQ's side is left out. `rust` is a program that is
        already built.

        Raises `MeasureError` if something needed is not on this machine.
        """
        self._scratch = scratch
        self._rust = rust or build_rust()
        self._class_path = class_path(VERSION, HERE, "rocketmq") if java else ""

    def start(self, driver: str) -> Driver:
        """Start ``rust``, ``python``, ``peers``, ``spark``, ``url``, ``java``, ``kafka`` or ``port``."""
        if driver == "rust":
            return Driver([str(self._rust)], self._scratch / "rust.txt")
        if driver == "port":
            project = HERE / "rust-port"
            cargo_build("--manifest-path", str(project / "Cargo.toml"))
            return Driver([str(target_folder(project) / "release" / "rust-port")], self._scratch / "port.txt")
        if driver in ("python", "peers", "spark", "url"):
            return Driver([sys.executable, str(HERE / f"{driver}_side.py")], self._scratch / f"{driver}.txt")
        home = self._scratch / "home"
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        command = [
            java_executable(),
            *JVM_OPTIONS,
            # RocketMQ writes logs and unpacks libraries in the user's home. Here that is a scratch folder.
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Djava.io.tmpdir={home / 'tmp'}",
            f"-Dcompare.log={home / 'compare.log'}",
            "-cp",
        ]
        if driver == "kafka":
            command += [class_path(KAFKA_VERSION, HERE / "kafka", "kafka"), "org.mqstore.compare.KafkaSide"]
        else:
            command += [self._class_path, "org.mqstore.compare.Compare"]
        return Driver(command, self._scratch / f"{driver}.txt")


def class_path(version: str, project: Path, product: str) -> str:
    """Build a Java driver if it is out of date, and return its class path."""
    try:
        return java_build.build(version, project, product)
    except (java_build.JavaMissingError, java_build.JavaBuildError) as error:
        raise MeasureError(str(error)) from error


def java_executable() -> str:
    """Return the Java launcher that `tools/java_home` finds."""
    done = subprocess.run([ROOT / "tools" / "java_home"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        reason = "there is no Java 17 or newer on this machine: install a JDK and maven"
        raise MeasureError(reason)
    return str(Path(done.stdout.strip()) / "bin" / "java")


def build_rust() -> Path:
    """Build the measuring program with the settings of the wheel, and return its path."""
    cargo_build("-p", "mqstore-bench", "--bin", "mqstore-compare")
    return target_folder(ROOT) / "release" / "mqstore-compare"


def cargo_build(*what: str) -> None:
    """Build a Rust program if it is out of date."""
    cargo = shutil.which("cargo")
    if cargo is None:
        reason = "there is no cargo on the PATH"
        raise MeasureError(reason)
    done = subprocess.run([cargo, "build", "--release", "--locked", "--quiet", *what], check=False, cwd=ROOT)
    if done.returncode != 0:
        reason = f"cargo could not build {' '.join(what)}"
        raise MeasureError(reason)


def target_folder(project: Path) -> Path:
    """Return the folder in which cargo puts the build of a project."""
    return Path(os.environ.get("CARGO_TARGET_DIR", project / "target"))
