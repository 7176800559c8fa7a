"""Assertions about messages and directories; a failure shows what exists instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore._times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqstore._native import StoredMessage
    from mqstore.types import Duration, Keys, StorePath

# Number of messages in a failure, and characters of each.
_SHOWN = 10
_SHOWN_CHARACTERS = 200

# Interval between two checks of a wait, in seconds.
_NAP = 0.005


def messages(store: mqstore.Store | StorePath, topic: str, queue_id: int | None = None) -> list[StoredMessage]:
    """Returns the messages of a topic, from all queues, in append order.

    Args:
        store: an open store (`sync` of an asyncio store), or a directory.
        topic: name of the topic; an unknown topic has no messages.
        queue_id: only this queue.
    """
    with _opened(store) as opened:
        if topic not in opened.topics():
            return []
        found = [
            message
            for queue in opened.queues(topic)
            if queue_id in (None, queue.queue_id)
            for message in opened.read(topic, queue.queue_id)
        ]
    return sorted(found, key=lambda message: message.commit_log_offset)


def assert_appended(
    store: mqstore.Store | StorePath,
    topic: str,
    count: int | None = None,
    *,
    body: object = None,
    keys: Keys = (),
    tags: str | None = None,
    properties: Mapping[str, str] | None = None,
    queue_id: int | None = None,
    timeout: Duration = 0,
) -> list[StoredMessage]:
    """Fails unless matching messages were appended. Returns these messages.

    Args:
        store: an open store (`sync` of an asyncio store), or a directory.
        topic: name of the topic.
        count: exact number of matching messages; 0 for none. None is at least one.
        body: body of each message. `bytes` and `str` are compared with the whole body. A function gets the message and
            returns whether it matches. Any other object is compared with the body parsed as JSON. None is any body.
        keys: keys that each message must have; other keys are allowed.
        tags: tag of each message. None is any tag, or none.
        properties: properties that each message must have; others are allowed.
        queue_id: only messages in this queue.
        timeout: longest wait for the messages, if another thread or process appends them.

    Raises:
        AssertionError: there are more or fewer; it lists the messages of the topic.
    """
    # Makes pytest show the line of the test.
    __tracebackhide__ = True
    wanted = {keys} if isinstance(keys, str) else set(keys)
    end = time.monotonic() + seconds_of("timeout", timeout)

    def matches(message: StoredMessage) -> bool:
        return (
            _has_body(message, body)
            and wanted <= set(message.keys)
            and tags in (None, message.tags)
            and (properties is None or properties.items() <= message.properties.items())
        )

    with _opened(store) as opened:
        while True:
            present = messages(opened, topic, queue_id)
            found = [message for message in present if matches(message)]
            # With `count=0` the wait lasts until the end, because a message may still arrive.
            if (len(found) == count and count > 0) if count is not None else found:
                return found
            if time.monotonic() >= end:
                break
            time.sleep(_NAP)
    if count == 0 and not found:
        return found
    described = {"body": body, "keys": keys, "tags": tags, "properties": properties, "queue_id": queue_id}
    like = ", ".join(f"{name}={value!r}" for name, value in described.items() if value not in (None, (), []))
    raise AssertionError(_complaint(topic, count, like, found, present))


def assert_clean(store: mqstore.Store | StorePath) -> mqstore.VerifyReport:
    """Fails with the list of problems if `verify` finds any in a store.

    Args:
        store: an open store, or a directory.

    Returns:
        The report.
    """
    __tracebackhide__ = True
    report = store.verify() if isinstance(store, mqstore.Store) else mqstore.verify(store)
    if report.ok:
        return report
    shown = [f"  {problem.kind} in {problem.path} at {problem.offset}: {problem.detail}" for problem in report.problems]
    raise AssertionError("\n".join([f"{len(shown)} problems:", *_some(shown)]))


@contextmanager
def _opened(store: mqstore.Store | StorePath) -> Iterator[mqstore.Store]:
    if isinstance(store, mqstore.Store):
        yield store
    else:
        with mqstore.open(store) as opened:
            yield opened


def _has_body(message: StoredMessage, body: Any) -> bool:
    if body is None:
        return True
    if isinstance(body, Callable):  # type: ignore[arg-type]
        return bool(body(message))
    if isinstance(body, bytes | bytearray | memoryview):
        return message.body == body
    try:
        return bool((message.text() if isinstance(body, str) else message.json()) == body)
    except ValueError:
        # Neither text nor JSON.
        return False


def _complaint(
    topic: str, count: int | None, like: str, found: list[StoredMessage], present: list[StoredMessage]
) -> str:
    wanted = "a message" if count is None else f"{count} messages"
    text = f"topic {topic!r}: {wanted}{' with ' if like else ''}{like} wanted, {len(found)} found"
    shown = [f"  {_line(message)}" for message in (present if len(found) < (count or 1) else found)]
    if not shown:
        return f"{text}; it has no messages"
    whose = "the topic has" if len(found) < (count or 1) else "found were"
    return "\n".join([f"{text}; {whose}:", *_some(shown)])


def _line(message: StoredMessage) -> str:
    line = f"queue {message.queue_id}, offset {message.queue_offset}: {message.body!r}"
    if message.keys:
        line += f", keys={list(message.keys)!r}"
    if message.tags is not None:
        line += f", tags={message.tags!r}"
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"  and {len(lines) - _SHOWN} more"]


for _thing in (messages, assert_appended, assert_clean):
    _thing.__module__ = "mqstore.testing"
del _thing
