"""Patterns of paths and URLs that name several stores, such as `backups/*`."""

from __future__ import annotations

import glob
import os
import re
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mqstore._paths import decoded, encoded, is_url, shown_url, text_of
from mqstore._remote.failure import requests
from mqstore._remote.manifest import FOLDER, manifest_in
from mqstore._remote.place import object_transport_of, transport_of
from mqstore.errors import NotAStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mqstore.types import StorePath

_LETTERS = "*?["
# The same letters as characters of a name in the pattern of a URL.
_ENCODED = re.compile("%(2[aA]|3[fF]|5[bB])")
# Folders of a store. One of them is enough, so that a damaged store is not left out.
_PARTS = {"commitlog", "consumequeue", "mqstore"}
_SEGMENT_DIGITS = 20
# Folders that are listed at the same time.
_LISTS = 8


def is_pattern(path: object) -> bool:
    """Returns whether a path or URL is a pattern. The path of an existing file or folder is none."""
    if not isinstance(path, str):
        return False
    if is_url(path):
        return "*" in path.partition("://")[2].partition("/")[2]
    return any(letter in path for letter in _LETTERS) and not os.path.lexists(path)


def shown(path: StorePath) -> str:
    """Returns a path as given, or a URL without secrets, as text that is UTF-8."""
    text = text_of(path)
    return shown_url(text) if is_url(text) else text.encode("utf-8", "replace").decode("utf-8")


def expanded(paths: Iterable[StorePath], storage_options: Mapping[str, Any] | None = None) -> list[StorePath]:
    """Replaces each pattern by the stores that it matches, sorted.

    A folder is a store if it contains a `commitlog`, `consumequeue` or `mqstore` folder, segments of a log, or at a URL
    the manifest of a store.

    Raises:
        NotAStoreError: a pattern matches no store.
        StoreIOError: a request failed, or the URL of the pattern cannot be listed.
    """
    found: list[StorePath] = []
    for path in paths:
        if not is_pattern(path):
            found.append(path)
            continue
        pattern = text_of(path)
        matches = _of_url(pattern, storage_options) if is_url(pattern) else _of_directories(pattern)
        if not matches:
            raise NotAStoreError(shown(pattern), "the pattern matches no folder with a store")
        found += sorted(matches)
    return found


def _of_directories(pattern: str) -> list[str]:
    return [path for path in glob.glob(pattern) if os.path.isdir(path) and _is_store(os.listdir(path))]  # noqa: PTH112, PTH207, PTH208 - paths may be no UTF-8


def _of_url(pattern: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    scheme, _, rest = pattern.partition("://")
    names = rest.rstrip("/").split("/")
    first = next(number for number, name in enumerate(names) if "*" in name)
    root = f"{scheme}://{'/'.join(names[:first])}"
    source = transport_of(root, storage_options)
    folders = [""]
    with requests(shown_url(root), "list"):
        with ThreadPoolExecutor(_LISTS, "mqstore-list") as pool:
            for name in names[first:]:
                if not any(letter in name for letter in _LETTERS):
                    folders = [f"{folder}{decoded(name, root)}/" for folder in folders]
                    continue
                wanted = decoded(_ENCODED.sub(r"[\g<0>]", name), root)
                folders = [
                    f"{folder}{one}/"
                    for folder, (inner, _) in zip(folders, pool.map(source.entries, folders), strict=True)
                    for one in inner
                    if fnmatchcase(one, wanted) and (wanted.startswith(".") or not one.startswith("."))
                ]
            listed = list(pool.map(source.entries, folders))
        urls = [f"{root}/{'/'.join(map(encoded, folder.rstrip('/').split('/')))}" for folder in folders]
        places = [(url, *names) for url, names in zip(urls, listed, strict=True)]
        return [
            url
            for url, inner, files in places
            if _is_store(inner + files) or (FOLDER in inner and _has_published_store(url, storage_options))
        ]


def _has_published_store(url: str, storage_options: Mapping[str, Any] | None) -> bool:
    source = object_transport_of(url, storage_options)
    manifest = manifest_in(source, source.files())
    return manifest is not None and manifest.format == "store"


def _is_store(names: list[str]) -> bool:
    return any(name in _PARTS or (len(name) == _SEGMENT_DIGITS and name.isdecimal()) for name in names)
