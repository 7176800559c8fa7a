"""`Message`, `FilterExpression` and `SendReceipt` of the stand-ins: see `mqstore.testing.rocketmq`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from mqstore.testing._broker import own_properties
from mqstore.testing._exceptions import IllegalArgumentException

if TYPE_CHECKING:
    from mqstore.testing._broker import Draft, Held

_TOPIC = re.compile(r"^[%a-zA-Z0-9_-]+$")


class FilterType:
    """Language of a filter."""

    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class FilterExpression:
    """Filter of a subscription: tags (`a || b`, `*` for all) or a condition on properties in SQL92."""

    TAG_EXPRESSION_SUB_ALL = "*"

    def __init__(self, expression: str = TAG_EXPRESSION_SUB_ALL, filter_type: int = FilterType.TAG) -> None:
        self.expression = expression
        self.filter_type = filter_type


class SendReceipt:
    """Result of a send."""

    def __init__(
        self,
        message_id: str,
        transaction_id: str | None,
        message_queue: Any,
        offset: int,
        recall_handle: str | None = None,
    ) -> None:
        self.message_id = message_id
        self.transaction_id = transaction_id
        self.message_queue = message_queue
        self.offset = offset
        self.recall_handle = recall_handle

    def __str__(self) -> str:
        return f"message_id:{self.message_id}"


def _given(name: str, value: str) -> str:
    if not value or not value.strip():
        raise IllegalArgumentException(f"{name} should not be blank.")
    return value


class Message:
    """A message: for a send once `topic` and `body` are set, or a received one."""

    def __init__(self) -> None:
        self._body: bytes | None = None
        self._topic: str | None = None
        self._tag: str | None = None
        self._keys: set[str] = set()
        self._properties: dict[str, str] = {}
        # Only one of these can be set.
        self._kinds: dict[str, Any] = dict.fromkeys(
            ("message_group", "delivery_timestamp", "lite_topic", "priority"), None
        )
        self.message_id: str | None = None
        self.born_host: str | None = None
        self.born_timestamp: int | None = None
        self.delivery_attempt: int | None = None
        self.receipt_handle: str | None = None
        self.namespace: str | None = None
        self.corrupted = False

    @classmethod
    def _of_draft(cls, draft: Draft) -> Message:
        message = cls()
        message._topic, message._body, message._tag = draft.topic, draft.body, draft.tag
        message._keys, message._properties = set(draft.keys), dict(draft.properties)
        message._kinds["message_group"] = draft.message_group
        message.message_id, message.born_timestamp = draft.message_id, draft.born_timestamp
        return message

    @classmethod
    def _of_held(cls, held: Held) -> Message:
        stored, message = held.message, cls()
        message._topic, message._body, message._tag = stored.topic, stored.body, stored.tags
        message._keys, message._properties = set(stored.keys), own_properties(stored)
        message._kinds["message_group"] = held.message_group
        message.message_id = stored.unique_id or stored.message_id
        message.born_host, message.born_timestamp = stored.born_host, stored.born_timestamp
        message.delivery_attempt, message.receipt_handle = held.attempts, held.handle
        message.namespace = ""
        return message

    @property
    def body(self) -> bytes | None:
        """Body; not empty."""
        return self._body

    @body.setter
    def body(self, body: bytes) -> None:
        if not body:
            raise IllegalArgumentException("body should not be blank.")
        self._body = body

    @property
    def topic(self) -> str | None:
        """Name of the topic."""
        return self._topic

    @topic.setter
    def topic(self, topic: str) -> None:
        if not topic or not topic.strip():
            raise IllegalArgumentException("topic has not been set yet.")
        if not _TOPIC.match(topic):
            raise IllegalArgumentException(f"topic does not match the regex [regex={_TOPIC.pattern}].")
        self._topic = topic

    @property
    def tag(self) -> str | None:
        """Tag for filters."""
        return self._tag

    @tag.setter
    def tag(self, tag: str) -> None:
        if "|" in _given("tag", tag):
            raise IllegalArgumentException('tag should not contain "|".')
        self._tag = tag

    @property
    def keys(self) -> set[str]:
        """Keys. An assignment adds one key, as in the client."""
        return self._keys

    @keys.setter
    def keys(self, key: str) -> None:
        self._keys.add(_given("key", key))

    @property
    def properties(self) -> dict[str, str]:
        """Properties that the sender set by name; see `add_property`."""
        return self._properties

    def add_property(self, key: str, value: str) -> None:
        """Adds a property."""
        self._properties[_given("key", key)] = _given("value", value)

    @property
    def message_group(self) -> str | None:
        """Message group; its messages are consumed in order, one at a time."""
        return cast("str | None", self._kinds["message_group"])

    @message_group.setter
    def message_group(self, message_group: str) -> None:
        self._set("message_group", _given("message_group", message_group))

    @property
    def delivery_timestamp(self) -> int | None:
        """Delivery time in epoch seconds, as the client sends it."""
        return cast("int | None", self._kinds["delivery_timestamp"])

    @delivery_timestamp.setter
    def delivery_timestamp(self, delivery_timestamp: int) -> None:
        self._set("delivery_timestamp", delivery_timestamp)

    @property
    def lite_topic(self) -> str | None:
        """Lite topic; the stand-ins refuse to send it."""
        return cast("str | None", self._kinds["lite_topic"])

    @lite_topic.setter
    def lite_topic(self, lite_topic: str) -> None:
        self._set("lite_topic", _given("lite_topic", lite_topic))

    @property
    def priority(self) -> int | None:
        """Priority; the stand-ins refuse to send it."""
        return cast("int | None", self._kinds["priority"])

    @priority.setter
    def priority(self, priority: int) -> None:
        if priority < 0:
            raise IllegalArgumentException("priority must be greater than or equal to 0.")
        self._set("priority", priority)

    def _set(self, name: str, value: Any) -> None:
        for other, present in self._kinds.items():
            if other != name and present:
                raise IllegalArgumentException(f"{name} and {other} should not be set at same time.")
        self._kinds[name] = value

    def __str__(self) -> str:
        return f"topic:{self.topic}, tag:{self.tag}, keys:{self.keys}, properties:{self.properties}"


for _thing in (FilterType, FilterExpression, SendReceipt, Message):
    _thing.__module__ = "mqstore.testing.rocketmq"
