"""The place of an archive: a folder or a URL. The native module makes the requests; for a URL, it calls a transport."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._paths import is_url, object_path, shown_url, text_of
from mqstore._publish.target import target_of
from mqstore.errors import InvalidOptionError, MQStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._native import NativeStore
    from mqstore._publish.target import Target
    from mqstore.types import StorePath

# Memory for Bloom filters. Each look-up needs those of all files.
_BLOOM_BYTES = 64 << 20


class ArchivePlace:
    """The place of an archive, and its objects: `native`. Makes no request."""

    def __init__(self, place: StorePath, target_options: Mapping[str, Any] | None) -> None:
        text = text_of(place)
        if not text:
            raise InvalidOptionError("target", "must name a folder or a URL, not be empty")
        if is_url(text):
            self.text = text
            self.shown = shown_url(text)
            root = object_path(text, "").rstrip("/")
        elif target_options is not None:
            raise InvalidOptionError("target_options", f"only for a URL, and {text!r} is a path")
        else:
            self.text = self.shown = root = os.path.abspath(text)  # noqa: PTH100 - keeps the text of the path
        transport = _transport_of(self.text, target_options)
        self._folder = Path(root) if transport is None else None
        self.native = _native.ArchiveTarget(transport, self.shown, root or "/")

    def check_outside(self, home: str) -> None:
        """Makes sure that the archive is not in the directory of a store.

        Raises:
            InvalidOptionError: it is.
        """
        if self._folder is not None:
            folder, store = self._folder, Path(home).absolute()
            # A folder of the store can be a link, and a link can lead into it.
            if folder.is_relative_to(store) or folder.resolve().is_relative_to(store.resolve()):
                reason = f"{self.shown} is in the directory of the store, {home}: choose a folder outside of it"
                raise InvalidOptionError("target", reason)

    def link(self, store: NativeStore, begin: int) -> None:
        """Lets the reads of a store continue in the archive, which begins at a log offset; 0 if it is not known."""
        _native.link_archive(store, self.native, begin, _BLOOM_BYTES)


def _transport_of(text: str, options: Mapping[str, Any] | None) -> Target | None:
    """Returns the transport of an archive; None for a folder, which needs none."""
    return target_of(text, options, "archive to it") if is_url(text) else None


def look_at_archive(
    settings: str, archived_to: int, log_start: int, options: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Returns why the archive of a store does not have what the store recorded, or None. For retention.

    Args:
        settings: the settings of the store's archive.
        archived_to: the log offset up to which segments may be deleted.
        log_start: the start of the log.
        options: the options of the transports, by target.
    """
    try:
        target = json.loads(settings)["target"]
        place = ArchivePlace(target, options.get(target))
        why = place.native.look(settings, archived_to, log_start)
    except (MQStoreError, OSError, ValueError) as error:
        return f"the archive cannot be read: {error}"
    return None if why is None else f"{place.shown}: {why}"
