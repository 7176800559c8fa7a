"""Files of HDFS as a target, by `hdfs-native`, which needs no JVM.

The manifest is written and synced under another name and then renamed. The name node refuses the rename if its new name
exists, so two writers never both publish, and the manifest is never incomplete.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mqstore import _extras
from mqstore._admin.files import chunks
from mqstore._remote.failure import REMOVED, WRITE_DENIED, RequestFailure
from mqstore._remote.file_system import FileSystem
from mqstore.errors import RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_COPY_BYTES = 4 << 20


class Hdfs(FileSystem):
    """Files below a folder of HDFS."""

    def __init__(self, url: str, shown: str, options: dict[str, Any]) -> None:
        super().__init__(url, shown, options)
        # `hdfs-native` registers itself with fsspec. Another package may be registered after it.
        files = _extras.module("hdfs_native.fsspec", "hdfs")
        if not isinstance(self._system, files.HdfsFileSystem | files.ViewfsFileSystem):
            name = type(self._system).__module__
            reason = f"fsspec uses {name} for it, and only hdfs-native can create a file if absent"
            raise RemoteStoreError(shown, "write to it", reason)
        self._client = self._system.client

    def get(self, path: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        with self._steps(path):
            try:
                with self._client.read(self._path(path)) as file:
                    return bytes(file.readall())
            except FileNotFoundError:
                return None

    def put(self, path: str, source: Path | bytes, length: int) -> None:
        """Writes the first bytes of a local file or of the memory to a file, durably."""
        with self._steps(path), self._created(path) as copy:
            for part in chunks(source, length, _COPY_BYTES):
                copy.write(part)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Writes a file unless it exists, durably. Returns whether this call has written it."""
        new = f"{path}.{uuid.uuid4().hex}.new"
        with self._steps(path):
            with self._created(new) as file:
                file.write(content)
            try:
                self._client.rename(self._path(new), self._path(path), overwrite=False)
            except FileExistsError:
                self._client.delete(self._path(new))
                return False
            return True

    def delete(self, paths: list[str]) -> None:
        """Removes files, and the folders that are then empty. Files that do not exist are no error."""
        with self._steps(paths[0]):
            for path in paths:
                with suppress(FileNotFoundError):
                    self._client.delete(self._path(path))
            for folder in {self._path(path).rpartition("/")[0] for path in paths}:
                with suppress(FileNotFoundError):
                    if not any(True for _ in self._client.list_status(folder)):
                        self._client.delete(folder)

    @contextmanager
    def _created(self, path: str) -> Iterator[Any]:
        """Creates a file, and syncs it on its data nodes at the end of the block."""
        with self._client.create(self._path(path)) as file:
            yield file
            file.hsync()

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _steps(self, path: str) -> Iterator[None]:
        """Turns an error of the library into a failed request."""
        try:
            yield
        except FileNotFoundError:
            raise RequestFailure("changed", path, REMOVED) from None
        except PermissionError:
            raise RequestFailure("denied", path, WRITE_DENIED) from None
        except Exception as error:  # noqa: BLE001 - the library raises RuntimeError and other classes
            if "AccessControlException" in str(error):
                raise RequestFailure("denied", path, WRITE_DENIED) from None
            raise RequestFailure("other", path, self._secrets.without(error)) from None
