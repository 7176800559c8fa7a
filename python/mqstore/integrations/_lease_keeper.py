"""Leases of the messages that a worker of this process has, extended until the worker finishes them.

A task can take longer than the visibility timeout. So one thread extends the leases three times in this time. If the
process dies, the thread dies too, and the messages are redelivered when the visibility timeout is over.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from mqstore.errors import ForkedProcessError, LeaseLostError, ShutDown, StoreClosedError

if TYPE_CHECKING:
    from mqstore import LeasedMessage, Store, WorkQueue

logger = logging.getLogger("mqstore")

# Extensions of a lease in one visibility timeout.
_EXTENSIONS = 3

# Bytes of UTF-8 that a dead letter keeps of its reason.
_REASON_BYTES = 1024


class LeaseKeeper:
    """Extends, finishes and returns leased messages. Its thread starts with the first message."""

    def __init__(self, name: str, visibility_timeout: float) -> None:
        """Starts nothing yet.

        Args:
            name: name of the thread.
            visibility_timeout: time until which each extension moves the end of a lease, in seconds.
        """
        self._name = name
        self._timeout = visibility_timeout
        self._lock = threading.Lock()
        self._held: dict[int, LeasedMessage] = {}
        self._ended = threading.Event()
        self._pid: int | None = None

    def hold(self, message: LeasedMessage) -> None:
        """Extends the lease of a message from now on."""
        with self._lock:
            # A child of a fork has no thread yet, and the leases of the parent are not its own.
            if self._pid != os.getpid():
                self._held = {}
                self._pid = os.getpid()
                self._ended = threading.Event()
                threading.Thread(target=self._run, args=(self._ended,), name=self._name, daemon=True).start()
            self._held[id(message)] = message

    def finish(self, message: LeasedMessage) -> None:
        """Acknowledges a message. A lost lease is logged, because the work is done."""
        self._held.pop(id(message), None)
        try:
            message.ack()
        except LeaseLostError:
            logger.warning("%s: another worker has the message %s, too", self._name, message.message_id)

    def give_back(self, message: LeasedMessage, delay: float = 0) -> None:
        """Returns a message to its queue, for a redelivery after `delay` seconds."""
        self._held.pop(id(message), None)
        try:
            message.nack(delay)
        except (LeaseLostError, StoreClosedError):
            # The message is redelivered, or it is already.
            logger.debug("%s: the message %s was not returned", self._name, message.message_id, exc_info=True)

    def bury(self, message: LeasedMessage, store: Store, queue: WorkQueue, reason: str) -> None:
        """Makes a message a dead letter of its queue, whatever its number of deliveries.

        The dead letter is appended before the message is acknowledged. So a kill between the two steps leaves both.
        """
        store.append(
            queue.dead_letters,
            message.body,
            keys=message.keys,
            tags=message.tags,
            properties={"mqstore.reason": reason.encode()[:_REASON_BYTES].decode(errors="ignore")},
        )
        self.finish(message)

    def close(self) -> None:
        """Ends the extensions. Messages that are still held are redelivered when their leases end."""
        with self._lock:
            self._ended.set()
            self._held.clear()
            self._pid = None

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self._timeout / _EXTENSIONS):
            for message in list(self._held.values()):
                try:
                    message.extend(self._timeout)
                except LeaseLostError:
                    # No loss if the message was finished meanwhile.
                    if self._held.pop(id(message), None) is not None:
                        logger.warning("%s: the lease of the message %s is lost", self._name, message.message_id)
                except (ForkedProcessError, ShutDown, StoreClosedError):
                    return
                except Exception:
                    logger.exception("%s: the lease of the message %s was not extended", self._name, message.message_id)
