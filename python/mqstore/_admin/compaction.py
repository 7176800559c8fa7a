"""Conversion of arguments and options for all verbs that compact, also on Spark."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from mqstore._times import count_of, duration_of
from mqstore.errors import InvalidOptionError
from mqstore.types import CompactionOptions, LocalCompactionOptions

_MOST_BYTES = (1 << 63) - 1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore._reports import Progress
    from mqstore.types import Duration, Keyless

    Tell: TypeAlias = Callable[[int, int], object]


def topic_list(topics: str | Iterable[str] | None, *, one: bool = False) -> list[str] | None:
    """Returns the topics as a list for the core; a single `str` is valid only if `one` is true."""
    if topics is None:
        return None
    if isinstance(topics, str):
        if one:
            return [topics]
        raise TypeError("topics must be an iterable of str, not a str")
    return list(topics)


def byte_rate(max_bytes_per_second: int | None) -> int:
    """Returns the argument of the native functions: bytes per second, 0 without a limit."""
    return count_of("max_bytes_per_second", max_bytes_per_second, _MOST_BYTES) or 0


def request(
    *,
    threads: int | None = None,
    max_bytes_per_second: int | None = None,
    progress: Callable[[Progress], object] | None = None,
    **options: Any,
) -> tuple[tuple[str, int, int], Tell | None]:
    """Returns the arguments of the native functions: options, threads, bytes per second (0 is no limit), and progress.

    The names are those of `mqstore.types.LocalCompactionOptions`, and `job_id`.

    Raises:
        InvalidOptionError: a name is unknown, or a value is out of bounds.
    """
    check_names(options, LocalCompactionOptions)
    threads = count_of("threads", threads)
    rate = byte_rate(max_bytes_per_second)
    from mqstore._reports import native_progress

    return (options_json(**options), threads or os.cpu_count() or 1, rate), native_progress(progress)


def check_names(given: Iterable[str], options: type[CompactionOptions]) -> None:
    """Raises InvalidOptionError, with the nearest name, for an option that is not in `options`."""
    known = (*options.__annotations__, "job_id")
    for name in given:
        if name not in known:
            from mqstore._options import unknown

            raise InvalidOptionError(name, unknown(name, known))


def options_json(
    *,
    tombstone_retention: Duration = 86_400.0,
    dry_run: bool = False,
    force: bool = False,
    keyless: Keyless = "drop",
    confirm_keys: bool = True,
    memory_size: int = 100 << 20,
    log_file_size: int | None = None,
    queue_file_size: int | None = None,
    job_id: str | None = None,
) -> str:
    """Returns the options of a job as JSON for the core."""
    return json.dumps(
        {
            "tombstone_retention_ms": _milliseconds(tombstone_retention),
            "dry_run": dry_run,
            "force": force,
            "keyless": keyless,
            "confirm_keys": confirm_keys,
            "memory_bytes": memory_size,
            "log_file_bytes": log_file_size,
            "queue_file_bytes": queue_file_size,
            "job_id": job_id,
        }
    )


def _milliseconds(retention: Duration) -> int:
    seconds = duration_of("tombstone_retention", retention)
    if seconds > 1e12:
        raise InvalidOptionError("tombstone_retention", f"{seconds:g} s is too long")
    return round(seconds * 1000)
