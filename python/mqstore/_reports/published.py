"""Results at URLs, and the results of `fetch` and `clean`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from mqstore._reports.base import _Report

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class PublishedFile(_Report):
    """A file of a result at a URL."""

    path: str
    """Path in the directory that `mqstore.fetch` assembles."""
    url: str
    """URL of the object."""
    bytes: int
    """Length of the object."""
    zeros: int
    """Zero bytes that follow these bytes in the file; only in files of a store."""
    sha256: str
    """Digest of the object."""


@dataclass(frozen=True, slots=True)
class PublishedResult(_Report):
    """A result at a URL, as its manifest describes it; from `mqstore.published`."""

    url: str
    """URL of the result."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    created_timestamp: int
    """Time of the manifest in epoch milliseconds."""
    bytes: int
    """Bytes of all objects."""
    files: tuple[PublishedFile, ...]
    """Files, in the order of the messages."""

    @property
    def urls(self) -> list[str]:
        """URLs of the objects, for other programs: with plain names; paths if the URL is `file://`."""
        return [file.url for file in self.files]


@dataclass(frozen=True, slots=True)
class FetchReport(_Report):
    """Result of `mqstore.fetch`."""

    url: str
    """URL of the result."""
    path: str
    """Directory."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    files: int
    """Files of the directory."""
    bytes: int
    """Bytes of all objects."""
    kept: int
    """Files that an earlier, interrupted call had fetched."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class UnusedObject(_Report):
    """An object of an attempt that no manifest names."""

    path: str
    """Path below the URL."""
    bytes: int
    """Length of the object."""
    changed_timestamp: int
    """Time of the upload in epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class CleanReport(_Report):
    """Result of `mqstore.clean`."""

    url: str
    """URL."""
    dry_run: bool
    """Whether this was a dry run, which removes nothing."""
    bytes: int
    """Bytes of `objects`."""
    objects: tuple[UnusedObject, ...]
    """Objects that were removed; in a dry run, that would be removed."""
    kept: int
    """Objects of attempts that are too young, and may be in progress."""

    @classmethod
    def _of_rows(cls, url: str, rows: Iterable[tuple[str, int, int]], kept: int, *, dry_run: bool) -> Self:
        """Builds the report from the rows of the native module."""
        objects = tuple(UnusedObject(*row) for row in rows)
        return cls(url=url, dry_run=dry_run, bytes=sum(one.bytes for one in objects), objects=objects, kept=kept)
