"""The checks that an archive is that of a store, and that it has what the store recorded.

The settings in `mqstore/archive` of the store have the id of the archive and its first log offset, once a run or
`configure` of the writer has found an archive at the target. A target that has no archive then, or another one, or one
that ends earlier, was emptied, replaced or is not mounted: runs stop, and retention deletes no segment.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._archive.layout import ROOT
from mqstore._archive.place import ArchivePlace
from mqstore.errors import CorruptionError, MQStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mqstore._archive.manifest import ArchivedSegment, ArchiveManifest, LastRecord
    from mqstore._native import NativeStore

COPIED = "copied"
"""Setting of a copy, which the native module adds: its reads continue in the archive, and it does not extend it."""

# Segments whose times are compared.
_MOST_COMPARED = 8


def check_owner(
    store: NativeStore,
    shown: str,
    last: LastRecord | None,
    segments: Sequence[ArchivedSegment],
    *,
    extends: bool = False,
) -> None:
    """Compares the last record of an archive with the log of a store, if the log has it.

    The log no longer has the record if its segment was deleted, or if a reclaim replaced it. The log of a copy ends
    before it, if the store archived more after the copy was made; the copy can then read the archive, not extend it.

    Args:
        store: the store.
        shown: the archive, for the error.
        last: its last record.
        segments: its last segments.
        extends: whether the archive will be extended by this store.

    Raises:
        ResultExistsError: the archive is that of another store.
    """
    facts = None if last is None else (last.log_offset, last.bytes, last.sha256)
    rows = [(one.base, one.bytes, one.first_timestamp, one.last_timestamp) for one in segments[-_MOST_COMPARED:]]
    _native.check_archive_owner(store, shown, facts, rows, extends)


def settings_with(settings: str, manifest: ArchiveManifest | None) -> str:
    """Returns the settings of a store with the id and the first log offset of the archive at the target."""
    if manifest is None or not manifest.segments:
        return settings
    known = {"archive": manifest.archive, "first": manifest.begin}
    return json.dumps({**json.loads(settings), **known}, sort_keys=True)


def check_recorded(
    state: tuple[int, str] | None, place: ArchivePlace, manifest: ArchiveManifest | None, log_start: int
) -> None:
    """Compares an archive with the record that the store has of it.

    Args:
        state: the state of the store's archive; None without one. That of another target says nothing.
        place: the archive.
        manifest: its newest manifest; None if there is none.
        log_start: the start of the log.

    Raises:
        CorruptionError: the archive does not have what was archived there.
    """
    if state is None:
        return
    values = json.loads(state[1])
    if values["target"] != place.text:
        return
    if (why := _missing(values, state[0], manifest, log_start)) is not None:
        raise CorruptionError(place.shown, 0, why)


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
        values = json.loads(settings)
        place = ArchivePlace(values["target"], options.get(values["target"]))
        manifest = place.newest()
        why = _missing(values, archived_to, manifest, log_start)
        if why is None and manifest is not None:
            why = _lost_files(place, manifest, log_start)
    except (MQStoreError, ImportError, OSError, ValueError) as error:
        return f"the archive cannot be read: {error}"
    return None if why is None else f"{place.shown}: {why}"


def _missing(values: dict[str, Any], archived_to: int, manifest: ArchiveManifest | None, log_start: int) -> str | None:
    """Returns why an archive does not have what was recorded; `values` are the settings."""
    known = values.get("archive")
    # A store of an earlier version has no id. Its log says what must be there.
    first = log_start if known is None else int(values["first"])
    if known is None and archived_to <= log_start:
        return None
    segments = () if manifest is None else manifest.segments
    if manifest is None or not segments:
        found, missing = "the target has no archive", (first, archived_to)
    elif known not in (None, manifest.archive):
        found, missing = "the target has another archive", (first, archived_to)
    elif segments[0].base > first:
        found, missing = f"the archive begins at log offset {segments[0].base}", (first, segments[0].base)
    else:
        end = manifest.covered_from(log_start) if log_start < archived_to else manifest.end
        found, missing = f"the archive has the log up to offset {end}", (end, archived_to)
    if missing[0] >= missing[1]:
        return None
    return (
        f"{found}, and the store archived its log from offset {missing[0]} to {missing[1]} there; mount or restore the "
        "target; or, to begin a new archive without these messages, remove the configuration and configure it again"
    )


def _lost_files(place: ArchivePlace, manifest: ArchiveManifest, log_start: int) -> str | None:
    """Returns why an archive does not have the files for the part of the log that the store still has."""
    lengths = {path: length for path, length, *_ in place.objects()}
    needed = [one for one in manifest.files if one.end > log_start]
    lost = [one.path for one in needed if lengths.get(f"{ROOT}/{one.path}") != one.bytes]
    if not lost:
        return None
    return (
        f"{len(lost)} of its files are missing or have another length, such as {lost[0]}; restore them, or configure "
        "another target, to which the log is archived again"
    )
