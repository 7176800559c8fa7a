"""The error of a failed request, with a text without secrets."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mqstore.errors import (
    CorruptionError,
    DiskFullError,
    MQStoreError,
    StoreChangedError,
    StoreIOError,
    StorePermissionError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Cause: TypeAlias = Literal["denied", "no-bucket", "changed", "damaged", "full", "other"]

Range: TypeAlias = tuple[str, str, int, int]
"""A range to read: path below the root, version, first byte, number of bytes."""

Part: TypeAlias = bytes | memoryview
"""The bytes of a range."""

Row: TypeAlias = tuple[str, int, int, str]
"""A file: path below the root, bytes, last change in epoch milliseconds, version."""

_MOST_TEXT = 300

DENIED = "access denied: check the credentials, whether they have expired, and the permissions to list and read objects"
WRITE_DENIED = "access denied: check the credentials, whether they have expired, and the permission to write objects"
NO_BUCKET = "the bucket or container does not exist: check the URL"
REMOVED = "the file was removed after the store was opened: open the store again"
REPLACED = "the file was replaced after the store was opened: open the store again"


class RequestFailure(Exception):  # noqa: N818 - the native module turns it into an error
    """A failed request. `path` is the file below the root, empty for the root itself."""

    def __init__(self, cause: Cause, path: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.path = path
        self.reason = reason


@contextmanager
def requests(url: str, action: str) -> Iterator[None]:
    """Turns a failed request into an error that names the object. `url` has no secrets."""
    try:
        yield
    except RequestFailure as failure:
        raise error_of(url, action, failure) from None


def error_of(url: str, action: str, failure: RequestFailure) -> MQStoreError:
    """Returns the error of a failed request. `url` is that of the root, without secrets."""
    path = f"{url}/{failure.path}".rstrip("/")
    match failure.cause:
        case "denied":
            return StorePermissionError(path, action, errno.EACCES, failure.reason)
        case "changed":
            return StoreChangedError(path, failure.reason)
        case "damaged":
            return CorruptionError(path, 0, failure.reason)
        case "full":
            return DiskFullError(path, action, option="")
        case "no-bucket":
            return StoreIOError(path, action, errno.ENOENT, failure.reason)
        case _:
            return StoreIOError(path, action, errno.EIO, failure.reason)


class Secrets:
    """Removes secrets from the texts of other libraries."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        named = re.compile(r"^(AWS|AZURE|GOOGLE|GCS|GCP)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL)", re.IGNORECASE)
        values = {value for name, value in os.environ.items() if named.match(name)}
        self._values = sorted(
            (value for value in values | set(_texts(options)) if len(value) > 3), key=len, reverse=True
        )

    def without(self, error: BaseException) -> str:
        """Returns the type and the first words of an error: no secret, no query of a URL, no body of a response."""
        text = " ".join(str(error).partition("<")[0].partition("Debug source")[0].split())
        for value in self._values:
            text = text.replace(value, "***")
        text = re.sub(r"://[^/\s@]*@", "://", text)
        text = re.sub(r"\?[^\s\"')]*", "", text)
        name = type(error).__name__
        return f"{name}: {text[:_MOST_TEXT]}" if text else name


def _texts(value: Any) -> list[str]:
    """Returns all texts in nested options, except names."""
    if isinstance(value, str):
        # An endpoint helps to understand an error.
        return [] if value.startswith("http") else [value]
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list | tuple):
        return [text for one in value for text in _texts(one)]
    return []
