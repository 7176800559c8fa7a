"""Stubs of the native module for messages to append; a part of `_mqstore.pyi`."""

from collections.abc import Mapping
from typing import Any, Self

from typing_extensions import disjoint_base

from mqstore.types import BytesLike, Keys, Properties, Time

@disjoint_base
class Message:
    """A message to append: frozen, equal by value, picklable.

    Args:
        body: any bytes-like object; its bytes are copied.
        json: a value whose JSON is the body, in UTF-8 without blanks; give it instead of `body`.
        keys: one key or several; a key contains no space.
        tags: tag for filters.
        properties: your own properties. `append` refuses RocketMQ's reserved names, except `UNIQ_KEY`, which replaces
            the generated unique id.
        flag: number of your application, 32 bits.
        born_timestamp: time of creation; None is the time of the append.

    Raises:
        TypeError: an argument has the wrong type, for example a `str` as body.
    """

    __match_args__ = ("body", "keys", "tags", "properties", "flag", "born_timestamp")
    def __new__(
        cls,
        body: BytesLike | None = None,
        *,
        json: object = None,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        flag: int = 0,
        born_timestamp: Time | None = None,
    ) -> Self: ...
    @property
    def body(self) -> bytes:
        """The body."""
    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order given."""
    @property
    def tags(self) -> str | None:
        """Tag, or None."""
    @property
    def properties(self) -> Mapping[str, str]:
        """The message's own properties, read-only."""
    @property
    def flag(self) -> int:
        """The application's 32-bit number."""
    @property
    def born_timestamp(self) -> int | None:
        """The time of creation in epoch milliseconds; None is the time of the append."""
    def __replace__(self, **changes: Any) -> Self: ...
