"""The check that an archive is that of a store."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore.errors import InvalidOptionError, ResultExistsError, StoreIOError

if TYPE_CHECKING:
    from mqstore._archive.manifest import ArchiveManifest, LastRecord
    from mqstore._native import NativeStore

# Segments whose times are compared.
_MOST_COMPARED = 8


def check_owner(store: NativeStore, shown: str, manifest: ArchiveManifest) -> None:
    """Compares the last record of an archive with the log of a store, if the log still has it.

    The log no longer has the record if its segment was deleted, or if a reclaim replaced it.

    Args:
        store: the store.
        shown: the archive, for the error.
        manifest: its manifest.

    Raises:
        ResultExistsError: the archive is that of another store.
    """
    last = manifest.last
    if last is None or last.log_offset < store._stats()["log_min_offset"]:
        return
    try:
        if _has_record(store, last) or _has_placeholder(store, manifest, last):
            return
    except (InvalidOptionError, StoreIOError):
        # Retention has just deleted the segment.
        if last.log_offset < store._stats()["log_min_offset"]:
            return
        raise
    reason = f"the archive there is of another store: the record at log offset {last.log_offset} differs"
    raise ResultExistsError(shown, reason)


def _has_record(store: NativeStore, last: LastRecord) -> bool:
    if last.log_offset + last.bytes > store._stats()["log_max_offset"]:
        return False
    return hashlib.sha256(_native.read_log(store, last.log_offset, last.bytes)).hexdigest() == last.sha256


def _has_placeholder(store: NativeStore, manifest: ArchiveManifest, last: LastRecord) -> bool:
    """Whether a reclaim has replaced the record, and the log has segments of the archive, as their times show."""
    if not _native.is_reclaimed_at(store, last.log_offset):
        return False
    # A placeholder has the store time of the first record that it replaces.
    compared = manifest.segments[-_MOST_COMPARED:]
    archived = {(one.base, one.bytes): one.first_timestamp for one in compared}
    known = [
        (first_ms, archived[base, length])
        for base, length, first_ms, _ in _native.sealed_segments(store, compared[0].base if compared else 0)
        if first_ms is not None and archived.get((base, length)) is not None
    ]
    return not known or any(here == there for here, there in known)
