"""The formats of exports and imports, and the format that the name of a file says."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

ExportFormat: TypeAlias = Literal["jsonl", "parquet", "arrow", "store"]
"""Format of an export; of an import too, except `"store"`."""

Waiting: TypeAlias = Literal["keep", "drop"]
"""Whether an export contains delayed messages that wait for their delivery."""

ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_FORMATS = ("jsonl", "parquet", "arrow", "store")

# Largest body that an export or an import writes to a store.
MOST_BODY = 1 << 30


def file_ending(url: str) -> str | None:
    """Returns the ending of a path or URL that is the name of a file; None if it is the name of a folder."""
    if url.endswith("/"):
        return None
    folder, _, name = url.partition("://")[2].rpartition("/") if "://" in url else ("/", "", url)
    ending = PurePosixPath(name).suffix
    return ending if folder and ending.lower() in ENDINGS else None


def format_of(path: Path | str, format: str | None) -> str:
    """Returns the given format, or the format of the file name's ending."""
    found = ENDINGS.get(PurePosixPath(path).suffix.lower()) if format is None else format
    if found is None:
        formats = ", ".join(_FORMATS)
        raise ValueError(f"{path}: unknown ending; choose a format, one of {formats}")
    if found not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(_FORMATS)}, not {format!r}")
    return found
