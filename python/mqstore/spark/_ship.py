"""Shipping of the installed package to the executors."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import mqstore
from mqstore.spark._session import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> str:
    """Sends the installed mqstore to the executors of ``spark``.

    Use it for clusters whose executors do not have mqstore. They need the same operating system and processor
    architecture, and Python 3.11 or newer with pyarrow. The package has a few megabytes and is sent to each executor
    once.

    Args:
        spark: the session, classic or Spark Connect.

    Returns:
        The name under which the executors unpack it.
    """
    require(spark)
    name = archive_name()
    source = f"{_archive()}#{name}"
    try:
        spark.addArtifacts(source, archive=True)
    except (AttributeError, NotImplementedError):
        spark.sparkContext.addArchive(source)
    return name


@cache
def archive_name() -> str:
    """Returns a name that differs for each content."""
    digest = hashlib.sha256()
    for name, path in _files():
        digest.update(name.encode())
        digest.update(path.read_bytes())
    return f"mqstore-{mqstore.__version__}-{digest.hexdigest()[:12]}"


@cache
def _archive() -> Path:
    """Returns the archive. It stays as long as this process, because new executors fetch it later."""
    folder = Path(tempfile.mkdtemp(prefix="mqstore-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _write(folder / f"{archive_name()}.zip")


def _files() -> list[tuple[str, Path]]:
    """Returns the files of the package with their names in the archive, sorted."""
    home = Path(mqstore.__file__).parent
    found = (path for path in home.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted((path.relative_to(home.parent).as_posix(), path) for path in found)


def _write(target: Path) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, path in _files():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # Executors can run as another user, which must be able to read the files.
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return target
