"""Conversion of times and durations from callers to the numbers of the core.

The only parser of both: the library, the command line and the options of Spark use it, and the native module calls it
for every value that is not a plain number.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from mqstore.types import Duration, Time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LARGEST = (1 << 63) - 1

# Seconds of 31,000 years; every longer age is before all messages too.
_LONGEST_AGE = 10**12

# As seconds these are the years 1973 to 2286, as milliseconds January to April 1970. The native module has the same
# bounds (`LIKE_SECONDS`).
_LIKE_SECONDS = range(10**8, 10**10)

# 20260131 is a date in ISO 8601, so that eight digits are no number.
_NUMBER = r"[+-]?(?![0-9]{8}$)[0-9]{1,20}"

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DECIMAL = r"([0-9]+(?:\.[0-9]+)?)"
_PLAIN = rf"{_DECIMAL} ?(ms|[smhdw])?"
_ISO = rf"P(?=[0-9T])(?:{_DECIMAL}W)?(?:{_DECIMAL}D)?(?:T(?=[0-9])(?:{_DECIMAL}H)?(?:{_DECIMAL}M)?(?:{_DECIMAL}S)?)?"
_ISO_UNITS = ("w", "d", "h", "m", "s")


def milliseconds_of(name: str, value: Time) -> int:
    """Returns `value` in epoch milliseconds, rounded down. A timedelta is that long ago.

    Raises:
        TypeError: `value` is no int, aware datetime, timedelta or text.
        InvalidOptionError: `value` is text that is no time, a time without a time zone, a negative timedelta, or a
            number that can only be seconds.
    """
    if isinstance(value, str):
        value = _parsed(name, value)
    if isinstance(value, timedelta):
        return _ago(_checked_age(name, value))
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            reason = "a datetime without a time zone: pass tzinfo=timezone.utc, or call astimezone() on a local time"
            raise InvalidOptionError(name, reason)
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, bool) or not isinstance(value, int):
        kind = type(value).__name__
        forms = "an aware datetime, a timedelta, ISO 8601 text, or epoch milliseconds as an int"
        raise TypeError(f"{name} must be {forms}, not {kind}")
    if value in _LIKE_SECONDS:
        reason = (
            f"{value} milliseconds after the epoch are in 1970, so it is probably in seconds: "
            "multiply it by 1000, or pass a datetime"
        )
        raise InvalidOptionError(name, reason)
    if not -_LARGEST - 1 <= value <= _LARGEST:
        raise InvalidOptionError(name, f"{value} does not fit 64 bits")
    return value


def store_time_of(name: str, value: datetime | timedelta | str) -> int:
    """Returns the store time at which a read starts or ends, in epoch milliseconds, rounded down.

    Raises:
        TypeError: `value` is no datetime, timedelta or str.
        InvalidOptionError: as for `milliseconds_of`.
    """
    if not isinstance(value, datetime | timedelta | str):
        forms = "an offset (int), an aware datetime, a timedelta or an ISO time (str)"
        raise TypeError(f"{name} must be {forms}, not {type(value).__name__}")
    return milliseconds_of(name, value)


def command_line_time(name: str, text: str) -> tuple[int, datetime | None]:
    """Returns a time of the command line in epoch milliseconds, and the local time if it is meant by the text.

    Besides what `milliseconds_of` takes, the text can be an age with a unit (that long ago), a local date (its
    midnight) or a local time.

    Raises:
        InvalidOptionError: `text` is none of these, does not exist in the calendar, or is a number that can only be
            seconds.
    """
    text = text.strip()
    if not re.fullmatch(r"[0-9.]+", text) and (seconds := _seconds(text)) is not None:
        return _ago(seconds), None
    if re.fullmatch(_NUMBER, text):
        return milliseconds_of(name, text), None
    try:
        found = datetime.fromisoformat(text)
        local = found.astimezone() if found.tzinfo is None else None
    except (ValueError, OverflowError) as error:
        # Python has its own words for a text that has no form of ISO 8601.
        problem = "is no time" if "isoformat" in str(error) else f"does not exist ({error})"
        forms = "a date such as 2026-01-31, a time such as 2026-01-31T12:00Z, an age such as 24h, or epoch milliseconds"
        raise InvalidOptionError(name, f"{text!r} {problem}: use {forms}") from None
    return milliseconds_of(name, local or found), local


def _checked_age(name: str, age: timedelta) -> float:
    if age < timedelta():
        raise InvalidOptionError(name, f"{age.total_seconds():g} s is no age: pass a timedelta of at least 0")
    if name == "deliver_at":
        raise InvalidOptionError(name, "a timedelta is that long ago: pass it as delay, or a datetime")
    return age.total_seconds()


def _ago(seconds: float) -> int:
    return time.time_ns() // 1_000_000 - int(min(seconds, _LONGEST_AGE) * 1000)


def _parsed(name: str, text: str) -> int | datetime:
    text = text.strip()
    if re.fullmatch(_NUMBER, text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        reason = f"{text!r} is no time: use ISO 8601 with an offset such as 2026-01-31T12:00Z, or epoch milliseconds"
        raise InvalidOptionError(name, reason) from None
    if found.tzinfo is None:
        reason = f"{text!r} has no time zone: add Z for UTC, or an offset, as in {found.isoformat()}Z"
        raise InvalidOptionError(name, reason)
    return found


def time_of(milliseconds: int) -> datetime:
    """Returns the aware UTC datetime of epoch milliseconds; OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def seconds_since(started: float) -> float:
    """Returns the seconds since a reading of `time.monotonic`, as reports have them."""
    return round(time.monotonic() - started, 3)


def seconds_of(name: str, value: Duration) -> float:
    """Returns the duration of a wait in seconds; a negative one becomes 0.

    Raises:
        TypeError: `value` is no number, timedelta or text.
        ValueError: `value` is NaN.
        InvalidOptionError: `value` is text that is no duration.
    """
    seconds = seconds_from(name, value)
    if math.isnan(seconds):
        raise ValueError(f"{name} is not a number")
    return max(seconds, 0.0)


def duration_of(name: str, value: Duration) -> float:
    """Returns a duration in seconds that is not the limit of a wait.

    Raises:
        TypeError: `value` is no number, timedelta or text.
        InvalidOptionError: `value` is negative, NaN, or text that is no duration.
    """
    seconds = seconds_from(name, value)
    if not seconds >= 0:
        raise InvalidOptionError(name, f"{seconds:g} s is no duration; a duration is at least 0")
    return seconds


def seconds_from(name: str, value: Duration) -> float:
    """Returns a span of time in seconds; it can be negative, infinite or NaN.

    Raises:
        TypeError: `value` is no number, timedelta or text.
        InvalidOptionError: `value` is text that is no duration.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _span(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f'{name} must be seconds, a timedelta, or text such as "90s", not {type(value).__name__}')
    return float(value)


def _span(name: str, text: str) -> float:
    seconds = _seconds(text.strip())
    if seconds is None:
        reason = f'{text!r} is no duration: use a number with ms, s, m, h, d or w, such as "90s" or "7d", or "PT24H"'
        raise InvalidOptionError(name, reason)
    return seconds


def _seconds(text: str) -> float | None:
    if plain := re.fullmatch(_PLAIN, text):
        return float(plain[1]) * _UNITS[plain[2] or "s"]
    if parts := re.fullmatch(_ISO, text):
        return float(sum(float(part) * _UNITS[unit] for part, unit in zip(parts.groups("0"), _ISO_UNITS, strict=True)))
    return None


def count_of(name: str, value: int | None, most: int = (1 << 31) - 1) -> int | None:
    """Returns a count from 1 to `most`, or None.

    Raises:
        TypeError: `value` is not an int.
        ValueError: `value` is out of bounds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, not {value}")
    return value
