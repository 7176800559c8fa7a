"""Stubs of the native module for results at URLs; a part of `_mqstore.pyi`."""

from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Self, TypeAlias, final

_Path: TypeAlias = str | PathLike[str]
_FileRow: TypeAlias = tuple[str, str, int, int, str]

@final
class ResultManifest:
    """The manifest of a result."""

    def __new__(cls, content: bytes) -> Self: ...
    @property
    def format(self) -> str:
        """The format of the result."""
    @property
    def attempt(self) -> str:
        """The folder of the attempt that published it."""
    @property
    def created_ms(self) -> int:
        """When it was published, in epoch milliseconds."""
    @property
    def report(self) -> str:
        """The report of the call, as JSON."""
    @property
    def files(self) -> list[_FileRow]:
        """The files: path, path of the object, bytes of the object, zero bytes after them, digest of the object."""
    @property
    def object_bytes(self) -> int:
        """The number of bytes of all objects."""
    def is_mapping(self, path: _Path) -> bool | None:
        """Returns whether the file at a path is the mapping of the result, or None if the result has no mapping."""

@final
class ResultTarget:
    """The objects below a URL. Threads can share it."""

    def __new__(cls, transport: object | None, shown: str, root: str) -> Self: ...
    @property
    def shown(self) -> str:
        """The URL, without secrets."""
    def publication(self, format: str, identity: str | None) -> ResultPublication:
        """Makes an attempt to publish a result in a format.

        With an identity, the same result of another attempt counts as this one.
        """
    def upload(self, attempt: str, path: str, file: _Path) -> _FileRow:
        """Uploads a local file as the file `path` of a result, for an attempt. Returns its row in the manifest."""
    def must_be_free(self, object: str) -> None:
        """Raises an error if an object exists."""
    def upload_object(self, object: str, file: _Path, overwrite: bool) -> None:
        """Writes a local file as an object that is no part of a result."""
    def upload_directory(self, prefix: str, home: _Path, at_once: int) -> tuple[list[_FileRow], list[str]]:
        """Uploads all files of a directory, some at a time.

        Returns their rows in the manifest, and the folders without files.
        `prefix` is the begin of the names of the objects: a name in the folder of an attempt.
        """
    def published(self) -> ResultManifest:
        """Returns the manifest of the published result, all of whose objects are there."""
    def fetch(
        self,
        manifest: ResultManifest,
        paths: tuple[_Path, _Path, _Path, _Path],
        at_once: int,
        progress: Callable[[int, int], object] | None,
    ) -> int:
        """Assembles the directory of a result. Returns the number of files of an earlier call that were kept.

        Args:
            manifest: the result.
            paths: the directory until it is complete, which exists, and its final path; then those of the mapping.
            at_once: number of requests at the same time.
            progress: callback with bytes of the objects.
        """
    def clean(self, older_than_ms: int, dry_run: bool) -> tuple[list[tuple[str, int, int]], int]:
        """Removes unused objects of a minimum age in milliseconds; with `dry_run`, only finds them.

        Returns them, each with its path, bytes, and last change in epoch milliseconds; and the number of younger ones.
        """

@final
class ResultPublication:
    """An attempt to publish a result; created by `ResultTarget.publication`.

    A `with` block removes the objects of an attempt that fails.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def attempt(self) -> str:
        """The folder of the attempt."""
    def share(self) -> str:
        """Returns the folder of the attempt for other processes, which can upload its objects late."""
    def begin(self) -> ResultManifest | None:
        """Checks the target. Returns the manifest if the same result is published already."""
    def add(self, path: str, file: _Path, trims: bool = False) -> None:
        """Uploads a local file as the file `path` of the result.

        With `trims`, zero bytes at its end are not uploaded.
        """
    def add_directory(self, home: _Path, at_once: int) -> None:
        """Uploads all files of a directory, some at a time."""
    def add_mapping(self, file: _Path) -> None:
        """Uploads the file with old and new positions."""
    def commit(self, report: str, files: list[_FileRow] = ..., folders: list[str] = ...) -> ResultManifest:
        """Publishes the uploaded files. Returns the manifest: this one, or that of the same result.

        Args:
            report: the report of the call, as JSON.
            files: rows of files that other processes have uploaded for this attempt.
            folders: empty folders that they have found.
        """
