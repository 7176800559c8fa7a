"""Stubs of the native module for filters; a part of `_mqstore.pyi`."""

from collections.abc import Mapping
from typing import Self, final

from mqstore._mqstore import StoredMessage
from mqstore._stubs.message import Message

@final
class SqlFilter:
    """A condition on the properties of messages, in RocketMQ's SQL92; created by `mqstore.sql`.

    Frozen, equal by its text, picklable.
    """

    def __new__(cls, expression: str, /) -> Self: ...
    @property
    def expression(self) -> str:
        """The text of the condition."""
    @property
    def properties(self) -> tuple[str, ...]:
        """The names of the properties that the condition reads, sorted."""
    @property
    def ignored(self) -> str | None:
        """The text after the condition, which is ignored as in RocketMQ; None if there is none."""
    def explain(self) -> str:
        """Explains the condition in words.

        One line for each comparison, with the type that its properties are read as.
        """
    def matches(self, properties: Mapping[str, str] | StoredMessage | Message) -> bool:
        """Returns whether a message matches.

        Args:
            properties: a mapping of str to str, or a `StoredMessage` or `Message`. The keys and tags of a message count
                as the properties `KEYS` and `TAGS`.
        """
    def evaluate(self, properties: Mapping[str, str] | StoredMessage | Message) -> bool | None:
        """Evaluates the condition for a message: True, False, or None if the result is unknown. Only True matches.

        Args:
            properties: as for `matches`.

        Raises:
            ValueError: a property cannot be read as the type that it is compared with; such a message does not match.
        """
