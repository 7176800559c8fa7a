"""One attempt to publish a result.

The steps are: begin (no other result, no other objects, the target creates objects only if they are absent), uploads,
a list of the uploaded objects, and the manifest.

If the request for the manifest fails, it may still have been carried out, or be carried out later. So the manifest is
read: it names this attempt, another one, or is missing. In the last case the objects stay, and `clean` removes them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from mqstore._admin.files import chunks, disk_of
from mqstore._publish.create import WriteRefused, create, probe
from mqstore._remote.failure import RequestFailure, requests
from mqstore._remote.manifest import ATTEMPT, FOLDER, NAME, Entry, Manifest, decoded, missing
from mqstore.errors import ResultExistsError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mqstore._publish.target import Target

# Uploads of one attempt at the same time.
_UPLOADS = 4

_READ_BYTES = 1 << 20


class Publication:
    """An attempt. Use it in a `with` block, which removes the objects of an attempt that fails."""

    def __init__(self, target: Target, format: str, identity: str | None = None) -> None:
        self.attempt = f"{ATTEMPT}{uuid.uuid4().hex}"
        self._probe_path = f"{FOLDER}/{self.attempt}/probe"
        self._target = target
        self._format = format
        self._identity = identity
        self._files: list[Entry] = []
        self._folders: list[str] = []
        self._mapping: Entry | None = None
        self._has_objects = False
        # Whether a manifest names the objects, or may name them later.
        self._is_named = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._has_objects and not self._is_named:
            # The error of the attempt is the interesting one.
            with suppress(RequestFailure):
                self._discard()

    def begin(self) -> Manifest | None:
        """Checks the target. Returns the manifest if the same result is published already.

        Raises:
            ResultExistsError: the URL has another result or other objects.
            RemoteStoreError: the server ignores the condition that an object is absent.
            StorePermissionError, StoreIOError: a request failed.
        """
        with requests(self._target.shown, "publish a result"):
            if (found := self._published()) is not None:
                return self._same(found)
            folders, files = self._target.entries("")
            others = sorted({*folders, *files} - {"", FOLDER})
            if others:
                raise ResultExistsError(self._target.shown, f"there are other objects, such as {others[0]!r}")
            self._has_objects = True
            probe(self._target, self._probe_path, "publish a result")
        return None

    def add(self, path: str, file: Path, *, trims: bool = False) -> None:
        """Uploads a local file as the file `path` of the result.

        With `trims`, zero bytes at its end are not uploaded. The files of a store have their full length from the
        beginning.
        """
        self._files.append(self._upload(path, file, len(self._files), trims))

    def add_directory(self, home: Path) -> None:
        """Uploads all files of a directory, several at a time."""
        files, folders = upload_directory(self._target, f"{self.attempt}/", home)
        self._files += files
        self._folders += folders

    def add_mapping(self, file: Path) -> None:
        """Uploads the file with old and new positions."""
        self._mapping = self._upload("mapping.jsonl", file, 999_999, False)

    def commit(self, report: dict[str, Any], uploaded: Sequence[Entry] = (), folders: Sequence[str] = ()) -> Manifest:
        """Publishes the uploaded files, and files and empty folders that other processes add to this attempt.

        Returns the manifest: this one, or that of the same result.

        Raises:
            ResultExistsError: another attempt published another result.
            StoreIOError: the request failed, or an object of this attempt has disappeared.
        """
        self._files += uploaded
        self._folders += folders
        manifest = Manifest(
            format=self._format,
            attempt=self.attempt,
            identity=self._identity,
            created_ms=time.time_ns() // 1_000_000,
            report=report,
            files=tuple(self._files),
            folders=tuple(self._folders),
            mapping=self._mapping,
        )
        with requests(self._target.shown, "publish a result"):
            # Without the permission to remove objects, `clean` of another user removes it.
            with suppress(RequestFailure):
                self._target.delete([self._probe_path])
            self._check_objects(manifest)
            found = self._created(manifest.encoded())
            if found is None:
                return manifest
            if found.attempt == self.attempt:
                # The answer was lost.
                return found
            self._is_named = False
            return self._same(found)

    def _created(self, content: bytes) -> Manifest | None:
        """Creates the manifest. Returns None; or the manifest that exists."""
        self._is_named = True
        try:
            found = create(self._target, NAME, content)
        except WriteRefused:
            self._is_named = False
            raise
        return None if found is None else decoded(found)

    def _published(self) -> Manifest | None:
        content = self._target.get(NAME)
        return None if content is None else decoded(content)

    def _same(self, found: Manifest) -> Manifest:
        if self._identity is not None and (found.identity, found.format) == (self._identity, self._format):
            return found
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.created_ms / 1000))
        raise ResultExistsError(self._target.shown, f"a result in the format {found.format} is there since {when}")

    def _upload(self, path: str, file: Path, number: int, trims: bool) -> Entry:
        return upload(self._target, f"{self.attempt}/{number:06}-{_object_name(path)}", path, file, trims=trims)

    def _check_objects(self, manifest: Manifest) -> None:
        sizes = {row[0]: row[1] for row in self._target.listed(f"{FOLDER}/{self.attempt}/")}
        for entry in manifest.objects():
            if missing(entry, sizes) is not None:
                reason = "an object of this attempt was removed or is incomplete: write the result again"
                raise RequestFailure("other", f"{FOLDER}/{entry.object}", reason)

    def _discard(self) -> None:
        names = [row[0] for row in self._target.listed(f"{FOLDER}/{self.attempt}/")]
        if names:
            self._target.delete(names)


def upload(target: Target, object: str, path: str, file: Path, *, trims: bool = False) -> Entry:
    """Uploads a local file as an object of an attempt. Returns the entry of the file `path` of the result."""
    size = file.stat().st_size
    stored = _length_without_zeros(file, size) if trims else size
    entry = Entry(path, object, stored, size - stored, digest_of(file, stored))
    with requests(target.shown, "upload a file"):
        target.put(f"{FOLDER}/{object}", file, stored)
    return entry


def upload_directory(target: Target, prefix: str, home: Path) -> tuple[list[Entry], list[str]]:
    """Uploads all files of a directory, several at a time. Returns the entries, and the folders without files.

    Args:
        target: the URL.
        prefix: beginning of the objects' names: the folder of an attempt, which has no other files, or a name there.
        home: the directory.

    Raises:
        UnsupportedFormatError: it contains a link to a folder.
    """
    names, empty = [], []
    for folder, folders, files in os.walk(home):
        inner = Path(folder).relative_to(home)
        if links := [name for name in folders if Path(folder, name).is_symlink()]:
            raise UnsupportedFormatError(str(inner / links[0]), "a symbolic link to a folder cannot be published")
        names += [(inner / name).as_posix() for name in files]
        if not folders and not files and folder != str(home):
            empty.append(inner.as_posix())
    pool = ThreadPoolExecutor(_UPLOADS, "mqstore-publish")
    try:
        work = [
            pool.submit(upload, target, f"{prefix}{number:06}-{_object_name(name)}", name, home / name, trims=True)
            for number, name in enumerate(sorted(names))
        ]
        return [one.result() for one in work], sorted(empty)
    finally:
        pool.shutdown(cancel_futures=True)


def _object_name(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.rpartition("/")[2])[-100:]


@contextmanager
def scratch() -> Iterator[Path]:
    """Yields an empty folder in the folder for temporary files (`TMPDIR`), which is removed at the end."""
    with TemporaryDirectory(prefix="mqstore-") as folder, disk_of(Path(folder), "preparing the result"):
        yield Path(folder)


def digest_of(file: Path, length: int) -> str:
    """Returns the SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    for part in chunks(file, length, _READ_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _length_without_zeros(file: Path, size: int) -> int:
    """Returns the length of a file up to its last byte that is not zero."""
    with file.open("rb", buffering=0) as content:
        size = _end_of_data(content.fileno(), size)
        while size > 0:
            start = max(0, size - _READ_BYTES)
            content.seek(start)
            kept = len(content.read(size - start).rstrip(b"\0"))
            if kept:
                return start + kept
            size = start
    return 0


def _end_of_data(file: int, size: int) -> int:
    """Returns the start of the hole at the end of a file, as far as the system tells; at most its size."""
    end = 0
    try:
        while end < size:
            end = os.lseek(file, os.lseek(file, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        return end if error.errno == errno.ENXIO else size
    return min(end, size)
