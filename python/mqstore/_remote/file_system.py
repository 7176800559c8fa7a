"""Files of any other protocol, by `fsspec`.

`fsspec` has no conditional read. So the version is compared after each read: bytes of a replaced file are never used.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mqstore import _extras
from mqstore._paths import HDFS, decoded
from mqstore._remote.failure import DENIED, REMOVED, REPLACED, RequestFailure, Secrets
from mqstore.errors import InvalidOptionError, MissingPackageError

if TYPE_CHECKING:
    from datetime import datetime

    from mqstore._remote.failure import Part, Range, Row

_TAGS = ("ETag", "etag", "e_tag", "md5", "md5Hash", "checksum")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "updated", "created")

# Of `hdfs-native`.
_TIME_MS = "modification_time"


class FileSystem:
    """The files below a URL."""

    def __init__(self, url: str, shown: str, options: dict[str, Any]) -> None:
        self.shown = shown
        core = _extras.module("fsspec.core", "cloud")
        password = url.partition("://")[2].rpartition("@")[0]
        self._secrets = Secrets({**options, "password": password, "word": password.partition(":")[2]})
        try:
            self._system, root = core.url_to_fs(url, **options)
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            if (missing := _missing_package(url, error)) is not None:
                raise MissingPackageError(*missing, shown) from None
            reason = f"cannot use {shown}: {self._secrets.without(error)}"
            raise InvalidOptionError("storage_options", reason) from None
        self._root: str = decoded(root, url).rstrip("/")

    def files(self) -> list[Row]:
        """Returns all files below the URL."""
        try:
            self._system.invalidate_cache()
            found = self._system.find(self._root, detail=True, withdirs=False)
        except FileNotFoundError:
            return []
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            raise self._failure(error, "") from None
        return [_row(name.rstrip("/")[len(self._root) :].lstrip("/"), info) for name, info in found.items()]

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the files in a folder, which ends with a slash; "" is the root."""
        try:
            self._system.invalidate_cache()
            found = self._system.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            raise self._failure(error, "") from None
        names: tuple[list[str], list[str]] = [], []
        for one in found:
            names[one["type"] != "directory"].append(one["name"].rstrip("/").rpartition("/")[2])
        return names

    def listed(self, folder: str) -> list[Row]:
        """Returns the files in a folder, which ends with a slash, and in its folders; "" is the root."""
        return [row for row in self.files() if row[0].startswith(folder)]

    def get(self, path: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        try:
            return bytes(self._system.cat_file(f"{self._root}/{path}"))
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            raise self._failure(error, path) from None

    def settle(self, folder: str) -> None:
        """Makes the names in a folder durable. An answer of the file system says that they are."""

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range; a range with the version "" is of any version of its file."""
        names = [f"{self._root}/{path}" if path else self._root for path, *_ in ranges]
        starts = [start for _, _, start, _ in ranges]
        ends = [start + length for _, _, start, length in ranges]
        path = ranges[0][0] if ranges else ""
        try:
            if len(ranges) == 1:
                found = [self._system.cat_file(names[0], start=starts[0], end=ends[0])]
            else:
                found = self._system.cat_ranges(names, starts, ends, on_error="raise")
            for name, (path, version, _, _) in dict(zip(names, ranges, strict=True)).items():
                self._compare(path, version, name)
        except RequestFailure:
            raise
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            raise self._failure(error, path) from None
        return [bytes(part) for part in found]

    def _compare(self, path: str, version: str, name: str) -> None:
        if not version:
            return
        self._system.invalidate_cache(name)
        if _row(path, self._system.info(name))[3] != version:
            raise RequestFailure("changed", path, REPLACED)

    def _failure(self, error: Exception, path: str) -> RequestFailure:
        if isinstance(error, FileNotFoundError):
            return RequestFailure("changed", path, REMOVED)
        if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
            return RequestFailure("denied", path, DENIED)
        return RequestFailure("other", path, self._secrets.without(error))


def _missing_package(url: str, error: Exception) -> tuple[str, str] | None:
    """Returns the package whose lack is the reason for an error of fsspec, and what installs it; None if none is."""
    scheme = url.partition(":")[0]
    if scheme in HDFS and find_spec("hdfs_native") is None:
        # fsspec would use pyarrow and a JVM.
        return "hdfs_native", "mqstore[hdfs]"
    if not isinstance(error, ImportError):
        return None
    # The cause of the error has the name.
    name = getattr(error.__cause__ or error, "name", None) or f"a package for {scheme}://"
    package = name.partition(".")[0]
    return package, package if package.isidentifier() else "mqstore[cloud]"


def _row(path: str, info: dict[str, Any]) -> Row:
    # The list of a folder and the information about a file can give the same time in different forms.
    times = [_milliseconds(info[name]) for name in _TIMES if info.get(name) is not None]
    times += [info[_TIME_MS]] if type(info.get(_TIME_MS)) is int else []
    tags = [str(info[name]) for name in _TAGS if info.get(name)]
    size = int(info.get("size") or 0)
    version = "-".join([str(size), *map(str, times), *tags])
    return path, size, times[0] if times else 0, version


def _milliseconds(time: float | datetime | str) -> int:
    if isinstance(time, int | float):
        return int(time * 1000)
    if isinstance(time, str):
        from datetime import datetime

        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return 0
    return int(time.timestamp() * 1000)
