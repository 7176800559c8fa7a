"""Compiles the Java driver, once for each RocketMQ version and again if its sources change.

`build` runs Maven into ``target/<version>`` and returns the class path. After that, nothing here needs a network. In
``tests/``, ``python -m interop.java_build`` builds each version. The suite's runner calls it first, because the time of
a slow network must not count against the time limit of a test.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import shutil
import subprocess
import sys
import time
from pathlib import Path

VERSIONS = ("5.3.3", "5.5.0")
"""The RocketMQ versions of the suite."""

HADOOP = "3.4.1"
"""The Hadoop version whose HDFS the suite starts."""

HERE = Path(__file__).resolve().parent
BUILD_ATTEMPTS = 3
BUILD_SECONDS = 600
"""Time limit of one attempt. The next attempt reuses the downloaded files."""


class JavaMissingError(RuntimeError):
    """Maven or Java is not on this machine. The message says what to install."""


class JavaBuildError(RuntimeError):
    """Maven exists but the build failed. The message contains its output."""


class JavaError(RuntimeError):
    """A command failed on the Java side, or its process ended. The message contains the Java trace."""


# ---------------------------------------------------------------------------------------------------------------------
# Building


def build(version: str, project: Path = HERE, product: str = "rocketmq") -> str:
    """Compile the driver of `project` for one version of a product, if needed, and return its class path.

    `project` has a pom.xml with a profile for each version. By default, it is the driver of this suite. Raises
    `JavaMissingError` if a build is needed and Maven is missing, and `JavaBuildError` if the build fails.
    """
    target = project / "target" / version
    stamp = target / "built-from"
    source = _source_digest(version, project)
    target.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_fresh(target, stamp, source):
            _run_maven(f"{product}-{version}", project)
            stamp.write_text(source)
    return f"{target / 'classes'}:{(target / 'classpath.txt').read_text().strip()}"


def build_hdfs() -> str:
    """Compile the program that runs an HDFS, if needed, and return its class path. Raises like `build`."""
    return build(HADOOP, HERE / "hdfs", "hadoop")


def _source_digest(version: str, project: Path) -> str:
    digest = hashlib.sha256(version.encode())
    for path in [project / "pom.xml", *sorted((project / "src").rglob("*"))]:
        if path.is_file():
            digest.update(str(path.relative_to(project)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_fresh(target: Path, stamp: Path, source: str) -> bool:
    class_path = target / "classpath.txt"
    if not stamp.is_file() or stamp.read_text() != source or not class_path.is_file():
        return False
    return all(Path(entry).is_file() for entry in class_path.read_text().strip().split(":"))


def _run_maven(profile: str, project: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        reason = "the Java driver is not built and there is no mvn on the PATH: install maven (and a JDK, 17 or newer)"
        raise JavaMissingError(reason)
    command = [maven, "-B", "-q", "-P", profile, "-f", str(project / "pom.xml"), "clean", "compile"]
    output = ""
    # Offline first: if the machine has the artifacts, Maven then asks no server.
    for attempt, extra in enumerate((["-o"], *itertools.repeat([], BUILD_ATTEMPTS))):
        if attempt > 1:
            time.sleep(2**attempt)
        try:
            done = subprocess.run(
                [*command, *extra],
                check=False,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
            )
        except subprocess.TimeoutExpired:
            output = f"no end within {BUILD_SECONDS} s"
            continue
        if done.returncode == 0:
            return
        output = done.stdout + done.stderr
    reason = f"mvn failed {BUILD_ATTEMPTS} times for {profile}; its last output:\n{output[-4000:]}"
    raise JavaBuildError(reason)


def main() -> None:
    """Compile the driver for each version and the program for HDFS, and print the error if that fails."""
    try:
        for version in VERSIONS:
            build(version)
        build_hdfs()
    except (JavaMissingError, JavaBuildError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
