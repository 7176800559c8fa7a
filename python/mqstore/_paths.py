"""Conversion of a path argument to text, and the recognition of URLs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mqstore.errors import InvalidOptionError, RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore.types import StorePath

LOCAL = ("file", "local")
"""Schemes of folders of this machine."""

OBJECT_STORES = ("s3", "gs", "az")
"""Schemes of buckets, which obstore reads and writes."""

HDFS = ("hdfs", "viewfs")
"""Schemes of HDFS."""

# Other names of a scheme: those of Hadoop for S3.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3"}

_WEB = ("http://", "https://")

# Characters of a name that stay as they are in a URL, besides letters, digits and `_.-~`.
_PLAIN = "=,+@!$&'();"


def text_of(path: StorePath) -> str:
    """Returns a path or URL as `str`; the scheme of a URL in lower case, `s3` for `s3a` and `s3n`."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path must be str or os.PathLike[str], not {type(path).__name__}")
    if not is_url(text):
        return text
    scheme, mark, rest = text.partition("://")
    scheme = scheme.lower()
    return f"{_OTHER_NAMES.get(scheme, scheme)}{mark}{rest}"


def decoded(path: str, url: str) -> str:
    """Returns a path from a URL with the names of the objects: `%20` is a space, as docs/bucket.md says.

    The URLs of web servers and chains of `fsspec` stay unchanged.
    """
    if url.startswith(_WEB) or "::" in url:
        return path
    from urllib.parse import unquote

    return unquote(path, errors="surrogateescape")


def encoded(name: str) -> str:
    """Returns a name from a list as a part of a URL, so that `decoded` gives it back."""
    from urllib.parse import quote

    return quote(name, safe=_PLAIN, errors="surrogateescape")


def object_path(url: str, below: str) -> str:
    """Returns an object below a URL for other programs: with its own names; in a folder of this machine, its path."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    path = f"{decoded(rest, url)}/{below}"
    return os.path.abspath(path) if scheme in LOCAL else f"{scheme}{mark}{path}"  # noqa: PTH100 - keeps the text


def home_of(path: StorePath, action: str = "do this") -> str:
    """Returns the path of a directory as `str`.

    Raises:
        RemoteStoreError: `path` is a URL; `action` is the verb that needs a directory.
    """
    text = text_of(path)
    if is_url(text):
        raise RemoteStoreError(shown_url(text), action)
    return text


def target_url(dest: StorePath | None, target_options: Mapping[str, Any] | None) -> str | None:
    """Returns the URL to which a result is written; None if it is a path, or if no result is wanted.

    Raises:
        InvalidOptionError: there is no URL for `target_options`.
    """
    text = None if dest is None else text_of(dest)
    if text is not None and is_url(text):
        return text
    if target_options is not None:
        reason = "only for a URL; omit it" if text is None else f"only for a URL, and {text!r} is a path"
        raise InvalidOptionError("target_options", reason)
    return None


def url_of_result(url: StorePath) -> str:
    """Returns the URL of a published result as `str`.

    Raises:
        ValueError: it is not a URL.
    """
    text = text_of(url)
    if not is_url(text):
        raise ValueError(
            f"{text}: not a URL; give the URL of a result, for a local folder file:// and its absolute path"
        )
    return text


def is_url(text: str) -> bool:
    """Returns whether a path is a URL."""
    scheme, mark, _ = text.partition("://")
    letters = scheme.isascii() and all(letter.isalnum() or letter in "+.-" for letter in scheme)
    return bool(mark) and len(scheme) > 1 and letters and scheme[0].isalpha()


def shown_url(url: str) -> str:
    """Returns a URL without user, password and query."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = host.rpartition("@")[2]
    elif "@" in path and ":" in host and not host.rpartition(":")[2].isdigit():
        # A password with a slash.
        host, slash, path = rest.rpartition("@")[2].partition("/")
    return f"{scheme}://{host}{slash}{path}".rstrip("/")
