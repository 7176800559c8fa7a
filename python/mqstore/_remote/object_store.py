"""Objects of S3, Google Cloud Storage and Azure, by `obstore`, which signs requests and repeats failed ones.

Only `mqstore._publish` calls the methods that write.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mqstore import _extras
from mqstore._admin.files import chunks
from mqstore._remote.failure import DENIED, NO_BUCKET, REMOVED, REPLACED, WRITE_DENIED, RequestFailure, Secrets
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from pathlib import Path

    from mqstore._remote.failure import Part, Range, Row

# Requests of one store at the same time.
_REQUESTS = 8

# Bytes of a part of an upload, parts at the same time, and parts in total: S3 accepts 10,000.
_PART_BYTES = 8 << 20
_PARTS = 4
_MOST_PARTS = 9_000

# Codes for invalid credentials whose status is not 401 or 403: three of S3, and one of versitygw.
_INVALID_CREDENTIALS = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "XAdminUserNotFound")

# Seconds between two uploads of an object that conflict with another request.
_PAUSES = (0.1, 0.5, 2)

# More files than any store has; the list of another folder would fill the memory.
_MOST_FILES = 2_000_000


# Names of the endpoint, as options and as variables of the environment.
_ENDPOINTS = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class ObjectStore:
    """The objects below a URL."""

    def __init__(self, url: str, shown: str, options: dict[str, Any]) -> None:
        self.shown = shown
        self._obstore = _extras.module("obstore", "cloud")
        stores = _extras.module("obstore.store", "cloud")
        self._errors = _extras.module("obstore.exceptions", "cloud")
        self._secrets = Secrets(options)
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        # Google Cloud Storage can list another ETag than a read returns.
        self._has_one_tag = not url.lower().startswith("gs://")
        if _has_plain_http(options):
            options["client_options"] = {"allow_http": True, **options.get("client_options", {})}
        try:
            self._store = stores.from_url(url.rstrip("/"), **options)
        except (self._errors.BaseError, TypeError, ValueError) as error:
            reason = f"cannot use {shown}: {self._secrets.without(error)}"
            raise InvalidOptionError("storage_options", reason) from None

    def files(self) -> list[Row]:
        """Returns all objects below the URL."""
        rows: list[Row] = []
        try:
            for part in self._obstore.list(self._store, chunk_size=1000):
                rows += [_row(found) for found in part if not found["path"].endswith("/")]
                if len(rows) > _MOST_FILES:
                    raise RequestFailure("other", "", f"more than {_MOST_FILES:,} objects: give the URL of one store")
            return rows or self._file()
        except (self._errors.BaseError, OSError) as error:
            raise self._failure(error, "") from None

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the files in a folder, which ends with a slash; "" is the root."""
        try:
            found = self._obstore.list_with_delimiter(self._store, folder or None)
        except (self._errors.BaseError, OSError) as error:
            raise self._failure(error, "") from None
        names = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return names, [one["path"].rpartition("/")[2] for one in found["objects"]]

    def _file(self) -> list[Row]:
        """Returns the object with exactly this URL."""
        try:
            found = self._obstore.head(self._store, "")
        except (FileNotFoundError, self._errors.NotFoundError):
            return []
        except (self._errors.InvalidPathError, self._errors.GenericError):
            # The root of a bucket is no object.
            return []
        return [("", *_row(found)[1:])]

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range; a range with the version "" is of any version of its object."""
        if len(ranges) == 1:
            return [self._read(ranges[0])]
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_REQUESTS, "mqstore-read")
        return list(self._threads.map(self._read, ranges))

    def _read(self, wanted: Range) -> Part:
        path, version, start, length = wanted
        options: dict[str, Any] = {"range": (start, start + length)}
        tag = version.partition("|")[0]
        if tag and self._has_one_tag:
            options["if_match"] = f'"{tag}"'
        try:
            found = self._obstore.get(self._store, path, options=options)
            if version and not self._is_version(version, found.meta):
                raise RequestFailure("changed", path, REPLACED)
            return memoryview(found.bytes())
        except (self._errors.BaseError, OSError) as error:
            raise self._failure(error, path) from None

    def _is_version(self, version: str, found: Any) -> bool:
        """Returns whether an answer is of the listed version of the object."""
        wanted, other = version.split("|"), _version(found).split("|")
        if wanted[0] and other[0] and (self._has_one_tag or wanted[0] == other[0]):
            return wanted[0] == other[0]
        return wanted[1:] == other[1:]

    def listed(self, folder: str) -> list[Row]:
        """Returns the objects in a folder, which ends with a slash, and in its folders."""
        rows: list[Row] = []
        try:
            for part in self._obstore.list(self._store, prefix=folder, chunk_size=1000):
                rows += map(_row, part)
        except (self._errors.BaseError, OSError) as error:
            raise self._failure(error, "") from None
        return rows

    def get(self, path: str) -> bytes | None:
        """Returns an object; None if there is none."""
        try:
            return bytes(self._obstore.get(self._store, path).bytes())
        except (FileNotFoundError, self._errors.NotFoundError):
            return None
        except (self._errors.BaseError, OSError) as error:
            raise self._failure(error, path) from None

    def put(self, path: str, source: Path | bytes, length: int) -> None:
        """Writes the first bytes of a local file or of the memory as an object, in several parts if they are many."""
        size = max(_PART_BYTES, length // _MOST_PARTS + 1)
        for pause in (*_PAUSES, None):
            try:
                if length <= size:
                    content = b"".join(chunks(source, length, size))
                    self._obstore.put(self._store, path, content, use_multipart=False)
                else:
                    parts = chunks(source, length, size)
                    self._obstore.put(self._store, path, parts, chunk_size=size, max_concurrency=_PARTS)
            except (self._errors.BaseError, OSError) as error:
                # A server answers 409 if the request conflicts with another one, which the transport does not repeat.
                if pause is None or not isinstance(error, self._errors.AlreadyExistsError):
                    raise self._write_failure(error, path) from None
                time.sleep(pause)
            else:
                return

    def settle(self, folder: str) -> None:
        """Makes the names in a folder durable. An answer of the server says that they are."""

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Writes an object unless it exists. Returns whether this call has written it.

        After an answer that was lost, the transport repeats the request, and the result is then False.
        """
        try:
            self._obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except (FileExistsError, self._errors.AlreadyExistsError, self._errors.PreconditionError):
            return False
        except (self._errors.BaseError, OSError) as error:
            if "status code: 409" in str(error) or "status code: 412" in str(error):
                return False
            raise self._write_failure(error, path) from None
        return True

    def delete(self, paths: list[str]) -> None:
        """Removes objects. Those that do not exist are no error."""
        try:
            self._obstore.delete(self._store, paths)
        except (FileNotFoundError, self._errors.NotFoundError):
            if len(paths) > 1:
                # Google Cloud Storage and Azure end at the first one.
                for path in paths:
                    self.delete([path])
        except (self._errors.BaseError, OSError) as error:
            raise self._write_failure(error, paths[0]) from None

    def _write_failure(self, error: Exception, path: str) -> RequestFailure:
        failure = self._failure(error, path)
        if failure.cause == "denied":
            return RequestFailure("denied", path, WRITE_DENIED)
        # A write needs no object, so the answer 404 is about the bucket.
        return RequestFailure("no-bucket", "", NO_BUCKET) if failure.cause == "changed" else failure

    def _failure(self, error: Exception, path: str) -> RequestFailure:
        errors = self._errors
        if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError):
            return RequestFailure("denied", path, DENIED)
        text = str(error)
        if any(f"<Code>{code}</Code>" in text for code in _INVALID_CREDENTIALS):
            return RequestFailure("denied", path, DENIED)
        if isinstance(error, errors.PreconditionError):
            return RequestFailure("changed", path, REPLACED)
        is_missing = isinstance(error, FileNotFoundError | errors.NotFoundError) or "status code: 404" in text
        if is_missing and path:
            return RequestFailure("changed", path, REMOVED)
        if is_missing:
            return RequestFailure("no-bucket", path, NO_BUCKET)
        if "status code: 401" in text or "status code: 403" in text:
            return RequestFailure("denied", path, DENIED)
        if "status code: 416" in text or "status code: 412" in text:
            return RequestFailure("changed", path, REPLACED)
        return RequestFailure("other", path, self._secrets.without(error))


def _has_plain_http(options: dict[str, Any]) -> bool:
    """Returns whether the caller or the environment gives an endpoint without TLS."""
    given = [value for name, value in options.items() if name.lower() in _ENDPOINTS]
    given = given or [os.environ.get(name, "") for name in _ENDPOINT_VARIABLES]
    return any(str(value).lower().startswith("http://") for value in given)


def _row(found: Any) -> Row:
    """Returns the row of an object."""
    return found["path"], found["size"], int(found["last_modified"].timestamp() * 1000), _version(found)


def _version(found: Any) -> str:
    """Returns the ETag, the size and the time. Lists and answers give ETags with and without quotation marks."""
    tag = (found["e_tag"] or "").removeprefix("W/").strip('"')
    return f"{tag}|{found['size']}|{int(found['last_modified'].timestamp())}"
