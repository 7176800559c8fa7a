"""The place to which a result is written: a URL at which an object can be created if it is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mqstore import _native
from mqstore._paths import HDFS, LOCAL, OBJECT_STORES, object_path, shown_url
from mqstore._remote.place import checked_url, object_transport_of
from mqstore.errors import RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mqstore._remote.failure import Part, Range, Row

UPLOADS = 4
"""Uploads of one attempt at the same time."""


class Target(Protocol):
    """The objects below a URL, for the native module. Every failed request is a `RequestFailure`."""

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the files in a folder; "" is the root."""

    def listed(self, folder: str) -> list[Row]:
        """Returns the objects in a folder, which ends with a slash, and in its folders."""

    def get(self, path: str) -> bytes | None:
        """Returns an object; None if there is none."""

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range; a range with the version "" is of any version of its object."""

    def put(self, path: str, source: Path | bytes, length: int) -> None:
        """Writes the first bytes of a local file or of the memory as an object."""

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Writes an object unless it exists. Returns whether this call has written it."""

    def settle(self, folder: str) -> None:
        """Makes the names in a folder durable. A call that has ended can have left the last one."""

    def delete(self, paths: list[str]) -> None:
        """Removes objects. Those that do not exist are no error."""


def target_of(url: str, target_options: Mapping[str, Any] | None, action: str) -> Target | None:
    """Returns the transport to a URL; None for a folder of this machine, which needs none. Makes no request.

    Args:
        url: the URL.
        target_options: credentials and settings, as `storage_options` of a store.
        action: the verb, for the error.

    Raises:
        RemoteStoreError: mqstore knows no way to create an object at this kind of URL only if it is absent.
        InvalidOptionError, MissingPackageError: as for `object_transport_of`.
    """
    scheme = url.partition("://")[0]
    target: Target
    if scheme in OBJECT_STORES:
        target = object_transport_of(url, target_options)
    elif scheme in LOCAL:
        checked_url(url)
        return None
    elif scheme in HDFS:
        from mqstore._publish.hdfs import Hdfs

        target = Hdfs(url, checked_url(url), dict(target_options or {}))
    elif scheme == "memory":
        from mqstore._publish.memory import Memory

        target = Memory(url, checked_url(url), dict(target_options or {}))
    else:
        reason = (
            f"with {scheme}:// two writers could both publish a result, because an object cannot be created only if it "
            "is absent; use s3://, gs://, az://, hdfs://, file:// or a directory"
        )
        raise RemoteStoreError(shown_url(url), action, reason)
    return target


def result_target(url: str, target_options: Mapping[str, Any] | None, action: str) -> _native.ResultTarget:
    """Returns the place at a URL to which a result is written. Makes no request.

    Raises:
        RemoteStoreError, InvalidOptionError, MissingPackageError: as for `target_of`.
    """
    return _native.ResultTarget(target_of(url, target_options, action), shown_url(url), _root(url))


def object_target(url: str, target_options: Mapping[str, Any] | None, action: str) -> _native.ResultTarget:
    """Returns the place of a folder at a URL to which one object is written. Makes no request.

    Raises:
        RemoteStoreError: an object at this kind of URL is not written in one step.
        InvalidOptionError, MissingPackageError: as for `target_of`.
    """
    if url.partition("://")[0] in HDFS:
        reason = "a file of HDFS is not written in one step; omit the ending of the name, and give the format"
        raise RemoteStoreError(shown_url(url), action, reason)
    return result_target(url, target_options, action)


def result_source(url: str, storage_options: Mapping[str, Any] | None) -> _native.ResultTarget:
    """Returns the place at a URL that has a result. Makes no request.

    Raises:
        InvalidOptionError, MissingPackageError: as for `object_transport_of`.
    """
    checked_url(url)
    transport = None if url.partition("://")[0] in LOCAL else object_transport_of(url, storage_options)
    return _native.ResultTarget(transport, shown_url(url), _root(url))


def _root(url: str) -> str:
    return object_path(url, "").rstrip("/") or "/"
