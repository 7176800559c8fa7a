"""The files of an export, which become visible together.

::

    <parent>/.<name>.<token>/<file>              files of all attempts; the folder is renamed to <parent>/<name>
    <parent>/.<name>.<token>/attempts/task-...   their progress
    <URL>/<file with the id of the job>          or objects of all attempts; the manifest names those that count

The driver keeps only the files that the answers of the tasks name. So a lost attempt that still runs changes nothing.
"""

from __future__ import annotations

import json
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mqstore import _native
from mqstore._admin.export.formats import file_ending
from mqstore._paths import shown_url, target_url
from mqstore._publish.target import result_target
from mqstore.errors import InvalidOptionError
from mqstore.spark._jobs.folders import absolute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mqstore.types import StorePath

Place: TypeAlias = str | tuple[str, dict[str, Any], str]
"""Where tasks write: a folder; or a URL, its options and the folder of the job's attempt."""


class Result(Protocol):
    """The result of a job on the driver."""

    shown: str
    """The name of the place in reports."""
    place: Place
    progress: str | None
    """Folder for the progress of the tasks."""

    def publish(self, files: Sequence[dict[str, Any]], report: dict[str, Any]) -> None:
        """Makes these files the result: answers of `write`."""


@contextmanager
def result(dest: StorePath, format: str, overwrite: bool, options: Mapping[str, Any] | None) -> Iterator[Result]:
    """Yields the result of an export. Without a call of `publish`, nothing of it stays.

    Raises:
        FileExistsError: the folder exists.
        ResultExistsError: the URL has a result or other objects.
        RemoteStoreError: results cannot be written to this kind of URL.
        InvalidOptionError: the URL is the name of one file, or `overwrite` is for a URL.
    """
    if (url := target_url(dest, options)) is not None:
        if (ending := file_ending(url)) is not None:
            raise InvalidOptionError(
                "dest", f"a job writes several files, and {shown_url(url)} names one; omit {ending}"
            )
        if overwrite:
            raise InvalidOptionError("overwrite", "a result at a URL is never replaced; choose another URL")
        target = result_target(url, options, "export to it")
        with target.publication(format, None) as publication:
            publication.begin()
            yield _Published(publication, target.shown, (url, dict(options or {}), publication.share()))
        return
    folder = _Folder(Path(absolute(dest)), overwrite)
    try:
        yield folder
    finally:
        folder.remove()


@contextmanager
def write(place: Place, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the local path for one file of a task, and the answer for the driver, complete after the block."""
    answer: dict[str, Any] = {}
    if isinstance(place, str):
        path = Path(place, name)
        yield path, answer
        _native.sync_part(path)
        answer |= {"file": name, "bytes": path.stat().st_size}
        return
    url, options, attempt = place
    with TemporaryDirectory(prefix="mqstore-") as folder:
        path = Path(folder, name)
        yield path, answer
        answer |= {"bytes": path.stat().st_size}
        target = result_target(url, options, "export to it")
        answer |= {"entry": target.upload(attempt, name, path)}


class _Folder:
    """A folder that gets its name when it is complete."""

    def __init__(self, target: Path, overwrite: bool) -> None:
        self._target = target
        self._overwrite = overwrite
        self._must_be_free()
        self._staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        # Folder for progress files, so that lost attempts which still run do not disturb the result.
        attempts = self._staging / "attempts"
        attempts.mkdir(parents=True)
        self.shown = str(target)
        self.place: Place = str(self._staging)
        self.progress: str | None = str(attempts)

    def publish(self, files: Sequence[dict[str, Any]], _report: dict[str, Any]) -> None:
        shutil.rmtree(self._staging / "attempts")
        kept = {one["file"] for one in files}
        for file in self._staging.iterdir():
            if file.name not in kept:
                file.unlink()
        self._must_be_free()
        if self._target.exists():
            shutil.rmtree(self._target)
        _native.publish_folder(self._staging, self._target)

    def remove(self) -> None:
        """Removes what was not published."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def _must_be_free(self) -> None:
        if self._target.exists() and not (self._overwrite and self._target.is_dir()):
            raise FileExistsError(f"{self._target}: exists already; pass overwrite=True to replace a folder")


class _Published:
    """Objects at a URL that a manifest names."""

    progress: str | None = None

    def __init__(self, publication: _native.ResultPublication, shown: str, place: Place) -> None:
        self._publication = publication
        self.shown = shown
        self.place = place

    def publish(self, files: Sequence[dict[str, Any]], report: dict[str, Any]) -> None:
        self._publication.commit(json.dumps(report), [tuple(one["entry"]) for one in files])
