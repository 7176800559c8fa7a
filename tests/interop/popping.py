"""An official client that takes messages and does not finish all of them."""

from __future__ import annotations

from .driver import JavaClient
from .java_rows import JavaMessage


class PoppingClient(JavaClient):
    """A `JavaClient` that can pop and refuse."""

    def pop(
        self, group: str, topic: str, count: int, *, ack: int, invisible: float, seconds: int = 60
    ) -> list[JavaMessage]:
        """Pop this many messages for `invisible` seconds, and acknowledge the first `ack` of them."""
        times = {"invisible_ms": round(1000 * invisible), "seconds": seconds}
        rows, _ = self._act("pop", group=group, topic=topic, count=count, ack=ack, **times)
        return [JavaMessage.from_row(row["message"]) for row in rows]

    def refuse(self, group: str, topic: str, count: int, seconds: int = 60) -> None:
        """Refuse this many messages as a member of a group, and wait until they are in its retry topic."""
        self._act("refuse", group=group, topic=topic, count=count, seconds=seconds)

    def await_messages(self, topic: str, count: int, seconds: int = 60) -> None:
        """Wait until a topic has had this many messages."""
        self._act("await", topic=topic, count=count, seconds=seconds)
