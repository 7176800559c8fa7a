"""Conversion of times and durations from callers to the numbers of the core."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from mqstore.types import Duration, Time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds_of(name: str, value: Time) -> int:
    """Returns `value` in epoch milliseconds, rounded down.

    Raises:
        TypeError: `value` is neither an int nor a datetime.
        ValueError: `value` is a datetime without a time zone.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            msg = f"{name} is a datetime without a time zone: for example, use datetime.now(datetime.UTC)"
            raise ValueError(msg)
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be epoch milliseconds (int) or an aware datetime, not {type(value).__name__}"
        raise TypeError(msg)
    return value


def store_time_of(name: str, value: datetime | str) -> int:
    """Returns the store time at which a read starts or ends, in epoch milliseconds, rounded down.

    Raises:
        TypeError: `value` is neither a datetime nor a str.
        InvalidOptionError: `value` is text that is not an ISO time.
        ValueError: `value` has no time zone.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidOptionError(name, f"{value!r} is no time: write 2026-11-26T09:00:00+00:00") from None
    if not isinstance(value, datetime):
        msg = f"{name} must be an offset (int), an aware datetime or an ISO time (str), not {type(value).__name__}"
        raise TypeError(msg)
    return milliseconds_of(name, value)


def time_of(milliseconds: int) -> datetime:
    """Returns the aware UTC datetime of epoch milliseconds; OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def seconds_of(name: str, value: Duration) -> float:
    """Returns the duration of a wait in seconds; a negative one becomes 0.

    Raises:
        TypeError: `value` is neither a number nor a timedelta.
        ValueError: `value` is NaN.
    """
    seconds = _seconds(name, value)
    if math.isnan(seconds):
        msg = f"{name} is not a number"
        raise ValueError(msg)
    return max(seconds, 0.0)


def duration_of(name: str, value: Duration) -> float:
    """Returns a duration in seconds that is not the limit of a wait.

    Raises:
        TypeError: `value` is neither a number nor a timedelta.
        InvalidOptionError: `value` is negative or NaN.
    """
    seconds = _seconds(name, value)
    if not seconds >= 0:
        raise InvalidOptionError(name, f"{seconds:g} s is no duration; a duration is at least 0")
    return seconds


def count_of(name: str, value: int | None, most: int = (1 << 31) - 1) -> int | None:
    """Returns a count from 1 to `most`, or None.

    Raises:
        TypeError: `value` is not an int.
        ValueError: `value` is out of bounds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be an int, not {type(value).__name__}"
        raise TypeError(msg)
    if value < 1:
        msg = f"{name} must be at least 1, not {value}"
        raise ValueError(msg)
    if value > most:
        msg = f"{name} must be at most {most}, not {value}"
        raise ValueError(msg)
    return value


def _seconds(name: str, value: Duration) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be seconds or a timedelta, not {type(value).__name__}"
        raise TypeError(msg)
    return float(value)


def seconds_from(value: Duration) -> float:
    """Returns a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
