"""The place of a store that a verb reads: a directory, or a URL with its transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._paths import OBJECT_STORES, decoded, is_url, shown_url, text_of
from mqstore.errors import InvalidOptionError, RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._remote.pinned import Pinned
    from mqstore.types import StorePath

CACHE_BYTES = 1 << 30
"""Default of `cache_size`."""

_LEAST_CACHE_BYTES = 1 << 20


def place_of(
    path: StorePath | _native.RemoteDirectory,
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
) -> str | _native.RemoteDirectory:
    """Returns a directory as text, or a URL with its transport. Makes no request.

    Raises:
        InvalidOptionError: an argument is for URLs and `path` is a directory; or a URL with a query string.
        MissingPackageError: the package for this kind of URL is not installed.
    """
    if isinstance(path, _native.RemoteDirectory):
        return path
    text = text_of(path)
    if not is_url(text):
        for name, value in (("storage_options", storage_options), ("cache", cache)):
            if value is not None:
                raise InvalidOptionError(name, f"only for a store at a URL, and {text!r} is a directory")
        return text
    shown = shown_url(text)
    source = transport_of(text, storage_options)
    if cache is not None:
        from mqstore._remote.cache import Cached

        if type(cache_size) is not int or cache_size < _LEAST_CACHE_BYTES:
            raise InvalidOptionError("cache_size", f"must be an int of at least {_LEAST_CACHE_BYTES:,} bytes")
        source = Cached(source, shown, text_of(cache), cache_size)
    return _native.RemoteDirectory(shown, source)


def pinned(
    url: str, storage_options: Mapping[str, Any], listing: bytes | None = None
) -> tuple[_native.RemoteDirectory, Pinned]:
    """Returns a URL with its transport and the list of its files, for several processes. Makes no request.

    Args:
        url: the URL.
        storage_options: as for `place_of`.
        listing: `Pinned.listing` of the first process; None in this process.

    Raises:
        InvalidOptionError, MissingPackageError: as for `place_of`.
    """
    from mqstore._remote.pinned import Pinned

    shown = shown_url(url)
    kept = Pinned(transport_of(url, storage_options), listing)
    return _native.RemoteDirectory(shown, kept), kept


def transport_of(url: str, storage_options: Mapping[str, Any] | None) -> Any:
    """Returns the transport of a store, without a cache. It follows a manifest. Makes no request.

    Raises:
        InvalidOptionError, MissingPackageError: as for `object_transport_of`.
    """
    from mqstore._remote.followed import Followed

    return Followed(object_transport_of(url, storage_options))


def checked_url(url: str) -> str:
    """Returns a URL as it is shown.

    Raises:
        InvalidOptionError: the URL has a query string.
    """
    shown = shown_url(url)
    if "?" in url or "#" in url:
        reason = f"give the parameters of {shown} there, not in the URL; in a name, write %3F for ? and %23 for #"
        raise InvalidOptionError("storage_options", reason)
    return shown


def object_transport_of(url: str, storage_options: Mapping[str, Any] | None) -> Any:
    """Returns the transport of the objects below a URL. Makes no request.

    Raises:
        InvalidOptionError: the URL has a query string or credentials that belong into `storage_options`.
        RemoteStoreError: the URL has no bucket, or a name in it is empty.
        MissingPackageError: the package for this kind of URL is not installed.
    """
    shown = checked_url(url)
    scheme, _, rest = url.partition("://")
    options = dict(storage_options or {})
    if scheme in OBJECT_STORES:
        from mqstore._remote.object_store import ObjectStore

        if "@" in rest.partition("/")[0]:
            raise InvalidOptionError("storage_options", f"give the credentials of {shown} there, not in the URL")
        if not rest.partition("/")[0]:
            raise RemoteStoreError(f"{scheme}://", "use this URL", f"it has no bucket: write {scheme}://BUCKET/PATH")
        if "//" in decoded(rest.rstrip("/"), url):
            reason = "no name may be empty: write one slash where it has two"
            raise RemoteStoreError(shown, "use this URL", reason)
        return ObjectStore(url, shown, options)
    from mqstore._remote.file_system import FileSystem

    return FileSystem(url, shown, options)
