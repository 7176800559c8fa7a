"""The place of an archive: a folder or a URL. The native module makes the requests; for a URL, it calls a transport."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._publish.place import TargetPlace
from mqstore.errors import MQStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._native import NativeStore
    from mqstore.types import StorePath

# Memory for Bloom filters. Each look-up needs those of all files.
_BLOOM_BYTES = 64 << 20


class ArchivePlace(TargetPlace):
    """The place of an archive, and its objects: `native`. Makes no request."""

    def __init__(self, place: StorePath, target_options: Mapping[str, Any] | None) -> None:
        super().__init__(place, target_options, "archive to it")
        self.native = _native.ArchiveTarget(self.transport, self.shown, self.root)

    def link(self, store: NativeStore, begin: int) -> None:
        """Lets the reads of a store continue in the archive, which begins at a log offset; 0 if it is not known."""
        _native.link_archive(store, self.native, begin, _BLOOM_BYTES)


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
