"""The attributes of a new topic: RocketMQ's names and values.

RocketMQ refuses other names. A misspelt value would silently make an ordinary topic.
"""

from __future__ import annotations

from mqstore._admin.nearest import nearest
from mqstore.errors import InvalidOptionError

# Source: `TopicAttributes`.
_VALUES = {
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"),
}
_NUMBERS = ("reserve.time", "lite.topic.expiration", "mqstore.max.messages", "mqstore.expire.after.ms")


def check_attribute(name: str, value: str) -> None:
    """Checks an attribute of a new topic.

    Raises:
        InvalidOptionError: no such attribute, or not one of its values; the error suggests the nearest one.
    """
    if name not in _VALUES and name not in _NUMBERS:
        known = (*_VALUES, *_NUMBERS)
        raise InvalidOptionError("attributes", f"no attribute {name!r}; {_suggestion(name, known)}")
    if name in _VALUES and value not in _VALUES[name]:
        reason = f"{value!r} is no value of {name!r}; {_suggestion(value, _VALUES[name])}"
        raise InvalidOptionError("attributes", reason)
    if name in _NUMBERS and not value.removeprefix("-").isdecimal():
        raise InvalidOptionError("attributes", f"{value!r} is no value of {name!r}; write a whole number")


def _suggestion(given: str, known: tuple[str, ...]) -> str:
    near = nearest(given, known)
    return f"did you mean {near!r}?" if near else f"choose one of {', '.join(known)}"
