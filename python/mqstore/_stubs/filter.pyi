"""What the native module has for filters; a part of the stub `_mqstore.pyi`."""

from collections.abc import Mapping
from typing import Any, Self, final

from mqstore._message import Message
from mqstore._mqstore import StoredMessage

__all__ = ["SqlFilter"]

@final
class SqlFilter:
    """A condition on the properties of messages, in RocketMQ's SQL92; made by `mqstore.sql`.

    Frozen, equal by its text, picklable.
    """

    def __new__(cls, expression: str, /) -> Self: ...
    @property
    def expression(self) -> str:
        """The text."""
    @property
    def properties(self) -> tuple[str, ...]:
        """The names of the properties that it reads, sorted."""
    @property
    def ignored(self) -> str | None:
        """What follows the condition and is ignored, as RocketMQ ignores it; None where nothing does."""
    def explain(self) -> str:
        """What it means in plain words: a line for each condition, with what the properties in it are read as."""
    def matches(self, properties: Mapping[str, str] | StoredMessage | Message) -> bool:
        """Whether a message matches.

        Args:
            properties: a mapping of str to str, or a `StoredMessage` or `Message`, whose keys and tags count as
                the properties `KEYS` and `TAGS`.
        """
    def evaluate(self, properties: Mapping[str, str] | StoredMessage | Message) -> bool | None:
        """What a message comes to: True, False, or None where that is unknown. Only True matches.

        Args:
            properties: as for `matches`.

        Raises:
            ValueError: a property cannot be read as what it is compared with; such a message does not match.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
