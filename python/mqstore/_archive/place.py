"""The place of an archive: a folder or a URL, with the requests that an archive needs."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._archive.layout import MANIFESTS, ROOT, manifest_number, manifest_path
from mqstore._archive.manifest import decoded
from mqstore._paths import is_url, object_path, shown_url, text_of
from mqstore._publish.create import create, probe
from mqstore._publish.local import Directory, Folder
from mqstore._publish.publication import digest_of
from mqstore._publish.target import target_of
from mqstore._remote.failure import RequestFailure, requests
from mqstore.errors import InvalidOptionError, ResultNotFoundError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mqstore._archive.manifest import ArchivedFile, ArchiveManifest
    from mqstore._native import NativeStore
    from mqstore._publish.target import Target
    from mqstore._remote.failure import Row
    from mqstore.types import StorePath

_WRITTEN = " from what was written: restore the file, or archive again"

# Memory for Bloom filters. Each look-up needs those of all files.
_BLOOM_BYTES = 64 << 20

# Files of one call of the transport.
_MOST_REQUESTS = 1000


class ArchivePlace:
    """The objects of an archive. Failed requests raise the errors of the package."""

    def __init__(self, place: StorePath, target_options: Mapping[str, Any] | None) -> None:
        text = text_of(place)
        if not text:
            raise InvalidOptionError("target", "must name a folder or a URL, not be empty")
        self._target: Target
        if is_url(text):
            self.text = text
            self.shown = shown_url(text)
            self._target = target_of(text, target_options, "archive to it")
        elif target_options is not None:
            raise InvalidOptionError("target_options", f"only for a URL, and {text!r} is a path")
        else:
            self.text = self.shown = os.path.abspath(text)  # noqa: PTH100 - keeps the text of the path
            self._target = Directory(self.text)

    def check_outside(self, home: str) -> None:
        """Makes sure that the archive is not in the directory of a store.

        Raises:
            InvalidOptionError: it is.
        """
        if isinstance(self._target, Folder):
            folder, store = self._target.local(""), Path(home).absolute()
            # A folder of the store can be a link, and a link can lead into it.
            if folder.is_relative_to(store) or folder.resolve().is_relative_to(store.resolve()):
                reason = f"{self.shown} is in the directory of the store, {home}: choose a folder outside of it"
                raise InvalidOptionError("target", reason)

    def manifest_numbers(self) -> list[int]:
        """Returns the numbers of all manifests, the newest first."""
        with requests(self.shown, "read the archive"):
            numbers = [manifest_number(row[0]) for row in self._target.listed(MANIFESTS)]
            return sorted((number for number in numbers if number is not None), reverse=True)

    def newest(self) -> ArchiveManifest | None:
        """Returns the newest manifest; None if there is no archive."""
        numbers = self.manifest_numbers()
        return self.manifest(numbers[0]) if numbers else None

    def manifest(self, number: int) -> ArchiveManifest:
        """Returns the manifest with a number."""
        path = manifest_path(number)
        with requests(self.shown, "read the archive"):
            found = decoded(path, self._content(path))
            if found.number != number:
                raise RequestFailure("damaged", path, f"the manifest says that its number is {found.number}")
            return found

    def _content(self, path: str) -> bytes:
        content = self._target.get(path)
        if content is None:
            raise RequestFailure("changed", path, "the manifest was removed meanwhile: try again")
        return content

    def native(self) -> _native.ArchiveTarget:
        """Returns the objects for the native module."""
        root = self.full_path("").rstrip("/").removesuffix(f"/{ROOT}")
        return _native.ArchiveTarget(_transport_of(self._target), self.shown, root or "/")

    def link(self, store: NativeStore, begin: int) -> None:
        """Lets the reads of a store continue in the archive, which begins at a log offset; 0 if it is not known."""
        _native.link_archive(store, self.native(), begin, _BLOOM_BYTES)

    def settle(self) -> None:
        """Makes the manifests durable. A run that has ended can have created one whose name is not."""
        with requests(self.shown, "archive to it"):
            self._target.settle(MANIFESTS)

    def must_have(self) -> ArchiveManifest:
        """Returns the newest manifest.

        Raises:
            ResultNotFoundError: there is no archive.
        """
        found = self.newest()
        if found is None:
            raise ResultNotFoundError(self.shown)
        return found

    def probe(self) -> None:
        """Makes sure that the place creates an object only if it is absent."""
        path = f"{MANIFESTS}probe-{uuid.uuid4().hex}"
        with requests(self.shown, "archive to it"):
            try:
                probe(self._target, path, "archive to it")
            finally:
                # Without the permission to remove objects, the probe stays; it is no manifest.
                with suppress(RequestFailure):
                    self._target.delete([path])

    def create(self, manifest: ArchiveManifest) -> ArchiveManifest | None:
        """Creates a manifest. Returns None; or the manifest of another run with this number.

        Raises:
            WriteRefused: the access was denied, so the manifest will not appear.
            RequestFailure: the request failed, and the manifest may appear later.
        """
        path, wanted = manifest_path(manifest.number), manifest.encoded()
        content = create(self._target, path, wanted)
        if content is None:
            if self._target.get(path) != wanted:
                with suppress(RequestFailure):
                    self._target.delete([path])
                raise RequestFailure("damaged", path, f"the manifest that was read back differs{_WRITTEN}")
            return None
        found = decoded(path, content)
        # After an answer that was lost, the manifest is the own one.
        return None if found.run == manifest.run else found

    def upload(self, path: str, file: Path) -> tuple[int, str]:
        """Writes a local file as an object and reads the object back. Returns its length and its digest."""
        length = file.stat().st_size
        digest = digest_of(file, length)
        with requests(self.shown, "archive to it"):
            self._target.put(f"{ROOT}/{path}", file, length)
            content = self._target.get(f"{ROOT}/{path}")
            if content is None:
                raise self._removed(path)
            self._compare(path, length, digest, content)
        return length, digest

    def check_present(self, entries: list[ArchivedFile]) -> None:
        """Makes sure that new files are still there in their full length.

        Raises:
            StoreBusyError: a file was removed meanwhile.
        """
        for start in range(0, len(entries), _MOST_REQUESTS):
            some = entries[start : start + _MOST_REQUESTS]
            with requests(self.shown, "archive to it"):
                try:
                    found = self._target.read([(f"{ROOT}/{one.path}", "", one.bytes - 1, 1) for one in some])
                except RequestFailure as failure:
                    if failure.cause == "changed":
                        raise self._removed(failure.path.removeprefix(f"{ROOT}/")) from None
                    raise
                for one, part in zip(some, found, strict=True):
                    if len(part) != 1:
                        raise _differs(one.path)

    @contextmanager
    def opened(self, entry: ArchivedFile) -> Iterator[Path]:
        """Yields a local path of a file whose bytes match the manifest. The path of an object ends with the block."""
        with self.copied(entry.path) as (path, size, digest), requests(self.shown, "read the archive"):
            if (size, digest) != (entry.bytes, entry.sha256):
                raise _differs(entry.path)
            yield path

    @contextmanager
    def copied(self, path: str) -> Iterator[tuple[Path, int, str]]:
        """Yields a local path of a file, its length and its digest. The path of an object ends with the block."""
        with requests(self.shown, "read the archive"):
            if isinstance(self._target, Folder):
                local = self._target.local(f"{ROOT}/{path}")
                try:
                    size = local.stat().st_size
                    digest = digest_of(local, size)
                except OSError as error:
                    raise _lost(path, error.strerror or "it cannot be read") from None
                yield local, size, digest
                return
            content = self._target.get(f"{ROOT}/{path}")
            if content is None:
                raise _lost(path, "it is missing")
            size, digest = len(content), hashlib.sha256(content).hexdigest()
            with NamedTemporaryFile(prefix="mqstore-", suffix=".parquet") as copy:
                copy.write(content)
                copy.flush()
                del content
                yield Path(copy.name), size, digest

    def full_path(self, path: str) -> str:
        """Returns the path or URL of a file for other programs."""
        below = f"{ROOT}/{path}"
        return object_path(self.text, below) if is_url(self.text) else f"{self.text.rstrip('/')}/{below}"

    def objects(self) -> list[Row]:
        """Returns all objects of the archive."""
        with requests(self.shown, "list the archive"):
            return self._target.listed(f"{ROOT}/")

    def delete(self, paths: list[str]) -> None:
        """Removes objects; the paths are those of `objects`."""
        with requests(self.shown, "clean the archive"):
            self._target.delete(paths)

    def withdraw(self, manifest: ArchiveManifest) -> None:
        """Removes a manifest that this process has just created."""
        with requests(self.shown, "withdraw the manifest"):
            self._target.delete([manifest_path(manifest.number)])

    def discard(self, paths: list[str]) -> None:
        """Removes files of a run that failed, as far as possible."""
        if paths:
            # The error of the run is the interesting one.
            with suppress(RequestFailure):
                self._target.delete([f"{ROOT}/{path}" for path in paths])

    def _removed(self, path: str) -> StoreBusyError:
        reason = "a clean of the archive has removed this file of the run, which was older than its older_than"
        return StoreBusyError(f"{self.shown}/{ROOT}/{path}: {reason}; no message is lost: run it again")

    def _compare(self, path: str, length: int, digest: str, content: bytes) -> None:
        if len(content) != length or hashlib.sha256(content).hexdigest() != digest:
            raise _differs(path)


def _transport_of(target: Target) -> Target | None:
    """Returns the transport of a target; None for a folder, which needs no Python."""
    return None if isinstance(target, Folder) else target


def _lost(path: str, reason: str) -> RequestFailure:
    return RequestFailure("damaged", f"{ROOT}/{path}", f"the archive needs this file, and {reason}")


def _differs(path: str) -> RequestFailure:
    return RequestFailure("damaged", f"{ROOT}/{path}", f"the length or the digest of the file differs{_WRITTEN}")
