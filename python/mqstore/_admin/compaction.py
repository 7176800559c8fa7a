"""What `mqstore.compact`, `Store.compact` and the jobs on Spark share: options going in, reports coming out."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore._reports import CompactionReport, Progress
    from mqstore.types import Duration

Keyless: TypeAlias = Literal["drop", "keep", "refuse"]
"""What becomes of messages without a key in compacted files."""


def topic_list(topics: str | Iterable[str] | None, *, one: bool = False) -> list[str] | None:
    """The topics as the core takes them; a single `str` only where `one` is allowed."""
    if topics is None:
        return None
    if isinstance(topics, str):
        if one:
            return [topics]
        msg = "topics must be an iterable of str, not a str"
        raise TypeError(msg)
    return list(topics)


def options_json(*, tombstone_retention: Duration, memory_size: int, **others: Any) -> str:
    """The options of a job as the core reads them."""
    return json.dumps(
        {"tombstone_retention_ms": _milliseconds(tombstone_retention), "memory_bytes": memory_size} | others
    )


def run(
    call: Callable[[int, int, Callable[[int, int], object] | None], str],
    *,
    threads: int | None,
    max_bytes_per_second: int | None,
    progress: Callable[[Progress], object] | None,
) -> CompactionReport:
    """Calls the native function with threads, pace and progress; its report."""
    from mqstore._reports import CompactionReport

    found = call_native(call, threads=threads, max_bytes_per_second=max_bytes_per_second, progress=progress)
    return CompactionReport._from_dict(found)


def call_native(
    call: Callable[[int, int, Callable[[int, int], object] | None], str],
    *,
    threads: int | None,
    max_bytes_per_second: int | None,
    progress: Callable[[Progress], object] | None,
) -> dict[str, Any]:
    """As `run`, for any report."""
    from mqstore._reports import Progress

    if threads is not None and threads < 1:
        msg = f"threads must be at least 1, not {threads}"
        raise ValueError(msg)
    if max_bytes_per_second is not None and max_bytes_per_second < 1:
        msg = f"max_bytes_per_second must be at least 1, not {max_bytes_per_second}"
        raise ValueError(msg)
    tell = None if progress is None else lambda done, total: progress(Progress(done, total))
    report: dict[str, Any] = json.loads(call(threads or os.cpu_count() or 1, max_bytes_per_second or 0, tell))
    return report


def _milliseconds(retention: Duration) -> int:
    from mqstore._times import seconds_from

    seconds = seconds_from(retention)
    if not 0 <= seconds <= 1e12:
        raise InvalidOptionError("tombstone_retention", f"must be a span of time from 0, not {retention!r}")
    return round(seconds * 1000)
